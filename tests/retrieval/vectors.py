"""Vectors for search tests, and brute-force results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrieval.search.index import Index
from retrieval.search.snapshot import Snapshot
from retrieval.storage.segments import checksums


def clustered(count: int, dim: int, seed: int, shift: float = 0.0) -> np.ndarray:
    """Return unit vectors, float32 [count, dim], around 60 centres that are the same for every seed."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((60, dim)) + shift
    points = centres[random.integers(0, 60, count)] + 0.7 * random.standard_normal((count, dim))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def snapshot(
    parts: Sequence[np.ndarray],
    removed: Sequence[int] = (),
    index: Index | None = None,
    covered: int = 0,
) -> Snapshot:
    """Return a snapshot whose vector numbers are the rows and whose item ids are the rows from 1."""
    rows, start = [], 0
    dim, parts = parts[0].shape[1], [part for part in parts if len(part)]
    for part in parts:
        numbers = np.arange(start, start + len(part))
        facts = np.stack([numbers, numbers + 1])
        rows.append(np.concatenate([facts, checksums(part, facts)[None]]))
        start += len(part)
    dead = np.array(removed, np.int64)
    return Snapshot(parts, rows, dead, index, covered - 1, dim=dim, where="shop.gallery")


def brute_force(
    vectors: np.ndarray, queries: np.ndarray, k: int, allowed: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best scores, [N, k], and rows, [N, k]; -inf and -1 beyond the last row."""
    scores = (queries.astype(np.float64) @ vectors.astype(np.float64).T).astype(np.float32)
    if allowed is not None:
        scores[:, ~allowed] = -np.inf
    scores = np.pad(scores, ((0, 0), (0, k)), constant_values=-np.inf)
    # Sort only the k best of each query and the ties with the last of them: ten times as fast.
    best = [np.flatnonzero(row >= -np.partition(-row, k - 1)[k - 1]) for row in scores]
    best = [some[np.argsort(-row[some], kind="stable")[:k]] for row, some in zip(scores, best, strict=True)]
    rows = np.array(best).reshape(-1, k)
    scores = np.take_along_axis(scores, rows, 1)
    return scores, np.where(np.isneginf(scores), -1, rows)
