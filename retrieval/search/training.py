"""Training of indexes: k-means in two levels for the cells, quantisers on a bounded sample."""

from __future__ import annotations

import math
from dataclasses import dataclass

import faiss
import numpy as np

from retrieval.progress import Progress
from retrieval.search.kinds import SAMPLE_BYTES, Kind, number_of_cells
from retrieval.search.vectors import Vectors

_PER_CELL = 64  # training vectors per cell, if the sample may hold them
_LEAST = 65_536  # training vectors
_QUANTISED = 65_536  # training vectors of a quantiser
_BLOCK_BYTES = 1 << 24  # vectors added at once
_ROUNDS = 10  # of k-means
_TWO_LEVELS = 1024  # cells from which k-means has two levels
_REFINED = 1 << 14  # cells up to which all of them are refined together


@dataclass(frozen=True)
class Training:
    """What every index over the same vectors is trained with.

    Attributes:
        sample: Training vectors, float32 [n, D].
        centroids: Centroids of the cells, float32 [cells, D].
    """

    sample: np.ndarray
    centroids: np.ndarray


def draw_training(
    vectors: Vectors, rows: np.ndarray | None = None, *, show_progress: bool = False
) -> Training:
    """Draw a training sample and train the cells.

    Memory: the sample takes at most 1 GiB, whatever the number of vectors.

    Args:
        vectors: Vectors to index.
        rows: Rows to index, int64 [n]; `None` for all.
        show_progress: Report progress on stderr.
    """
    count = len(vectors) if rows is None else len(rows)
    cells = number_of_cells(count, vectors.dim)
    size = min(count, max(_PER_CELL * cells, _LEAST), max(_LEAST, SAMPLE_BYTES // (4 * vectors.dim)))
    chosen = np.sort(np.random.default_rng(0).choice(count, size, replace=False))
    sample = vectors.take(chosen if rows is None else rows[chosen])
    return Training(sample, train_cells(sample, cells, show_progress=show_progress))


def train_cells(sample: np.ndarray, cells: int, *, show_progress: bool = False) -> np.ndarray:
    """Return the centroids of cells, float32 [cells, D], by spherical k-means.

    Many cells are trained in two levels: groups, the cells of each group, then once all together. That is a
    sixth of the work for 4,096 cells, at the same recall.

    Args:
        sample: Training vectors, float32 [n, D].
        cells: Number of cells, at most n.
        show_progress: Report progress on stderr.
    """
    groups = 2 ** (int(math.log2(cells)) // 2) if cells >= _TWO_LEVELS else 1
    with Progress("training", groups + 1, "groups of cells", show=show_progress) as progress:
        if groups == 1:
            return _k_means(sample, cells)
        of = nearest_centroid(sample, _k_means(sample[:: max(1, len(sample) // (256 * groups))], groups))
        progress.update()
        order = np.argsort(of, kind="stable")
        ends = np.cumsum(np.bincount(of, minlength=groups))
        shares = np.diff(ends * cells // len(sample), prepend=0)
        parts = []
        for end, size, share in zip(ends, np.diff(ends, prepend=0), shares.tolist(), strict=True):
            if share:
                parts.append(_k_means(sample[order[end - size : end]], share))
            progress.update()
        centroids = np.concatenate(parts)
        return _k_means(sample, cells, centroids) if cells <= _REFINED else centroids


def train_index(kind: Kind, training: Training, *, one_cell: bool = False) -> faiss.Index:
    """Return an empty, trained index.

    Args:
        kind: Index kind.
        training: Sample and cells.
        one_cell: Put all vectors into one cell.
    """
    sample = training.sample
    cells = 1 if one_cell or not kind.in_cells else len(training.centroids)
    index = faiss.index_factory(sample.shape[1], kind.factory(sample.shape[1], cells), kind.metric)
    if isinstance(index, faiss.IndexIVF):
        quantizer = faiss.downcast_index(index.quantizer)
        quantizer.add(training.centroids if cells > 1 else sample[:1])
    if isinstance(index, faiss.IndexIVFPQFastScan):
        index.pq.cp.min_points_per_centroid = 1
    # With too few training vectors FAISS would warn or refuse; repeated ones do no harm.
    step = max(1, len(sample) // _QUANTISED)
    index.train(np.resize(sample[::step], (max(len(sample[::step]), 64), sample.shape[1])))
    return index


def _k_means(sample: np.ndarray, count: int, start: np.ndarray | None = None) -> np.ndarray:
    """Return centroids, float32 [count, D]; from `start`, after one round only."""
    parameters = faiss.ClusteringParameters()
    parameters.niter = _ROUNDS if start is None else 1
    parameters.spherical = True
    parameters.min_points_per_centroid = 1
    parameters.max_points_per_centroid = len(sample)
    dim = sample.shape[1]
    clustering = faiss.Clustering(dim, count, parameters)
    if start is not None:
        faiss.copy_array_to_vector(start.ravel(), clustering.centroids)
    clustering.train(np.ascontiguousarray(sample), faiss.IndexFlatIP(dim))
    found: np.ndarray = faiss.vector_to_array(clustering.centroids).reshape(count, dim)
    return found


def nearest_centroid(sample: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Return the nearest centroid of each vector, int64 [n]."""
    index = faiss.IndexFlatIP(sample.shape[1])
    index.add(centroids)
    found: np.ndarray = getattr(index, "search_numpy", index.search)(sample, 1)[1][:, 0]
    return found


def add_rows(index: faiss.Index, vectors: Vectors, rows: np.ndarray, *, show_progress: bool = False) -> None:
    """Add rows, int64 [n], to an index in blocks; the ids in the index are the vector numbers."""
    size = max(1, _BLOCK_BYTES // (4 * vectors.dim))
    with Progress("indexing", len(rows), "vectors", show=show_progress) as progress:
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            index.add_with_ids(vectors.take(some), vectors.numbers_of(some))
            progress.update(len(some))
