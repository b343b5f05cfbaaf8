"""Measurement of taught layers: held-out images of known classes, and images of held-out classes, apart.

What is measured is what is applied. The starts are those of the product, fitted to all images, since they
need no labels. Classes and labels of images are held out in folds: in each fold, layers are learned without
one part of the classes (unseen) and without one part of the images of the others (known). All images are
searched, those that were learned from and those without a label among them; the latter count as wrong, which
makes a gain too small rather than too large where they show labelled classes. The layer is chosen on one half
of the held-out queries and measured on the other half, and the other way round, so that the choice does not
flatter the measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from retrieval.evaluation.products import best_view_values
from retrieval.metrics import per_query
from retrieval.metrics.inputs import build_inputs
from retrieval.metrics.ranking import rank_inputs
from retrieval.metrics.statistics import RESAMPLES, bootstrap_intervals
from train.layers.components import Start, mixed
from train.layers.folds import KINDS, MOST_IMAGES, Folds, Kind
from train.layers.learning import learn
from train.layers.settings import TeachingConfig
from train.layers.whitening import FEWEST_CLASSES, FEWEST_QUERIES, NO_CLASS

Purpose = Literal["known", "unseen", "both"]
PURPOSES: tuple[Purpose, ...] = ("known", "unseen", "both")
METRICS = ("map_at_r", "recall_at_1")  # the first one decides

_ENOUGH = 1000  # queries of each kind, after which no further part is held out
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Candidate:
    """A layer to choose from: the power of its start, and the share of what was learned."""

    power: float
    blend: float


@dataclass(frozen=True)
class Change:
    """Change of one metric over held-out queries.

    Attributes:
        before, after: Mean with the present vectors and with those of the layer.
        difference: after - before.
        low, high: 95% interval of the difference, by the bootstrap over classes. The images of a class share
            the labels that were learned from, so that resampling images would be too narrow for known
            classes, too.
    """

    before: float
    after: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class Gain:
    """Changes over the held-out queries of one kind.

    Attributes:
        queries: Number of queries.
        classes: Number of their classes.
        metrics: Change of each of `METRICS`.
    """

    queries: int
    classes: int
    metrics: Mapping[str, Change]

    @property
    def is_proven(self) -> bool:
        """Whether the interval of the first metric is above 0."""
        return self.metrics[METRICS[0]].low > 0


@dataclass(frozen=True)
class Measurement:
    """Layer for a purpose, and what it gains.

    Attributes:
        purpose: Kinds of images that the layer is for.
        chosen: Layer that serves them best.
        gains: Gain of each kind; `None` if there are too few images or classes to measure it.
    """

    purpose: Purpose
    chosen: Candidate
    gains: Mapping[Kind, Gain | None]

    @property
    def is_accepted(self) -> bool:
        """Whether every kind that the purpose names has a proven gain."""
        found = [self.gains[kind] for kind in kinds(self.purpose)]
        return all(gain is not None and gain.is_proven for gain in found)


class Study:
    """Values of the metrics for all held-out queries, with the present vectors and with each candidate layer.

    Args:
        candidates: Layers to choose from.
        seed: Seed of the division of the queries into halves.

    Attributes:
        folds: Number of folds that were held out.
    """

    def __init__(self, candidates: Sequence[Candidate], seed: int) -> None:
        self._candidates, self._seed = candidates, seed
        self._classes: dict[Kind, list[np.ndarray]] = {kind: [] for kind in KINDS}
        self._values: dict[Kind, list[np.ndarray]] = {kind: [] for kind in KINDS}
        self._products: dict[Kind, list[np.ndarray]] = {kind: [] for kind in KINDS}
        self.folds = 0

    def add_fold(
        self,
        classes: Mapping[Kind, np.ndarray],
        values: Mapping[Kind, np.ndarray],
        products: Mapping[Kind, np.ndarray] | None = None,
    ) -> None:
        """Add the queries of a fold.

        Args:
            classes: Class of each query, int [q], by kind.
            values: Metrics of the queries with the present vectors and with each candidate, float
                [1 + candidates, q, metrics], by kind.
            products: Product of each query, int [q], by kind; `None` for none.
        """
        for kind in KINDS:
            if products is not None:
                self._products[kind].append(products[kind])
            self._classes[kind].append(classes[kind])
            self._values[kind].append(values[kind])
        self.folds += 1

    @property
    def is_large(self) -> bool:
        """Whether there are so many queries of each kind that no further fold is needed."""
        return all(sum(map(len, self._classes[kind])) >= _ENOUGH for kind in KINDS)

    def conclude(self, purpose: Purpose) -> Measurement:
        """Return the layer that serves a purpose best, and what the choice gains."""
        random = np.random.default_rng([self._seed, 1])
        classes = {kind: np.concatenate(self._classes[kind]) for kind in KINDS}
        values = {kind: np.concatenate(self._values[kind], axis=1) for kind in KINDS}
        units = {kind: np.arange(len(classes[kind])) for kind in KINDS} | {"unseen": classes["unseen"]}
        if self._products["known"]:
            units["known"] = np.concatenate(self._products["known"])
        halves = {kind: _halves(units[kind], random) for kind in KINDS}
        everything = {kind: np.ones(len(classes[kind]), bool) for kind in KINDS}
        by_first, by_second = (
            self._choose(purpose, values, {kind: halves[kind] == half for kind in KINDS})
            for half in (False, True)
        )
        gains: dict[Kind, Gain | None] = {}
        for kind in KINDS:
            chosen = np.where(halves[kind], by_first, by_second)  # each by the other half
            after = values[kind][1 + chosen, np.arange(len(chosen))]
            gains[kind] = gain_over(kind, classes[kind], values[kind][0], after)
        best = self._choose(purpose, values, everything)
        return Measurement(purpose, self._candidates[best], gains)

    def _choose(
        self, purpose: Purpose, values: Mapping[Kind, np.ndarray], some: Mapping[Kind, np.ndarray]
    ) -> int:
        """Return the number of the best candidate for some queries of each kind, given as masks.

        With two kinds, the smaller one of the relative gains counts.
        """
        means = {kind: values[kind][:, some[kind], 0].mean(1) for kind in KINDS if some[kind].any()}
        found = relative_gains(purpose, means)
        return 0 if found is None else int(found.argmax())


def relative_gains(purpose: Purpose, means: Mapping[Kind, np.ndarray]) -> np.ndarray | None:
    """Return what candidates find, relative to the present vectors; of two kinds, the smaller value counts.

    Args:
        purpose: Kinds of images that count.
        means: Mean of the first metric with the present vectors and with each candidate, float
            [1 + candidates], of the kinds that were measured.

    Returns:
        float [candidates]; `None` if no kind of the purpose was measured.
    """
    ratios = [means[kind][1:] / max(means[kind][0], _TINY) for kind in kinds(purpose) if kind in means]
    return np.min(ratios, axis=0) if ratios else None


def kinds(purpose: Purpose) -> tuple[Kind, ...]:
    """Return the kinds of images that a purpose names."""
    return KINDS if purpose == "both" else (purpose,)


def _halves(units: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the half of each query, bool [q]: those of one unit, such as a product, are in the same half."""
    unit_of = np.unique(units, return_inverse=True)[1]
    count = int(unit_of.max(initial=-1)) + 1
    halves: np.ndarray = (random.permutation(count) % 2).astype(bool)[unit_of]
    return halves


def study(
    vectors: np.ndarray,
    classes: np.ndarray,
    others: np.ndarray,
    starts: Sequence[Start],
    config: TeachingConfig,
    *,
    products: np.ndarray | None = None,
    show_progress: bool = False,
) -> Study:
    """Learn layers without the labels of held-out images, and search with these.

    Args:
        vectors: Labelled unit vectors, float32 [N, D].
        classes: Class of each, from 0, int [N].
        others: Unit vectors without a label, which are searched as well, float32 [M, D].
        starts: Starts as they are applied, fitted without labels to all images, held-out ones included.
        config: Settings.
        products: Product of each labelled vector, int [N], which is held out whole and whose views do not
            find each other; `None` for none.
        show_progress: Report progress on stderr.

    Raises:
        InputError: There are too few labelled images to learn from.
    """
    found = Study([Candidate(start.power, blend) for start in starts for blend in config.blends], config.seed)
    parts = Folds(classes, config.folds, config.seed, products=products)
    if len(others) > MOST_IMAGES:
        others = np.random.default_rng(config.seed).choice(others, MOST_IMAGES, replace=False)
    searched = np.concatenate([vectors[parts.searched], others])
    searched_classes = np.concatenate([classes[parts.searched], np.full(len(others), NO_CLASS)])
    own = None if products is None else beside(products[parts.searched], len(others))
    for fold in range(config.folds):
        split = parts.split(fold)
        places = {kind: np.searchsorted(parts.searched, split.queries[kind]) for kind in KINDS}
        values = {kind: [query_values(searched, searched_classes, places[kind], own)] for kind in KINDS}
        for number, start in enumerate(starts):
            matrix = learn(
                start.components(vectors[split.training]),
                classes[split.training],
                start.learned,
                config,
                what=f"learning without part {fold + 1}, start {number + 1} of {len(starts)}",
                show_progress=show_progress,
            )
            components = start.components(searched)
            for blend in config.blends:
                moved = components.copy()
                moved[:, : start.learned] = components[:, : start.learned] @ mixed(matrix, blend).T
                moved /= np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), _TINY)
                for kind in KINDS:
                    values[kind].append(query_values(moved, searched_classes, places[kind], own))
        found.add_fold(
            {kind: searched_classes[places[kind]] for kind in KINDS},
            {kind: np.stack(values[kind]) for kind in KINDS},
            None if own is None else {kind: own[places[kind]] for kind in KINDS},
        )
        if found.is_large:
            break
    return found


def beside(products: np.ndarray, others: int) -> np.ndarray:
    """Return the products of labelled vectors, followed by others, each of which is a product of its own."""
    return np.append(products, int(products.min(initial=0)) - 1 - np.arange(others))


def query_values(
    vectors: np.ndarray, classes: np.ndarray, places: np.ndarray, products: np.ndarray | None = None
) -> np.ndarray:
    """Return the metrics of queries among all vectors, float64 [q, metrics].

    Args:
        vectors: Vectors that are searched, float32 [M, D].
        classes: Class of each, int [M].
        places: Rows of the queries, int64 [q].
        products: Product of each, int [M], whose views do not find each other, and which are the hits; `None`
            for none.
    """
    if not len(places):
        return np.empty((0, len(METRICS)))
    most = int(np.bincount(classes[classes != NO_CLASS]).max())
    both = None if products is None else (products[places], products)
    inputs = build_inputs(vectors[places], classes[places], vectors, classes, places, both)
    if products is not None:
        found = best_view_values(inputs)
        return np.column_stack([found[key] for key in METRICS])
    ranking = rank_inputs(inputs, min(most, len(vectors) - 1))
    return np.column_stack([per_query.map_at_r(ranking), per_query.recall(ranking, [1])[:, 0]])


def gain_over(
    kind: Kind, classes: np.ndarray, before: np.ndarray, after: np.ndarray, comparisons: int = 1
) -> Gain | None:
    """Return the gain over queries, [q, metrics] before and after; `None` if there are too few.

    With several comparisons, their 95% intervals hold together.
    """
    count = len(np.unique(classes))
    if len(classes) < FEWEST_QUERIES or (kind == "unseen" and count < FEWEST_CLASSES):
        return None
    intervals = bootstrap_intervals(
        after - before, classes, comparisons=comparisons, resamples=RESAMPLES * comparisons
    )
    changes = {}
    for number, name in enumerate(METRICS):
        old, new = float(before[:, number].mean()), float(after[:, number].mean())
        low, high = intervals[number].tolist()
        changes[name] = Change(old, new, new - old, low, high)
    return Gain(len(classes), count, changes)
