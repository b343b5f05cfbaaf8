"""Choice of ef, the number of candidates of a search in an HNSW graph, by measured recall."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from retrieval.stores.engine import Neighbours

EF = (64, 128, 256, 512, 1024, 2048)
QUERIES = 48  # of a measurement
K = 10  # neighbours of the recall
_MEASUREMENTS, _PAUSE = 5, 1.0  # at most, and seconds before each


class Search(Protocol):
    """Search in the graph, where `condition` is an expression of the database."""

    def __call__(self, queries: np.ndarray, k: int, condition: str, ef: int) -> list[Neighbours]: ...


@dataclass(frozen=True)
class Sample:
    """Stored vectors as queries, with the items that should be found.

    Attributes:
        queries: float32 [N, D].
        ids: Their items, which do not count as neighbours.
        truths: Filters as expressions, "" for none, each with the nearest K + 1 items of each query.
    """

    queries: np.ndarray
    ids: Sequence[int]
    truths: Sequence[tuple[str, Sequence[Neighbours]]]


def smallest_ef(recall: float, sample: Sample, search: Search) -> int | None:
    """Return the smallest ef with a recall@10 for every filter; `None` if none reaches it.

    It is measured until two measurements agree: a database that has built an index may search without it
    for a moment, which is exact.
    """
    found: int | None = 0
    for _ in range(_MEASUREMENTS):
        time.sleep(_PAUSE)
        before, found = found, _smallest_ef(recall, sample, search)
        if found == before:
            break
    return found


def _smallest_ef(recall: float, sample: Sample, search: Search) -> int | None:
    def reaches(ef: int) -> bool:
        return all(
            _recall(search(sample.queries, K + 1, condition, ef), truth, sample.ids) >= recall
            for condition, truth in sample.truths
        )

    if not reaches(EF[-1]):
        return None
    return next(ef for ef in EF if ef == EF[-1] or reaches(ef))


def best(ids: np.ndarray, scores: np.ndarray, k: int) -> Neighbours:
    """Return the items with the highest scores, equal ones by id: of int64 [n] and float32 [n]."""
    if len(ids) > k:
        lowest = np.partition(scores, -k)[-k]
        kept = scores >= lowest
        ids, scores = ids[kept], scores[kept]
    order = np.lexsort((ids, -scores))[:k]
    return Neighbours(ids[order], scores[order].astype(np.float32))


def _recall(found: Sequence[Neighbours], truth: Sequence[Neighbours], own: Sequence[int]) -> float:
    """Return recall@10 without the queries' own items; 1 if no item is to be found."""
    shares = []
    for one, exact, itself in zip(found, truth, own, strict=True):
        wanted = {*[number for number in exact.ids.tolist() if number != itself][:K]}
        if wanted:
            shares.append(len(wanted & {*one.ids.tolist()}) / len(wanted))
    return float(np.mean(shares)) if shares else 1.0
