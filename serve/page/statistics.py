"""What is known about a gallery's pictures, in numbers: labels, sizes, columns."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from retrieval.evaluation.gallery import state_of
from retrieval.gallery import Gallery
from retrieval.storage.queries import image_sizes, label_counts, value_counts
from retrieval.storage.store import Store

SHOWN = 12  # labels
_COLUMNS = 30  # that are looked into: each takes half a second of a million pictures


@dataclass(frozen=True)
class Labels:
    """How the pictures are distributed over labels.

    Attributes:
        count: of different labels.
        most: the largest, with their pictures, largest first.
        least: the smallest.
        without: pictures that have none.
    """

    count: int
    most: list[tuple[str, int]]
    least: tuple[str, int] | None
    without: int


@dataclass(frozen=True)
class Sizes:
    """Width and height, in pixels, of the smallest picture, of the one in the middle and of the largest."""

    smallest: tuple[int, int]
    median: tuple[int, int]
    largest: tuple[int, int]


@dataclass(frozen=True)
class Column:
    """What a column of metadata holds.

    Attributes:
        filled: pictures that have a value.
        distinct: different values.
        numbers: the least, the median and the greatest; `None` for text.
        most: the most frequent value of text, and how often it is there.
    """

    name: str
    filled: int
    distinct: int
    numbers: tuple[float, float, float] | None
    most: tuple[str, int] | None


@dataclass(frozen=True)
class Statistics:
    """All of it; `sizes` is `None` where none is known, `left_out` are columns that were not looked into."""

    images: int
    labels: Labels
    sizes: Sizes | None
    columns: list[Column]
    left_out: int


def count(gallery: Gallery) -> Statistics:
    """Go through all pictures: seconds for a million of them."""
    store, names = gallery.store, gallery.store.columns()
    columns = [_column(store, name) for name in names[:_COLUMNS]]
    return Statistics(len(gallery), _labels(store), _sizes(store), columns, max(0, len(names) - _COLUMNS))


class Counted:
    """The statistics of one gallery, counted once for each state of it. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: tuple[str, Statistics] | None = None

    @property
    def used(self) -> bool:
        """Whether anybody has looked at them."""
        return self._found is not None

    def of(self, gallery: Gallery) -> Statistics:
        """The statistics of the state that the gallery shows."""
        with self._lock:  # whoever comes meanwhile waits for the same
            state = state_of(gallery)
            if self._found is None or self._found[0] != state:
                self._found = state, count(gallery)
            return self._found[1]


def _labels(store: Store) -> Labels:
    found = label_counts(store)
    labels = [(label, n) for label, n in found if label]
    without = sum(n for label, n in found if not label)
    return Labels(len(labels), labels[:SHOWN], labels[-1] if labels else None, without)


def _sizes(store: Store) -> Sizes | None:
    sizes = image_sizes(store)
    if not len(sizes):
        return None
    order = np.argsort(sizes.prod(1), kind="stable")
    smallest, median, largest = (sizes[order[at]].tolist() for at in (0, (len(order) - 1) // 2, -1))
    return Sizes(tuple(smallest), tuple(median), tuple(largest))


def _column(store: Store, name: str) -> Column:
    found = value_counts(store, name)
    filled = sum(n for _, n in found)
    if any(isinstance(value, str) for value, _ in found):
        value, often = max(found, key=lambda one: one[1])
        return Column(name, filled, len(found), None, (str(value), often))
    if not found:
        return Column(name, 0, 0, None, None)
    values, often = np.array(found, np.float64).T
    median = float(np.median(np.repeat(values, often.astype(np.int64))))
    return Column(name, filled, len(found), (float(values.min()), median, float(values.max())), None)
