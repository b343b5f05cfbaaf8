"""Search of a store: exclusions, groups and re-ranking of the nearest neighbours that the database finds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from retrieval.search.options import CANDIDATES, MOST_CANDIDATES, SearchOptions
from retrieval.search.rerank import EXPANSION, expand, k_reciprocal
from retrieval.storage.conditions import Filter
from retrieval.storage.records import StoredItem
from retrieval.stores.conditions import without
from retrieval.stores.engine import Engine, Neighbours


class StoreSearcher:
    """Search of one collection.

    Args:
        engine: Database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def find(
        self,
        queries: np.ndarray,
        options: SearchOptions,
        condition: Filter | None,
        group_by: str | None,
        excluded: Sequence[Collection[int]],
    ) -> list[Neighbours]:
        """Return the hits of each query.

        Args:
            queries: float32 [N, D], unit length.
            options: k, lowest score and re-ranking.
            condition: Filter.
            group_by: Column of the groups, as the database names it.
            excluded: For each query, the ids that are no hits.
        """
        if options.rerank == "query-expansion":
            queries = self._expanded(queries, condition, excluded)
        if options.rerank == "k-reciprocal":
            found = self._rerank_k_reciprocal(queries, options.k, condition, excluded)
            if group_by is not None:
                found = [self._best_of_each(one, group_by) for one in found]
        elif group_by is not None:
            found = [
                self._one_per_group(query, options.k, condition, out, group_by)
                for query, out in zip(queries, excluded, strict=True)
            ]
        else:
            found = self._nearest(queries, options.k, condition, excluded)
        if options.min_score is not None:
            found = [one[one.scores >= options.min_score] for one in found]
        return [one[: options.k] for one in found]

    def _nearest(
        self, queries: np.ndarray, k: int, condition: Filter | None, excluded: Sequence[Collection[int]]
    ) -> list[Neighbours]:
        more = max(map(len, excluded), default=0)
        found = self._engine.nearest(queries, k + more, condition)
        if not more:
            return found
        return [one[~np.isin(one.ids, [*out])][:k] for one, out in zip(found, excluded, strict=True)]

    def _expanded(
        self, queries: np.ndarray, condition: Filter | None, excluded: Sequence[Collection[int]]
    ) -> np.ndarray:
        near = self._nearest(queries, EXPANSION, condition, excluded)
        moved = [
            expand(query[None], self._vectors(one)[None], one.scores[None])
            for query, one in zip(queries, near, strict=True)
        ]
        return np.concatenate(moved) if moved else queries

    def _rerank_k_reciprocal(
        self, queries: np.ndarray, k: int, condition: Filter | None, excluded: Sequence[Collection[int]]
    ) -> list[Neighbours]:
        count = min(max(k, CANDIDATES), MOST_CANDIDATES)
        found = []
        near = self._nearest(queries, count, condition, excluded)
        for query, one in zip(queries, near, strict=True):
            scores = (1 - k_reciprocal(query, self._vectors(one))).astype(np.float32)
            order = np.argsort(-scores, kind="stable")
            found.append(Neighbours(one.ids[order], scores[order]))
        return found

    def _vectors(self, near: Neighbours) -> np.ndarray:
        """Return the vectors of hits, float32 [n, D]; of one removed meanwhile, zeros."""
        found = self._engine.vectors(near.ids.tolist())
        some = next(iter(found.values()), np.empty(0, np.float32))
        rows = [found.get(number, np.zeros_like(some)) for number in near.ids.tolist()]
        return np.stack(rows) if rows else np.empty((0, len(some)), np.float32)

    # ---- groups

    def _one_per_group(
        self, query: np.ndarray, k: int, condition: Filter | None, excluded: Collection[int], column: str
    ) -> Neighbours:
        """Return the nearest item of each of the k nearest groups; a search leaves out the groups found."""
        ids, scores = np.empty(0, np.int64), np.empty(0, np.float32)
        left, out, wanted = condition, {*excluded}, 4 * k
        while True:
            (near,) = self._nearest(query[None], wanted, left, [out])
            groups = self._groups(near.ids, column)
            best = _first_of_each(near, groups)
            ids, scores = np.concatenate([ids, best.ids]), np.concatenate([scores, best.scores])
            if len(ids) >= k or len(near.ids) < wanted:
                return Neighbours(ids, scores)[np.argsort(-scores, kind="stable")]
            # Groups have been found whole up to here: the rest is in the others.
            values = {value for value in groups.values() if value is not None}
            out |= {number for number, value in groups.items() if value is None}
            if values:
                left = without(left, column, tuple(values))

    def _best_of_each(self, near: Neighbours, column: str) -> Neighbours:
        return _first_of_each(near, self._groups(near.ids, column))

    def _groups(self, ids: np.ndarray, column: str) -> dict[int, Any]:
        return {item.id: value_of(item, column) for item in self._engine.items(ids.tolist())}


def value_of(item: StoredItem, column: str) -> Any:
    """Return the value of an item in a column of metadata or facts; `None` if it is missing."""
    return item.metadata[column] if column in item.metadata else getattr(item, column, None)


def _first_of_each(near: Neighbours, groups: dict[int, Any]) -> Neighbours:
    """Return the best of each group, best first; items without a value are groups of their own."""
    seen: set[Any] = set()
    kept = []
    for number in near.ids.tolist():
        value = groups.get(number)
        kept.append(value is None or value not in seen)
        seen.add(value)
    return near[np.array(kept, bool)]
