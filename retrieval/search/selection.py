"""Selection of rows that a search may return, in the forms that the searches need.

The share of selected rows decides which search is fastest (1M x 128, one query, CPU time compared with FAISS
and its `IDSelectorBitmap`): a search of a copy of the selected vectors for few (0.1 times at 1 % and 10 %),
FAISS and its selector for too many to copy, and FAISS without a selector but with more results, of which some
are left out, for most (0.7 at 50 %).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from retrieval.machine import lazy_faiss as faiss

COPIED = 1 << 26  # bytes of selected vectors that are kept as a copy
_COPIED_FOR_ONE = 1 << 22  # the same for a single search
DENSE = 0.2  # share of selected rows from which a search without a selector is faster
T = TypeVar("T")
_BLOCK = 1 << 20  # rows whose numbers are in memory at once
_RECORDED = 8  # searches whose success is recorded
_FAILED = 2  # failures among them after which a selector is used


class Selection:
    """Rows that a search may return. Thread-safe; what searches need of it is computed at the first use.

    Attributes:
        allowed: bool [rows].
        lasting: Whether there will be many searches, for which a copy of more than a few vectors is made. It
            takes as long as tens of searches.

    Args:
        allowed: As above; it must not change.
        lasting: As above.
    """

    def __init__(self, allowed: np.ndarray, *, lasting: bool = True) -> None:
        self.allowed, self.lasting = allowed, lasting
        self._bitmaps: dict[tuple[int, int], faiss.IDSelectorBitmap] = {}
        self._vectors: Any = None
        self._numbers: dict[int, faiss.IDSelectorBitmap] = {}
        self._enough: list[bool] = []

    @classmethod
    def of(cls, allowed: Selection | np.ndarray | None) -> Selection | None:
        """Return a selection unchanged, or that of a mask bool [rows]; `None` for all rows."""
        return cls(allowed) if isinstance(allowed, np.ndarray) else allowed

    @cached_property
    def count(self) -> int:
        """Number of selected rows."""
        return int(np.count_nonzero(self.allowed))

    @cached_property
    def rows(self) -> np.ndarray:
        """Selected rows, ascending, int64 [count]."""
        return np.flatnonzero(self.allowed)

    def surplus(self, k: int) -> int:
        """Return how many of all rows to search for k selected ones; 0 if it is better to use a selector.

        Where selected rows are far from the queries, as with a label that other images have, too few of the
        nearest are selected. That is learnt from `record`.
        """
        share = self.count / max(len(self.allowed), 1)
        if share < DENSE or self.count < k or self._enough.count(False) >= _FAILED:
            return 0
        return int(1.5 * k / share) + 32

    def record(self, enough: bool) -> None:
        """Record whether a search for `surplus` rows had enough selected ones among its results."""
        self._enough = [*self._enough[1 - _RECORDED :], enough]

    def is_small(self, dim: int) -> bool:
        """Return whether a copy of the selected vectors, of dimension `dim`, is searched."""
        size = 4 * dim * self.count
        return size <= COPIED and (self.lasting or size <= _COPIED_FOR_ONE)

    def size(self, dim: int) -> int:
        """Return the bytes of memory that it may take."""
        bitmaps, copied = len(self.allowed) // 4, 4 * dim * self.count <= COPIED
        return len(self.allowed) + bitmaps + copied * (4 * dim + 8) * self.count

    def vectors(self, take: Callable[[np.ndarray], T]) -> T:
        """Return a copy of the selected vectors, made at the first call.

        Args:
            take: Function that returns a copy of the vectors of rows.
        """
        if self._vectors is None:
            self._vectors = take(self.rows)
        found: T = self._vectors
        return found

    def rows_at(self, places: np.ndarray) -> np.ndarray:
        """Return the selected rows at places among them, int64 of the same shape; -1 for -1."""
        if self.count and places.min(initial=0) >= 0:
            return self.rows.take(places)
        found = np.full(places.shape, -1)
        found[places >= 0] = self.rows[places[places >= 0]]
        return found

    def bitmap(self, first: int, end: int) -> faiss.IDSelectorBitmap:
        """Return a FAISS selector of the rows from `first` to before `end`, counted from `first`."""
        if (first, end) not in self._bitmaps:
            self._bitmaps[first, end] = _packed(self.allowed[first:end])
        return self._bitmaps[first, end]

    def numbers(self, count: int, numbers_of: Callable[[np.ndarray], np.ndarray]) -> faiss.IDSelectorBitmap:
        """Return a FAISS selector of the vector numbers of the selected ones among the first `count` rows.

        Args:
            count: Number of rows.
            numbers_of: Function that returns the vector numbers of rows, which ascend.
        """
        if count not in self._numbers:
            end = int(numbers_of(np.array([count - 1]))[0]) + 1 if count else 0
            by_number = np.zeros(end, bool)
            for start in range(0, count, _BLOCK):
                rows = start + np.flatnonzero(self.allowed[start : min(start + _BLOCK, count)])
                by_number[numbers_of(rows)] = True
            self._numbers[count] = _packed(by_number)
        return self._numbers[count]


def _packed(allowed: np.ndarray) -> faiss.IDSelectorBitmap:
    return faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
