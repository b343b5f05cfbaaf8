"""Calibration error, Brier score and reliability bins of probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BINS = 15
_DRAWS = 20


@dataclass(frozen=True)
class Bin:
    """Probabilities of a bin of equal weight.

    Attributes:
        probability: Mean probability.
        right: Share of right ones.
        weight: Share of the total weight.
    """

    probability: float
    right: float
    weight: float


def reliability(
    probabilities: np.ndarray, right: np.ndarray, weights: np.ndarray | None = None, bins: int = BINS
) -> list[Bin]:
    """Return the bins of a reliability diagram, each of about the same weight, by ascending probability.

    Args:
        probabilities: Probabilities, [n].
        right: Whether each was right, bool [n].
        weights: Weights, positive [n]; equal by default.
        bins: Number of bins.
    """
    of, total = _sorted_bins(probabilities, weights, bins)
    sums = [np.bincount(of, values, bins) for values in (total, total * probabilities, total * right)]
    kept = sums[0] > 0
    weight, probability, hits = (values[kept] for values in sums)
    return [
        Bin(float(p / w), float(r / w), float(w / weight.sum()))
        for w, p, r in zip(weight, probability, hits, strict=True)
    ]


def calibration_error(
    probabilities: np.ndarray, right: np.ndarray, weights: np.ndarray | None = None, bins: int = BINS
) -> float:
    """Return the expected calibration error (Naeini et al. 2015) with bins of equal weight.

    It is the mean distance of mean probability and share of right ones. Of a perfect calibration it is above
    zero as well; see `error_by_chance`. The arguments are those of `reliability`.
    """
    found = reliability(probabilities, right, weights, bins)
    return sum(one.weight * abs(one.probability - one.right) for one in found)


def error_by_chance(probabilities: np.ndarray, weights: np.ndarray | None = None, bins: int = BINS) -> float:
    """Return the calibration error that is expected if each one is right with its probability, independently.

    The arguments are those of `reliability`.
    """
    random = np.random.default_rng(0)
    drawn = [random.random(len(probabilities)) < probabilities for _ in range(_DRAWS)]
    return float(np.mean([calibration_error(probabilities, one, weights, bins) for one in drawn]))


def brier_score(probabilities: np.ndarray, right: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return the mean squared error of probabilities (Brier 1950); arguments as for `reliability`."""
    return float(np.average((probabilities - right) ** 2, weights=weights))


def _sorted_bins(
    probabilities: np.ndarray, weights: np.ndarray | None, bins: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bin of each probability, int64 [n], and the weights, float64 [n]."""
    total = np.ones(len(probabilities)) if weights is None else np.asarray(weights, np.float64)
    order = np.argsort(probabilities, kind="stable")
    ends = np.cumsum(total[order])
    of = np.empty(len(order), np.int64)
    # The middle of each weight decides, so that rounding at the ends does not.
    of[order] = np.minimum((ends - total[order] / 2) / ends[-1] * bins, bins - 1)
    return of, total
