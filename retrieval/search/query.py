"""What one can ask of a gallery: how many pictures, which ones, and in what order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from retrieval.errors import InputError, did_you_mean
from retrieval.search.rerank import EXPANSION, expand, k_reciprocal
from retrieval.search.where import is_text, parse
from retrieval.storage.queries import column_values, ids_by_key, ids_matching

if TYPE_CHECKING:
    from retrieval.search.snapshot import Snapshot
    from retrieval.storage.store import Store

# What the score of a hit is, by the way of re-ranking.
RERANKS = {
    "none": "cosine similarity",
    "query-expansion": "cosine similarity to the expanded query",
    "k-reciprocal": "1 - k-reciprocal distance",
}
CANDIDATES = 200  # how many k-reciprocal re-ranking looks at, and more where more are wanted,
MOST_CANDIDATES = 1000  # up to this many: it compares all of them with each other
_KEPT = 16  # conditions and groupings of one state of the gallery


@dataclass(frozen=True)
class SearchOptions:
    """What to look for beside the query itself.

    Attributes:
        k: how many hits; fewer where there are no more.
        where: a condition that hits fulfil, see `retrieval.search.where`.
        exclude: ids (whole numbers) and keys (text) of items that are no hits.
        min_score: hits score at least this, -1 to 1.
        group_by: a column, of whose values each gives its best hit alone: "label" for one hit a label. Items
            without a value stand for themselves.
        rerank: "none"; "query-expansion" searches again with the query moved towards what it found first;
            "k-reciprocal" orders the first few hundred by the neighbours they share with the query, and has
            no other hits, nor groups. `RERANKS` says what the score is then.

    Raises:
        InputError: a value that is out of range or unknown.
    """

    k: int = 10
    where: str | None = None
    exclude: Sequence[int | str] = ()
    min_score: float | None = None
    group_by: str | None = None
    rerank: str = "none"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InputError(f"k must be at least 1, got {self.k}")
        if self.min_score is not None and not -1 <= self.min_score <= 1:
            raise InputError(f"the lowest score must be from -1 to 1, got {self.min_score}")
        if self.rerank not in RERANKS:
            hint = did_you_mean(self.rerank, RERANKS, f"there are: {', '.join(RERANKS)}")
            raise InputError(f"unknown re-ranking {self.rerank!r}; {hint}")


@dataclass(frozen=True, eq=False)
class _Ranking:
    """Rows of a snapshot, int64 [n], and their scores, float [n], best first."""

    rows: np.ndarray
    scores: np.ndarray

    def __getitem__(self, which: slice | np.ndarray) -> _Ranking:
        return _Ranking(self.rows[which], self.scores[which])


class Searcher:
    """Searches one state of a gallery; what conditions and groupings come to is kept for the next time."""

    def __init__(self, store: Store, snapshot: Snapshot) -> None:
        self._store, self.snapshot = store, snapshot
        self._fulfilling = lru_cache(_KEPT)(self._scan_condition)
        self._groups = lru_cache(_KEPT)(self._scan_column)

    def find(
        self, queries: np.ndarray, options: SearchOptions, own: Sequence[tuple[int, ...]] | None = None
    ) -> list[list[tuple[int, float]]]:
        """For each query, float32 [N, D] of unit length, the best items: (id, score), best first.

        Args:
            own: the items that each query is, which are no hits of it; queries that are the same ones are
                searched for at once.

        Raises:
            InputError: a condition that is none, a column or item that is not there, or queries of another
                shape.
        """
        if own is None:
            return self._find(queries, options)
        groups: dict[tuple[int, ...], list[int]] = {}
        for position, items in enumerate(own):
            groups.setdefault(items, []).append(position)
        found: list[list[tuple[int, float]]] = [[] for _ in own]
        for items, positions in groups.items():
            limited = replace(options, exclude=[*options.exclude, *items])
            for position, answer in zip(positions, self._find(queries[positions], limited), strict=True):
                found[position] = answer
        return found

    def _find(self, queries: np.ndarray, options: SearchOptions) -> list[list[tuple[int, float]]]:
        allowed = None if options.where is None else self._fulfilling(options.where)
        groups = None if options.group_by is None else self._groups(options.group_by)
        barred = self.snapshot.rows_of(np.array(self.ids_of(options.exclude), np.int64))
        if options.rerank == "query-expansion":
            queries = self._expanded(queries, allowed, barred)
        if options.rerank == "k-reciprocal":
            found = self._by_company(queries, options.k, allowed, barred)
            if groups is not None:
                found = [_first_of_each(one, groups) for one in found]
        elif groups is not None:
            found = [self._one_of_each(query, options.k, allowed, barred, groups) for query in queries]
        else:
            found = self._nearest(queries, options.k, allowed, barred)
        lowest = -np.inf if options.min_score is None else options.min_score
        kept = [one[one.scores >= lowest][: options.k] for one in found]
        return [
            list(zip(self.snapshot.ids[one.rows].tolist(), one.scores.tolist(), strict=True)) for one in kept
        ]

    def ids_of(self, names: Iterable[int | str]) -> list[int]:
        """The ids of items that are named by id or by key; the digits of an id do where they are no key.

        Raises:
            InputError: there is no such item.
        """
        names = list(names)
        keys = ids_by_key(self._store, [name for name in names if isinstance(name, str) and is_text(name)])
        ids = [(keys.get(name) if isinstance(name, str) else None) or _number(str(name)) for name in names]
        for name, row in zip(names, self.snapshot.rows_of(np.array(ids, np.int64)).tolist(), strict=True):
            if row < 0:
                raise InputError(f"{self.snapshot.where}: no item {name!r}, neither an id nor a key")
        return ids

    # ---- rankings

    def _nearest(
        self, queries: np.ndarray, k: int, allowed: np.ndarray | None, barred: np.ndarray
    ) -> list[_Ranking]:
        """The k nearest of the rows allowed, without those that are barred."""
        count = min(k + len(barred), max(self.snapshot.size, 1))
        scores, rows = self.snapshot.nearest(queries, count, allowed)
        kept = (rows >= 0) & ~np.isin(rows, barred)
        return [_Ranking(r[w], s[w])[:k] for r, s, w in zip(rows, scores, kept, strict=True)]

    def _expanded(self, queries: np.ndarray, allowed: np.ndarray | None, barred: np.ndarray) -> np.ndarray:
        moved = []
        for query, near in zip(queries, self._nearest(queries, EXPANSION, allowed, barred), strict=True):
            neighbours = self.snapshot.vectors(near.rows)
            moved.append(expand(query[None], neighbours[None], near.scores[None]))
        return np.concatenate(moved) if moved else queries

    def _by_company(
        self, queries: np.ndarray, k: int, allowed: np.ndarray | None, barred: np.ndarray
    ) -> list[_Ranking]:
        count = min(max(k, CANDIDATES), MOST_CANDIDATES)
        found = []
        for query, near in zip(queries, self._nearest(queries, count, allowed, barred), strict=True):
            scores = 1 - k_reciprocal(query, self.snapshot.vectors(near.rows))
            found.append(_Ranking(near.rows, scores)[np.argsort(-scores, kind="stable")])
        return found

    def _one_of_each(
        self, query: np.ndarray, k: int, allowed: np.ndarray | None, barred: np.ndarray, groups: np.ndarray
    ) -> _Ranking:
        """The nearest of each of the k nearest groups: searched again without the groups that are found."""
        left = self.snapshot.ids > 0 if allowed is None else allowed.copy()
        left[barred] = False
        rows, scores = np.empty(0, np.int64), np.empty(0, np.float32)
        while len(rows) < k and left.any():
            (near,) = self._nearest(query[None], 4 * k, left, barred[:0])
            best = _first_of_each(near, groups)
            rows, scores = np.concatenate([rows, best.rows]), np.concatenate([scores, best.scores])
            left &= ~np.isin(groups, groups[best.rows])
        return _Ranking(rows, scores)[np.argsort(-scores, kind="stable")]

    # ---- what the database says about the rows

    def _scan_condition(self, where: str) -> np.ndarray:
        """The rows that fulfil a condition, bool [rows]."""
        return np.isin(self.snapshot.ids, ids_matching(self._store, parse(where)))

    def _scan_column(self, column: str) -> np.ndarray:
        """A number for each row that is the same where a column has the same value, int32 [rows]."""
        found = column_values(self._store, column)
        seen: dict[object, int] = {}
        numbers = np.array([seen.setdefault(value, len(seen)) for _, value in found], np.int32)
        rows = self.snapshot.rows_of(np.array([item for item, _ in found], np.int64))
        groups = -1 - np.arange(len(self.snapshot.ids), dtype=np.int32)  # without a value: each its own
        groups[rows[rows >= 0]] = numbers[rows >= 0]
        return groups


def _first_of_each(found: _Ranking, groups: np.ndarray) -> _Ranking:
    """The best of each group, best first."""
    _, first = np.unique(groups[found.rows], return_index=True)
    return found[np.sort(first)]


def _number(digits: str) -> int:
    """The id that some text spells; 0, which none has, where it spells none that can be."""
    return int(digits) if digits.isdecimal() and len(digits) < 19 else 0
