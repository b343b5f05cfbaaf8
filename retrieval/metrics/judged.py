"""Metrics of judged queries: each has its own list of images to find, and of images that do not count.

This is how instance retrieval is measured: the gallery also has distractors, which answer no query. A query
without an image to find is left out of the means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.metrics.all_pairs import count_from
from retrieval.metrics.per_query import average_precision_of_ranks, found_before, share
from retrieval.metrics.ranking import TIE
from retrieval.progress import Progress

_CELLS = 1 << 24  # of queries x gallery at once: 64 MB


@dataclass(frozen=True)
class Judgements:
    """What each query should find.

    Attributes:
        relevant: Gallery rows to find, for each query, int64 [R_i].
        ignored: Gallery rows that are removed from the results of each query, int64 [I_i].
    """

    relevant: Sequence[np.ndarray]
    ignored: Sequence[np.ndarray]

    @property
    def num_relevant(self) -> np.ndarray:
        """Number of images to find, for each query, int64 [N]."""
        return np.array([len(rows) for rows in self.relevant], np.int64)

    def moved(self, queries: Sequence[int] | np.ndarray, place: np.ndarray) -> Judgements:
        """Return the judgements of some queries on images that are elsewhere.

        Args:
            queries: Numbers of the queries.
            place: New row of each gallery row, int64 [M]; -1 for images that are not there.
        """
        sides = ([place[side[n]] for n in queries] for side in (self.relevant, self.ignored))
        return Judgements(*([rows[rows >= 0] for rows in side] for side in sides))


@dataclass(frozen=True)
class RelevantRanks:
    """Where the images to find are in the results of each query, after those that do not count are removed.

    Attributes:
        queries: Query of each image that was found, int64 [P], ascending.
        ranks: Its rank, from 1, int64 [P], ascending for each query.
        num_relevant: Number of images to find, found or not, for each query, int64 [N].
    """

    queries: np.ndarray
    ranks: np.ndarray
    num_relevant: np.ndarray

    def average_precision(self, k: int | None = None) -> np.ndarray:
        """Return the average precision of each query, float64 [N]; nan where there is nothing to find.

        With k it is AP@k of the Google Landmarks Dataset v2 (Weyand et al. 2020, section 5.2) and of ILIAS
        (Kordopatis-Zilos et al. 2025): the sum of the precision at each image found among the first k,
        divided by min(k, number of images to find).
        """
        cutoff = None if k is None else np.full(len(self.num_relevant), k)
        return average_precision_of_ranks(self.queries, self.ranks, self.num_relevant, cutoff)

    def trapezoid_average_precision(self) -> np.ndarray:
        """Return the area below the curve of precision and recall, float64 [N]; nan as above.

        That is the average precision of the Oxford and Paris buildings (Philbin et al. 2007; Radenovic et al.
        2018): each image found adds the mean of the precisions before and after it.
        """
        place = found_before(self.queries, len(self.num_relevant))
        before = np.divide(place, self.ranks - 1, out=np.ones(len(place)), where=self.ranks > 1)
        sums = np.bincount(self.queries, (before + (place + 1) / self.ranks) / 2, len(self.num_relevant))
        return share(sums, self.num_relevant)

    def precision(self, ks: Sequence[int]) -> np.ndarray:
        """Return the precision of each query among its first K, float64 [N, len(ks)]; nan as above.

        As in the revisited Oxford and Paris (Radenovic et al. 2018), results beyond the last image to find do
        not count: K is at most its rank.
        """
        last = np.zeros(len(self.num_relevant), np.int64)
        np.maximum.at(last, self.queries, self.ranks)
        found = np.stack([np.bincount(self.queries[self.ranks <= k], minlength=len(last)) for k in ks], 1)
        shares: np.ndarray = found / np.maximum(np.minimum(last[:, None], ks), 1)
        return np.where(self.num_relevant[:, None] > 0, shares, np.nan)

    def modified_precision(self, k: int) -> np.ndarray:
        """Return the precision of each query among its first K, or R if it has R < K images to find.

        float64 [N]; nan as above. Its mean is mMP@K of UnED (Ypsilantis et al. 2023, section 5.1).
        """
        depth = np.minimum(self.num_relevant, k)
        within = self.queries[self.ranks <= depth[self.queries]]
        return share(np.bincount(within, minlength=len(depth)), depth)

    def recall(self, ks: Sequence[int]) -> np.ndarray:
        """Whether one of the K first results is right: 0 or 1, float64 [N, len(ks)]; nan as above."""
        first = np.full(len(self.num_relevant), np.iinfo(np.int64).max)
        np.minimum.at(first, self.queries, self.ranks)
        found: np.ndarray = np.less_equal(first[:, None], np.array(ks)).astype(np.float64)
        found[self.num_relevant == 0] = np.nan
        return found

    def values(self, measures: Sequence[str]) -> np.ndarray:
        """Return measures of each query, float64 [N, measures]; nan as above.

        Args:
            measures: Keys as in `retrieval.metrics.table`, such as "map_at_100".
        """
        columns = []
        for key in measures:
            name, _, k = key.rpartition("_at_")
            columns.append(
                self.trapezoid_average_precision() if key == "trapezoid_ap" else _AT_K[name](self, int(k))
            )
        return np.column_stack(columns)


_AT_K: Mapping[str, Callable[[RelevantRanks, int], np.ndarray]] = {
    "map": RelevantRanks.average_precision,
    "modified_precision": RelevantRanks.modified_precision,
    "precision": lambda ranks, k: ranks.precision([k])[:, 0],
    "recall": lambda ranks, k: ranks.recall([k])[:, 0],
}


def rank_judged(
    query: np.ndarray, gallery: np.ndarray, protocols: Sequence[Judgements], *, show_progress: bool = False
) -> list[RelevantRanks]:
    """Rank the images to find of each protocol by cosine; among similarities within `TIE`, others come first.

    Args:
        query: Query embeddings, float32 [N, D], unit length.
        gallery: Gallery embeddings, float32 [M, D], unit length.
        protocols: What each of the N queries should find, by each protocol.
        show_progress: Whether to report progress on stderr.
    """
    ranks = [[np.empty(0, np.int64)] for _ in protocols]
    step = max(1, _CELLS // len(gallery))
    with Progress("searching", len(query), "queries", show=show_progress) as progress:
        for start in range(0, len(query), step):
            cosines = query[start : start + step] @ gallery.T  # [b, M]
            for judgements, found in zip(protocols, ranks, strict=True):
                for number, cosine in enumerate(cosines, start):
                    relevant = judgements.relevant[number]
                    if not len(relevant):
                        continue
                    found.append(ranks_among(cosine.copy(), relevant, judgements.ignored[number]))
            progress.update(len(cosines))
    sizes = [judgements.num_relevant for judgements in protocols]
    return [
        RelevantRanks(np.repeat(np.arange(len(size)), size), np.concatenate(found), size)
        for size, found in zip(sizes, ranks, strict=True)
    ]


def ranks_among(scores: np.ndarray, relevant: np.ndarray, ignored: np.ndarray) -> np.ndarray:
    """Return the ranks of what is to be found, int64 [R]; among scores within `TIE`, others come first.

    Args:
        scores: Score of everything that is searched, float [M]; overwritten.
        relevant: What is to be found, int64 [R].
        ignored: What does not count, int64 [I] or bool [M].
    """
    positive = -np.sort(-scores[relevant])
    scores[relevant] = scores[ignored] = -np.inf
    return count_from(scores, positive - TIE) + np.arange(1, len(positive) + 1)


def rank_hits(rows: np.ndarray, size: int, judgements: Judgements) -> RelevantRanks:
    """Return where the images to find are among the hits of a search.

    Args:
        rows: Gallery rows that each query found, best first, int64 [N, k]; -1 beyond the last one.
        size: Number of gallery rows, M.
        judgements: What each of the N queries should find.
    """
    keys = rows + size * np.arange(len(rows))[:, None]  # of pairs of query and row
    relevant, ignored = (
        np.isin(keys, np.concatenate([size * n + one for n, one in enumerate(side)])) & (rows >= 0)
        for side in (judgements.relevant, judgements.ignored)
    )
    ranks = np.cumsum(~ignored, 1)
    queries, columns = np.nonzero(relevant)
    return RelevantRanks(queries, ranks[queries, columns], judgements.num_relevant)
