"""Transition matrix of label noise: how often each true label is given as another (DCDL fig. 2)."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval import text
from retrieval.errors import InputError
from retrieval.reports.figures import caption
from train.config import NoiseConfig
from train.data import DataSet, LabelledImage
from train.data.label_noise import with_wrong_labels
from train.data.splits import divide
from train.loop.run_folder import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_WITH_NUMBERS = 25  # classes in a figure with a number in every cell
_MOST_IN_TEXT = 12  # classes in a matrix on a terminal
_WIDEST = 90  # characters of a matrix with named columns; wider ones have numbers
_MOST_LISTED = 20  # transitions listed instead


@dataclass(frozen=True, eq=False)
class LabelTransitions:
    """Counts of images by their true and their given label.

    Attributes:
        title: Data set and noise.
        classes: Names of the C classes, sorted.
        counts: int64 [C, C]: true label (row) and given label (column).
    """

    title: str
    classes: list[str]
    counts: np.ndarray

    @property
    def rates(self) -> np.ndarray:
        """Share of each class that is given each label, float64 [C, C]; rows sum to 1."""
        shares: np.ndarray = self.counts / self.counts.sum(1, keepdims=True)
        return shares

    @property
    def wrong(self) -> int:
        """Number of images with a wrong label."""
        return int(self.counts.sum() - self.counts.trace())

    @property
    def summary(self) -> str:
        """Number and share of the wrong labels."""
        total = int(self.counts.sum())
        return f"{self.wrong:,} of {total:,} labels wrong ({self.wrong / total:.1%})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "title": self.title,
            "images": int(self.counts.sum()),
            "wrong": self.wrong,
            "classes": self.classes,
            "counts": self.counts.tolist(),
            "rates": self.rates.tolist(),
        }


def drawn_transitions(dataset: DataSet, noise: NoiseConfig, seed: int) -> LabelTransitions:
    """Draw label noise for the training images of a data set, and count it.

    Raises:
        InputError: Fewer than two classes.
    """
    given = with_wrong_labels(dataset.train, noise, seed, dataset.transitions)
    wrong = Counter((image.label, other.label) for image, other in zip(dataset.train, given, strict=True))
    return _transitions(f"{dataset.name}, {_describe(noise)}", dataset.train, wrong)


def run_transitions(run: Run, dataset: DataSet) -> LabelTransitions:
    """Count the wrong labels that a run recorded in noise.csv.

    Args:
        run: Run with label noise.
        dataset: Its data set, for the number of images of each class.

    Raises:
        InputError: The run had no noise, its file is damaged, or its data have changed.
    """
    file, noise = run.folder / "noise.csv", run.config.noise
    if not noise.rate:
        raise InputError(f"{run.folder}: trained without label noise; to draw some, give --data and --rate")
    try:
        with file.open(newline="", encoding="utf-8", errors="surrogateescape") as lines:
            wrong = Counter((row["label"], row["given"]) for row in csv.DictReader(lines))
    except (OSError, KeyError, csv.Error) as error:
        raise InputError(f"{file}: cannot be read ({error}); train the run again") from error
    return _transitions(f"{run.folder.name}, {_describe(noise)}", divide(dataset, run.config).clean, wrong)


def _transitions(
    title: str, images: Sequence[LabelledImage], labels: Mapping[tuple[str, str], int]
) -> LabelTransitions:
    """Build the matrix from counts of (true, given); images that these leave out have their true label."""
    totals = Counter(image.label for image in images)
    classes = sorted(totals)
    place = {label: number for number, label in enumerate(classes)}
    counts = np.zeros((len(classes), len(classes)), np.int64)
    for (label, given), number in labels.items():
        if label not in place or given not in place:
            raise InputError(f"{title}: the data set has no training images of class {label!r} or {given!r}")
        counts[place[label], place[given]] = number
    np.fill_diagonal(counts, 0)
    np.fill_diagonal(counts, np.array([totals[label] for label in classes]) - counts.sum(1))
    if (counts.diagonal() < 0).any():
        raise InputError(f"{title}: more wrong labels than images; the data set changed since the run")
    return LabelTransitions(title, classes, counts)


def _describe(noise: NoiseConfig) -> str:
    drawn = ", true label included" if noise.include_true else ""
    return f"{noise.kind} noise, rate {noise.rate:g}{drawn}"


# ---- rendering


def transitions_text(found: LabelTransitions) -> str:
    """Return the rates in percent as a table; of many classes, the most frequent transitions."""
    if len(found.classes) <= _MOST_IN_TEXT:
        heading = f"{found.title}: {found.summary}; in percent:"
        columns, names = found.classes, found.classes
        if sum(len(name) + 2 for name in columns) > _WIDEST:
            columns = [f"{number}" for number in range(1, len(names) + 1)]
            names = [f"{number} {name}" for number, name in zip(columns, names, strict=True)]
        rows = [("true \\ given", *columns)]
        for name, rates in zip(names, found.rates, strict=True):
            rows.append((name, *(f"{100 * rate:.1f}" if rate else "-" for rate in rates)))
    else:
        heading = f"{found.title}: {found.summary}; the most frequent in percent:"
        others = found.rates * (1 - np.eye(len(found.classes)))
        order = np.argsort(-others, axis=None, kind="stable")[:_MOST_LISTED]
        rows = [("true", "given", "%")]
        for row, column in zip(*np.unravel_index(order, others.shape), strict=True):
            if others[row, column]:
                rate = f"{100 * others[row, column]:.1f}"
                rows.append((found.classes[row], found.classes[column], rate))
    lines = text.align_columns(rows, right=range(1 if len(rows[0]) > 3 else 2, len(rows[0])))
    return "\n".join([heading, *lines])


def transitions_size(found: LabelTransitions) -> tuple[float, float]:
    """Return width and height of the figure in inches."""
    side = min(3.0 + 0.5 * len(found.classes), 14.0)
    return side + 1.2, side


def transitions_figure(found: LabelTransitions, figure: Figure) -> None:
    """Draw the matrix as a heat map, with numbers if there are few classes."""
    axes = figure.add_subplot()
    percents, count = 100 * found.rates, len(found.classes)
    drawn = axes.imshow(percents, cmap="Blues", vmin=0, vmax=100)
    small = min(9.0, 640 / count)  # points; the matrix is at most 11 inches wide
    axes.set_xticks(range(count), found.classes, rotation=45, ha="right", rotation_mode="anchor", size=small)
    axes.set_yticks(range(count), found.classes, size=small)
    axes.set_xlabel("given label")
    axes.set_ylabel("true label")
    axes.set_title(f"{caption(found.title, int(9 * figure.get_figwidth()))}\n{found.summary}", fontsize=11)
    if count <= _MOST_WITH_NUMBERS:
        for (row, column), percent in np.ndenumerate(percents):
            if percent:
                colour = "white" if percent > 50 else "black"
                axes.text(column, row, f"{percent:.1f}", ha="center", va="center", color=colour, fontsize=8)
    figure.colorbar(drawn, ax=axes, label="% of the true class", shrink=0.8)
