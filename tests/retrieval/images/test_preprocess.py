"""Preprocessing against a direct resize and crop, and its description through JSON."""

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
def test_any_picture_becomes_the_square(width: int, height: int, size: int, margin: int) -> None:
    pixels = Preprocess(size=size, resize=size + margin)(Image.new("RGB", (width, height), (9, 99, 199)))
    assert pixels.shape == (size, size, 3)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, np.broadcast_to([9, 99, 199], pixels.shape))


def test_extreme_strips() -> None:
    for size in ((1, 4000), (4000, 1)):
        assert Preprocess(size=16)(Image.new("RGB", size)).shape == (16, 16, 3)


def test_same_as_resizing_everything_and_cropping() -> None:
    """Square pictures, where the two need no rounding of the scaled size."""
    picture = draw(5, (96, 96)).resize((120, 120), Image.Resampling.BICUBIC)
    ours = Preprocess(size=48, resize=60)(picture).astype(int)
    whole = picture.resize((60, 60), Image.Resampling.BICUBIC)
    theirs = np.asarray(whole.crop((6, 6, 54, 54))).astype(int)
    assert np.abs(ours - theirs).max() <= 1


@pytest.mark.parametrize("shape", [(120, 40), (33, 90)])
def test_squeezed_is_all_of_it_as_a_square_and_its_centre(shape: tuple[int, int]) -> None:
    picture = draw(5).resize(shape, Image.Resampling.BICUBIC)
    square = picture.resize((60, 60), Image.Resampling.BICUBIC)
    squeezed = Preprocess(size=48, resize=60, fit="squeeze")
    np.testing.assert_array_equal(squeezed.whole(picture), np.asarray(square))
    theirs = np.asarray(square.crop((6, 6, 54, 54))).astype(int)
    assert np.abs(squeezed(picture).astype(int) - theirs).max() <= 1


def test_without_margin_the_whole_square_is_kept() -> None:
    picture = draw(2, (40, 40))
    np.testing.assert_array_equal(Preprocess(size=40)(picture), np.asarray(picture))


def test_crop_is_central() -> None:
    picture = Image.new("RGB", (30, 10), "black")
    picture.paste("white", (10, 0, 20, 10))
    assert Preprocess(size=10)(picture).min() == 255


def test_description_survives_json() -> None:
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
def test_nonsense_is_refused(wrong: dict) -> None:
    with pytest.raises(InputError, match="preprocess"):
        Preprocess(**wrong)


def test_unknown_key_is_refused() -> None:
    with pytest.raises(InputError, match="colour"):
        Preprocess.from_dict({"size": 8, "colour": 1})
