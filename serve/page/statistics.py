"""Statistics of a gallery: its labels, image sizes and metadata columns."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from retrieval.galleries.searchable import SearchableGallery
from serve.page.assets import render, template_filter

_LABELS = 12  # labels that are shown
_COLUMNS = 30  # columns that are counted: each takes half a second for a million images
_TEXT_LENGTH = 60  # characters of a value
NO_LABEL = "label is null or label = ''"


@dataclass(frozen=True)
class Labels:
    """The distribution of images over labels.

    Attributes:
        count: Number of different labels.
        most: The largest labels with their number of images, largest first.
        least: The smallest label.
        without: Number of images without a label.
    """

    count: int
    most: list[tuple[str, int]]
    least: tuple[str, int] | None
    without: int


@dataclass(frozen=True)
class Sizes:
    """Width and height in pixels of the smallest, the median and the largest image, by area."""

    smallest: tuple[int, int]
    median: tuple[int, int]
    largest: tuple[int, int]


@dataclass(frozen=True)
class ColumnStatistics:
    """The values of a metadata column.

    Attributes:
        name: Name of the column.
        filled: Number of images with a value.
        distinct: Number of different values.
        numbers: Minimum, median and maximum; None for text.
        most: The most frequent text, and how often it occurs; None for numbers.
    """

    name: str
    filled: int
    distinct: int
    numbers: tuple[float, float, float] | None
    most: tuple[str, int] | None


@dataclass(frozen=True)
class Statistics:
    """The statistics of a gallery.

    Attributes:
        images: Number of images.
        labels: Their labels.
        sizes: Their sizes; None if none is known.
        columns: Their metadata.
        left_out: Number of columns that were not counted.
    """

    images: int
    labels: Labels
    sizes: Sizes | None
    columns: list[ColumnStatistics]
    left_out: int


def gallery_statistics(gallery: SearchableGallery) -> Statistics:
    """Compute the statistics from all images: seconds for a million of them."""
    names = gallery.contents.columns()
    columns = [_column(gallery, name) for name in names[:_COLUMNS]]
    left_out = max(0, len(names) - _COLUMNS)
    return Statistics(len(gallery), _labels(gallery), _sizes(gallery), columns, left_out)


class CachedStatistics:
    """The statistics of one gallery, computed once for each state of it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cached: tuple[str, Statistics] | None = None

    @property
    def used(self) -> bool:
        """Whether a visitor has opened them."""
        return self._cached is not None

    def of(self, gallery: SearchableGallery) -> Statistics:
        """Return the statistics of the gallery's current state."""
        with self._lock:  # concurrent requests wait for the same computation
            state = gallery.state_digest()
            if self._cached is None or self._cached[0] != state:
                self._cached = state, gallery_statistics(gallery)
            return self._cached[1]


def _labels(gallery: SearchableGallery) -> Labels:
    found = gallery.contents.label_counts()
    labels = [(label, n) for label, n in found if label]
    without = sum(n for label, n in found if not label)
    return Labels(len(labels), labels[:_LABELS], labels[-1] if labels else None, without)


def _sizes(gallery: SearchableGallery) -> Sizes | None:
    sizes = gallery.contents.image_sizes()
    if not len(sizes):
        return None
    order = np.argsort(sizes.prod(1), kind="stable")
    smallest, median, largest = (sizes[order[at]].tolist() for at in (0, (len(order) - 1) // 2, -1))
    return Sizes(tuple(smallest), tuple(median), tuple(largest))


def _column(gallery: SearchableGallery, name: str) -> ColumnStatistics:
    found = gallery.contents.value_counts(name)
    filled = sum(n for _, n in found)
    if any(isinstance(value, str) for value, _ in found):
        value, often = max(found, key=lambda one: one[1])
        return ColumnStatistics(name, filled, len(found), None, (str(value), often))
    if not found:
        return ColumnStatistics(name, 0, 0, None, None)
    values, often = np.array(found, np.float64).T
    median = float(np.median(np.repeat(values, often.astype(np.int64))))
    return ColumnStatistics(
        name, filled, len(found), (float(values.min()), median, float(values.max())), None
    )


def statistics_view(statistics: Statistics) -> Markup:
    """Return labels, sizes and columns as HTML; a label is a button that filters the images by it."""
    return render("statistics", statistics=statistics, no_label=NO_LABEL)


@template_filter
def label_filter(label: str) -> str:
    """Return the filter condition for images of one label."""
    return "label = '{}'".format(label.replace("'", "''"))


@template_filter
def number(value: float) -> str:
    """Return a number of a column: large ones have thousands separators, years have not."""
    return f"{value:,.6g}" if abs(value) >= 10_000 else f"{value:.6g}"


@template_filter
def shorten(text: str) -> str:
    """Return the beginning of a long text."""
    return text if len(text) <= _TEXT_LENGTH else f"{text[: _TEXT_LENGTH - 1]}…"
