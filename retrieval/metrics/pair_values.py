"""Cosines of labelled pairs against their labels or scores: AUC, Spearman's correlation, intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from retrieval.metrics.distributions import t_quantile

_TAIL = 0.025  # of a 95% interval, on either side


class Estimate(NamedTuple):
    """A measure of pairs, with the influence of each pair on it: the derivative by its weight, float [P].

    The value is nan, with influences of 0, where it is not defined.
    """

    value: float
    influence: np.ndarray


Measure = Callable[[np.ndarray, np.ndarray], Estimate]


def auc(cosines: np.ndarray, values: np.ndarray) -> Estimate:
    """Area under the ROC curve: how often a pair of value 1 has a larger cosine than one of value 0.

    Equal cosines count half. Influences by DeLong et al. (1988). nan without pairs of both values.

    Args:
        cosines: float [P].
        values: 1 or 0, float [P].
    """
    positive = values == 1
    counts = positive.sum(), (~positive).sum()
    if not all(counts):
        return Estimate(np.nan, np.zeros(len(values)))
    placement = np.empty(len(values))
    placement[positive], placement[~positive] = placements(cosines[positive], cosines[~positive])
    value = float(placement[positive].mean())
    return Estimate(value, (placement - value) / np.where(positive, *counts))


def placements(high: np.ndarray, low: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what each score adds to the area under the ROC curve; the mean of either side is the area.

    Args:
        high: Scores that should be above the others, float [n].
        low: The others, float [m].

    Returns:
        For one of `high` the share of `low` that is below it, float64 [n]; for one of `low` the share of
        `high` that is above it, float64 [m]. Equal scores count half.
    """
    return _shares_below(high, low), 1 - _shares_below(low, high)


def _shares_below(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    ordered = np.sort(others)
    both = np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right")
    shares: np.ndarray = both / (2 * len(others))
    return shares


def spearman(cosines: np.ndarray, values: np.ndarray) -> Estimate:
    """Spearman's rank correlation of cosines and values, by the mean rank of equal ones.

    Influences by the delta method, with those of the ranks. nan if all values or all cosines are equal.

    Args:
        cosines: float [P].
        values: float [P].
    """
    size = len(values)
    weight = np.full(size, 1 / max(1, size))
    u, v = (_above(x, weight) - 0.5 for x in (cosines, values))  # centred ranks in -1/2..1/2
    cross, first, second = (float((a * b).mean()) for a, b in ((u, v), (u, u), (v, v)))
    if size < 2 or min(first, second) < 1e-12:
        return Estimate(np.nan, np.zeros(size))

    def moved(x: np.ndarray, ranks: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return the mean change of other over all pairs when one more is ranked at each x."""
        found: np.ndarray = _above(-x, other / size) - ((ranks + 0.5) * other).mean()
        return found

    of_cross = u * v - cross + moved(cosines, u, v) + moved(values, v, u)
    of_first = u * u - first + 2 * moved(cosines, u, u)
    of_second = v * v - second + 2 * moved(values, v, v)
    value = cross / np.sqrt(first * second)
    influence = of_cross / np.sqrt(first * second) - value / 2 * (of_first / first + of_second / second)
    return Estimate(value, influence / size)


def _above(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return for each element the weight of those below it, and half of that of those equal to it."""
    _, place = np.unique(x, return_inverse=True)
    totals = np.bincount(place, weights)
    found: np.ndarray = (np.cumsum(totals) - totals / 2)[place]
    return found


def image_interval(
    estimate: Estimate, first: np.ndarray, second: np.ndarray, bounds: tuple[float, float]
) -> tuple[float, float, float]:
    """Return a 95% interval over images, and the standard error, of a measure of pairs.

    Pairs that share an image are not independent: the variance is the sum of the products of the influences
    of all such pairs (dyadic cluster-robust: Aronow, Samii and Assenova 2015), and at least that of
    independent pairs. The interval is Student's, with as many degrees of freedom as images less one.

    Args:
        estimate: Of `auc` or `spearman`.
        first, second: The images of each pair, int [P].
        bounds: Smallest and largest value of the measure, where the interval is cut.

    Returns:
        Lower and upper end, and standard error.
    """
    influence = estimate.influence
    _, place = np.unique(np.concatenate([first, second]), return_inverse=True)
    of_image = np.bincount(place, np.tile(influence, 2))
    independent = float(influence @ influence)  # counted with both of its images, and once too often
    error = max(float(of_image @ of_image) - independent, independent) ** 0.5
    width = t_quantile(_TAIL, max(1, len(of_image) - 1)) * error
    low, high = (float(np.clip(estimate.value + side, *bounds)) for side in (-width, width))
    return low, high, error
