"""A part of a picture, to search with it alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from retrieval.errors import InputError
from retrieval.images.load import load_image

MIN_SIDE = 4  # pixels
_DIGITS = 4  # of a fraction in an address: a ten-thousandth is less than a pixel of most pictures


@dataclass(frozen=True)
class Region:
    """A rectangle, as fractions of the upright picture's width and height, from its upper left corner.

    Raises:
        InputError: it is empty, or reaches beyond the picture.
    """

    left: float
    top: float
    right: float
    bottom: float

    def __post_init__(self) -> None:
        # Written so that NaN, which compares with nothing, is refused as well.
        if not (0 <= self.left < self.right <= 1 and 0 <= self.top < self.bottom <= 1):
            raise InputError(
                "a region is left, top, right, bottom, as fractions of the picture from 0 to 1, "
                "with left < right and top < bottom"
            )

    @classmethod
    def of(cls, values: Sequence[float]) -> Region:
        """Four numbers as a region; an `InputError` where they are none."""
        try:
            left, top, right, bottom = map(float, values)
        except (TypeError, ValueError):
            raise InputError("a region is four numbers: left, top, right, bottom") from None
        return cls(left, top, right, bottom)

    def __str__(self) -> str:
        return ",".join(f"{round(value, _DIGITS):g}" for value in self.values)

    @property
    def values(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom."""
        return self.left, self.top, self.right, self.bottom

    def wanted(self, side: int) -> int:
        """What the whole picture's shorter side has to be for the region's to be `side`, in pixels."""
        return math.ceil(side / min(self.right - self.left, self.bottom - self.top))

    def cut(self, image: Image.Image) -> Image.Image:
        """The region of an upright picture, to the nearest pixel.

        Raises:
            InputError: it is smaller than 4 x 4 pixels.
        """
        width, height = image.size
        box = (
            round(self.left * width),
            round(self.top * height),
            round(self.right * width),
            round(self.bottom * height),
        )
        across, down = box[2] - box[0], box[3] - box[1]
        if min(across, down) < MIN_SIDE:
            raise InputError(
                f"the region is {across} x {down} pixels of a picture of {width} x {height}: "
                f"it takes {MIN_SIDE} x {MIN_SIDE} or more"
            )
        return image.crop(box)


def load_part(source: Path | bytes, region: Region | None, *, side: int | None = None) -> Image.Image:
    """Decode a picture, or a region of it, to 8-bit RGB, upright.

    Args:
        side: as for `retrieval.load_image`, of the region: a small region is taken from a picture
            that is decoded so much larger.

    Raises:
        ImageError: the picture cannot be read.
        InputError: the region is smaller than 4 x 4 pixels.
    """
    if region is None:
        return load_image(source, side=side)
    return region.cut(load_image(source, side=None if side is None else region.wanted(side)))
