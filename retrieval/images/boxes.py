"""Boxes: parts of pictures that are images of their own.

The path of a part is that of its picture with a media fragment behind it (W3C Media Fragments): in pixels,
room.jpg#xywh=10,20,300,200, or in percent of width and height, room.jpg#xywh=percent:2.5,4,30,40. They are
left, top, width and height in the upright picture. So whatever keeps the path of an image keeps its box.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from retrieval.images.resampling import Box

MARK = "#xywh="
COLUMNS = ("box_x", "box_y", "box_width", "box_height")  # of a table
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_FRAGMENT = re.compile(rf"{MARK}(percent:)?({_NUMBER}(?:,{_NUMBER}){{3}})")
_PERCENT = "percent:"
_LEAST = 2  # pixels of a side
_BEYOND = 0.5  # pixels that a box may reach beyond its picture, by rounding


class PartBox(NamedTuple):
    """A box in a picture.

    Attributes:
        left, top, width, height: In pixels of the upright picture, or as fractions of its width and height.
        in_pixels: Which of the two.
    """

    left: float
    top: float
    width: float
    height: float
    in_pixels: bool

    @classmethod
    def of_values(cls, values: Sequence[float]) -> PartBox:
        """Return a box of a table: as fractions if all four numbers are at most 1, else in pixels.

        Raises:
            ValueError: It is empty, or begins or ends outside of every picture.
        """
        left, top, width, height = values
        box = cls(left, top, width, height, max(values) > 1)
        # Written so that NaN, for which every comparison is false, is refused as well.
        if not (left >= 0 and top >= 0 and max(values) < float("inf")):
            raise ValueError("begins outside the picture")
        if not (width > 0 and height > 0):
            raise ValueError("is empty")
        if not box.in_pixels and not (left + width <= 1 + 1e-6 and top + height <= 1 + 1e-6):
            raise ValueError("reaches beyond the picture")
        return box

    @classmethod
    def of_fractions(cls, box: Sequence[float]) -> PartBox:
        """Return the box of left, top, right and bottom, as fractions."""
        left, top, right, bottom = box
        return cls(left, top, right - left, bottom - top, False)

    @property
    def fragment(self) -> str:
        """Text behind the path of the picture."""
        unit, factor, digits = ("", 1, 2) if self.in_pixels else (_PERCENT, 100, 4)
        return MARK + unit + ",".join(f"{round(factor * value, digits):.10g}" for value in self[:4])

    def within(self, width: int, height: int) -> Box:
        """Return left, top, right and bottom as fractions of a picture of a size in pixels.

        Raises:
            ValueError: The box reaches beyond the picture, or has a side of less than 2 pixels.
        """
        across, down = (1, 1) if self.in_pixels else (width, height)
        left, top = self.left * across, self.top * down
        right, bottom = left + self.width * across, top + self.height * down
        if right > width + _BEYOND or bottom > height + _BEYOND:
            raise ValueError(f"reaches beyond the picture of {width} x {height} pixels")
        if min(right - left, bottom - top) < _LEAST - 1e-6:
            raise ValueError(f"has less than {_LEAST} x {_LEAST} of the {width} x {height} pixels")
        return left / width, top / height, min(1.0, right / width), min(1.0, bottom / height)


def split(path: str) -> tuple[str, str]:
    """Return the path of a picture and the fragment behind it, which is empty if there is none."""
    at = path.rfind(MARK)
    return (path[:at], path[at:]) if at > 0 and _FRAGMENT.fullmatch(path, at) else (path, "")


@lru_cache(4096)
def parse(fragment: str) -> PartBox | None:
    """Return the box of a fragment as `split` returns it; `None` for an empty one."""
    found = _FRAGMENT.fullmatch(fragment)
    if found is None:
        return None
    factor = 0.01 if found[1] else 1.0
    left, top, width, height = (factor * float(number) for number in found[2].split(","))
    return PartBox(left, top, width, height, not found[1])
