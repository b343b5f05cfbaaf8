"""One committed state of a gallery in memory: vectors, their items, and nearest-neighbour search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.search.costs import exact_ms, index_ms
from retrieval.search.index import Index
from retrieval.search.lru_cache import LRUCache
from retrieval.search.selection import Selection
from retrieval.search.vectors import Vectors, top_k
from retrieval.storage.facts import StoredFacts
from retrieval.storage.segments import CHECKSUM, ITEM, NUMBER, checksums

_KEPT = 64  # choices between exact search and the index
_BLOCK = 1 << 14  # rows whose vectors are in memory at once
_FEW = 10_000  # allowed rows up to which the search is always exact rather than by the index


class ItemRows:
    """Rows of items, looked up by item id.

    Ids mostly ascend with the rows, and then binary search on the memory-mapped ids is enough. Parts with ids
    below those of an earlier part, as after a replacement, are sorted in memory; their rows, which are newer,
    count first.

    Args:
        parts: Item ids of each part, int64 [n_i].
    """

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        starts = np.cumsum([0, *map(len, parts)]).tolist()
        self._parts: list[np.ndarray] = []
        self._starts, self._firsts = list[int](), list[int]()
        late, highest = [(np.empty(0, np.int64), np.empty(0, np.int64))], 0
        for part, start in zip(parts, starts, strict=False):
            if part[0] > highest and (part[1:] > part[:-1]).all():
                self._parts.append(part)
                self._starts.append(start)
                self._firsts.append(int(part[0]))
            else:
                late.append((part, np.arange(start, start + len(part))))
            highest = max(highest, int(part.max()))
        ids, rows = (np.concatenate(both) for both in zip(*late, strict=True))
        order = np.argsort(ids, kind="stable")
        self._late, self._late_rows = ids[order], rows[order]

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the newest row of each item, int64 [n]; -1 for unknown items."""
        rows = np.full(ids.shape, -1)
        if self._parts and (ids[1:] >= ids[:-1]).all():
            ends = np.searchsorted(ids, [*self._firsts[1:], np.iinfo(np.int64).max])
            first = int(np.searchsorted(ids, self._firsts[0]))
            for number, end in enumerate(ends.tolist()):
                if first < end:
                    rows[first:end] = _at(self._parts[number], ids[first:end], self._starts[number])
                    first = end
        elif self._parts:
            part_of = np.searchsorted(self._firsts, ids, side="right") - 1
            for number in np.unique(part_of[part_of >= 0]):
                mine = part_of == number
                rows[mine] = _at(self._parts[number], ids[mine], self._starts[number])
        if len(self._late):
            at = np.maximum(np.searchsorted(self._late, ids, side="right") - 1, 0)
            rows = np.where(self._late[at] == ids, self._late_rows[at], rows)
        return rows


def _at(sorted_ids: np.ndarray, ids: np.ndarray, start: int) -> np.ndarray:
    """Return the positions of ids among ascending ones, plus `start`; -1 for those that are not there."""
    if sorted_ids[-1] - sorted_ids[0] == len(sorted_ids) - 1:
        return np.where(ids <= sorted_ids[-1], start + ids - sorted_ids[0], -1)
    at = np.minimum(np.searchsorted(sorted_ids, ids), len(sorted_ids) - 1)
    return np.where(sorted_ids[at] == ids, start + at, -1)


class Snapshot:
    """Rows of vectors with their items; rows are numbered over all parts, oldest first.

    Every vector that a search returns was checked against its checksum, when it was first found.

    Args:
        parts: Vectors [n_i, D] as stored, unit length, memory-mapped.
        rows: Vector numbers, item ids and checksums of each part, int64 [3, n_i], memory-mapped; see
            `retrieval.storage.segments`.
        dead: Numbers of the vectors of removed and replaced items, int64 [m].
        index: Index over vectors; `None` for exact search.
        last: Highest number of a vector in the index.
        facts: Facts about the items of the rows; `None` if only the database has them.
        dim: Dimension D.
        where: Name of the gallery in error messages.
    """

    def __init__(
        self,
        parts: Sequence[np.ndarray],
        rows: Sequence[np.ndarray],
        dead: np.ndarray | None = None,
        index: Index | None = None,
        last: int = 0,
        *,
        facts: StoredFacts | None = None,
        dim: int,
        where: str = "the gallery",
    ) -> None:
        self.stored = Vectors(parts, dim, [part[NUMBER] for part in rows])
        self._rows = rows
        self._columns = [part.T for part in rows]
        self.index, self.last = index, last
        self._faster = LRUCache[tuple[int, int, bool], bool](_KEPT)
        self.known = facts or StoredFacts([None] * len(parts), [*map(len, parts)])
        self.where = where
        gone = self.stored.rows_of(np.empty(0, np.int64) if dead is None else dead)
        self._gone = gone[gone >= 0]

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def size(self) -> int:
        """Number of rows of live items."""
        return len(self) - len(self._gone)

    @cached_property
    def alive(self) -> np.ndarray | None:
        """bool [rows], False for rows of removed and replaced items; `None` if there are none."""
        if not len(self._gone):
            return None
        alive = np.ones(len(self), bool)
        alive[self._gone] = False
        return alive

    @cached_property
    def _live(self) -> Selection | None:
        return None if self.alive is None else Selection(self.alive, lasting=False)

    @cached_property
    def _all(self) -> Selection:
        return Selection(np.ones(len(self), bool))

    @cached_property
    def covered(self) -> int:
        """Number of rows, from the first one, that the index covers."""
        if self.index is None:
            return 0
        return int(sum(np.searchsorted(part[NUMBER], self.last, side="right") for part in self._rows))

    def live_rows(self) -> np.ndarray:
        """Return the rows of live items, int64 [n]."""
        return np.arange(len(self)) if self.alive is None else np.flatnonzero(self.alive)

    def item_ids(self, rows: np.ndarray) -> np.ndarray:
        """Return the item id of each row, int64 [n]."""
        items = [part[ITEM] for part in self._rows]
        return self.stored.gather(items, rows, np.empty(len(rows), np.int64))

    def facts(self, rows: np.ndarray) -> np.ndarray:
        """Return vector numbers, item ids and checksums of rows, int64 [3, n]."""
        return self.stored.gather(self._columns, rows, np.empty((len(rows), 3), np.int64)).T

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the row of each item, int64 [n]; -1 for unknown and removed items."""
        ids = np.asarray(ids, np.int64)
        rows = self._items.rows_of(ids)
        if self.alive is not None:
            rows = np.where((rows >= 0) & self.alive[rows], rows, -1)
        return rows

    @cached_property
    def _items(self) -> ItemRows:
        return ItemRows([part[ITEM] for part in self._rows])

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors of rows, float32 [n, D], checked against their checksums.

        Raises:
            LookalikeError: A vector is damaged.
        """
        rows = np.asarray(rows, np.int64)
        stored = self._gathered(rows)
        facts = self.facts(rows)
        if (checksums(stored, facts) != facts[CHECKSUM]).any():
            hint = f"run `lookalike index verify {self.where}`"
            raise LookalikeError(f"{self.where}: a stored vector is damaged; {hint}")
        return np.asarray(stored, np.float32)

    def cosines(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the cosines of rows with queries, float32 [n, N]; their vectors are checked if new.

        Args:
            queries: float32 [N, D].
            rows: int64 [n].

        Raises:
            LookalikeError: A vector is damaged.
        """
        self._check(rows)
        found = np.empty((len(rows), len(queries)), np.float32)
        for start in range(0, len(rows), _BLOCK):
            vectors = np.asarray(self._gathered(rows[start : start + _BLOCK]), np.float32)
            found[start : start + _BLOCK] = vectors @ queries.T
        return found

    def _gathered(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors of rows as they are stored, [n, D]."""
        dtype = self.stored.parts[0].dtype if self.stored.parts else np.float32
        return self.stored.gather(self.stored.parts, rows, np.empty((len(rows), self.stored.dim), dtype))

    def nearest(
        self, queries: np.ndarray, k: int, allowed: Selection | np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the k nearest of the allowed rows, best first, equal scores by row.

        Scores are always computed from the stored vectors. The search is exact without an index, with a
        damaged one, or if few rows are allowed; otherwise the index proposes rows, and the rows it does not
        cover are searched exactly. One query uses one thread; a batch is divided among the threads of OpenMP
        and BLAS, whose number is set for the whole process (`OMP_NUM_THREADS`).

        Args:
            queries: float32 [N, D].
            k: Number of neighbours.
            allowed: Selected live rows; or bool [rows], of which removed ones are left out.

        Returns:
            Scores, float32 [N, k], and rows, int64 [N, k]; -inf and -1 beyond the last neighbour.

        Raises:
            InputError: k is below 1, or the queries have another shape or values that are not finite.
            LookalikeError: A vector that was found is damaged.
        """
        queries = self._checked(queries, k)
        if isinstance(allowed, np.ndarray) and self.alive is not None:
            allowed = allowed & self.alive
        selected = self._live if allowed is None else Selection.of(allowed)
        count = len(self) if selected is None else selected.count
        if self._is_exact(k, count, selected):
            scores, rows = self.stored.nearest(queries, k, selected)
        else:
            assert self.index is not None
            widen = max(len(self), self.index.card["vectors"]) / count
            scores, rows = self._propose(queries, k, selected, widen, select=allowed is not None)
            last = min(k, count) - 1
            if rows[:, last].min(initial=0) < 0:
                short = np.flatnonzero(rows[:, last] < 0)
                scores[short], rows[short] = self._propose(queries[short], k, selected, widen, select=True)
                if len(short := short[rows[short, last] < 0]):
                    scores[short], rows[short] = self.stored.nearest(queries[short], k, selected)
        self._check(rows)
        return scores, rows

    def _check(self, rows: np.ndarray) -> None:
        """Check the vectors of rows, -1 for none, that were not checked before.

        Raises:
            LookalikeError: A vector is damaged.
        """
        new = rows[~self._intact[rows]]  # the last element is for -1
        if len(new):
            new = np.unique(new)
            self.vectors(new)
            self._intact[new] = True

    @cached_property
    def _intact(self) -> np.ndarray:
        """bool [rows + 1], True for rows whose vectors were checked, and for none."""
        intact = np.zeros(len(self) + 1, bool)
        intact[-1] = True
        return intact

    def _is_exact(self, k: int, count: int, selected: Selection | None) -> bool:
        """Return whether the search of `count` selected rows is exact: by need, or as it is faster."""
        index = self.index
        if index is None or not index.usable or count <= max(k, _FEW):
            return True
        copied = selected is not None and selected.is_small(self.stored.dim)
        faster = self._faster.get((k, count, copied))
        if faster is None:
            by_index = index_ms(index.card, index.faiss, k, count)
            faster = exact_ms(count, len(self), self.stored.dim, copied=copied) < by_index
            self._faster.put((k, count, copied), faster)
        return faster

    def _propose(
        self, queries: np.ndarray, k: int, selected: Selection | None, widen: float, *, select: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the k nearest of the selected rows among those that the index proposes, and newer ones.

        Args:
            queries: float32 [N, D].
            k: Number of neighbours.
            selected: Selected rows; `None` for all.
            widen: Vectors in the index for each selected one.
            select: The index proposes selected rows only. Otherwise it proposes more, and dead ones are left
                out: a third of the time if there are few, but there may be fewer than k left.
        """
        assert self.index is not None
        if select:
            known = (selected or self._all).numbers(self.covered, self.stored.numbers_of)
            rows = self.stored.rows_of(self.index.propose(queries, k, known, widen))
        else:
            rows = self.stored.rows_of(self.index.propose(queries, math.ceil(k * widen)))
            if self.alive is not None:
                rows = np.where((rows >= 0) & self.alive[rows], rows, -1)
        if self.covered < len(self):
            rows = np.hstack([rows, self.stored.scan(queries, k, selected, self.covered)[1]])
        return top_k(self.stored.score(queries, rows), rows, k)

    def _checked(self, queries: np.ndarray, k: int) -> np.ndarray:
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}")
        queries = np.ascontiguousarray(queries, np.float32)
        finite = np.isfinite(np.vdot(queries, queries)) or np.isfinite(queries).all()
        if queries.ndim != 2 or queries.shape[1] != self.stored.dim or not finite:
            raise InputError(f"queries must be finite [N, {self.stored.dim}], got {list(queries.shape)}")
        return queries
