"""Search of a store: exclusions, groups and re-ranking of the nearest neighbours that the database finds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from retrieval.search.groups import Ranking, Views, is_complete, rank_groups, views_of
from retrieval.search.options import CANDIDATES, MOST_CANDIDATES, SearchOptions
from retrieval.search.rerank import EXPANSION, expand, k_reciprocal
from retrieval.storage.conditions import Filter, FilterTest
from retrieval.storage.records import StoredItem
from retrieval.stores.conditions import both, without
from retrieval.stores.engine import Engine

_AT_ONCE = 4096  # items of groups in memory at once


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
        views: Sequence[np.ndarray] | None = None,
        variant: str | None = None,
    ) -> list[Ranking]:
        """Return the hits of each query, by id.

        Args:
            queries: float32 [N, D], unit length.
            options: k, lowest score, groups and re-ranking.
            condition: Filter.
            group_by: Column of the groups, as the database names it.
            excluded: For each query, the ids that are no hits.
            views: For each query, the vectors of its views, float32 [m_i, D]; `None` for one of each.
            variant: Column of the variants of a group, as the database names it; `None` if it has none.
        """
        views = [*queries[:, None]] if views is None or options.rerank != "none" else views
        if options.rerank == "query-expansion":
            queries = self._expanded(queries, condition, excluded)
            views = [*queries[:, None]]
        if options.rerank == "k-reciprocal":
            found = self._rerank_k_reciprocal(queries, options.k, condition, excluded)
            if group_by is not None:
                found = [_first_of_each(one, self._groups(one.rows, group_by)) for one in found]
        elif group_by is not None:
            found = [
                self._grouped(query, options, condition, out, group_by)
                for query, out in zip(views, excluded, strict=True)
            ]
        else:
            found = self._nearest(queries, options.k, condition, excluded)
        if options.min_score is not None:
            found = [one[one.scores >= options.min_score] for one in found]
        found = [one[: options.k] for one in found]
        if group_by is not None:
            for query, one, out in zip(views, found, excluded, strict=True):
                if one.views is None or options.group_size > 1 or variant is not None:
                    one.views = self._views(query, one, options, condition, out, group_by, variant)
        return found

    def _nearest(
        self, queries: np.ndarray, k: int, condition: Filter | None, excluded: Sequence[Collection[int]]
    ) -> list[Ranking]:
        more = max(map(len, excluded), default=0)
        found = [Ranking(one.ids, one.scores) for one in self._engine.nearest(queries, k + more, condition)]
        if not more:
            return found
        return [one[~np.isin(one.rows, [*out])][:k] for one, out in zip(found, excluded, strict=True)]

    def _expanded(
        self, queries: np.ndarray, condition: Filter | None, excluded: Sequence[Collection[int]]
    ) -> np.ndarray:
        near = self._nearest(queries, EXPANSION, condition, excluded)
        moved = [
            expand(query[None], self._vectors(one.rows)[None], one.scores[None])
            for query, one in zip(queries, near, strict=True)
        ]
        return np.concatenate(moved) if moved else queries

    def _rerank_k_reciprocal(
        self, queries: np.ndarray, k: int, condition: Filter | None, excluded: Sequence[Collection[int]]
    ) -> list[Ranking]:
        count = min(max(k, CANDIDATES), MOST_CANDIDATES)
        found = []
        near = self._nearest(queries, count, condition, excluded)
        for query, one in zip(queries, near, strict=True):
            scores = (1 - k_reciprocal(query, self._vectors(one.rows))).astype(np.float32)
            order = np.argsort(-scores, kind="stable")
            found.append(Ranking(one.rows[order], scores[order]))
        return found

    def _vectors(self, ids: np.ndarray) -> np.ndarray:
        """Return the vectors of items, float32 [n, D]; of one removed meanwhile, zeros."""
        found = self._engine.vectors(ids.tolist())
        some = next(iter(found.values()), np.empty(0, np.float32))
        rows = [found.get(number, np.zeros_like(some)) for number in ids.tolist()]
        return np.stack(rows) if rows else np.empty((0, len(some)), np.float32)

    # ---- groups

    def _grouped(
        self,
        query: np.ndarray,
        options: SearchOptions,
        condition: Filter | None,
        excluded: Collection[int],
        column: str,
    ) -> Ranking:
        """Return the best view of each of the k best groups; see `Searcher` in `retrieval.search.query`."""
        if len(query) == 1 and options.group_score == "best":
            return self._one_per_group(query, options.k, condition, excluded, column)
        wanted = 4 * options.k
        while True:
            near = self._nearest(query, wanted, condition, [excluded] * len(query))
            met = np.unique(np.concatenate([one.rows for one in near]))
            rows, which, _ = self._members(met, condition, excluded, column)
            found = rank_groups(options.group_score, rows, self._cosines(query, rows), which, options.k)
            if is_complete(found, near, options.k, wanted):
                return found
            wanted *= 4

    def _one_per_group(
        self, query: np.ndarray, k: int, condition: Filter | None, excluded: Collection[int], column: str
    ) -> Ranking:
        """Return the nearest item of each of the k nearest groups; a search leaves out the groups found."""
        at_once = self._engine.nearest_groups(query[0], k, _beside(condition, excluded), column)
        if at_once is not None:
            shown = Views(at_once.ids[:, None], np.zeros((len(at_once.ids), 1), np.float32), at_once.counts)
            return Ranking(at_once.ids, at_once.scores, shown)
        ids, scores = np.empty(0, np.int64), np.empty(0, np.float32)
        left, out, wanted = condition, {*excluded}, 4 * k
        while True:
            (near,) = self._nearest(query, wanted, left, [out])
            groups = self._groups(near.rows, column)
            best = _first_of_each(near, groups)
            ids, scores = np.concatenate([ids, best.rows]), np.concatenate([scores, best.scores])
            if len(ids) >= k or len(near.rows) < wanted:
                return Ranking(ids, scores)[np.argsort(-scores, kind="stable")]
            # Groups have been found whole up to here: the rest is in the others.
            values = {value for value in groups.values() if value is not None}
            out |= {number for number, value in groups.items() if value is None}
            if values:
                left = without(left, column, tuple(values))

    def _views(
        self,
        query: np.ndarray,
        found: Ranking,
        options: SearchOptions,
        condition: Filter | None,
        excluded: Collection[int],
        column: str,
        variant: str | None,
    ) -> Views:
        """Return the views of hits. If one of each is wanted, the others are counted and not read."""
        size = options.group_size
        if size > 1 or variant is not None:
            rows, which, variants = self._members(found.rows, condition, excluded, column, variant)
            scores = self._cosines(query, rows).mean(1) if size > 1 else None
            return views_of(rows, scores, which, found.rows, size, variants)
        groups, among = self._groups(found.rows, column), _beside(condition, excluded)
        values = [groups.get(number) for number in found.rows.tolist()]
        counts = [
            1 if value is None else self._engine.count(both(among, FilterTest(column, "=", (value,))))
            for value in values
        ]
        return Views(found.rows[:, None], np.zeros((len(values), 1), np.float32), np.array(counts, np.int64))

    def _members(
        self,
        ids: np.ndarray,
        condition: Filter | None,
        excluded: Collection[int],
        column: str,
        variant: str | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return the items of the groups of some items that may be found, int64 [m], and for each the first
        position among those items of its group, int64 [m], and its variant, int64 [m], -1 for none."""
        groups, kinds = self._groups(ids, column), dict[Any, int]()
        alone = [(number, at, -1) for at, number in enumerate(ids.tolist()) if groups.get(number) is None]
        first = dict[Any, int]()
        for at, number in enumerate(ids.tolist()):
            if (value := groups.get(number)) is not None:
                first.setdefault(value, at)
        found = [*alone]
        among, last = both(condition, FilterTest(column, "in", tuple(first))), 0
        while first and (some := self._engine.scan(among, last, _AT_ONCE)):
            last = some[-1].id
            for item in some:
                if item.id not in excluded:
                    value = None if variant is None else value_of(item, variant)
                    kind = -1 if value is None else kinds.setdefault(value, len(kinds))
                    found.append((item.id, first[value_of(item, column)], kind))
        rows, which, variants = np.array(found, np.int64).reshape(-1, 3).T
        return rows, which, None if variant is None else variants

    def _cosines(self, query: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the cosines of items with the views of a query, float32 [n, m]."""
        parts = [
            self._vectors(ids[start : start + _AT_ONCE]) @ query.T for start in range(0, len(ids), _AT_ONCE)
        ]
        return np.concatenate([np.empty((0, len(query)), np.float32), *parts])

    def _groups(self, ids: np.ndarray, column: str) -> dict[int, Any]:
        return {item.id: value_of(item, column) for item in self._engine.items(ids.tolist())}


def value_of(item: StoredItem, column: str) -> Any:
    """Return the value of an item in a column of metadata or facts; `None` if it is missing."""
    return item.metadata[column] if column in item.metadata else getattr(item, column, None)


def _beside(condition: Filter | None, excluded: Collection[int]) -> Filter | None:
    """Return a filter that excludes items, too."""
    return both(condition, FilterTest("id", "not in", tuple(excluded))) if excluded else condition


def _first_of_each(near: Ranking, groups: dict[int, Any]) -> Ranking:
    """Return the best of each group, best first; items without a value are groups of their own."""
    seen: set[Any] = set()
    kept = []
    for number in near.rows.tolist():
        value = groups.get(number)
        kept.append(value is None or value not in seen)
        seen.add(value)
    return near[np.array(kept, bool)]
