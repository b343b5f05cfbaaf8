"""Preprocessing of images, and its description in the model file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from retrieval.errors import InputError
from retrieval.images.resampling import INTERPOLATIONS, Box, resample, resample_by_pillow

_FITS = ("crop", "squeeze", "pad")
_MAX_ASPECT = 8  # aspect ratio above which `whole` crops


@dataclasses.dataclass(frozen=True)
class Preprocess:
    """Scale the shorter side (both with "squeeze", the longer one with "pad") to `resize`, and crop the
    central `size` x `size` square.

    Args:
        size: Side of the model's square input, in pixels.
        resize: Length of that side before the crop, in pixels; `None` for `size`.
        fit: "crop" keeps the aspect ratio and crops the centre; "squeeze" scales the full image to a square;
            "pad" keeps the aspect ratio and fills the square with the mean colour.
        interpolation: "bilinear" or "bicubic", both antialiased.
        mean: Mean of each RGB channel, for values in 0..1. The model's graph applies mean and std; they are
            part of this description only.
        std: Standard deviation of each RGB channel, above 0.

    Raises:
        InputError: A value is out of range or unknown.
    """

    size: int = 224
    resize: int | None = None
    fit: str = "crop"
    interpolation: str = "bicubic"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        if self.size < 1 or self.scaled < self.size:
            raise InputError(
                f"preprocess: must have 1 <= size <= resize, got size {self.size}, resize {self.resize}"
            )
        for name, known in (("interpolation", INTERPOLATIONS), ("fit", _FITS)):
            if getattr(self, name) not in known:
                raise InputError(
                    f"preprocess: {name} must be {' or '.join(known)}, got {getattr(self, name)!r}"
                )
        for name in ("mean", "std"):
            values = tuple(float(v) for v in getattr(self, name))
            if (
                len(values) != 3
                or not all(map(math.isfinite, values))
                or (name == "std" and min(values) <= 0)
            ):
                raise InputError(
                    f"preprocess: {name} must be three finite numbers (std above 0), got {values}"
                )
            object.__setattr__(self, name, values)

    @property
    def scaled(self) -> int:
        """Length of the shorter side before the crop, in pixels."""
        return self.size if self.resize is None else self.resize

    def __call__(self, image: Image.Image | np.ndarray) -> np.ndarray:
        """Return an upright RGB image, Pillow's or uint8 [H, W, 3], as model input, uint8 [size, size, 3]."""
        pixels = np.asarray(image)
        if self.fit == "pad":
            margin = (self.scaled - self.size) // 2
            return self._padded(pixels)[margin : margin + self.size, margin : margin + self.size]
        # Resampling only the box that survives the crop gives the same pixels with less work.
        return self._resized(pixels, self._seen(*_size(pixels)), (self.size, self.size))

    def tile(self, image: np.ndarray, box: Box) -> np.ndarray:
        """Return a square part of an image as model input, without a crop, uint8 [size, size, 3].

        Args:
            image: Upright RGB image, uint8 [H, W, 3].
            box: Left, top, right and bottom of the part, as fractions of the image's width and height.
        """
        width, height = _size(image)
        pixels = box[0] * width, box[1] * height, box[2] * width, box[3] * height
        return self._resample(image, pixels, (self.size, self.size))

    def box(self, width: int, height: int) -> Box:
        """Return the box of an image that the model sees, as fractions of its width and height.

        It is in the centre; with "pad" it reaches beyond the image, to below 0 and above 1.
        """
        across, down = self._seen(width, height)
        of_width, of_height = across / width, down / height
        return (1 - of_width) / 2, (1 - of_height) / 2, (1 + of_width) / 2, (1 + of_height) / 2

    def _seen(self, width: int, height: int) -> tuple[float, float]:
        """Return width and height of what becomes the model's input, in pixels of the image."""
        sides = {"crop": 2 * (min(width, height),), "pad": 2 * (max(width, height),)}
        across, down = sides.get(self.fit, (width, height))
        return across * self.size / self.scaled, down * self.size / self.scaled

    def whole(self, image: Image.Image | np.ndarray) -> np.ndarray:
        """Return the full image without the crop, uint8 [h, w, 3], with a shorter side of `scaled` pixels.

        Strips are cropped to an aspect ratio of 8: an image one pixel wide would become too large.
        """
        pixels = np.asarray(image)
        if self.fit == "squeeze":
            return self._resized(pixels, _size(pixels), (self.scaled, self.scaled))
        if self.fit == "pad":
            return self._padded(pixels)
        shorter = min(_size(pixels))
        width, height = (min(side, _MAX_ASPECT * shorter) for side in _size(pixels))
        shape = (round(width * self.scaled / shorter), round(height * self.scaled / shorter))
        return self._resized(pixels, (width, height), shape)

    def _resized(self, pixels: np.ndarray, part: tuple[float, float], shape: tuple[int, int]) -> np.ndarray:
        """Return the centre of an image, of `part` = (width, height), resampled to `shape`."""
        left, top = ((whole - side) / 2 for whole, side in zip(_size(pixels), part, strict=True))
        return self._resample(pixels, (left, top, left + part[0], top + part[1]), shape)

    def _resample(self, pixels: np.ndarray, box: Box, shape: tuple[int, int]) -> np.ndarray:
        return resample(pixels, box, shape, self.interpolation)

    def _padded(self, pixels: np.ndarray) -> np.ndarray:
        """Return a full image in the centre of a square of the mean colour, uint8 [scaled, scaled, 3]."""
        width, height = (max(1, round(side * self.scaled / max(_size(pixels)))) for side in _size(pixels))
        left, top = (self.scaled - width) // 2, (self.scaled - height) // 2
        square = np.full((self.scaled, self.scaled, 3), [round(255 * value) for value in self.mean], np.uint8)
        part = self._resized(pixels, _size(pixels), (width, height))
        square[top : top + height, left : left + width] = part
        return square

    def of_policy(self, policy: int) -> Preprocess:
        """Return this preprocessing with the scaling of a decoding policy, see `retrieval.images.load`."""
        return (Preprocess if policy >= 3 else _PreprocessByPillow).from_dict(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return numbers, lists and strings for JSON and YAML."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocess:
        """Inverse of `to_dict`; raise an `InputError` for an unknown key."""
        unknown = set(values) - {f.name for f in dataclasses.fields(cls)}
        if unknown:
            raise InputError(f"preprocess: unknown key {sorted(unknown)[0]!r}")
        return cls(**values)


class _PreprocessByPillow(Preprocess):
    """Preprocessing of decoding policies 1 and 2."""

    def _resample(self, pixels: np.ndarray, box: Box, shape: tuple[int, int]) -> np.ndarray:
        return resample_by_pillow(pixels, box, shape, self.interpolation)


def _size(pixels: np.ndarray) -> tuple[int, int]:
    """Return (width, height) of an image, uint8 [H, W, 3]."""
    return pixels.shape[1], pixels.shape[0]
