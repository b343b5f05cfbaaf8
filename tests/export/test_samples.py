"""The pictures that a file is tried on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.samples import Pictures, sampled
from retrieval import InputError, Preprocess, load_image
from train.data import DataSet, LabelledImage

SMALL = Preprocess(size=16)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(30, 200))
def test_sample_is_bounded_and_of_whole_handfuls(sizes: list[int], limit: int) -> None:
    images = [LabelledImage(Path(f"{c}/{i}"), str(c)) for c, size in enumerate(sizes) for i in range(size)]
    chosen = sampled(images, limit)
    assert len(chosen) == len(set(chosen)) <= limit
    assert set(chosen) <= set(images)
    assert chosen == sampled(images, limit), "drawn by a fixed seed"
    if len(images) <= limit:
        assert chosen == images
        return
    # All classes drawn but the last have as many images as they can give, at least 20.
    counts = Counter(image.label for image in chosen)
    short = [label for label, count in counts.items() if count < min(20, sizes[int(label)])]
    assert len(short) <= 1


def test_calibration_is_on_training_images_alone(shop: Path) -> None:
    red, blue = (
        [LabelledImage(p, p.parent.name) for p in sorted((shop / c).iterdir())] for c in ("red", "blue")
    )
    pixels, words = Pictures(DataSet("shop", train=red, test=blue)).for_calibration(SMALL)
    assert words == "8 training images of shop"
    wanted = {SMALL(load_image(image.path)).tobytes() for image in red}
    assert {picture.tobytes() for picture in pixels} == wanted


def test_unreadable_images_are_passed_over(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    broken = LabelledImage(tmp_path / "broken.png", "red")
    good = LabelledImage(shop / "red" / "0.png", "red")
    pixels, _ = Pictures(DataSet("shop", train=[broken, good], test=[broken])).for_calibration(SMALL)
    assert len(pixels) == 1
    with pytest.raises(InputError, match="shop: none of its training images can be read"):
        Pictures(DataSet("shop", train=[broken], test=[broken])).for_calibration(SMALL)


def test_noise_only_where_nothing_else_is_there_or_wanted() -> None:
    with pytest.raises(InputError):
        Pictures.of("folder:/nowhere")
    pixels, words = Pictures.or_noise("folder:/nowhere").some(4, SMALL)
    assert words == "4 pictures of noise"
    np.testing.assert_array_equal(pixels, Pictures.of("noise").some(4, SMALL)[0])
    assert pixels.std() > 70, "uniform over 0..255: 73.9"
