"""Recognition of things by their nearest images, with a confidence, among queries of unknown things.

As in the Met data set (Ypsilantis et al. 2021): the confidence decides which answers count first.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from retrieval.metrics.statistics import RESAMPLES

NEIGHBOURS = (1, 2, 3, 5, 7, 10, 15, 20, 50)
SHARPNESS = (0.01, 0.1, 1.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 50.0, 100.0, 500.0)
UNKNOWN = -1  # class of a query that shows nothing of the gallery


@dataclass(frozen=True)
class Neighbours:
    """The nearest gallery images of each query.

    Attributes:
        scores: Cosine similarities, best first, float [N, K].
        classes: Their classes, int64 [N, K]; `UNKNOWN` beyond the last one.
    """

    scores: np.ndarray
    classes: np.ndarray

    @property
    def predicted(self) -> np.ndarray:
        """The class of the nearest image, int64 [N]: no other has a larger similarity."""
        first: np.ndarray = self.classes[:, 0]
        return first

    def right(self, truth: np.ndarray) -> np.ndarray:
        """Return whether the class of each query is predicted, bool [N]; unknown things never are."""
        found: np.ndarray = (self.predicted == truth) & (truth != UNKNOWN)
        return found

    def confidence(self, k: int, sharpness: float, classes: int) -> np.ndarray:
        """Return the share of the predicted class in a softmax over all classes, float64 [N].

        A class has the similarity of its best image among the first k, and at least 0.

        Args:
            k: Number of nearest images that are looked at.
            sharpness: Factor of the similarities in the softmax.
            classes: Number of classes in the gallery.
        """
        scores, of = self.scores[:, :k].astype(float).clip(0), self.classes[:, :k]
        again = np.tril(of[:, :, None] == of[:, None, :], -1).any(2)  # a nearer image has the class
        weights = np.exp(sharpness * scores)
        best = ~again & (of != UNKNOWN)
        total = weights.sum(1, where=best) + classes - best.sum(1)
        found: np.ndarray = weights[:, 0] / total
        return found


def global_average_precision(right: np.ndarray, confidence: np.ndarray, answerable: np.ndarray) -> float:
    """Return the average precision of all answers in one list, by falling confidence.

    GAP of Perronnin et al. 2009, as the Met data set defines it: the sum of the precision at each right
    answer, divided by the number of queries of known things; nan if there are none. Among equal confidences,
    wrong answers come first.

    Args:
        right: Whether each answer is right, bool [N].
        confidence: Confidence of each, float [N].
        answerable: Whether each query shows a known thing, bool [N].
    """
    ranked = right[np.lexsort((right, -confidence))]
    precision = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
    count = np.count_nonzero(answerable)
    return float((precision * ranked).sum() / count) if count else float("nan")


def fit_confidence(neighbours: Neighbours, truth: np.ndarray, classes: int) -> tuple[int, float]:
    """Return the number of neighbours and the sharpness with the largest GAP on validation queries.

    Args:
        neighbours: Nearest images of the validation queries.
        truth: Their classes, int64 [N]; `UNKNOWN` for other things.
        classes: Number of classes in the gallery.
    """
    right, known = neighbours.right(truth), truth != UNKNOWN

    def gap(pair: tuple[int, float]) -> float:
        return global_average_precision(right, neighbours.confidence(*pair, classes), known)

    return max(product(NEIGHBOURS, SHARPNESS), key=gap)


def resampled_gaps(
    right: np.ndarray,
    confidence: np.ndarray,
    known: np.ndarray,
    units: np.ndarray,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> np.ndarray:
    """Return GAP in resamples of the queries, each with its own ranking, float64 [resamples].

    The resamples of the same units are the same, so that those of two models can be subtracted.

    Args:
        right: Whether each answer is right, bool [N].
        confidence: Confidence of each, float [N].
        known: Whether each query shows a known thing, bool [N]; one of them does.
        units: What is resampled as a whole: unit of each query, [N].
        resamples: Number of resamples.
        seed: Seed of the resampling.
    """
    order = np.lexsort((right, -confidence))
    numbers = np.unique(units, return_inverse=True)[1]
    right, known, unit_of = right[order], known[order], numbers[order]
    count, random, found = int(numbers.max()) + 1, np.random.default_rng(seed), np.zeros(resamples)
    for number in range(resamples):
        times = np.bincount(random.integers(0, count, count), minlength=count)[unit_of]
        drawn = np.repeat(np.arange(len(right)), times)  # still in the order of their confidence
        precision = np.cumsum(right[drawn]) / np.arange(1, len(drawn) + 1)
        found[number] = (precision * right[drawn]).sum() / max(1, np.count_nonzero(known[drawn]))
    return found


def interval_of(resampled: np.ndarray) -> tuple[float, float]:
    """Return the 95% percentile interval of resamples."""
    low, high = np.quantile(resampled, (0.025, 0.975))
    return float(low), float(high)
