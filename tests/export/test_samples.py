"""Sample images for checking and calibrating a model file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.samples import SampleImages, sample_by_class
from retrieval import InputError, Preprocess, load_image
from train.data import DataSet, LabelledImage

SMALL = Preprocess(size=16)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(30, 200))
def test_sample_is_bounded_and_has_several_images_per_class(sizes: list[int], limit: int) -> None:
    images = [LabelledImage(Path(f"{c}/{i}"), str(c)) for c, size in enumerate(sizes) for i in range(size)]
    chosen = sample_by_class(images, limit)
    assert len(chosen) == len(set(chosen)) <= limit
    assert set(chosen) <= set(images)
    assert chosen == sample_by_class(images, limit), "fixed seed"
    if len(images) <= limit:
        assert chosen == images
        return
    # All drawn classes but the last have 20 images, or all their images if they have fewer.
    counts = Counter(image.label for image in chosen)
    short = [label for label, count in counts.items() if count < min(20, sizes[int(label)])]
    assert len(short) <= 1


def test_calibration_uses_training_images_only(shop: Path) -> None:
    red, blue = (
        [LabelledImage(p, p.parent.name) for p in sorted((shop / c).iterdir())] for c in ("red", "blue")
    )
    pixels, description = SampleImages(DataSet("shop", train=red, test=blue)).calibration_pixels(SMALL)
    assert description == "8 training images of shop"
    expected = {SMALL(load_image(image.path)).tobytes() for image in red}
    assert {image.tobytes() for image in pixels} == expected


def test_unreadable_images_are_skipped(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"not an image")
    broken = LabelledImage(tmp_path / "broken.png", "red")
    good = LabelledImage(shop / "red" / "0.png", "red")
    pixels, _ = SampleImages(DataSet("shop", train=[broken, good], test=[broken])).calibration_pixels(SMALL)
    assert len(pixels) == 1
    with pytest.raises(InputError, match="shop: none of the training images can be read"):
        SampleImages(DataSet("shop", train=[broken], test=[broken])).calibration_pixels(SMALL)


def test_noise_replaces_a_missing_data_set_only_if_allowed() -> None:
    with pytest.raises(InputError):
        SampleImages.load("folder:/nowhere")
    pixels, description = SampleImages.load_or_noise("folder:/nowhere").sample_pixels(4, SMALL)
    assert description == "4 noise images"
    np.testing.assert_array_equal(pixels, SampleImages.load("noise").sample_pixels(4, SMALL)[0])
    assert pixels.std() > 70, "uniform over 0..255: 73.9"
