"""Training of indexes: k-means in two levels for the cells, quantisers on a bounded sample."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from retrieval.machine import lazy_faiss as faiss
from retrieval.machine.faiss_backend import CPU, Assign, CpuBackend, KMeans
from retrieval.progress import Progress
from retrieval.search.kinds import SAMPLE_BYTES, Kind, leading, number_of_cells
from retrieval.search.vectors import Vectors

_PER_CELL = 64  # training vectors per cell, if the sample may hold them
_LEAST = 65_536  # training vectors
_QUANTISED = 65_536  # training vectors of a quantiser
_BLOCK_BYTES = 1 << 24  # vectors added at once
_ROUNDS = 10  # of k-means
_CELLS = KMeans(_ROUNDS, spherical=True)
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
    vectors: Vectors,
    rows: np.ndarray | None = None,
    *,
    dim: int | None = None,
    backend: CpuBackend = CPU,
    show_progress: bool = False,
) -> Training:
    """Draw a training sample and train the cells.

    Memory: the sample takes at most 1 GiB, whatever the number of vectors.

    Args:
        vectors: Vectors to index.
        rows: Rows to index, int64 [n]; `None` for all.
        dim: Leading dimensions that the index will hold; `None` for all.
        backend: Where the cells are trained.
        show_progress: Report progress on stderr.
    """
    count = len(vectors) if rows is None else len(rows)
    dim = vectors.dim if dim is None else dim
    cells = number_of_cells(count, dim)
    size = min(count, max(_PER_CELL * cells, _LEAST), max(_LEAST, SAMPLE_BYTES // (4 * vectors.dim)))
    chosen = np.sort(np.random.default_rng(0).choice(count, size, replace=False))
    sample = leading(vectors.take(chosen if rows is None else rows[chosen]), dim)
    return Training(sample, train_cells(sample, cells, backend=backend, show_progress=show_progress))


def train_cells(
    sample: np.ndarray, cells: int, *, backend: CpuBackend = CPU, show_progress: bool = False
) -> np.ndarray:
    """Return the centroids of cells, float32 [cells, D], by spherical k-means.

    On a CPU, many cells are trained in two levels: groups, the cells of each group, then once all together.
    That is a sixth of the work for 4,096 cells, at the same recall. A GPU trains them all together.

    Args:
        sample: Training vectors, float32 [n, D].
        cells: Number of cells, at most n.
        backend: Where they are trained.
        show_progress: Report progress on stderr.
    """
    in_levels = cells >= _TWO_LEVELS and not backend.pays(_ROUNDS * cells * sample.size)
    groups = 2 ** (int(math.log2(cells)) // 2) if in_levels else 1
    with Progress("training", groups + 1, "groups of cells", show=show_progress) as progress:
        if groups == 1:
            return backend.k_means(sample, cells, _CELLS)
        coarse = backend.k_means(sample[:: max(1, len(sample) // (256 * groups))], groups, _CELLS)
        of = nearest_centroid(sample, coarse, backend)
        progress.update()
        order = np.argsort(of, kind="stable")
        ends = np.cumsum(np.bincount(of, minlength=groups))
        shares = np.diff(ends * cells // len(sample), prepend=0)
        parts = []
        for end, size, share in zip(ends, np.diff(ends, prepend=0), shares.tolist(), strict=True):
            if share:
                parts.append(backend.k_means(sample[order[end - size : end]], share, _CELLS))
            progress.update()
        centroids = np.concatenate(parts)
        if cells <= _REFINED:
            return backend.k_means(sample, cells, replace(_CELLS, rounds=1), centroids)
        return centroids


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


def nearest_centroid(sample: np.ndarray, centroids: np.ndarray, backend: CpuBackend = CPU) -> np.ndarray:
    """Return the nearest centroid of each vector, int64 [n]."""
    return backend.neighbours(sample, centroids, 1)[1][:, 0]


def add_rows(
    index: faiss.Index,
    vectors: Vectors,
    rows: np.ndarray,
    *,
    backend: CpuBackend = CPU,
    show_progress: bool = False,
) -> None:
    """Add rows, int64 [n], to an index in blocks; the ids in the index are the vector numbers.

    Args:
        index: Trained index.
        vectors: Vectors of the gallery.
        rows: Rows to add.
        backend: Where cells are found.
        show_progress: Report progress on stderr.
    """
    with Progress("indexing", len(rows), "vectors", show=show_progress) as progress:
        add_blocks(index, vectors, rows, backend, progress)


def add_blocks(
    index: faiss.Index, vectors: Vectors, rows: np.ndarray, backend: CpuBackend, progress: Progress
) -> None:
    """Add rows as `add_rows` does, and count them as progress."""
    size = max(1, _BLOCK_BYTES // (4 * vectors.dim))
    assign = _assigner(index, len(rows), backend)
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        block, numbers = leading(vectors.take(some), index.d), vectors.numbers_of(some)
        cells = assign(block) if assign else None
        if cells is None:
            index.add_with_ids(block, numbers)
        else:
            add_assigned(index, block, numbers, cells)
        progress.update(len(some))


def add_assigned(index: faiss.IndexIVF, vectors: np.ndarray, numbers: np.ndarray, cells: np.ndarray) -> None:
    """Add vectors to known cells of an index, as `add_with_ids` does after it has found them.

    Args:
        index: Index whose kind of cells takes them: not FAISS's fast scan.
        vectors: float32 [n, D].
        numbers: Their numbers, int64 [n].
        cells: Their cells, int64 [n].
    """
    arrays = [np.ascontiguousarray(vectors, np.float32)]
    arrays += [np.ascontiguousarray(array, np.int64) for array in (numbers, cells)]
    index.add_core(len(vectors), *map(faiss.swig_ptr, arrays))


def _assigner(index: faiss.Index, count: int, backend: CpuBackend) -> Assign | None:
    """Return the backend's function that finds cells, for an index that can be given them."""
    if not isinstance(index, faiss.IndexIVF) or isinstance(index, faiss.IndexIVFFastScan):
        return None
    quantizer = faiss.downcast_index(index.quantizer)
    # As for `search`: `faiss.contrib.torch_utils` replaces this method.
    centroids = getattr(quantizer, "reconstruct_n_numpy", quantizer.reconstruct_n)(0, index.nlist)
    return backend.assigner(centroids, count)
