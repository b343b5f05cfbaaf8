"""Nested cross-validation: what the choice among many layers gains on data that no choice has looked at.

Classes, and images of each class, are divided into four parts. For every pair of parts, layers are learned
without the labels of both: without the classes of the two, and without the images of the two of the other
classes. The images of one part of the pair choose, and those of the other part measure the choice. So the
whole choice is made once for each part, by the other parts, and every class and every image serves once as a
test. What the choice gains is measured with a layer that was learned without the part alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from train.layers.folds import KINDS, Folds, Kind
from train.layers.measuring import METRICS, Gain, Purpose, gain_over, kinds, relative_gains

PARTS = 4
PAIRS = tuple(combinations(range(PARTS), 2))
MOST_SEARCHED = 5000  # images with a label, and without one
_MOST_QUERIES = 1600
_ALIKE = 0.1  # share of a gain by which another one may be smaller and still count as the same


@dataclass(frozen=True, eq=False)
class Tried:
    """What a trial found for the queries.

    Attributes:
        values: Metrics by pair of parts that was held out, variant and query, float
            [pairs, variants, q, metrics]; a query that was learned from has any value.
        seconds: What it took.
    """

    values: np.ndarray
    seconds: float


@dataclass(frozen=True)
class Choice:
    """Number of a trial, and of its variant."""

    trial: int
    variant: int


class Nested:
    """Division of labelled rows into parts, and choices among trials by some of the parts.

    Args:
        classes: Class of each labelled row, int [N].
        seed: Random seed.

    Attributes:
        searched: Labelled rows that are searched, int64 [m], ascending.
        queries: Rows of the queries, int64 [q], ascending.
        classes: Class of each query, int [q].
    """

    def __init__(self, classes: np.ndarray, seed: int) -> None:
        self._folds = folds = Folds(classes, PARTS, seed, MOST_SEARCHED)
        self.searched = folds.searched
        queries = np.flatnonzero(folds.answerable)
        if len(queries) > _MOST_QUERIES:
            queries = np.sort(np.random.default_rng([seed, 5]).choice(queries, _MOST_QUERIES, replace=False))
        self.queries, self.classes = queries, classes[queries]
        self._class_part, self._image_part = folds.class_fold[queries], folds.image_fold[queries]

    def training(self, parts: Iterable[int]) -> np.ndarray:
        """Return the rows to learn from without some parts, int64 [n]."""
        held = [(self._folds.class_fold == part) | (self._folds.image_fold == part) for part in parts]
        return np.flatnonzero(~np.any(held, axis=0))

    def tests(self, part: int, kind: Kind, pair: tuple[int, ...] = ()) -> np.ndarray:
        """Return the positions of the queries of a part that were not learned from, int64 [n].

        Args:
            part: The part.
            kind: Images of held-out classes, or held-out images of the others.
            pair: Parts that were held out; by default the part alone.
        """
        if kind == "unseen":
            return np.flatnonzero(self._class_part == part)
        return np.flatnonzero((self._image_part == part) & ~np.isin(self._class_part, [part, *pair]))

    def choose(
        self, purpose: Purpose, before: np.ndarray, tried: Sequence[Tried], without: int | None = None
    ) -> tuple[Choice, float]:
        """Return the best layer by the held-out queries of all parts, or of all but one.

        It is the one whose smaller relative gain, of the kinds that count, is the largest. Of those that are
        within a tenth of that gain, the one with the largest mean gain is taken.

        Args:
            purpose: Kinds of images that count.
            before: Metrics with the present vectors, float [q, metrics].
            tried: What the trials found.
            without: The part that does not choose.

        Returns:
            The choice, and what it finds relative to the present vectors.
        """
        sides = [
            (number, part, pair)
            for number, pair in enumerate(PAIRS)
            for part in pair
            if without is None or (part != without and without in pair)
        ]
        cells = {
            kind: [(pair, self.tests(part, kind, parts)) for pair, part, parts in sides] for kind in KINDS
        }
        found = list[tuple[Choice, float, float]]()  # with the smaller relative gain, and with the mean one
        for number, one in enumerate(tried):
            means = {}
            for kind, tests in cells.items():
                if any(len(rows) for _, rows in tests):
                    after = np.concatenate([one.values[pair][:, rows, 0] for pair, rows in tests], axis=1)
                    old = np.concatenate([before[rows, 0] for _, rows in tests])
                    means[kind] = np.array([old.mean(), *after.mean(1)])
            ratios = [relative_gains(some, means) for some in (purpose, *kinds(purpose))]
            smaller, *single = [ratio for ratio in ratios if ratio is not None] or [np.ones(1)]
            mean = np.mean(single or [smaller], axis=0)
            found += [
                (Choice(number, variant), float(smaller[variant]), float(mean[variant]))
                for variant in range(len(smaller))
            ]
        best = max(ratio for _, ratio, _ in found)
        enough = best - _ALIKE * max(best - 1, 0.0)
        choice, ratio, _ = max((one for one in found if one[1] >= enough), key=lambda one: one[2])
        return choice, ratio

    def gains(
        self, before: np.ndarray, after: Callable[[int, Kind], np.ndarray], comparisons: int = 1
    ) -> Mapping[Kind, Gain | None]:
        """Return the gain of each kind over the tests of all parts.

        Args:
            before: Metrics with the present vectors, float [q, metrics].
            after: Returns the metrics of the tests of a part and kind, float [n, metrics]; nan for
                queries to leave out.
            comparisons: Number of gains whose intervals are to hold together.
        """
        found: dict[Kind, Gain | None] = {}
        for kind in KINDS:
            rows = np.concatenate([self.tests(part, kind) for part in range(PARTS)])
            values = np.concatenate([after(part, kind) for part in range(PARTS)])
            there = ~np.isnan(values).any(1)
            rows, values = rows[there], values[there]
            found[kind] = gain_over(kind, self.classes[rows], before[rows], values, comparisons)
        return found

    def gains_of_method(
        self, purpose: Purpose, before: np.ndarray, tried: Sequence[Tried], comparisons: int
    ) -> Mapping[Kind, Gain | None]:
        """Return what the choice among the trials of one method gains.

        It is measured with the layers that were learned without two parts, and so rather too low.
        """
        chosen = [self.choose(purpose, before, tried, part)[0] for part in range(PARTS)]

        def after(part: int, kind: Kind) -> np.ndarray:
            rows = self.tests(part, kind)
            sums, counts = np.zeros((len(rows), len(METRICS))), np.zeros((len(rows), 1))
            for number, pair in enumerate(PAIRS):
                if part in pair:
                    valid = np.isin(rows, self.tests(part, kind, pair))
                    one = tried[chosen[part].trial].values[number, chosen[part].variant]
                    sums[valid] += one[rows[valid]]
                    counts[valid] += 1
            return sums / counts

        return self.gains(before, after, comparisons)
