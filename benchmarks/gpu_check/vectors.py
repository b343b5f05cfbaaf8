"""FAISS on the device: the same neighbours, clusters and indexes as on the CPU, and the times of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import faiss
import numpy as np

from benchmarks.gpu_check.results import Row, limited
from benchmarks.gpu_check.workload import Workload
from retrieval.machine.devices import Device
from retrieval.machine.faiss_backend import CPU, CpuBackend, GpuBackend, KMeans, backend_for
from retrieval.search import kinds, training
from retrieval.search.vectors import Vectors

T = TypeVar("T")
DIM = 128
K = 10
EFFORT = 128  # of a search in an index
SCORE_ERROR = 1e-5  # between float32 products of the same vectors
CROSSED = ((1024, 128), (4096, 128), (8192, 256), (16384, 512), (60502, 512))
MORE_DISTANCE = 0.02  # of points from their centroids, between two runs of k-means


def compare(work: Workload) -> Iterator[Row]:
    """Compare neighbours, k-means, and an index with cells."""
    device = Device.parse(str(work.device))
    if device.kind == "cuda" and not (hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus()):
        yield Row("FAISS", "does not see the GPU; `lookalike doctor`", "FAILED")
        return
    backend = backend_for(device)
    points = clustered(work.vectors)
    queries = points[::10]
    ours, theirs, row = timed(lambda backend: backend.neighbours(queries, points, K), backend, "neighbours")
    yield limited("error of the scores", float(np.abs(ours[0] - theirs[0]).max()), SCORE_ERROR)
    yield row
    cells, parameters = kinds.number_of_cells(len(points), DIM), KMeans(10)
    ours, theirs, row = timed(lambda backend: backend.k_means(points, cells, parameters), backend, "k-means")
    distances = [float(CPU.neighbours(points, c, 1, parameters.metric)[0].mean()) for c in (ours, theirs)]
    yield limited("k-means: more distance", distances[0] / distances[1] - 1, MORE_DISTANCE)
    yield row
    yield from index("ivf-sq8", points, backend)


def crossover(work: Workload) -> Iterator[Row]:
    """Time the first use of the device, and neighbours of all among all by number and dimension.

    From these follows how much work is worth a GPU (`faiss_backend.pays`).
    """
    device = Device.parse(str(work.device))
    backend = backend_for(device)
    if isinstance(backend, GpuBackend):
        start = time.perf_counter()
        some = np.eye(8, dtype=np.float32)
        backend._neighbours(some, some, 1, faiss.METRIC_INNER_PRODUCT)
        taken = time.perf_counter() - start
        yield Row("first use of the GPU by FAISS", f"{taken:.2f} s", numbers={"seconds": taken})
    for count, dim in CROSSED if device.kind == "cuda" else CROSSED[:1]:
        points = np.random.default_rng(0).standard_normal((count, dim), np.float32)
        fastest = {}
        for name, one in {"device": backend, "cpu": CPU}.items():
            search = one._neighbours if isinstance(one, GpuBackend) else one.neighbours
            best = []
            for _ in range(2):
                start = time.perf_counter()
                search(points, points, K, faiss.METRIC_INNER_PRODUCT)
                best.append(time.perf_counter() - start)
            fastest[name] = min(best)
        yield Row(
            f"neighbours of {count} among all of dimension {dim}",
            f"{1000 * fastest['device']:.1f} ms, CPU {1000 * fastest['cpu']:.1f}",
            numbers={**fastest, "multiplications": count**2 * dim},
        )


def index(kind: str, points: np.ndarray, backend: CpuBackend) -> Iterator[Row]:
    """Build an index of a kind on both, and compare what a search finds."""
    stored = Vectors([points], DIM)
    queries = points[:1000]
    true = CPU.neighbours(queries, points, K)[1]

    def build(backend: CpuBackend) -> faiss.Index:
        built = training.train_index(kinds.APPROXIMATE[kind], training.draw_training(stored, backend=backend))
        training.add_rows(built, stored, np.arange(len(points)), backend=backend)
        return built

    ours, theirs, row = timed(build, backend, f"index {kind}")
    recalls = [
        float(np.mean([np.isin(t, f).mean() for t, f in zip(true, found, strict=True)]))
        for found in (kinds.candidates(built, queries, K, EFFORT, 4) for built in (ours, theirs))
    ]
    yield limited(f"index {kind}: less recall than {recalls[1]:.3f}", recalls[1] - recalls[0], 0.01)
    yield row


def timed(work: Callable[[CpuBackend], T], backend: CpuBackend, what: str) -> tuple[T, T, Row]:
    """Return the results on the device and on the CPU, and the row of their seconds."""
    seconds, results = [], []
    for one in (backend, CPU):
        start = time.perf_counter()
        results.append(work(one))
        seconds.append(time.perf_counter() - start)
    numbers = dict(zip(("device", "cpu"), seconds, strict=True))
    row = Row(f"{what}: seconds", f"{seconds[0]:.2f}, CPU {seconds[1]:.2f}", numbers=numbers)
    return results[0], results[1], row


def clustered(count: int) -> np.ndarray:
    """Return unit vectors around 500 centres, float32 [count, DIM]."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((500, DIM))
    points = centres[random.integers(0, 500, count)] + random.standard_normal((count, DIM))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
