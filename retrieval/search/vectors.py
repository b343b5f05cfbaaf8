"""Vectors of a gallery as one matrix of memory-mapped parts, and exact search over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from retrieval.machine import lazy_faiss as faiss
from retrieval.search.selection import Selection

_EPSILON = float(np.finfo(np.float32).eps)
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

# Rows that are scored at once: number of the first; vectors [b, D]; which of them are allowed, bool [b] or a
# FAISS selector, or None for all.
Block = tuple[int, np.ndarray, Any]


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
        self._count = int(self._starts[-1])
        self._numbers = numbers or ()
        self._first, self._last = self._starts[:-1], self._starts[1:] - 1
        if numbers:
            self._first, self._last = np.array([(part[0], part[-1]) for part in numbers], np.int64).T
        self._gapless = self._last - self._first + 1 == np.diff(self._starts)
        # Without gaps between the parts either, as before the first compaction, a row is a subtraction away.
        self._lowest = int(self._first[0]) if len(self) else 0
        self._consecutive = not len(self) or self._last[-1] - self._lowest + 1 == len(self)

    def __len__(self) -> int:
        return self._count

    def numbers_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the vector numbers of rows, int64 [n]."""
        rows = np.asarray(rows, np.int64)
        if self._consecutive:
            return self._lowest + rows
        return self.gather(self._numbers, rows, np.empty(len(rows), np.int64))

    def rows_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return the rows of vector numbers, int64 of the same shape; -1 for numbers that are not there."""
        numbers = np.asarray(numbers, np.int64)
        if self._consecutive:
            rows = numbers - self._lowest
            rows[rows.view(np.uint64) >= len(self)] = -1  # negative ones are larger than all
            return rows
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
        if len(parts) == 1:
            into[...] = parts[0][rows]
            return into
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
        if len(self.parts) == 1:
            return self.parts[0].take(rows, axis=0).astype(np.float32, copy=False)
        return self.gather(self.parts, rows, np.empty((len(rows), self.dim), np.float32))

    def blocks(self, start: int = 0, size: int = _BLOCK) -> Iterator[tuple[int, np.ndarray]]:
        """Return (first row, rows float32 [b, D]) from row `start` on, in order; float32 is not copied.

        Args:
            start: First row.
            size: Most rows of a block.
        """
        return _blocks(self.parts, start, size)

    def score(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return inner products, summed in float64 so that equal rows score equal wherever they are stored.

        Args:
            queries: float32 [N, D].
            rows: Rows, int64 [N, k]; -1 for none.

        Returns:
            float32 [N, k]; -inf for none.
        """
        step = max(1, _GATHERED // max(1, rows.shape[1] * self.dim))
        if len(rows) > step:
            starts = range(0, len(rows), step)
            return np.concatenate([self.score(queries[s : s + step], rows[s : s + step]) for s in starts])
        if not len(self):
            return np.full(rows.shape, -np.inf, np.float32)
        missing = rows < 0
        is_whole = not missing.any()
        flat = rows.ravel() if is_whole else np.maximum(rows, 0).ravel()
        found = self.take(flat).astype(np.float64).reshape(*rows.shape, self.dim)
        products = np.matmul(found, queries[..., None].astype(np.float64))[..., 0]
        scores: np.ndarray = products.astype(np.float32)
        if not is_whole:
            scores[missing] = -np.inf
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
        selected = Selection.of(allowed)
        if selected is not None and selected.is_small(self.dim):
            copy, first = self._copied(selected, start)
            scores, rows = copy.nearest(queries, k, start=first)
            return scores, selected.rows_at(rows)
        return self._nearest(queries, k, selected, start, k + _SLACK)

    def _copied(self, selected: Selection, start: int) -> tuple[Vectors, int]:
        """Return the copy of few selected vectors, and where those from row `start` on begin in it."""
        copy = selected.vectors(lambda rows: Vectors([self.take(rows)], self.dim))
        return copy, int(np.searchsorted(selected.rows, start)) if start else 0

    def _nearest(
        self, queries: np.ndarray, k: int, allowed: Selection | None, start: int, wanted: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the k nearest of `wanted` candidates or, where these may not suffice, of twice as many."""
        rough, candidates = self.scan(queries, wanted, allowed, start)
        scores, rows = top_k(self.score(queries, candidates), candidates, k)
        # What a scan computes in float32 differs from `score` by at most this (Higham 2002, section 3.1).
        error = self.dim * _EPSILON * np.sqrt(np.einsum("nd,nd->n", queries, queries))
        unsure = (candidates[:, -1] >= 0) & (scores[:, -1] <= rough[:, -1] + error)
        if wanted < k + _TIED and unsure.any():
            scores[unsure], rows[unsure] = self._nearest(queries[unsure], k, allowed, start, 2 * wanted)
        return scores, rows

    def scan(
        self, queries: np.ndarray, k: int, allowed: Selection | None = None, start: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the k nearest of the allowed rows from `start` on, up to the rounding of float32.

        Returns:
            Scores, float32 [N, k], and rows, int64 [N, k], best first; -inf and -1 beyond the last row.
        """
        if not len(queries):
            return _empty_result(0, k)
        if allowed is not None and allowed.is_small(self.dim):
            copy, first = self._copied(allowed, start)
            scores, rows = copy.scan(queries, k, start=first)
            return scores, allowed.rows_at(rows)
        if len(queries) <= _QUERIES:
            return self._scan(np.ascontiguousarray(queries), k, allowed, start)
        found = []
        for first in range(0, len(queries), _QUERIES):
            batch = np.ascontiguousarray(queries[first : first + _QUERIES])
            found.append(self._scan(batch, k, allowed, start))
        scores, rows = map(np.concatenate, zip(*found, strict=True))
        return scores, rows

    def _scan(
        self, queries: np.ndarray, k: int, allowed: Selection | None, start: int
    ) -> tuple[np.ndarray, np.ndarray]:
        if len(queries) >= _BY_MATRIX:
            return _scan_with_products(queries, k, self._masked_blocks(allowed, start))
        if allowed is not None and not start and (surplus := allowed.surplus(k)):
            scores, rows = _scan_with_faiss(queries, surplus, self._selected_blocks(None, start))
            kept = (rows >= 0) & allowed.allowed[rows]
            enough = bool((np.count_nonzero(kept, axis=1) >= k).all())
            allowed.record(enough)
            if enough:
                best = np.argsort(~kept, axis=1, kind="stable")[:, :k]
                return np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1)
        return _scan_with_faiss(queries, k, self._selected_blocks(allowed, start))

    def _masked_blocks(self, allowed: Selection | None, start: int) -> Iterator[Block]:
        for first, block in self.blocks(start):
            inside = None if allowed is None else allowed.allowed[first : first + len(block)]
            if inside is None or inside.any():
                yield first, block, inside

    def _selected_blocks(self, allowed: Selection | None, start: int) -> Iterator[Block]:
        stored_as_float32 = all(part.dtype == np.float32 for part in self.parts)
        for first, block in self.blocks(start, len(self) if stored_as_float32 else _WIDE_BLOCK):
            yield first, block, None if allowed is None else allowed.bitmap(first, first + len(block))


def bounded_cosine(value: float) -> float:
    """Return an inner product of unit vectors, which rounding may carry beyond 1, as a cosine in -1..1."""
    return min(max(value, -1.0), 1.0)


def top_k(scores: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best of each line, best first, equal scores by row; scores and rows are [N, m], m >= k."""
    order = np.lexsort((rows, -scores))[:, :k]
    lines = np.arange(len(order))[:, None]
    return scores[lines, order], rows[lines, order]


def _blocks(parts: Iterable[np.ndarray], start: int, size: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first row, rows float32 [b, D]) of parts from row `start` on; see `Vectors.blocks`."""
    first = 0
    for part in parts:
        for row in range(max(start - first, 0), len(part), max(size, 1)):
            yield first + row, np.asarray(part[row : row + size], np.float32)
        first += len(part)


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
    for first, block, allowed in blocks:
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
        where = np.concatenate([rows.ravel(), first + where])
        who = np.concatenate([np.repeat(all_queries, k), who])
        order = np.lexsort((where, -found, who))
        chosen = order[np.searchsorted(who[order], all_queries)[:, None] + np.arange(k)]  # [N, k]
        scores, rows = found[chosen], where[chosen]
    return scores, rows


def _scan_with_faiss(queries: np.ndarray, k: int, blocks: Iterator[Block]) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best rows of the blocks, by FAISS's `knn_inner_product` on each."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for first, block, selector in blocks:
        scores, rows = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        inputs, outputs = map(faiss.swig_ptr, (queries, block)), map(faiss.swig_ptr, (scores, rows))
        faiss.knn_inner_product(*inputs, block.shape[1], len(queries), len(block), k, *outputs, selector)
        if first:
            rows[rows >= 0] += first
        scores[rows < 0] = -np.inf
        found.append((scores, rows))
        if len(found) == _MERGED:
            found = [_merged(found, k)]
    return _merged(found or [_empty_result(len(queries), k)], k)


def _merged(found: Sequence[tuple[np.ndarray, np.ndarray]], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best of several results."""
    if len(found) == 1:
        return found[0]
    scores, rows = map(np.hstack, zip(*found, strict=True))
    return top_k(scores, rows, k)
