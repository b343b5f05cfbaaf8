"""Selection among many layers, and what it gains on data that it has not looked at.

Classes, and images of each class, are divided into four parts. Each layer is learned once without each part:
without the classes of the part, and without its images of the other classes. These are the queries that test
the layer. The whole selection is made once for each part, by the queries that no class and no image of the
part is among, and measured on the part with the layer that was learned without it. So every class and every
image is a test once, and has chosen nothing that it tests; the layers that others chose by have learned from
it. This is done in the manner of Tsamardinos, Greasidou and Borboudakis (2018, "Bootstrapping the
out-of-sample predictions for efficient and accurate cross-validation"), with parts in place of bootstrap
samples. It needs a fit for each part, not one for each pair of parts, as nesting would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from train.layers.folds import KINDS, Folds, Kind
from train.layers.measuring import Gain, Purpose, gain_over, kinds, relative_gains

PARTS = 4
_MOST_QUERIES = 1600
_ALIKE = 0.1  # share of a gain by which another one may be smaller and still count as the same


@dataclass(frozen=True, eq=False)
class Tried:
    """What a trial found for the queries.

    Attributes:
        values: Metrics by part that was held out, variant and query, float [parts, variants, q, metrics]; a
            query that is no test of the part has any value.
        seconds: What it took.
    """

    values: np.ndarray
    seconds: float


@dataclass(frozen=True)
class Choice:
    """Number of a trial, and of its variant."""

    trial: int
    variant: int


class Selection:
    """Division of labelled rows into parts, and choices among trials by some of the parts.

    Args:
        classes: Class of each labelled row, int [N].
        seed: Random seed.
        most: Number of labelled rows to search, at most.
        products: Product of each labelled row, int [N], which is held out whole; `None` for none.

    Attributes:
        searched: Labelled rows that are searched, int64 [m], ascending.
        queries: Rows of the queries, int64 [q], ascending.
        classes: Class of each query, int [q].
    """

    def __init__(self, classes: np.ndarray, seed: int, most: int, products: np.ndarray | None = None) -> None:
        self._folds = folds = Folds(classes, PARTS, seed, most, products)
        self.searched = folds.searched
        queries = np.flatnonzero(folds.answerable)
        if len(queries) > _MOST_QUERIES:
            queries = np.sort(np.random.default_rng([seed, 5]).choice(queries, _MOST_QUERIES, replace=False))
        self.queries, self.classes = queries, classes[queries]
        self._class_part, self._image_part = folds.class_fold[queries], folds.image_fold[queries]

    def training(self, part: int) -> np.ndarray:
        """Return the rows to learn from without a part, int64 [n]."""
        return np.flatnonzero((self._folds.class_fold != part) & (self._folds.image_fold != part))

    def tests(self, part: int, kind: Kind, without: int | None = None) -> np.ndarray:
        """Return the positions of the queries that test what was learned without a part, int64 [n].

        Args:
            part: The part.
            kind: Images of its classes, or its images of the other classes.
            without: Part whose classes and images are left out.
        """
        is_unseen = self._class_part == part
        found = is_unseen if kind == "unseen" else ~is_unseen & (self._image_part == part)
        if without is not None:
            found = found & (self._class_part != without) & (self._image_part != without)
        return np.flatnonzero(found)

    def choose(
        self, purpose: Purpose, before: np.ndarray, tried: Sequence[Tried], without: int | None = None
    ) -> tuple[Choice, float]:
        """Return the best layer by the tests of all parts, or of all but one.

        It is the one whose smaller relative gain, of the kinds that count, is the largest. Of those that are
        within a tenth of that gain, the one with the largest mean gain is taken.

        Args:
            purpose: Kinds of images that count.
            before: Metrics with the present vectors by part, float [parts, q, metrics].
            tried: What the trials found.
            without: The part that does not choose.

        Returns:
            The choice, and what it finds relative to the present vectors.
        """
        parts = [part for part in range(PARTS) if part != without]
        tests = {kind: [(part, self.tests(part, kind, without)) for part in parts] for kind in KINDS}
        found = list[tuple[Choice, float, float]]()  # with the smaller relative gain, and with the mean one
        for number, one in enumerate(tried):
            means = {}
            for kind, cells in tests.items():
                if any(len(rows) for _, rows in cells):
                    after = np.concatenate([one.values[part][:, rows, 0] for part, rows in cells], axis=1)
                    old = np.concatenate([before[part, rows, 0] for part, rows in cells])
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

    def gains_of_choice(
        self,
        purpose: Purpose,
        before: np.ndarray,
        tried: Sequence[Tried],
        comparisons: int = 1,
        *,
        may_decline: bool = False,
    ) -> Mapping[Kind, Gain | None]:
        """Return the gain of the choice: made once for each part by the others, and measured on it.

        Args:
            purpose, before, tried: As for `choose`.
            comparisons: Number of gains whose intervals are to hold together.
            may_decline: Keep the present vectors where nothing that was tried finds more.
        """
        after = []
        for part in range(PARTS):
            choice, ratio = self.choose(purpose, before, tried, part)
            declines = may_decline and ratio <= 1
            after.append(before[part] if declines else tried[choice.trial].values[part, choice.variant])
        return self.gains(before, np.stack(after), comparisons)

    def gains(
        self, before: np.ndarray, after: np.ndarray, comparisons: int = 1
    ) -> Mapping[Kind, Gain | None]:
        """Return the gain of each kind over the tests of all parts.

        Args:
            before: Metrics with the present vectors by part, float [parts, q, metrics].
            after: The same with other vectors; nan for queries to leave out.
            comparisons: Number of gains whose intervals are to hold together.
        """
        found: dict[Kind, Gain | None] = {}
        for kind in KINDS:
            rows = [self.tests(part, kind) for part in range(PARTS)]
            old, new = (
                np.concatenate([values[part][tests] for part, tests in enumerate(rows)])
                for values in (before, after)
            )
            there = ~np.isnan(new).any(1)
            tested = np.concatenate(rows)[there]
            found[kind] = gain_over(kind, self.classes[tested], old[there], new[there], comparisons)
        return found
