"""Vectors of a gallery as one matrix of memory-mapped parts, and exact search over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import faiss
import numpy as np

from retrieval.search.selection import Selection

_BLOCK = 4096  # rows scored at once by many queries: the scores of 1024 queries take 16 MB
_WIDE_BLOCK = 1 << 16  # rows scored at once by few queries
_QUERIES = 1024
_GATHERED = 1 << 22  # float64 values in memory while scoring: 32 MB
_BY_MATRIX = 16  # queries from which a matrix product is faster than FAISS's scan
_SLACK = 16  # surplus candidates, so that rounding hardly ever requires a second scan
_TIED = 4096  # candidates beyond which ties are no longer resolved
_ONE_BY_ONE = 8  # requested rows per part, below which they are fetched one by one
_FEW = 64  # numbers up to which they are looked up one by one
_MERGED = 64  # parts whose results are merged at once

# Rows that are scored at once: their numbers, int64 [b], or that of the first; vectors [b, D]; which of them
# are allowed, bool [b], or None for all.
Block = tuple[np.ndarray | int, np.ndarray, np.ndarray | None]


class Vectors:
    """Parts [n_i, D] seen as one matrix [rows, D], without copying them.

    Attributes:
        parts: Arrays, float32 or float16; memory-mapped files stay on disk until they are read.
        dim: Dimension D.

    Args:
        parts: As above.
        dim: As above.
        numbers: Vector numbers of each part, int64 [n_i], ascending over all parts; by default a vector's
            number is its row.
    """

    def __init__(
        self, parts: Sequence[np.ndarray], dim: int, numbers: Sequence[np.ndarray] | None = None
    ) -> None:
        self.parts = [np.asarray(part) for part in parts]  # a plain view: np.memmap is slow to index
        self.dim = dim
        self._starts = np.cumsum([0, *map(len, self.parts)])
        self._numbers = numbers
        if numbers is not None:
            ends = [(int(part[0]), int(part[-1])) for part in numbers]
            self._first, self._last = np.array(ends, np.int64).reshape(-1, 2).T
            self._gapless = self._last - self._first + 1 == np.diff(self._starts)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def numbers_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the vector numbers of rows, int64 [n]."""
        rows = np.asarray(rows, np.int64)
        if self._numbers is None:
            return rows
        return self.gather(self._numbers, rows, np.empty(len(rows), np.int64))

    def rows_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return the rows of vector numbers, int64 of the same shape; -1 for numbers that are not there."""
        numbers = np.asarray(numbers, np.int64)
        if self._numbers is None:
            return np.where((numbers >= 0) & (numbers < len(self)), numbers, -1)
        if not len(self):
            return np.full(numbers.shape, -1)
        part_of = np.maximum(np.searchsorted(self._first, numbers, side="right") - 1, 0)
        within = numbers - self._first[part_of]
        there = (within >= 0) & (numbers <= self._last[part_of])
        gaps = there & ~self._gapless[part_of]
        if np.count_nonzero(gaps) <= _FEW:
            for place in zip(*np.nonzero(gaps), strict=True):
                part, number = self._numbers[part_of[place]], numbers[place]
                at = part.searchsorted(number)
                within[place] = at if part[at] == number else -1
        else:
            for number in np.unique(part_of[gaps]):
                mine, part = gaps & (part_of == number), self._numbers[number]
                at = part.searchsorted(numbers[mine])
                within[mine] = np.where(part[at] == numbers[mine], at, -1)
        return np.where(there & (within >= 0), self._starts[part_of] + within, -1)

    def gather(self, parts: Sequence[np.ndarray], rows: np.ndarray, into: np.ndarray) -> np.ndarray:
        """Copy rows of arrays that are divided as the vectors are into `into`, in the given order; return it.

        Args:
            parts: Arrays [n_i] or [n_i, D].
            rows: Rows, int64 [n].
            into: Array [n] or [n, D].
        """
        part_of = np.searchsorted(self._starts, rows, side="right") - 1
        within = rows - self._starts[part_of]
        if len(rows) < _ONE_BY_ONE * len(parts):
            for at, (part, row) in enumerate(zip(part_of.tolist(), within.tolist(), strict=True)):
                into[at] = parts[part][row]
        else:
            for part in np.unique(part_of):
                mine = part_of == part
                into[mine] = parts[part][within[mine]]
        return into

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return a copy of rows, in the given order: float32 [n, D]."""
        return self.gather(self.parts, rows, np.empty((len(rows), self.dim), np.float32))

    def blocks(self, start: int = 0, size: int = _BLOCK) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first row, rows float32 [b, D]) from row `start` on, in order; float32 is not copied.

        Args:
            start: First row.
            size: Most rows of a block.
        """
        for part, first in zip(self.parts, self._starts.tolist(), strict=False):
            for row in range(max(start - first, 0), len(part), size):
                yield first + row, np.asarray(part[row : row + size], np.float32)

    def score(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return inner products, summed in float64 so that equal rows score equal wherever they are stored.

        Args:
            queries: float32 [N, D].
            rows: Rows, int64 [N, k]; -1 for none.

        Returns:
            float32 [N, k]; -inf for none.
        """
        scores = np.full(rows.shape, -np.inf, np.float32)
        step = max(1, _GATHERED // max(1, rows.shape[1] * self.dim))
        for start in range(0, len(rows) if len(self) else 0, step):
            some = rows[start : start + step]
            found = self.take(np.maximum(some, 0).ravel()).astype(np.float64)
            batch = queries[start : start + step, :, None].astype(np.float64)
            products = np.matmul(found.reshape(*some.shape, self.dim), batch)[..., 0]  # [step, k]
            scores[start : start + step] = np.where(some >= 0, products, -np.inf)
        return scores

    def nearest(
        self,
        queries: np.ndarray,
        k: int,
        allowed: Selection | np.ndarray | None = None,
        start: int = 0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the k nearest of the allowed rows from `start` on, exactly, best first, equal scores by row.

        Among thousands of rows with the same score, up to rounding, the ties may be resolved differently.

        Args:
            queries: float32 [N, D], finite.
            k: Number of neighbours.
            allowed: Selected rows, also as bool [rows]; `None` for all rows.
            start: First row to search.

        Returns:
            Scores, float32 [N, k] as of `score`, and rows, int64 [N, k]; -inf and -1 beyond the last row.
        """
        allowed = Selection.of(allowed)
        scores, rows = _empty_result(len(queries), k)
        unsure, wanted = np.arange(len(queries)), k + _SLACK
        # What a scan computes in float32 differs from `score` by at most this (Higham 2002, section 3.1).
        error = self.dim * np.finfo(np.float32).eps * np.linalg.norm(queries, axis=1)
        while len(unsure):
            rough, candidates = self.scan(queries[unsure], wanted, allowed, start)
            scores[unsure], rows[unsure] = top_k(self.score(queries[unsure], candidates), candidates, k)
            missed = (candidates[:, -1] >= 0) & (scores[unsure, -1] <= rough[:, -1] + error[unsure])
            unsure, wanted = unsure[missed & (wanted < k + _TIED)], 2 * wanted
        return scores, rows

    def scan(
        self, queries: np.ndarray, k: int, allowed: Selection | None = None, start: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the k nearest of the allowed rows from `start` on, up to the rounding of float32.

        Returns:
            Scores, float32 [N, k], and rows, int64 [N, k], best first; -inf and -1 beyond the last row.
        """
        scores, rows = _empty_result(len(queries), k)
        for first in range(0, len(queries), _QUERIES):
            some = slice(first, first + _QUERIES)
            batch = np.ascontiguousarray(queries[some])
            scores[some], rows[some] = self._scan(batch, k, allowed, start)
        return scores, rows

    def _scan(
        self, queries: np.ndarray, k: int, allowed: Selection | None, start: int
    ) -> tuple[np.ndarray, np.ndarray]:
        many = len(queries) >= _BY_MATRIX
        size = _BLOCK if many else _WIDE_BLOCK
        if allowed is not None and allowed.is_small(self.dim):
            return _scan_with_products(queries, k, self._selected_blocks(allowed, start, size))
        if many:
            mask = None if allowed is None else allowed.allowed
            return _scan_with_products(queries, k, self._allowed_blocks(mask, start, size))
        if allowed is not None and not start and (surplus := allowed.surplus(k)):
            scores, rows = self._scan_with_faiss(queries, surplus, None, start)
            kept = (rows >= 0) & allowed.allowed[rows]
            enough = bool((np.count_nonzero(kept, axis=1) >= k).all())
            allowed.record(enough)
            if enough:
                first = np.argsort(~kept, axis=1, kind="stable")[:, :k]
                return np.take_along_axis(scores, first, 1), np.take_along_axis(rows, first, 1)
        return self._scan_with_faiss(queries, k, allowed, start)

    def _selected_blocks(self, allowed: Selection, start: int, size: int) -> Iterator[Block]:
        """Yield the selected rows only, from a copy."""
        vectors, rows = allowed.vectors(self.take), allowed.rows
        for first in range(int(np.searchsorted(rows, start)), len(rows), size):
            yield rows[first : first + size], vectors[first : first + size], None

    def _allowed_blocks(self, mask: np.ndarray | None, start: int, size: int) -> Iterator[Block]:
        for first, block in self.blocks(start, size):
            inside = None if mask is None else mask[first : first + len(block)]
            if inside is None or inside.any():
                yield first, block, inside

    def _scan_with_faiss(
        self, queries: np.ndarray, k: int, allowed: Selection | None, start: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best rows, by FAISS's `knn_inner_product` on each part."""
        scores, rows = _empty_result(len(queries), k)
        stored_as_float32 = all(part.dtype == np.float32 for part in self.parts)
        blocks = self.blocks(start, len(self) if stored_as_float32 else _WIDE_BLOCK)
        while some := list(islice(blocks, _MERGED)):
            close = np.empty((len(some), len(queries), k), np.float32)
            where = np.empty(close.shape, np.int64)
            for (first, block), near, at in zip(some, close, where, strict=True):
                selector = None if allowed is None else allowed.bitmap(first, first + len(block))
                inputs, outputs = map(faiss.swig_ptr, (queries, block)), map(faiss.swig_ptr, (near, at))
                sizes = block.shape[1], len(queries), len(block), k
                faiss.knn_inner_product(*inputs, *sizes, *outputs, selector)
            close[where < 0] = -np.inf
            where += np.where(where < 0, 0, np.array([first for first, _ in some])[:, None, None])
            found = [np.hstack([held, *new]) for held, new in ((scores, close), (rows, where))]
            scores, rows = top_k(found[0], found[1], k)
        return scores, rows


def bounded_cosine(value: float) -> float:
    """Return an inner product of unit vectors, which rounding may carry beyond 1, as a cosine in -1..1."""
    return min(max(value, -1.0), 1.0)


def top_k(scores: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best of each line, best first, equal scores by row; scores and rows are [N, m], m >= k."""
    order = np.lexsort((rows, -scores))[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def _empty_result(count: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full((count, k), -np.inf, np.float32), np.full((count, k), -1)


def _scan_with_products(
    queries: np.ndarray, k: int, blocks: Iterator[Block]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best rows of the blocks, by matrix products.

    Only scores above a query's k-th best so far are merged.
    """
    scores, rows = _empty_result(len(queries), k)
    all_queries = np.arange(len(queries))
    for numbers, block, allowed in blocks:
        products = queries @ block.T  # [N, b]
        floor = np.nextafter(scores[:, -1], np.float32(np.inf))  # of equal scores, the earlier row stays
        if np.isneginf(scores[:, -1]).any():
            if allowed is not None:
                products[:, ~allowed] = -np.inf
            if products.shape[1] > k:
                floor = np.maximum(floor, np.partition(products, -k, axis=1)[:, -k])
        who, where = np.nonzero(products >= floor[:, None])
        if allowed is not None:
            who, where = who[allowed[where]], where[allowed[where]]
        if not len(who):
            continue
        found = np.concatenate([scores.ravel(), products[who, where]])
        where = numbers[where] if isinstance(numbers, np.ndarray) else numbers + where
        where = np.concatenate([rows.ravel(), where])
        who = np.concatenate([np.repeat(all_queries, k), who])
        order = np.lexsort((where, -found, who))
        chosen = order[np.searchsorted(who[order], all_queries)[:, None] + np.arange(k)]  # [N, k]
        scores, rows = found[chosen], where[chosen]
    return scores, rows
