"""Tests of scaling: the SIMD package against NumPy, and both against Pillow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_images

from retrieval import Preprocess
from retrieval.images import resampling

RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
interpolations = st.sampled_from(resampling.INTERPOLATIONS)
needs_simd = pytest.mark.skipif(resampling.simd is None, reason="cykooz-resizer has no wheel here")


def noise(width: int, height: int) -> np.ndarray:
    return np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)


@needs_simd
@given(*[st.integers(1, 90)] * 2, *[st.integers(1, 60)] * 2, st.integers(0, 30), interpolations)
def test_numpy_gives_the_pixels_of_the_package(
    width: int, height: int, across: int, down: int, margin: int, interpolation: str
) -> None:
    """Also for parts of small images, some of which the package must not get."""
    part = min(width, height) * across / (across + margin)
    box = ((width - part) / 2, (height - part) / 2, (width + part) / 2, (height + part) / 2)
    for one in (box, (0.0, 0.0, float(width), float(height))):
        found = resampling.resample(noise(width, height), one, (across, down), interpolation)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(resampling, "simd", None)
            expected = resampling.resample(noise(width, height), one, (across, down), interpolation)
        np.testing.assert_array_equal(found, expected)


@needs_simd
@pytest.mark.parametrize("size", [(500, 375), (640, 480), (375, 500), (1000, 750), (313, 259)])
def test_package_scales_common_photographs(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resampling, "_scale_in_numpy", None)
    assert Preprocess(size=224, resize=256)(noise(*size)).shape == (224, 224, 3)


@pytest.mark.parametrize("interpolation", resampling.INTERPOLATIONS)
@pytest.mark.parametrize("box", [(0, 0, 640, 427), (106.5, 0, 533.5, 427), (10.25, 3, 400, 420.75)])
@pytest.mark.parametrize("shape", [(224, 224), (300, 200), (700, 500), (7, 11)])
def test_photographs_are_almost_those_of_pillow(
    box: tuple[float, float, float, float], shape: tuple[int, int], interpolation: str
) -> None:
    for pixels in load_sample_images().images:
        expected = Image.fromarray(pixels).resize(shape, RESAMPLING[interpolation], box=box)
        difference = resampling.resample(pixels, box, shape, interpolation).astype(int) - np.asarray(expected)
        assert np.abs(difference).max() <= 12
        assert (np.abs(difference) > 2).mean() <= 0.001
        assert np.abs(difference).mean() <= 0.2
        assert np.abs(difference.mean()) <= 0.05, "no change of brightness"


@given(*[st.integers(1, 60)] * 3, st.integers(0, 20), interpolations)
def test_first_policies_keep_the_pixels_of_pillow(
    width: int, height: int, size: int, margin: int, interpolation: str
) -> None:
    image = Image.fromarray(noise(width, height))
    preprocess = Preprocess(size=size, resize=size + margin, interpolation=interpolation)
    part = 2 * (min(width, height) * size / (size + margin),)
    left, top = (width - part[0]) / 2, (height - part[1]) / 2
    box = (left, top, left + part[0], top + part[1])
    expected = np.asarray(image.resize((size, size), RESAMPLING[interpolation], box=box))
    for policy in (1, 2):
        np.testing.assert_array_equal(preprocess.of_policy(policy)(image), expected)
    assert preprocess.of_policy(3) == preprocess
    assert preprocess.of_policy(2).of_policy(3) == preprocess
    assert preprocess.of_policy(2).to_dict() == preprocess.to_dict()


@pytest.mark.parametrize("interpolation", resampling.INTERPOLATIONS)
def test_large_images_are_scaled_in_bands_to_the_pixels_of_pillow(
    interpolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resampling, "_LARGE", 1000)
    monkeypatch.setattr(resampling, "_BAND", 700)
    pixels = np.random.default_rng(0).integers(0, 256, (61, 97, 3), np.uint8)
    for box, shape in (((0, 0, 97, 61), (20, 13)), ((3.5, 10.25, 90.75, 41.5), (30, 50))):
        found = resampling.resample(pixels, box, shape, interpolation)
        image = Image.fromarray(pixels)
        expected = image.resize(shape, getattr(Image.Resampling, interpolation.upper()), box=box)
        np.testing.assert_array_equal(found, np.asarray(expected))
