"""Preprocessing against the evaluation transforms of timm and torchvision.

With "squeeze" and "pad" the pixels are theirs. With "crop" ours takes the centre exactly, where theirs round
the longer side and the corner of the crop to whole pixels: the pixels are the same where these are whole, and
otherwise ours are shifted by at most one pixel.
"""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from retrieval import Preprocess
from tests.conftest import draw

timm_data = pytest.importorskip("timm.data")
transforms = pytest.importorskip("torchvision.transforms.v2")

SHAPES = [(96, 96), (120, 40), (500, 375), (333, 517), (37, 61)]
SIZES = [(48, 48), (48, 60), (224, 256)]
CROP_MODES = {"crop": "center", "squeeze": "squash", "pad": "border"}


def timm_pixels(image: Image.Image, preprocess: Preprocess) -> np.ndarray:
    change = timm_data.create_transform(
        preprocess.size,
        interpolation=preprocess.interpolation,
        crop_pct=preprocess.size / preprocess.scaled,
        crop_mode=CROP_MODES[preprocess.fit],
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
    )
    return np.rint(255 * change(image).permute(1, 2, 0).numpy()).astype(int)


def torchvision_pixels(image: Image.Image, preprocess: Preprocess) -> np.ndarray:
    mode = transforms.InterpolationMode(preprocess.interpolation)
    change = [transforms.Resize(preprocess.scaled, mode), transforms.CenterCrop(preprocess.size)]
    return np.asarray(transforms.Compose(change)(image)).astype(int)


def whole_pixels(shape: tuple[int, int], preprocess: Preprocess) -> bool:
    """Return whether the longer side and both margins of the crop are whole numbers of pixels."""
    longer = max(shape) * preprocess.scaled / min(shape)
    margins = [(side - preprocess.size) / 2 for side in (longer, preprocess.scaled)]
    return all(value.is_integer() for value in (float(longer), *margins))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pixels(shape: tuple[int, int], interpolation: str) -> None:
    image = draw(5).resize(shape, Image.Resampling.BICUBIC)
    for size, resize in SIZES:
        for fit in CROP_MODES:
            preprocess = Preprocess(
                size=size, resize=resize, fit=fit, interpolation=interpolation, mean=(0.0, 0.0, 0.0)
            )
            ours = preprocess.of_policy(2)(image).astype(int)
            assert np.abs(preprocess(image) - ours).mean() <= 0.3
            peers = [timm_pixels(image, preprocess)]
            if fit == "crop":
                peers.append(torchvision_pixels(image, preprocess))
            for theirs in peers:
                if fit != "crop" or whole_pixels(shape, preprocess):
                    assert np.abs(ours - theirs).max() <= 1
                else:
                    shifts = np.abs(np.diff(theirs, axis=0)).mean() + np.abs(np.diff(theirs, axis=1)).mean()
                    assert np.abs(ours - theirs).mean() <= shifts
