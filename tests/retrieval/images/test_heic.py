"""HEIC files, with the optional decoder and without it."""

from __future__ import annotations

import struct
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest
from PIL import Image

from retrieval import ImageError, load_image
from retrieval.images import heic
from retrieval.images.load import begins_like_an_image, open_bytes
from tests.conftest import draw
from tests.retrieval.images.bombs import saved

_HEAD = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"


def encoded(image: Image.Image, **options: object) -> bytes:
    """Return an image as HEIC, or skip the test without a library that writes it."""
    pytest.importorskip("pillow_heif", reason="pillow-heif is not installed")
    assert heic.missing_decoder() is None
    return saved(image, heic.FORMAT, **options)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (_HEAD, True),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1heixmiaf", True),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf", False),
        (b"\0\0\0\x14ftypmif1\0\0\0\0mif1heic", False),  # beyond the end of the box
        (saved(draw(0), "AVIF"), False),
        (b"ftypheic", False),
        (b"", False),
    ],
)
def test_files_are_known_by_their_first_box(head: bytes, expected: bool) -> None:
    assert heic.is_heic(head) is expected


def test_pixels_are_those_that_were_saved() -> None:
    image = draw(3, (64, 48))
    content = encoded(image, quality=-1, chroma=444)
    found = np.asarray(load_image(content), np.int64)
    assert np.abs(found - np.asarray(image, np.int64)).mean() < 1
    assert begins_like_an_image(content[:16])
    opened = open_bytes(content, "photo.heic")
    assert (opened.upright_size, opened.suffix) == ((64, 48), ".heic")


def test_rotated_photograph_is_upright() -> None:
    """An orientation is stored as a rotation, which the decoder applies once."""
    exif = Image.Exif()
    exif[0x0112] = 6
    stored, upright = draw(3, (64, 48)), draw(3, (64, 48)).transpose(Image.Transpose.ROTATE_270)
    content = encoded(stored, quality=-1, chroma=444, exif=exif.tobytes())
    assert open_bytes(content, "photo.heic").upright_size == (48, 64)
    found = np.asarray(load_image(content), np.int64)
    assert np.abs(found - np.asarray(upright, np.int64)).mean() < 1


def test_transparency_and_limits_are_those_of_other_formats() -> None:
    clear = Image.new("RGBA", (64, 64), (200, 0, 0, 0))
    assert load_image(encoded(clear)).getpixel((30, 30)) == (255, 255, 255)
    with pytest.raises(ImageError, match="megapixels") as caught:
        load_image(encoded(draw(0, (64, 64))), max_pixels=4000)
    assert caught.value.reason == ImageError.TOO_LARGE


def test_image_larger_than_its_header_says_is_not_decoded() -> None:
    """The pixel limit is checked by the header, so the decoder has to hold the image to it."""
    content, stated = encoded(draw(0, (640, 480))), b"ispe" + bytes(4)
    at = content.index(stated) + len(stated)
    assert content[at : at + 8] == struct.pack(">II", 640, 480)
    with pytest.raises(ImageError, match="limit exceeded") as caught:
        load_image(content[:at] + struct.pack(">II", 64, 64) + content[at + 8 :])
    assert caught.value.reason == ImageError.DAMAGED


def test_embedded_thumbnail_is_not_used() -> None:
    image = draw(3, (256, 256))
    content = encoded(image, quality=-1, chroma=444, thumbnails=[128])
    assert load_image(content, side=32).size == (256, 256)


@pytest.mark.parametrize("cut", [32, 300, 0.5])
def test_damaged_files_are_refused(cut: float) -> None:
    content = encoded(draw(3, (64, 48)))
    with pytest.raises(ImageError) as caught:
        load_image(content[: int(cut * len(content) if cut < 1 else cut)])
    assert caught.value.reason in (ImageError.DAMAGED, ImageError.NOT_AN_IMAGE)


def test_missing_decoder_is_named() -> None:
    """In a process of its own, since another test may have let Pillow open HEIC."""
    code = (
        "import sys; sys.modules['pillow_heif'] = None\n"
        "from retrieval.images.load import begins_like_an_image, load_image\n"
        f"data = {_HEAD!r} + bytes(100)\n"
        "assert begins_like_an_image(data[:16])\n"
        "try: load_image(data)\n"
        "except Exception as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "image: HEIC needs pillow_heif: pip install 'lookalike[heic]'\n"


def test_versions_with_known_security_problems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pillow_heif", reason="pillow-heif is not installed")
    monkeypatch.setattr(metadata, "version", lambda _: "1.6.0")
    assert "1.6.0 has known security problems" in str(heic.missing_decoder.__wrapped__())
    monkeypatch.setattr(metadata, "version", lambda _: "1.10.0")
    assert heic.missing_decoder.__wrapped__() is None
