"""Metrics of single queries, from their nearest neighbours; nan where there is nothing to find.

Means, intervals, tables by class and paired comparisons are all made of these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrieval.errors import InputError
from retrieval.metrics import places
from retrieval.metrics.ranking import Ranking


def recall(ranking: Ranking, ks: Sequence[int]) -> np.ndarray:
    """Is one of its class among the K nearest? 0 or 1, float64 [N, len(ks)]."""
    first = ranking.first_right[:, None]  # [N, 1]
    found = (first > 0) & (first <= np.array(ks))
    return np.where(ranking.answerable[:, None], found, np.nan)


def precision(ranking: Ranking, ks: Sequence[int]) -> np.ndarray:
    """Share of the K nearest that are of its class, float64 [N, len(ks)]; of fewer where there are fewer."""
    right = np.stack([np.count_nonzero(ranking.relevant[:, :k], 1) for k in ks], 1)
    there = np.stack([np.count_nonzero(ranking.rows[:, :k] >= 0, 1) for k in ks], 1)
    return np.where(ranking.answerable[:, None], right / np.maximum(there, 1), np.nan)


def map_at_r(ranking: Ranking) -> np.ndarray:
    """Precision at every right image among the R nearest, summed, over R, float64 [N].

    R is how many images of its class there are to find (Musgrave et al. 2020, eqs. 3 and 4).

    Raises:
        InputError: the ranking holds fewer than R neighbours.
    """
    queries, found = _found(ranking)
    return places.average_precision(queries, found, ranking.to_find, ranking.to_find)


def r_precision(ranking: Ranking) -> np.ndarray:
    """Share of right images among the R nearest, float64 [N]; R and errors as for `map_at_r`."""
    queries, found = _found(ranking)
    return places.r_precision(queries, found, ranking.to_find)


def _found(ranking: Ranking) -> tuple[np.ndarray, np.ndarray]:
    """Query and place of every right neighbour among the R nearest at most."""
    most, k = int(ranking.to_find.max()), ranking.relevant.shape[1]
    if most > k:
        raise InputError(
            f"the ranking holds {k} neighbours, but a query has {most} images of its class to find"
        )
    queries, columns = np.nonzero(ranking.relevant[:, :most])
    return queries, columns + 1
