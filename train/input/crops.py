"""Random crops: the window of each image, cut out by the loader's workers with values drawn per image."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.images.preprocess import Preprocess
from train.config import AugmentConfig
from train.input.resize import scale

_RATIOS = (3 / 4, 4 / 3)  # aspect ratios of a resized crop, width / height
_ATTEMPTS = 10  # draws of a window that fits, before the central one is taken


def cut(
    image: np.ndarray, config: AugmentConfig, preprocess: Preprocess, generator: torch.Generator
) -> Tensor:
    """Return the random crop of an image, uint8 [S, S, 3]; with `crop: center` the square image as it is.

    A window is cut on whole pixels. That of a resized crop is scaled here, with antialiasing: this takes
    0.13 ms for 224 pixels, and `grid_sample` on the device would alias a window larger than S. The values
    drawn are those of `RandomCrop` and `RandomResizedCrop` of torchvision with the same seed.

    Args:
        image: Decoded and resized image, uint8 [h, w, 3].
        config: Augmentation settings.
        preprocess: Preprocessing of the model; S is its size.
        generator: Random generator of this image.
    """
    pixels, size = torch.from_numpy(image), preprocess.size
    if config.crop == "random":
        return _random_window(_padded(pixels, config.padding), size, generator)
    if config.crop == "resized":
        window = _resized_window(pixels, config.min_area, generator)
        return scale(window, (size, size), preprocess.interpolation)
    return pixels


def _padded(image: Tensor, padding: int) -> Tensor:
    """Return an image with black pixels on each side."""
    return F.pad(image, (0, 0, padding, padding, padding, padding)) if padding else image


def _random_window(image: Tensor, size: int, generator: torch.Generator) -> Tensor:
    height, width, _ = image.shape
    top, left = (_integer(side - size, generator) if side > size else 0 for side in (height, width))
    return image[top : top + size, left : left + size]


def _resized_window(image: Tensor, min_area: float, generator: torch.Generator) -> Tensor:
    """Return a window of random area and aspect ratio; the largest central one if none of the draws fits."""
    height, width, _ = image.shape
    low, high = torch.tensor(_RATIOS).log().tolist()
    for _ in range(_ATTEMPTS):
        area = height * width * _uniform(min_area, 1.0, generator).item()
        ratio = _uniform(low, high, generator).exp().item()
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = _integer(height - h, generator), _integer(width - w, generator)
            return image[top : top + h, left : left + w]
    w, h = min(width, round(height * _RATIOS[1])), min(height, round(width / _RATIOS[0]))
    top, left = (height - h) // 2, (width - w) // 2
    return image[top : top + h, left : left + w]


def _uniform(low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.empty(1).uniform_(low, high, generator=generator)


def _integer(largest: int, generator: torch.Generator) -> int:
    return int(torch.randint(0, largest + 1, (), generator=generator))
