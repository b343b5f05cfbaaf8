"""One committed state of a gallery in memory: its vectors, whose they are, and how to search them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.search.index import Index
from retrieval.search.vectors import Vectors, best

_FEW = 10_000  # allowed rows that are compared one by one rather than looked for in an index


class Snapshot:
    """Rows of vectors with the items they belong to; rows count through all parts, oldest first.

    Every vector that a search returns has been checked against its checksum.

    Args:
        parts: float32 [n_i, D], unit rows, mapped.
        ids: int64 [rows], the item of each row; 0 where it was removed.
        checksums: uint32 [rows], CRC-32 of each row's bytes.
        index: over the first `covered` rows; where there is none, all are compared.
        covered: rows in the index.
        where: names the gallery in errors.
        dim: D.
    """

    def __init__(
        self,
        parts: Sequence[np.ndarray],
        ids: np.ndarray,
        checksums: np.ndarray,
        index: Index | None = None,
        covered: int = 0,
        *,
        dim: int,
        where: str = "the gallery",
    ) -> None:
        self.stored = Vectors(parts, dim)
        self.ids, self.checksums = ids, checksums
        self.index, self.covered = index, covered if index else 0
        self.where = where
        if not len(self.stored) == len(ids) == len(checksums):
            what = "its files of vectors and of rows do not fit each other"
            raise LookalikeError(f"{where}: {what}; run `lookalike index verify {where}`")

    @cached_property
    def size(self) -> int:
        """Rows that were not removed."""
        return int(np.count_nonzero(self.ids))

    @cached_property
    def alive(self) -> np.ndarray | None:
        """bool [rows], False where removed; `None` where nothing was."""
        return None if self.size == len(self.ids) else self.ids != 0

    @cached_property
    def _by_id(self) -> np.ndarray:
        return np.argsort(self.ids, kind="stable")

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """The row of each item, int64 [n]; -1 where it is unknown or was removed."""
        ids = np.asarray(ids, np.int64)
        if not len(self.ids):
            return np.full(ids.shape, -1)
        at = np.searchsorted(self.ids, ids, sorter=self._by_id)
        rows = self._by_id[np.minimum(at, len(self.ids) - 1)]
        return np.where((self.ids[rows] == ids) & (ids > 0), rows, -1)

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """The vectors of some rows, float32 [n, D].

        Raises:
            LookalikeError: one of them is damaged.
        """
        rows = np.asarray(rows, np.int64)
        taken = self.stored.take(rows)
        for vector, checksum in zip(taken, self.checksums[rows].tolist(), strict=True):
            if zlib.crc32(vector) != checksum:
                hint = f"run `lookalike index verify {self.where}`"
                raise LookalikeError(f"{self.where}: a stored vector is damaged; {hint}")
        return taken

    def nearest(
        self, queries: np.ndarray, k: int, allowed: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k best of the allowed rows, best first, equal scores by row.

        Scores are computed from the stored vectors in any case. Without an index, where it is damaged, or
        where few rows are allowed, the answer is exact; else an index proposes rows, and those it lacks are
        all compared. One query keeps one thread busy; a batch is divided among those that OpenMP and BLAS
        have, whose number belongs to the whole process and is not touched here (`OMP_NUM_THREADS` sets it).

        Args:
            queries: float32 [N, D].
            allowed: bool [rows]; removed rows are left out anyway.

        Returns:
            scores float32 [N, k] and rows int64 [N, k]; -inf and -1 where there are fewer than k.

        Raises:
            InputError: k below 1, or queries of another shape or with values that are not finite.
            LookalikeError: what was found is damaged.
        """
        queries = self._checked(queries, k)
        mask = self.alive if allowed is None else allowed if self.alive is None else allowed & self.alive
        count = len(self.ids) if mask is None else int(np.count_nonzero(mask))
        few = count <= max(_FEW, len(self.ids) // 10, k)
        if self.index is None or few or not self.index.usable:
            scores, rows = self.stored.nearest(queries, k, mask)
        else:
            scores, rows = self._propose(queries, k, mask, len(self.ids) / count)
            short = np.flatnonzero(rows[:, min(k, count) - 1] < 0)
            if len(short):
                scores[short], rows[short] = self.stored.nearest(queries[short], k, mask)
        self.vectors(np.unique(rows[rows >= 0]))
        return scores, rows

    def _propose(
        self, queries: np.ndarray, k: int, mask: np.ndarray | None, widen: float
    ) -> tuple[np.ndarray, np.ndarray]:
        assert self.index is not None
        inside = None if mask is None else mask[: self.covered]
        rows = self.index.propose(queries, k, inside, widen)
        scores = self.stored.score(queries, rows)
        if self.covered < len(self.ids):
            newer = self.stored.nearest(queries, k, mask, self.covered)
            scores, rows = np.hstack([scores, newer[0]]), np.hstack([rows, newer[1]])
        return best(scores, rows, k)

    def _checked(self, queries: np.ndarray, k: int) -> np.ndarray:
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}")
        queries = np.ascontiguousarray(queries, np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.stored.dim or not np.isfinite(queries).all():
            raise InputError(f"queries must be finite [N, {self.stored.dim}], got {list(queries.shape)}")
        return queries
