"""Retrieval and clustering metrics, each defined once.

Similarity is the inner product; embeddings are expected to have unit length, so it is the cosine.
Equal similarities are ranked in the order in which FAISS returns them.
"""

from __future__ import annotations

from collections.abc import Sequence

import faiss
import numpy as np

from retrieval.errors import InputError


def neighbours(queries: np.ndarray, gallery: np.ndarray, k: int, own: np.ndarray | None = None) -> np.ndarray:
    """Exact nearest neighbours by inner product.

    Args:
        queries: float [N, D].
        gallery: float [M, D].
        k: neighbours wanted, at most M.
        own: int [N], the row of the gallery that is the query itself and is not to be found; -1 for none.

    Returns:
        int64 [N, k], best first; -1 at the end where a query without itself has only k - 1.
    """
    queries, gallery = (np.ascontiguousarray(x, np.float32) for x in (queries, gallery))
    if own is None:
        return faiss.knn(queries, gallery, k, faiss.METRIC_INNER_PRODUCT)[1]
    _, found = faiss.knn(queries, gallery, min(k + 1, len(gallery)), faiss.METRIC_INNER_PRODUCT)
    # Beside duplicates a query need not come first, nor be found at all: move it to the end from where it is.
    itself = found == own[:, None]
    found[itself] = -1
    return np.take_along_axis(found, np.argsort(itself, axis=1, kind="stable"), 1)[:, :k]


def recall_at_k(
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    *,
    ks: Sequence[int] = (1, 2, 4, 8),
    own: np.ndarray | None = None,
) -> dict[int, float]:
    """Share of queries with at least one of their class among the K nearest (Oh Song et al. 2016).

    Without a gallery: leave-one-out over the queries. Queries whose class has no other image to find are
    left out of the mean, since no embedding could answer them. K beyond the gallery counts all of it.

    Args:
        query: float [N, D], unit length; query_labels: [N].
        gallery: float [M, D]; gallery_labels: [M].
        own: int [N], the row of the gallery that is the query itself, -1 for none.

    Returns:
        {K: recall}, in 0..1.

    Raises:
        InputError: shapes that do not fit, values that are not finite, or no query that can be answered.
    """
    query, query_labels = _checked(query, query_labels, "query")
    if (gallery is None) != (gallery_labels is None):
        raise InputError("recall_at_k: give gallery and gallery_labels together, or neither")
    if gallery is None or gallery_labels is None:
        gallery, gallery_labels, own = query, query_labels, np.arange(len(query))
    gallery, gallery_labels = _checked(gallery, gallery_labels, "gallery")
    to_find = _occurrences(query_labels, gallery_labels)  # [N]
    if own is not None:
        to_find -= (own >= 0) & (gallery_labels[own] == query_labels)
    answerable = to_find > 0
    if not answerable.any():
        raise InputError("recall_at_k: no query has another image of its class to find")
    found = neighbours(query, gallery, min(max(ks), len(gallery)), own)  # [N, k]
    hits = (gallery_labels[found] == query_labels[:, None]) & (found >= 0)
    return {k: float(hits[answerable, :k].any(1).mean()) for k in ks}


def kmeans(embeddings: np.ndarray, clusters: int, *, seed: int = 0) -> np.ndarray:
    """Cluster number of every row, int64 [N]: FAISS k-means, 20 iterations, the best of 3 starts."""
    points = np.ascontiguousarray(embeddings, np.float32)
    every_point = {"min_points_per_centroid": 1, "max_points_per_centroid": max(1, len(points))}
    model = faiss.Kmeans(points.shape[1], clusters, niter=20, nredo=3, seed=seed + 1, **every_point)
    model.train(points)
    return model.index.search(points, 1)[1][:, 0]


def nmi(labels: np.ndarray, clusters: np.ndarray) -> float:
    """Normalised mutual information 2 I(L; C) / (H(L) + H(C)), in 0..1; 1 where both are a single group."""
    cells, rows, columns = _contingency(labels, clusters)
    total = cells.sum()
    p_joint, p_row, p_column = (
        cells / total,
        np.bincount(rows, cells) / total,
        np.bincount(columns, cells) / total,
    )
    entropies = -(p_row @ np.log(p_row) + p_column @ np.log(p_column))
    if entropies <= 0.0:
        return 1.0
    information = p_joint @ np.log(p_joint / (p_row[rows] * p_column[columns]))
    return float(max(0.0, 2.0 * information / entropies))


def pair_f1(labels: np.ndarray, clusters: np.ndarray) -> float:
    """F1 of the pairs put in one cluster against the pairs of one class, in 0..1; 0 where there are none."""
    cells, rows, columns = _contingency(labels, clusters)

    def pairs(counts: np.ndarray) -> float:
        return float((counts * (counts - 1) / 2).sum())

    either = pairs(np.bincount(rows, cells)) + pairs(np.bincount(columns, cells))
    return 2.0 * pairs(cells) / either if either else 0.0


def _occurrences(labels: np.ndarray, among: np.ndarray) -> np.ndarray:
    """How often each label occurs in `among`, int64 [N]."""
    values, counts = np.unique(among, return_counts=True)
    at = np.minimum(np.searchsorted(values, labels), len(values) - 1)
    return np.where(values[at] == labels, counts[at], 0)


def _contingency(labels: np.ndarray, clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The filled cells of the class x cluster table: counts, row numbers and column numbers, each [cells]."""
    if len(labels) != len(clusters) or len(labels) == 0:
        raise InputError(f"need as many clusters as labels, and some: got {len(labels)} and {len(clusters)}")
    _, rows = np.unique(labels, return_inverse=True)
    groups, columns = np.unique(clusters, return_inverse=True)
    cells, counts = np.unique(rows * len(groups) + columns, return_counts=True)
    return counts.astype(np.float64), cells // len(groups), cells % len(groups)


def _checked(embeddings: np.ndarray, labels: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    embeddings, labels = np.asarray(embeddings), np.asarray(labels)
    if embeddings.ndim != 2 or labels.shape != embeddings.shape[:1]:
        raise InputError(
            f"{name}: expected embeddings [N, D] and labels [N], got {embeddings.shape}, {labels.shape}"
        )
    if len(embeddings) == 0:
        raise InputError(f"{name}: it is empty")
    if not np.isfinite(embeddings).all():
        raise InputError(f"{name}: the embeddings hold NaN or infinite values")
    return embeddings, labels
