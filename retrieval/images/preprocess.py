"""The one preprocessing function, and the description of it that travels inside the model file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from retrieval.errors import InputError

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_FITS = ("crop", "squeeze")
_STRIP = 8  # a picture so many times as long as it is wide is not kept whole


@dataclasses.dataclass(frozen=True)
class Preprocess:
    """Scale the shorter side (or, squeezed, both) to `resize`, take the central `size` x `size` square.

    Args:
        size: side of the square that the model sees, in pixels.
        resize: length of the shorter side before the crop, in pixels; null: `size` (no margin).
        fit: "crop" keeps proportions, and of a long picture the middle; "squeeze" makes all of it a square.
        interpolation: "bilinear" or "bicubic"; both are antialiased.
        mean, std: per RGB channel, of values in 0..1. The model applies them itself; they are kept here
            because they belong to the same description.
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
                f"preprocess: need 1 <= size <= resize, got size {self.size}, resize {self.resize}"
            )
        for name, known in (("interpolation", tuple(_FILTERS)), ("fit", _FITS)):
            if getattr(self, name) not in known:
                raise InputError(f"preprocess: {name} is {' or '.join(known)}, not {getattr(self, name)!r}")
        for name in ("mean", "std"):
            values = tuple(float(v) for v in getattr(self, name))
            if (
                len(values) != 3
                or not all(map(math.isfinite, values))
                or (name == "std" and min(values) <= 0)
            ):
                raise InputError(f"preprocess: {name} needs three finite numbers (std above 0), got {values}")
            object.__setattr__(self, name, values)

    @property
    def scaled(self) -> int:
        """Length of the shorter side before the crop, in pixels."""
        return self.size if self.resize is None else self.resize

    def __call__(self, image: Image.Image) -> np.ndarray:
        """An upright RGB image -> uint8 [size, size, 3]."""
        # Resizing only the part that survives the crop is the same resampling with less work.
        sides = image.size if self.fit == "squeeze" else 2 * (min(image.size),)
        width, height = (side * self.size / self.scaled for side in sides)
        return self._resized(image, (width, height), (self.size, self.size))

    def whole(self, image: Image.Image) -> np.ndarray:
        """An upright RGB image -> all of it, uint8 [h, w, 3]; the shorter side (or both) is `scaled` pixels.

        Of a strip, the middle part: a picture one pixel wide would become as long as memory.
        """
        if self.fit == "squeeze":
            return self._resized(image, image.size, (self.scaled, self.scaled))
        shorter = min(image.size)
        width, height = (min(side, _STRIP * shorter) for side in image.size)
        shape = (round(width * self.scaled / shorter), round(height * self.scaled / shorter))
        return self._resized(image, (width, height), shape)

    def _resized(self, image: Image.Image, part: tuple[float, float], shape: tuple[int, int]) -> np.ndarray:
        """The middle of an image, of `part` (width, height), resampled to `shape`."""
        left, top = ((whole - side) / 2 for whole, side in zip(image.size, part, strict=True))
        box = (left, top, left + part[0], top + part[1])
        return np.asarray(image.resize(shape, _FILTERS[self.interpolation], box=box))

    def to_dict(self) -> dict[str, Any]:
        """For JSON and YAML: plain numbers, lists and strings."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocess:
        """The inverse of `to_dict`; an `InputError` names a key that this version does not know."""
        unknown = set(values) - {f.name for f in dataclasses.fields(cls)}
        if unknown:
            raise InputError(f"preprocess: unknown key {sorted(unknown)[0]!r}")
        return cls(**values)
