"""Exact nearest neighbours with FAISS, a block of queries at a time."""

from __future__ import annotations

from typing import Protocol

import faiss
import numpy as np

from retrieval.progress import Progress

_BLOCK = 4096  # FAISS works on as many queries at once, so that smaller blocks would cost time


class Search(Protocol):
    """Exact nearest neighbours by inner product.

    Args:
        query: float32 [N, D]; gallery: float32 [M, D].
        k: neighbours wanted, at most M.

    Returns:
        scores float32 [N, k] and rows of the gallery int32 [N, k], best first.
    """

    def __call__(
        self, query: np.ndarray, gallery: np.ndarray, k: int, *, show_progress: bool = False
    ) -> tuple[np.ndarray, np.ndarray]: ...


def nearest(
    query: np.ndarray, gallery: np.ndarray, k: int, *, show_progress: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """A `Search` on the CPU, with as many threads as OpenMP is told to use."""
    scores = np.empty((len(query), k), np.float32)
    rows = np.empty((len(query), k), np.int32)
    with Progress("searching", len(query), "queries", show=show_progress) as progress:
        for start in range(0, len(query), _BLOCK):
            block = slice(start, start + _BLOCK)
            scores[block], rows[block] = faiss.knn(query[block], gallery, k, faiss.METRIC_INNER_PRODUCT)
            progress.update(len(rows[block]))
    return scores, rows
