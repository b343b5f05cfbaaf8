"""What leaves the server of a picture: its pixels, small, and nothing else."""

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
def test_large_pictures_shrink_and_others_keep_their_size(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert _decoded(draw(0, size)).size == expected
    assert max(expected) <= MAX_SIDE


@pytest.mark.parametrize("size", [(8, 8), (64, 48), (1, 1), (5, 33)])
def test_tiny_pictures_grow_by_a_whole_factor_and_stay_crisp(size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), np.uint8)
    shown = np.asarray(_decoded(Image.fromarray(pixels)).convert("RGB"))
    factor = 256 // max(size)
    assert np.array_equal(shown, pixels.repeat(factor, 0).repeat(factor, 1))


def test_shrinking_leaves_the_picture_itself_alone() -> None:
    image = draw(0, (2000, 1000))
    shrink(image)
    assert image.size == (2000, 1000)


def test_metadata_of_the_camera_stays_behind() -> None:
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


def test_the_tile_for_a_missing_file_is_a_picture_without_script() -> None:
    assert MISSING.media_type == "image/svg+xml"
    assert MISSING.data.startswith(b"<svg")
    assert b"script" not in MISSING.data
