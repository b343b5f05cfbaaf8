"""Values of the retrieval metrics for single queries; nan if the gallery has nothing relevant to a query.

Means, confidence intervals, tables by class and paired comparisons are computed from these values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrieval.errors import InputError
from retrieval.metrics.ranking import Ranking


def recall(ranking: Ranking, ks: Sequence[int]) -> np.ndarray:
    """Whether one of the K nearest is relevant: 0 or 1, float64 [N, len(ks)]."""
    first = ranking.first_relevant[:, None]  # [N, 1]
    found = (first > 0) & (first <= np.array(ks))
    return np.where(ranking.answerable[:, None], found, np.nan)


def precision(ranking: Ranking, ks: Sequence[int]) -> np.ndarray:
    """Share of relevant images in the K nearest, or in all if there are fewer, float64 [N, len(ks)]."""
    relevant = np.stack([np.count_nonzero(ranking.relevant[:, :k], 1) for k in ks], 1)
    returned = np.stack([np.count_nonzero(ranking.rows[:, :k] >= 0, 1) for k in ks], 1)
    return np.where(ranking.answerable[:, None], relevant / np.maximum(returned, 1), np.nan)


def map_at_r(ranking: Ranking) -> np.ndarray:
    """Average precision over the R nearest, float64 [N] (Musgrave et al. 2020, eqs. 3 and 4).

    R is the number of relevant images in the gallery.

    Raises:
        InputError: The ranking has fewer than R neighbours.
    """
    queries, ranks = _relevant_within_r(ranking)
    return average_precision_of_ranks(queries, ranks, ranking.num_relevant, ranking.num_relevant)


def r_precision(ranking: Ranking) -> np.ndarray:
    """Share of relevant images in the R nearest, float64 [N]; R and errors as for `map_at_r`."""
    queries, ranks = _relevant_within_r(ranking)
    return r_precision_of_ranks(queries, ranks, ranking.num_relevant)


def average_precision_of_ranks(
    queries: np.ndarray, ranks: np.ndarray, num_relevant: np.ndarray, cutoff: np.ndarray | None = None
) -> np.ndarray:
    """Sum of the precision at each relevant image, divided by the number of those that could be there.

    With `cutoff` = `num_relevant` this is MAP@R of a query (Musgrave et al. 2020), with another one AP@k, and
    without it average precision.

    Args:
        queries: Query of each relevant image, int [P], ascending.
        ranks: Rank of each relevant image, int [P], from 1, ascending for each query.
        num_relevant: Number of relevant images of each query, int [N].
        cutoff: Rank beyond which relevant images do not count, int [N].

    Returns:
        float64 [N]; nan for queries without relevant images.
    """
    precisions = (found_before(queries, len(num_relevant)) + 1) / ranks
    possible = num_relevant
    if cutoff is not None:
        precisions[ranks > cutoff[queries]] = 0.0
        possible = np.minimum(num_relevant, cutoff)
    return share(np.bincount(queries, precisions, len(num_relevant)), possible)


def found_before(queries: np.ndarray, count: int) -> np.ndarray:
    """Return the number of relevant images of the same query before each, int64 [P].

    Args:
        queries: Query of each relevant image, int [P], ascending.
        count: Number of queries.
    """
    begin = np.searchsorted(queries, np.arange(count))
    before: np.ndarray = np.arange(len(queries)) - begin[queries]
    return before


def r_precision_of_ranks(queries: np.ndarray, ranks: np.ndarray, num_relevant: np.ndarray) -> np.ndarray:
    """Share of relevant images in the R nearest; arguments as for `average_precision_of_ranks`."""
    within = queries[ranks <= num_relevant[queries]]
    return share(np.bincount(within, minlength=len(num_relevant)), num_relevant)


def share(found: np.ndarray, num_relevant: np.ndarray) -> np.ndarray:
    """Return found / num_relevant of each query, float64 [N]; nan for queries without relevant images."""
    shares = np.full(len(num_relevant), np.nan)
    np.divide(found, num_relevant, out=shares, where=num_relevant > 0)
    return shares


def _relevant_within_r(ranking: Ranking) -> tuple[np.ndarray, np.ndarray]:
    """Query and rank of each relevant neighbour, down to the largest R."""
    most, k = int(ranking.num_relevant.max()), ranking.relevant.shape[1]
    if most > k:
        raise InputError(
            f"the ranking has {k} neighbours, but a query has {most} images of its class to find"
        )
    queries, columns = np.nonzero(ranking.relevant[:, :most])
    return queries, columns + 1
