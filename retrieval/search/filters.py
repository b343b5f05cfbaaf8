"""Conditions and groupings of a gallery as arrays over its rows: computed once, then kept across commits.

A commit changes few items. So a later state takes over what was computed for an earlier one, and asks the
database only about the new rows and the items in the log of changes. After a compaction, which rewrites the
rows, all is computed again.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from retrieval.search.groups import Groups
from retrieval.search.lru_cache import LRUCache
from retrieval.search.selection import Selection
from retrieval.search.snapshot import Snapshot
from retrieval.search.where import parse_condition
from retrieval.storage.queries import changed_items, column_values, ids_matching
from retrieval.storage.records import GalleryState
from retrieval.storage.store import Store

_GROUPINGS = 1 << 28  # bytes
_LEAST, _MOST = 1 << 24, 1 << 28  # bytes of both caches: an eighth for conditions, the rest for selections
_TIMES_VECTORS = 4  # most bytes of both for each byte of the gallery's rows
_ENTRY = 1 << 10  # bytes of the objects of an entry
_ADMITTED = 8  # uses of selections that do not fit, of which one replaces others
_MOST_CHANGED = 0.2  # share of changed items beyond which all are asked for
_MOST_VALUES = 100_000  # values of a column whose group numbers are kept


class Mark(NamedTuple):
    """What tells apart states with different rows, items or metadata, without holding their files open.

    Attributes:
        log: Last entry of the log of changes.
        last: Highest vector number; 0 without vectors.
        rows: Number of rows.
    """

    log: int
    last: int
    rows: int


@dataclass(frozen=True)
class State:
    """A committed state, and the snapshot that searches it."""

    committed: GalleryState
    snapshot: Snapshot

    @property
    def mark(self) -> Mark:
        """What tells it apart from other states."""
        segments = self.committed.segments
        return Mark(self.committed.log, segments[-1].last if segments else 0, len(self.snapshot))

    def unchanged_rows(self, earlier: Mark) -> int | None:
        """Return the number of first rows that an earlier state has, too; `None` if it is no earlier one.

        Merged segments keep their rows. Vector numbers ascend and are never used again: if the last row is
        where it was, no row before it has gone.
        """
        count = earlier.rows
        if earlier.log > self.committed.log:
            return None
        if count and self.snapshot.stored.rows_of(np.array([earlier.last]))[0] != count - 1:
            return None
        return count


@dataclass(frozen=True, eq=False)
class _Kept:
    """Something that was computed for a state."""

    mark: Mark


@dataclass(frozen=True, eq=False)
class _KeptCondition(_Kept):
    where: str
    bits: np.ndarray  # of the rows, packed

    @property
    def nbytes(self) -> int:
        return _ENTRY + sys.getsizeof(self.where) + self.bits.nbytes

    def allowed(self) -> np.ndarray:
        return np.unpackbits(self.bits, count=self.mark.rows).view(bool)


@dataclass(frozen=True, eq=False)
class _KeptSelection:
    condition: _KeptCondition
    selection: Selection


@dataclass(frozen=True, eq=False)
class _KeptGroups(_Kept):
    groups: Groups
    numbers: dict[object, int]  # of values


class Filters:
    """Selections by condition and groupings by column, in thread-safe LRU caches.

    The rows of a condition take a query of the database to find, and a bit each to keep. A repeated condition
    also keeps a copy of their vectors, which takes thousands of times as much and is soon made again. So the
    selections with copies have a cache of their own. With 1,000 images, hundreds of copies would take many
    times what the gallery does, and save little: both caches are bounded by the size of the gallery, too.

    Args:
        store: Gallery store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        dim = store.manifest.dim
        self._conditions = LRUCache[str, _KeptCondition](_MOST // 8, lambda kept: kept.nbytes)
        self._selections = LRUCache[str, _KeptSelection](
            _MOST // 8 * 7, lambda kept: _ENTRY + kept.selection.size(dim)
        )
        self._not_kept = itertools.count(1)
        self._groupings = LRUCache[str, _KeptGroups](_GROUPINGS, lambda kept: kept.groups.nbytes)

    def selection(self, where: str, state: State, *, lasting: bool = False) -> Selection:
        """Return the live rows of a state that fulfil a condition.

        Args:
            where: Condition.
            state: State.
            lasting: Whether there will be many searches of them. At the second call, that is so.

        Raises:
            InputError: An invalid condition, an unknown column, or one without values of the type.
        """
        kept = self._conditions.get(where)
        if kept is not None and kept.mark == state.mark:
            return self._lasting(kept, many=lasting)
        condition, snapshot = parse_condition(where), state.snapshot
        allowed = np.zeros(len(snapshot), bool)
        changed = None if kept is None else self._changed(kept.mark, state)
        if kept is None or changed is None:
            found = ids_matching(self._store, condition)
        else:
            found = ids_matching(self._store, condition, among=changed)
            allowed[: kept.mark.rows] = kept.allowed()
            _set(allowed, snapshot.rows_of(changed), False)
        _set(allowed, snapshot.rows_of(found), True)
        if snapshot.alive is not None:
            allowed &= snapshot.alive
        kept = _KeptCondition(state.mark, where, np.packbits(allowed))
        self._conditions.put(where, kept, self._most(kept) // 8)
        return self._lasting(kept, many=True) if lasting else Selection(allowed, lasting=False)

    def _lasting(self, condition: _KeptCondition, *, many: bool) -> Selection:
        """Return the rows of a condition that is used again, or in many searches at once.

        If conditions take turns whose copies do not fit together, making a copy for each search would take
        longer than to search without. So they seldom replace each other.
        """
        kept = self._selections.get(condition.where)
        if kept is not None and kept.condition is condition:
            return kept.selection
        selection = Selection(condition.allowed())
        kept, most = _KeptSelection(condition, selection), self._most(condition) // 8 * 7
        if not self._selections.put(condition.where, kept, most, evict=False):
            evict = next(self._not_kept) % _ADMITTED == 0
            selection.lasting = (evict and self._selections.put(condition.where, kept, most)) or many
        return selection

    def _most(self, condition: _KeptCondition) -> int:
        """Return how many bytes the conditions and selections may take in a gallery with as many rows."""
        row = 4 * self._store.manifest.dim + 24  # its vector as float32, and its number, item and checksum
        return max(_LEAST, _TIMES_VECTORS * row * condition.mark.rows)

    def groups(self, column: str, state: State) -> Groups:
        """Return the groups of rows with equal values of a column.

        Raises:
            InputError: An unknown column.
        """
        kept = self._groupings.get(column)
        if kept is not None and kept.mark == state.mark:
            return kept.groups
        snapshot = state.snapshot
        groups = -1 - np.arange(len(snapshot), dtype=np.int32)
        numbers: dict[object, int] = {}
        changed = None if kept is None or not kept.numbers else self._changed(kept.mark, state)
        if kept is None or changed is None:
            ids, values = column_values(self._store, column)
        else:
            ids, values = column_values(self._store, column, among=changed)
            numbers = dict(kept.numbers)
            known = snapshot.rows_of(changed)
            alone = groups[known]
            groups[: len(kept.groups.numbers)] = kept.groups.numbers
            _set(groups, known, alone)
        _set(groups, snapshot.rows_of(ids), _numbered(values, numbers))
        if len(numbers) > _MOST_VALUES:
            numbers = {}
        found = Groups(groups)
        self._groupings.put(column, _KeptGroups(state.mark, found, numbers))
        return found

    def _changed(self, earlier: Mark, later: State) -> np.ndarray | None:
        """Return the ids of the items that may have changed since an earlier state, int64 [n].

        Returns `None` if the state is no later one of the same rows, or too many have changed.
        """
        start, snapshot = later.unchanged_rows(earlier), later.snapshot
        most = _MOST_CHANGED * len(snapshot)
        if start is None or len(snapshot) - start > most:
            return None
        logged = changed_items(self._store, earlier.log, later.committed.log)
        if logged is None or len(logged) > most:
            return None
        added = snapshot.item_ids(np.arange(start, len(snapshot)))
        return np.union1d(added, logged)


def _set(array: np.ndarray, rows: np.ndarray, values: object) -> None:
    """Set the elements of known rows; a row is -1 for unknown items."""
    known = rows >= 0
    array[rows[known]] = values[known] if isinstance(values, np.ndarray) else values


def _numbered(values: Sequence[object], numbers: dict[object, int]) -> np.ndarray:
    """Return the number of each value, int32 [n]; new values get new ones, which are added to `numbers`."""
    for value in dict.fromkeys(values):
        numbers.setdefault(value, len(numbers))
    return np.fromiter(map(numbers.__getitem__, values), np.int32, len(values))
