"""Thumbnails: size, sharpness and absence of metadata."""

import io

import numpy as np
import pytest
from PIL import Image

from serve.core.thumbnails import MAX_SIDE, MISSING, encode, shrink
from tests.conftest import draw


def _decoded(image: Image.Image) -> Image.Image:
    return Image.open(io.BytesIO(encode(image).data))


@pytest.mark.parametrize(
    ("size", "expected"), [((2000, 1000), (512, 256)), ((100, 300), (100, 300)), ((1, 5000), (1, 512))]
)
def test_large_images_shrink_and_others_keep_their_size(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert _decoded(draw(0, size)).size == expected
    assert max(expected) <= MAX_SIDE


@pytest.mark.parametrize("size", [(8, 8), (64, 48), (1, 1), (5, 33)])
def test_tiny_images_are_enlarged_by_a_whole_factor(size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), np.uint8)
    shown = np.asarray(_decoded(Image.fromarray(pixels)).convert("RGB"))
    factor = 256 // max(size)
    assert np.array_equal(shown, pixels.repeat(factor, 0).repeat(factor, 1))


def test_shrinking_does_not_modify_the_image() -> None:
    image = draw(0, (2000, 1000))
    shrink(image)
    assert image.size == (2000, 1000)


def test_thumbnail_has_no_metadata() -> None:
    exif = Image.Exif()
    exif[0x010F] = "SecretCamera"
    exif.get_ifd(0x8825)[1] = "N"  # a GPS position
    buffer = io.BytesIO()
    draw(0, (600, 400)).save(buffer, "JPEG", exif=exif, comment=b"SecretComment")
    original = Image.open(buffer)
    assert b"SecretCamera" in buffer.getvalue()
    assert original.getexif()
    data = encode(original).data
    assert b"Secret" not in data
    assert not Image.open(io.BytesIO(data)).getexif()


def test_placeholder_is_an_svg_without_script() -> None:
    assert MISSING.media_type == "image/svg+xml"
    assert MISSING.data.startswith(b"<svg")
    assert b"script" not in MISSING.data
