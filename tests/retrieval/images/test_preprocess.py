"""Tests of preprocessing against a direct resize and crop; JSON round trip of its description."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from retrieval import InputError, Preprocess
from tests.conftest import draw


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 40), st.integers(0, 20))
def test_any_image_becomes_a_square(width: int, height: int, size: int, margin: int) -> None:
    pixels = Preprocess(size=size, resize=size + margin)(Image.new("RGB", (width, height), (9, 99, 199)))
    assert pixels.shape == (size, size, 3)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, np.broadcast_to([9, 99, 199], pixels.shape))


def test_extreme_strips() -> None:
    for size in ((1, 4000), (4000, 1)):
        assert Preprocess(size=16)(Image.new("RGB", size)).shape == (16, 16, 3)


def test_equals_resize_and_crop_of_the_full_image() -> None:
    """With square images, for which the scaled size needs no rounding."""
    image = draw(5, (96, 96)).resize((120, 120), Image.Resampling.BICUBIC)
    ours = Preprocess(size=48, resize=60)(image).astype(int)
    whole = image.resize((60, 60), Image.Resampling.BICUBIC)
    theirs = np.asarray(whole.crop((6, 6, 54, 54))).astype(int)
    assert np.abs(ours - theirs).max() <= 1


@pytest.mark.parametrize("fit", ["crop", "squeeze", "pad"])
@pytest.mark.parametrize("shape", [(120, 40), (30, 90)])
def test_box_is_where_a_mark_in_the_image_is_found_in_the_pixels(fit: str, shape: tuple[int, int]) -> None:
    preprocess = Preprocess(size=100, resize=110, fit=fit)
    left, top, right, bottom = preprocess.box(*shape)
    across, down = shape[0] * 0.45, shape[1] * 0.52  # the corner of four quarters
    image = np.zeros((shape[1], shape[0], 3), np.uint8)
    image[: round(down), : round(across)] = 255
    image[round(down) :, round(across) :] = 255
    rows, columns = (
        np.abs(np.diff(preprocess(Image.fromarray(image)).astype(int)[..., 0], axis=axis)) for axis in (0, 1)
    )
    expected = [
        (round(down) / shape[1] - top) / (bottom - top),
        (round(across) / shape[0] - left) / (right - left),
    ]
    found = [1 + rows[:, 40:60].sum(1)[20:80].argmax() + 20, 1 + columns[40:60].sum(0)[20:80].argmax() + 20]
    np.testing.assert_allclose(found, 100 * np.array(expected), atol=2)


@pytest.mark.parametrize("shape", [(120, 40), (33, 90)])
def test_squeeze_scales_the_full_image_to_a_square(shape: tuple[int, int]) -> None:
    image = draw(5).resize(shape, Image.Resampling.BICUBIC)
    square = image.resize((60, 60), Image.Resampling.BICUBIC)
    squeezed = Preprocess(size=48, resize=60, fit="squeeze")
    np.testing.assert_array_equal(squeezed.of_policy(2).whole(image), np.asarray(square))
    theirs = np.asarray(square.crop((6, 6, 54, 54))).astype(int)
    assert np.abs(squeezed.of_policy(2)(image).astype(int) - theirs).max() <= 1
    assert np.abs(squeezed(image) - theirs).mean() <= 0.3


@pytest.mark.parametrize("shape", [(120, 40), (33, 90), (1, 500), (50, 50)])
def test_pad_keeps_the_full_image_and_its_proportions(shape: tuple[int, int]) -> None:
    padded = Preprocess(size=60, fit="pad", mean=(0.0, 1.0, 0.0))
    pixels = padded(Image.new("RGB", shape, (200, 100, 200)))
    rows, columns = np.nonzero((pixels == [200, 100, 200]).all(2))
    for count, side in ((np.ptp(columns) + 1, shape[0]), (np.ptp(rows) + 1, shape[1])):
        assert abs(count - max(1, 60 * side / max(shape))) <= 0.5
    assert len(rows) == (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
    others = pixels[(pixels != [200, 100, 200]).any(2)]
    assert (others == [0, 255, 0]).all()
    np.testing.assert_array_equal(padded.whole(Image.new("RGB", shape, (200, 100, 200))), pixels)


def test_resize_equal_to_size_crops_nothing_of_a_square() -> None:
    image = draw(2, (40, 40))
    np.testing.assert_array_equal(Preprocess(size=40)(image), np.asarray(image))


def test_crop_is_central() -> None:
    image = Image.new("RGB", (30, 10), "black")
    image.paste("white", (10, 0, 20, 10))
    assert Preprocess(size=10)(image).min() == 255


def test_json_round_trip() -> None:
    ours = Preprocess(
        size=96, resize=110, fit="squeeze", interpolation="bilinear", mean=(0.1, 0.2, 0.3), std=(1, 2, 3)
    )
    assert Preprocess.from_dict(json.loads(json.dumps(ours.to_dict()))) == ours


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"size": 9, "resize": 8},
        {"interpolation": "magic"},
        {"fit": "stretch"},
        {"std": (0.0, 1.0, 1.0)},
        {"mean": (1.0,)},
    ],
)
def test_invalid_values_are_rejected(wrong: dict) -> None:
    with pytest.raises(InputError, match="preprocess"):
        Preprocess(**wrong)


def test_unknown_key_is_rejected() -> None:
    with pytest.raises(InputError, match="colour"):
        Preprocess.from_dict({"size": 8, "colour": 1})
