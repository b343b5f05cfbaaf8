"""One committed state of a gallery in memory: vectors, their items, and nearest-neighbour search."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.search.index import Index
from retrieval.search.vectors import Vectors, top_k

_FEW = 10_000  # allowed rows up to which the search is exact rather than by the index


class Snapshot:
    """Rows of vectors with their items; rows are numbered over all parts, oldest first.

    Every vector that a search returns is checked against its checksum.

    Args:
        parts: Vectors, float32 [n_i, D], unit length, memory-mapped.
        ids: Item id of each row, int64 [rows]; 0 for removed items.
        checksums: CRC-32 of each row's bytes, uint32 [rows].
        index: Index over the first `covered` rows; `None` for exact search.
        covered: Number of rows in the index.
        dim: Dimension D.
        where: Name of the gallery in error messages.

    Raises:
        LookalikeError: The files of vectors and of rows disagree.
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
            what = "the files of vectors and of rows disagree"
            raise LookalikeError(f"{where}: {what}; run `lookalike index verify {where}`")

    @cached_property
    def size(self) -> int:
        """Number of rows of live items."""
        return int(np.count_nonzero(self.ids))

    @cached_property
    def alive(self) -> np.ndarray | None:
        """bool [rows], False for removed items; `None` if nothing was removed."""
        return None if self.size == len(self.ids) else self.ids != 0

    @cached_property
    def _by_id(self) -> np.ndarray:
        return np.argsort(self.ids, kind="stable")

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the row of each item, int64 [n]; -1 for unknown and removed items."""
        ids = np.asarray(ids, np.int64)
        if not len(self.ids):
            return np.full(ids.shape, -1)
        at = np.searchsorted(self.ids, ids, sorter=self._by_id)
        rows = self._by_id[np.minimum(at, len(self.ids) - 1)]
        return np.where((self.ids[rows] == ids) & (ids > 0), rows, -1)

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors of rows, float32 [n, D], checked against their checksums.

        Raises:
            LookalikeError: A vector is damaged.
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
        """Return the k nearest of the allowed rows, best first, equal scores by row.

        Scores are always computed from the stored vectors. The search is exact without an index, with a
        damaged one, or if few rows are allowed; otherwise the index proposes rows, and the rows it does not
        cover are searched exactly. One query uses one thread; a batch is divided among the threads of OpenMP
        and BLAS, whose number is set for the whole process (`OMP_NUM_THREADS`).

        Args:
            queries: float32 [N, D].
            k: Number of neighbours.
            allowed: bool [rows]; removed rows are left out anyway.

        Returns:
            Scores, float32 [N, k], and rows, int64 [N, k]; -inf and -1 beyond the last neighbour.

        Raises:
            InputError: k is below 1, or the queries have another shape or values that are not finite.
            LookalikeError: A vector that was found is damaged.
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
        return top_k(scores, rows, k)

    def _checked(self, queries: np.ndarray, k: int) -> np.ndarray:
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}")
        queries = np.ascontiguousarray(queries, np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.stored.dim or not np.isfinite(queries).all():
            raise InputError(f"queries must be finite [N, {self.stored.dim}], got {list(queries.shape)}")
        return queries
