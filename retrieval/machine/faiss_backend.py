"""FAISS backends: bulk comparisons of vectors, on the CPU or on an NVIDIA GPU.

Functions that compare many vectors with many others take a backend: exact neighbours, k-means, and the
cells of an index. On the CPU the results are those of FAISS's own functions, to the bit, but for
cells among many, which a graph finds. A GPU is used for work that takes a CPU longer than starting the GPU;
whatever fails there is done on the CPU, with one line on stderr. A search of one query never comes here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from retrieval.machine import lazy_faiss as faiss
from retrieval.machine.devices import Device, gpus
from retrieval.machine.gpu_trials import gpu_problem, report_cpu
from retrieval.text import print_once

_PAYS = 1 << 33  # multiplications, about a quarter of a second on one core, from which a GPU is used
_MAX_K = 2048  # neighbours that FAISS selects on a GPU
_TEMPORARY = 1 << 28  # bytes of temporary memory per thread on a GPU; FAISS takes up to 1.5 GiB by default
_PINNED = 1 << 26  # bytes of pinned memory per thread
_VECTORS_AT_ONCE = 1 << 30  # bytes of vectors, and of queries with their results, on a GPU at once
_QUERIES_AT_ONCE = 1 << 28
_MOST_AT_ONCE = 1 << 16  # queries
_RESULTS_AT_ONCE = 1 << 24  # neighbours
# Microseconds to find the cell of a clustered vector of dimension 64 (AVX-512, FAISS 1.15.1): 5.4 among 4,096
# compared with all, 22.3 among 16,384; by a graph 5.3 and 8.8, with the same cell for 99.8 %. On noise the
# graph finds 37 %, so that it is checked.
_CELLS_BY_GRAPH = 1 << 13  # cells from which a graph finds them
_PAID_BACK = 16  # vectors per cell that cost more than the graph
_LINKS, _REACH = 32, 8  # of the graph
_CHECKED, _RIGHT = 64, 0.99  # one vector in so many is compared with all cells; the least share that agrees

Assign = Callable[[np.ndarray], "np.ndarray | None"]


@dataclass(frozen=True)
class KMeans:
    """Parameters of k-means.

    Attributes:
        rounds: Iterations.
        starts: Repetitions from other starting points, of which the best counts.
        seed: Seed of the starting points.
        spherical: Normalise the centroids and compare by inner product, not by distance.
        max_points: Points per cluster to train with, at most; `None` for all.
    """

    rounds: int
    starts: int = 1
    seed: int = 1234
    spherical: bool = False
    max_points: int | None = None

    @property
    def metric(self) -> int:
        """FAISS metric by which points find their cluster."""
        metric: int = faiss.METRIC_INNER_PRODUCT if self.spherical else faiss.METRIC_L2
        return metric


class CpuBackend:
    """Comparisons on the CPU, with the OpenMP threads of the process."""

    def pays(self, work: int) -> bool:
        """Return whether a GPU does work of so many multiplications."""
        return False

    def block(self, size: int, k: int = 1) -> int:
        """Return how many queries for k neighbours to pass at once, where the CPU takes `size`."""
        return size

    def neighbours(
        self, queries: np.ndarray, vectors: np.ndarray, k: int, metric: int = faiss.METRIC_INNER_PRODUCT
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the exact k nearest vectors of each query.

        Args:
            queries: float32 [N, D].
            vectors: float32 [M, D].
            k: Number of neighbours, at most M.
            metric: FAISS metric: inner product, or squared distance (`faiss.METRIC_L2`).

        Returns:
            Scores or squared distances, float32 [N, k], and rows, int64 [N, k], best first.
        """
        found: tuple[np.ndarray, np.ndarray] = faiss.knn(queries, vectors, k, metric)
        return found

    def k_means(
        self, points: np.ndarray, count: int, parameters: KMeans, start: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the centroids of clusters, float32 [count, D].

        Args:
            points: float32 [n, D].
            count: Number of clusters, at most n.
            parameters: Parameters of k-means.
            start: Centroids to start from, float32 [count, D]; by default points drawn with the seed.
        """
        return _cluster(points, count, parameters, start, _flat(points.shape[1], parameters.metric))

    def assigner(self, centroids: np.ndarray, count: int) -> Assign | None:
        """Return a function that finds the cells of vectors; `None` if the index finds them faster.

        Of many cells, a graph finds the nearest for 99 % of the vectors, or the function returns `None`.

        Args:
            centroids: Centroids of the cells, float32 [cells, D].
            count: Number of vectors that will be assigned.

        Returns:
            Function of vectors, float32 [n, D], that returns their cells by inner product, int64 [n], or
            `None` if it cannot.
        """
        if len(centroids) < _CELLS_BY_GRAPH or count < _PAID_BACK * len(centroids):
            return None
        dim = centroids.shape[1]
        flat = _flat(dim, faiss.METRIC_INNER_PRODUCT)
        graph = faiss.IndexHNSWFlat(dim, _LINKS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efSearch = _REACH
        for index in (flat, graph):
            index.add(np.ascontiguousarray(centroids))

        def assign(vectors: np.ndarray) -> np.ndarray | None:
            some = np.ascontiguousarray(vectors[::_CHECKED])
            if (_nearest(graph, some) == _nearest(flat, some)).mean() < _RIGHT:
                return None
            return _nearest(graph, vectors)

        return assign


class GpuBackend(CpuBackend):
    """Comparisons on an NVIDIA GPU where they pay, in full float32; else, and after a failure, on the CPU.

    Args:
        device: GPU; "auto" for the first one.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._number = device.index or 0

    def pays(self, work: int) -> bool:
        if work < _PAYS:
            return False
        if gpu_problem("faiss", self._number) is None:
            return True
        if gpus() or self._device.kind == "cuda":
            report_cpu("faiss", self._number)
        return False

    def block(self, size: int, k: int = 1) -> int:
        return max(size, min(_MOST_AT_ONCE, _RESULTS_AT_ONCE // k))

    def neighbours(
        self, queries: np.ndarray, vectors: np.ndarray, k: int, metric: int = faiss.METRIC_INNER_PRODUCT
    ) -> tuple[np.ndarray, np.ndarray]:
        if k <= _MAX_K and self.pays(len(queries) * vectors.size):
            try:
                return self._neighbours(queries, vectors, k, metric)
            except (RuntimeError, MemoryError) as error:
                self._report(error)
        return super().neighbours(queries, vectors, k, metric)

    def k_means(
        self, points: np.ndarray, count: int, parameters: KMeans, start: np.ndarray | None = None
    ) -> np.ndarray:
        used = min(len(points), count * (parameters.max_points or len(points)))
        if self.pays(used * count * points.shape[1] * parameters.rounds * parameters.starts):
            try:
                index = self._flat(points.shape[1], parameters.metric)
                return _cluster(points, count, parameters, start, index)
            except (RuntimeError, MemoryError) as error:
                self._report(error)
        return super().k_means(points, count, parameters, start)

    def assigner(self, centroids: np.ndarray, count: int) -> Assign | None:
        if not self.pays(count * centroids.size):
            return super().assigner(centroids, count)
        try:
            index = self._flat(centroids.shape[1], faiss.METRIC_INNER_PRODUCT)
            index.add(np.ascontiguousarray(centroids))
        except (RuntimeError, MemoryError) as error:
            self._report(error)
            return None

        def assign(vectors: np.ndarray) -> np.ndarray | None:
            try:
                return _nearest(index, vectors)
            except (RuntimeError, MemoryError) as error:
                self._report(error)
                return None

        return assign

    def _neighbours(
        self, queries: np.ndarray, vectors: np.ndarray, k: int, metric: int
    ) -> tuple[np.ndarray, np.ndarray]:
        found: tuple[np.ndarray, np.ndarray] = faiss.knn_gpu(
            _resources(),
            np.ascontiguousarray(queries),
            np.ascontiguousarray(vectors),
            k,
            metric=metric,
            device=self._number,
            vectorsMemoryLimit=_VECTORS_AT_ONCE,
            queriesMemoryLimit=_QUERIES_AT_ONCE,
        )
        return found

    def _flat(self, dim: int, metric: int) -> faiss.Index:
        config = faiss.GpuIndexFlatConfig()
        config.device = self._number
        config.use_cuvs = False  # FAISS's own kernels do not round to TensorFloat32
        return faiss.GpuIndexFlat(_resources(), dim, metric, config)

    def _report(self, error: Exception) -> None:
        reason = " ".join(str(error).rpartition("failed: ")[2].split())[:160]
        what = f"FAISS failed on GPU {self._number} ({reason}), so the CPU does this work"
        print_once(f"{what}; free memory of the GPU, or choose the device cpu")


CPU = CpuBackend()


def backend_for(device: Device) -> CpuBackend:
    """Return the backend for a device; for "auto", a GPU where there is one and it pays."""
    return CPU if device.kind == "cpu" else GpuBackend(device)


class _Thread(threading.local):
    """Resources of FAISS on a GPU, which must not be shared by threads."""

    resources: faiss.StandardGpuResources | None = None


_thread = _Thread()


def _resources() -> faiss.StandardGpuResources:
    """Return the resources of this thread; temporary memory is allocated on first use of each GPU."""
    if _thread.resources is None:
        _thread.resources = faiss.StandardGpuResources()
        _thread.resources.setTempMemory(_TEMPORARY)
        _thread.resources.setPinnedMemory(_PINNED)
    return _thread.resources


def _flat(dim: int, metric: int) -> faiss.Index:
    return faiss.IndexFlatIP(dim) if metric == faiss.METRIC_INNER_PRODUCT else faiss.IndexFlatL2(dim)


def _nearest(index: faiss.Index, vectors: np.ndarray) -> np.ndarray:
    """Return the nearest of each vector, int64 [n], whether or not torch's functions replace FAISS's."""
    found: np.ndarray = getattr(index, "search_numpy", index.search)(vectors, 1)[1][:, 0]
    return found


def _cluster(
    points: np.ndarray, count: int, parameters: KMeans, start: np.ndarray | None, index: faiss.Index
) -> np.ndarray:
    """Run k-means; an empty index finds the nearest centroids."""
    settings = faiss.ClusteringParameters()
    settings.niter, settings.nredo, settings.seed = parameters.rounds, parameters.starts, parameters.seed
    settings.spherical = parameters.spherical
    settings.min_points_per_centroid = 1
    settings.max_points_per_centroid = parameters.max_points or len(points)
    clustering = faiss.Clustering(points.shape[1], count, settings)
    if start is not None:
        faiss.copy_array_to_vector(start.ravel(), clustering.centroids)
    clustering.train(np.ascontiguousarray(points), index)
    found: np.ndarray = faiss.vector_to_array(clustering.centroids).reshape(count, points.shape[1])
    return found
