"""Resizing of training images."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from retrieval.images.preprocess import Preprocess
from train.config import Config

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Resize:
    """Resizing before augmentation.

    Attributes:
        preprocess: Target size and resampling.
        whole: Keep the whole image; otherwise only the central square of `preprocess`.
    """

    preprocess: Preprocess
    whole: bool = False

    def __call__(self, image: Image.Image | np.ndarray) -> np.ndarray:
        """Return an upright RGB image, Pillow's or uint8 [H, W, 3], as uint8 [h, w, 3]."""
        return self.preprocess.whole(image) if self.whole else self.preprocess(image)

    @property
    def fingerprint(self) -> list[object]:
        """Everything that the resized pixels depend on."""
        preprocess = self.preprocess
        size = None if self.whole else preprocess.size
        color = preprocess.mean if preprocess.fit == "pad" else ()
        return [size, preprocess.scaled, preprocess.fit, preprocess.interpolation, *color]


def training_resize(config: Config) -> Resize:
    """Return the resizing that precedes the random crop of training images."""
    side = config.augment.resize or config.preprocess.scaled
    whole = config.augment.crop != "center"
    size = config.preprocess.size if whole else side
    return Resize(dataclasses.replace(config.preprocess, size=size, resize=side), whole)


def scale(image: Tensor, shape: tuple[int, int], interpolation: str) -> Tensor:
    """Return an image uint8 [h, w, 3] scaled to `shape` = (height, width), antialiased."""
    import torch.nn.functional as F  # takes seconds; a process that only reads a cache does not need it

    # With this order of dimensions torch sees that the channels come last, and does not transpose them.
    scaled = F.interpolate(image[None].permute(0, 3, 1, 2), shape, mode=interpolation, antialias=True)
    return scaled.permute(0, 2, 3, 1)[0]
