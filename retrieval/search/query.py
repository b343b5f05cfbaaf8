"""Search options, and the search of one gallery state: filters, exclusions, groups and re-ranking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retrieval.errors import InputError, did_you_mean
from retrieval.search.filters import Filters, State
from retrieval.search.rerank import EXPANSION, expand, k_reciprocal
from retrieval.search.selection import Selection
from retrieval.search.where import is_text
from retrieval.storage.queries import ids_by_key
from retrieval.storage.store import Store

# Meaning of a hit's score by re-ranking method.
RERANKS = {
    "none": "cosine similarity",
    "query-expansion": "cosine similarity to the expanded query",
    "k-reciprocal": "1 - k-reciprocal distance",
}
# Candidates of k-reciprocal re-ranking: k, but within these limits, since all are compared with each other.
# An order by a column has the most of them.
CANDIDATES, MOST_CANDIDATES = 200, 1000


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search.

    Attributes:
        k: Number of hits; fewer if there are no more.
        where: Condition that hits fulfil, see `retrieval.search.where`.
        exclude: Ids (whole numbers) and keys (text) of items that are no hits.
        min_score: Lowest score of a hit, from -1 to 1.
        group_by: Column; only the best hit of each of its values is returned, such as one hit per label for
            "label". An item without a value is a group of its own.
        rerank: "none"; "query-expansion", which searches again with the query moved towards its first hits;
            or "k-reciprocal", which orders the first few hundred candidates by the neighbours they share with
            the query, and finds no other hits or groups. `RERANKS` has the meaning of the scores.
        min_probability: Lowest probability of a hit, from 0 to 1, in a calibrated gallery; not with `rerank`.
        calibrated: Whether the queries are images, of whose hits a calibration gives the probabilities. Text
            has other cosines.
        order: Order of the hits: a column, with "desc" for high values first, such as "price desc". The
            `MOST_CANDIDATES` best hits are put in this order, whatever `k` is: more hits only continue the
            list. Equal values are best first, missing ones last. `None` for the best first.

    Raises:
        InputError: A value that is out of range or unknown.
    """

    k: int = 10
    where: str | None = None
    exclude: Sequence[int | str] = ()
    min_score: float | None = None
    group_by: str | None = None
    rerank: str = "none"
    min_probability: float | None = None
    calibrated: bool = True
    order: str | None = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InputError(f"k must be at least 1, got {self.k}")
        if self.min_score is not None and not -1 <= self.min_score <= 1:
            raise InputError(f"minimum score {self.min_score}: must be from -1 to 1")
        if self.rerank not in RERANKS:
            hint = did_you_mean(self.rerank, RERANKS, f"known: {', '.join(RERANKS)}")
            raise InputError(f"unknown re-ranking {self.rerank!r}; {hint}")
        if self.min_probability is not None:
            if not 0 <= self.min_probability <= 1:
                raise InputError(f"minimum probability {self.min_probability}: must be from 0 to 1")
            if not self.has_probabilities:
                what = "minimum probability: only the cosines of a query image have probabilities"
                raise InputError(f"{what}; leave out the re-ranking and the text")

    @property
    def has_probabilities(self) -> bool:
        """Whether the hits of a calibrated gallery have probabilities: scores are cosines of images."""
        return self.calibrated and self.rerank == "none"

    def is_nothing_like_it(self, hits: Sequence[object]) -> bool:
        """Return whether the answer is that the gallery has nothing like the query."""
        return self.min_probability is not None and not hits


@dataclass(frozen=True, eq=False)
class Ranking:
    """Rows of a snapshot, int64 [n], with their scores, float [n], best first."""

    rows: np.ndarray
    scores: np.ndarray

    def __getitem__(self, which: slice | np.ndarray) -> Ranking:
        return Ranking(self.rows[which], self.scores[which])


NOTHING = Ranking(np.empty(0, np.int64), np.empty(0, np.float32))


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
        self, queries: np.ndarray, options: SearchOptions, own: Sequence[tuple[int, ...]] | None = None
    ) -> list[Ranking]:
        """Return the best rows of each query.

        Args:
            queries: float32 [N, D], unit length.
            options: Search options.
            own: For each query, the ids of the items that it comes from, which are no hits of it; queries
                with the same items are searched in one batch.

        Raises:
            InputError: An invalid condition, an unknown column or item, or queries of another shape.
        """
        if own is None:
            return self._find(queries, options)
        groups: dict[tuple[int, ...], list[int]] = {}
        for position, items in enumerate(own):
            groups.setdefault(items, []).append(position)
        found = [NOTHING] * len(own)
        for items, positions in groups.items():
            limited = replace(options, exclude=[*options.exclude, *items])
            for position, answer in zip(positions, self._find(queries[positions], limited), strict=True):
                found[position] = answer
        return found

    def _find(self, queries: np.ndarray, options: SearchOptions) -> list[Ranking]:
        allowed = None if options.where is None else self._filters.selection(options.where, self._state)
        groups = None if options.group_by is None else self._filters.groups(options.group_by, self._state)
        excluded = NOTHING.rows
        if options.exclude:
            excluded = self.snapshot.rows_of(np.array(self.ids_of(options.exclude), np.int64))
        if options.rerank == "query-expansion":
            queries = self._expanded(queries, allowed, excluded)
        if options.rerank == "k-reciprocal":
            found = self._rerank_k_reciprocal(queries, options.k, allowed, excluded)
            if groups is not None:
                found = [_best_of_each(one, groups) for one in found]
        elif groups is not None:
            found = [self._one_per_group(query, options.k, allowed, excluded, groups) for query in queries]
        else:
            found = self._nearest(queries, options.k, allowed, excluded)
        if options.min_score is not None:
            found = [one[one.scores >= options.min_score] for one in found]
        return [one[: options.k] for one in found]

    def ids_of(self, names: Iterable[int | str]) -> list[int]:
        """Return the ids of items given by id or by key; text that is no key may be the digits of an id.

        Raises:
            InputError: There is no such item.
        """
        names = list(names)
        ids = ids_of_names(names, lambda keys: ids_by_key(self._store, keys))
        for name, row in zip(names, self.snapshot.rows_of(np.array(ids, np.int64)).tolist(), strict=True):
            if row < 0:
                raise InputError(f"{self.snapshot.where}: no item {name!r}, neither an id nor a key")
        return ids

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
            return [Ranking(*one) for one in zip(rows, scores, strict=True)]
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

    def _one_per_group(
        self,
        query: np.ndarray,
        k: int,
        allowed: Selection | None,
        excluded: np.ndarray,
        groups: np.ndarray,
    ) -> Ranking:
        """Return the nearest row of each of the k nearest groups; each search leaves out the groups found."""
        rows, scores = np.empty(0, np.int64), np.empty(0, np.float32)
        left, wanted = allowed, 4 * k
        while True:
            (near,) = self._nearest(query[None], wanted, left, excluded)
            best = _best_of_each(near, groups)
            rows, scores = np.concatenate([rows, best.rows]), np.concatenate([scores, best.scores])
            if len(rows) >= k or len(near.rows) < wanted:
                return Ranking(rows, scores)[np.argsort(-scores, kind="stable")]
            # Groups have been found whole up to here: the rest is in the others.
            others = ~np.isin(groups, groups[rows])
            for mask in (None if allowed is None else allowed.allowed, self.snapshot.alive):
                others &= True if mask is None else mask
            left = Selection(others)


def _best_of_each(found: Ranking, groups: np.ndarray) -> Ranking:
    """Return the best of each group, best first."""
    _, first = np.unique(groups[found.rows], return_index=True)
    return found[np.sort(first)]


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
    return [(keys.get(name) if isinstance(name, str) else None) or _number(str(name)) for name in names]


def _number(digits: str) -> int:
    """Return the id of a string of digits; 0, which no item has, for any other text."""
    return int(digits) if digits.isdecimal() and len(digits) < 19 else 0
