"""Run sizes: how many images one run of the graph embeds, on a CPU and on an accelerator."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

_MEASURED = (1, 2, 4, 8, 16, 32)  # sizes from which the fastest on a CPU is taken
_USUAL = 8  # before they are measured
_GROUPS = 2  # groups of images measured per size
_MIN_GROUP = 16  # images of such a group, at least
MAX_PADDED = 256


class MeasuredSize:
    """Fastest number of images per run of the graph on a CPU, found while embedding, without extra runs.

    Each size embeds `_GROUPS` groups of images, in turn; the shortest time per image of each counts. Times
    are CPU times of the calling thread, which does its share of each run: like the wall time of an idle
    machine, but not disturbed by other processes and by decoding threads.

    Args:
        fixed: Use this number in place of the fastest.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._seconds: dict[int, list[float]] = {size: [] for size in _MEASURED}

    def choose(self, count: int) -> int:
        """Return the images per run for a group of `count` images."""
        if self._fixed is not None:
            return self._fixed
        if count >= _MIN_GROUP:
            fitting = [size for size in _MEASURED if size <= count]
            rarest = min(fitting, key=lambda size: len(self._seconds[size]))
            if len(self._seconds[rarest]) < _GROUPS:
                return rarest
        measured = {size: min(seconds) for size, seconds in self._seconds.items() if seconds}
        return min(measured, key=measured.__getitem__, default=_USUAL)

    def record(self, size: int, count: int, seconds: float) -> None:
        """Record the time of a group of `count` images."""
        if self._fixed is None and count >= max(_MIN_GROUP, size) and len(self._seconds[size]) < _GROUPS:
            self._seconds[size].append(seconds / count)


def padded_sizes(most: int) -> tuple[int, ...]:
    """Return the sizes of all runs on an accelerator, which prepares its kernels once for each size.

    Args:
        most: Most images per run.

    Returns:
        The powers of 2 below `most`, and `most`.
    """
    return (*(1 << power for power in range((most - 1).bit_length())), most)


def padded_runs(count: int, most: int) -> Iterator[tuple[slice, int]]:
    """Split images into runs of few different sizes.

    Args:
        count: Number of images.
        most: Most images per run.

    Yields:
        The images of each run, and the size to which `pad` fills it, one of `padded_sizes(most)`.
    """
    for start in range(0, count, most):
        part = slice(start, min(start + most, count))
        yield part, next(size for size in padded_sizes(most) if size >= part.stop - part.start)


def pad(images: np.ndarray, size: int) -> np.ndarray:
    """Return images, [n, ...], with the last one repeated up to `size`; the same array if it has as many."""
    missing = size - len(images)
    return np.concatenate([images, np.repeat(images[-1:], missing, axis=0)]) if missing else images
