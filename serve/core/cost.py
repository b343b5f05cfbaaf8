"""Cost of a request that its number does not tell: the pixels that it makes the server decode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Cost:
    """Cost of one request so far.

    Attributes:
        pixels: Pixels of the images that were decoded, at the size they were decoded at.
    """

    pixels: int = 0


_cost: ContextVar[Cost | None] = ContextVar("cost", default=None)


@contextmanager
def measured_cost() -> Iterator[Cost]:
    """Measure the cost of a request, which this block answers; threads need a copy of its context."""
    found = Cost()
    token = _cost.set(found)
    try:
        yield found
    finally:
        _cost.reset(token)


def add_pixels(count: int) -> None:
    """Add pixels to the cost of the present request, if it is measured."""
    cost = _cost.get()
    if cost is not None:
        cost.pixels += count
