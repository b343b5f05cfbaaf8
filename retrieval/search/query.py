"""The search of one gallery state: filters, exclusions, groups and re-ranking."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from retrieval.errors import InputError, pointing
from retrieval.search.filters import Filters, State
from retrieval.search.groups import (
    NOTHING,
    Groups,
    Ranking,
    best_of_each,
    is_complete,
    rank_groups,
    views_of,
)
from retrieval.search.options import CANDIDATES, MOST_CANDIDATES, Names, SearchOptions, each_name
from retrieval.search.rerank import EXPANSION, expand, k_reciprocal
from retrieval.search.selection import Selection
from retrieval.search.where import is_text
from retrieval.storage.queries import ids_by_key
from retrieval.storage.store import Store


class Searcher:
    """Search of one state of a gallery.

    Args:
        store: Gallery store.
        state: State to search.
        filters: Conditions and groupings, which the searches of other states share.
    """

    def __init__(self, store: Store, state: State, filters: Filters) -> None:
        self._store, self._state, self._filters = store, state, filters
        self.snapshot = state.snapshot

    def find(
        self,
        queries: np.ndarray,
        options: SearchOptions,
        own: Sequence[tuple[int, ...]] | None = None,
        views: Sequence[np.ndarray] | None = None,
    ) -> list[Ranking]:
        """Return the best rows of each query.

        Args:
            queries: float32 [N, D], unit length.
            options: Search options.
            own: For each query, the ids of the items that it comes from, which are no hits of it; queries
                with the same items are searched in one batch.
            views: For each query, the vectors that it is made of, float32 [m_i, D]; see
                `SearchableGallery.find`.

        Raises:
            InputError: An invalid condition, an unknown column or item, or queries of another shape.
        """
        views = [query[None] for query in queries] if views is None else views
        positions_of: dict[tuple[int, ...], list[int]] = {}
        for position, items in enumerate(own or [()] * len(queries)):
            positions_of.setdefault(items, []).append(position)
        found = [NOTHING] * len(queries)
        for items, positions in positions_of.items():
            some = self._find(queries[positions], [views[position] for position in positions], options, items)
            for position, answer in zip(positions, some, strict=True):
                found[position] = answer
        return found

    def _find(
        self, queries: np.ndarray, views: Sequence[np.ndarray], options: SearchOptions, own: tuple[int, ...]
    ) -> list[Ranking]:
        allowed = None
        if options.where is not None:
            many = len(queries) > 1
            allowed = self._filters.selection(options.where, self._state, lasting=many)
        with pointing("#/group_by"):
            groups = None if options.grouping is None else self._filters.groups(options.grouping, self._state)
        excluded = NOTHING.rows
        if options.exclude:
            with pointing("#/exclude"):
                excluded = self._rows_of(options.exclude)
        if own:
            excluded = np.concatenate([excluded, self._own_rows(own, options, groups)])
        if options.rerank != "none":
            views = [*queries[:, None]]
        if options.rerank == "query-expansion":
            queries = self._expanded(queries, allowed, excluded)
            views = [*queries[:, None]]
        if options.rerank == "k-reciprocal":
            found = self._rerank_k_reciprocal(queries, options.k, allowed, excluded)
            if groups is not None:
                found = [best_of_each(one, groups.numbers[one.rows]) for one in found]
        elif groups is None:
            found = self._nearest(queries, options.k, allowed, excluded)
        else:
            found = [self._grouped(one, options, allowed, excluded, groups) for one in views]
        if options.min_score is not None:
            found = [one[one.scores >= options.min_score] for one in found]
        found = [one[: options.k] if len(one.rows) > options.k else one for one in found]
        if groups is not None:
            column = self._store.manifest.variant_of(options.grouping)
            kinds = None if column is None else self._filters.groups(column, self._state).numbers
            for query, one in zip(views, found, strict=True):
                rows, which = self._members(groups, groups.numbers[one.rows], allowed, excluded)
                scores = self.snapshot.cosines(query, rows).mean(1) if options.group_size > 1 else None
                variants = None if kinds is None else kinds[rows]
                one.views = views_of(rows, scores, which, one.rows, options.group_size, variants)
        return found

    def ids_of(self, names: Names) -> list[int]:
        """Return the ids of items given by id or by key; text that is no key may be the digits of an id.

        Raises:
            InputError: There is no such item.
        """
        names = each_name(names)
        ids = ids_of_names(names, lambda keys: ids_by_key(self._store, keys))
        unknown = self.snapshot.rows_of(np.array(ids, np.int64)) < 0
        if unknown.any():
            name = names[int(np.argmax(unknown))]
            raise InputError(f"{self.snapshot.where}: no item {name!r}, neither an id nor a key")
        return ids

    def _rows_of(self, names: Names) -> np.ndarray:
        return self.snapshot.rows_of(np.array(self.ids_of(names), np.int64))

    def _own_rows(self, own: tuple[int, ...], options: SearchOptions, groups: Groups | None) -> np.ndarray:
        """Return the rows of the items that a query comes from; in a search for products, with these."""
        rows = self._rows_of(own)
        if groups is None or not self._store.manifest.is_product(options.grouping):
            return rows
        return groups.members(np.unique(groups.numbers[rows]))[0]

    # ---- rankings

    def _nearest(
        self, queries: np.ndarray, k: int, allowed: Selection | None, excluded: np.ndarray
    ) -> list[Ranking]:
        """Return the k nearest of the allowed rows, without the excluded ones."""
        count = min(k + len(excluded), max(self.snapshot.size, 1))
        scores, rows = self.snapshot.nearest(queries, count, allowed)
        kept = rows >= 0
        if len(excluded):
            kept &= ~np.isin(rows, excluded)
        if kept.all():
            return [*map(Ranking, rows, scores)]
        return [Ranking(r[w], s[w])[:k] for r, s, w in zip(rows, scores, kept, strict=True)]

    def _expanded(self, queries: np.ndarray, allowed: Selection | None, excluded: np.ndarray) -> np.ndarray:
        moved = []
        for query, near in zip(queries, self._nearest(queries, EXPANSION, allowed, excluded), strict=True):
            neighbours = self.snapshot.vectors(near.rows)
            moved.append(expand(query[None], neighbours[None], near.scores[None]))
        return np.concatenate(moved) if moved else queries

    def _rerank_k_reciprocal(
        self, queries: np.ndarray, k: int, allowed: Selection | None, excluded: np.ndarray
    ) -> list[Ranking]:
        count = min(max(k, CANDIDATES), MOST_CANDIDATES)
        found = []
        for query, near in zip(queries, self._nearest(queries, count, allowed, excluded), strict=True):
            scores = 1 - k_reciprocal(query, self.snapshot.vectors(near.rows))
            found.append(Ranking(near.rows, scores)[np.argsort(-scores, kind="stable")])
        return found

    def _grouped(
        self,
        query: np.ndarray,
        options: SearchOptions,
        allowed: Selection | None,
        excluded: np.ndarray,
        groups: Groups,
    ) -> Ranking:
        """Return the best view of each of the k best groups, with the scores of the groups.

        Args:
            query: Views of the query, float32 [m, D].
            options: Search options.
            allowed: Rows that may be found; `None` for all.
            excluded: Rows that may not.
            groups: Groups of rows.
        """
        if len(query) == 1 and options.group_score == "best":
            return self._one_per_group(query, options.k, allowed, excluded, groups)
        wanted = 4 * options.k
        while True:
            near = self._nearest(query, wanted, allowed, excluded)
            met = np.unique(groups.numbers[np.concatenate([one.rows for one in near])])
            rows, which = self._members(groups, met, allowed, excluded)
            cosines = self.snapshot.cosines(query, rows)
            found = rank_groups(options.group_score, rows, cosines, which, options.k)
            if is_complete(found, near, options.k, wanted):
                return found
            wanted *= 4

    def _one_per_group(
        self,
        query: np.ndarray,
        k: int,
        allowed: Selection | None,
        excluded: np.ndarray,
        groups: Groups,
    ) -> Ranking:
        """Return the nearest row of each of the k nearest groups; each search leaves out the groups found."""
        rows, scores = np.empty(0, np.int64), np.empty(0, np.float32)
        left, wanted = allowed, 4 * k
        while True:
            (near,) = self._nearest(query, wanted, left, excluded)
            best = best_of_each(near, groups.numbers[near.rows])
            rows, scores = np.concatenate([rows, best.rows]), np.concatenate([scores, best.scores])
            if len(rows) >= k or len(near.rows) < wanted:
                return Ranking(rows, scores)[np.argsort(-scores, kind="stable")]
            # Groups have been found whole up to here: the rest is in the others.
            others = ~np.isin(groups.numbers, groups.numbers[rows])
            for mask in (None if allowed is None else allowed.allowed, self.snapshot.alive):
                others &= True if mask is None else mask
            left = Selection(others, lasting=False)

    def _members(
        self, groups: Groups, numbers: np.ndarray, allowed: Selection | None, excluded: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of some groups that may be found; see `Groups.members`."""
        rows, which = groups.members(numbers)
        kept = np.ones(len(rows), bool)
        for mask in (None if allowed is None else allowed.allowed, self.snapshot.alive):
            kept &= True if mask is None else mask[rows]
        if len(excluded):
            kept &= ~np.isin(rows, excluded)
        return rows[kept], which[kept]


def ids_of_names(
    names: Sequence[int | str], ids_by_key: Callable[[Sequence[str]], Mapping[str, int]]
) -> list[int]:
    """Return the id that each name stands for: that of its key, else its digits; 0 for neither.

    Args:
        names: Ids and keys; text that is no key may be the digits of an id.
        ids_by_key: Function that returns the ids of the keys that there are.
    """
    texts = [name for name in names if isinstance(name, str) and is_text(name)]
    keys = ids_by_key(texts) if texts else {}
    return [keys.get(name) or _number(name) if isinstance(name, str) else _known(name) for name in names]


def _number(digits: str) -> int:
    """Return the id of a string of digits; 0, which no item has, for any other text."""
    return _known(int(digits)) if digits.isdecimal() and len(digits) < 19 else 0


def _known(number: int) -> int:
    """Return a number that can be an id; 0 for another one."""
    return int(number) if 0 < number < 2**63 else 0
