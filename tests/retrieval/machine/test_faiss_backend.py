"""FAISS backends: the CPU against FAISS's own functions, and each place that a GPU may take."""

from __future__ import annotations

import faiss
import numpy as np
import pytest

from retrieval.evaluation.score import evaluate
from retrieval.machine import faiss_backend
from retrieval.machine.devices import Device, gpus
from retrieval.machine.faiss_backend import CPU, Assign, CpuBackend, GpuBackend, KMeans, backend_for
from retrieval.metrics.ranking import exact_neighbours
from retrieval.search import kinds, training, tuning
from retrieval.search.vectors import Vectors
from tests.retrieval.vectors import brute_force, clustered

DIM = 24
VECTORS = clustered(6000, DIM, 1)
QUERIES = clustered(100, DIM, 2)
STORED = Vectors(np.array_split(VECTORS, 3), DIM)
KINDS = list(kinds.APPROXIMATE)
needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus()),
        reason="needs an NVIDIA GPU, and FAISS for GPUs (make env GPU=1)",
    ),
]


class Eager(CpuBackend):
    """A backend that takes all work as a GPU does, and computes it on the CPU."""

    def __init__(self) -> None:
        self.assigned = 0

    def pays(self, work: int) -> bool:
        return True

    def block(self, size: int, k: int = 1) -> int:
        return 3 * size

    def assigner(self, centroids: np.ndarray, count: int) -> Assign | None:
        def assign(vectors: np.ndarray) -> np.ndarray | None:
            self.assigned += len(vectors)
            return self.neighbours(vectors, centroids, 1)[1][:, 0]

        return assign


def test_graph_finds_the_cells_of_clusters_and_leaves_noise_to_the_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nearly all in their nearest cell, and each in the index once; of noise all in their nearest one."""
    monkeypatch.setattr(faiss_backend, "_CELLS_BY_GRAPH", 1024)
    monkeypatch.setattr(faiss_backend, "_PAID_BACK", 1)
    noise = np.random.default_rng(0).standard_normal((12_000, 96), dtype=np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    for vectors, graph in ((clustered(12_000, 16, 1), True), (noise, False)):
        dim = vectors.shape[1]
        centroids = training.train_cells(vectors, 2048)
        nearest = (vectors @ centroids.T).argmax(1)
        assign = CPU.assigner(centroids, len(vectors))
        assert assign is not None
        cells = assign(vectors)
        assert (cells is not None) == graph
        if cells is not None:
            assert (cells == nearest).mean() > 0.99
        index = training.train_index(kinds.APPROXIMATE["ivf-flat"], training.Training(vectors, centroids))
        training.add_rows(index, Vectors([vectors], dim), np.arange(len(vectors)))
        found = np.full(len(vectors), -1)
        for cell in range(index.nlist):
            size = index.invlists.list_size(cell)
            if size:
                found[faiss.rev_swig_ptr(index.invlists.get_ids(cell), size)] = cell
        assert (found == nearest).mean() > (0.99 if graph else 0.9999)
    assert CPU.assigner(centroids[:1000], 10**9) is None


class Failing(GpuBackend):
    """A backend on a GPU whose memory is always too small."""

    def pays(self, work: int) -> bool:
        return True

    def _neighbours(self, *arguments: object) -> tuple[np.ndarray, np.ndarray]:
        raise RuntimeError(
            "Error in f() at x.cpp:1: Error: 'err == 0' failed: StandardGpuResources: alloc fail"
        )

    def _flat(self, dim: int, metric: int) -> faiss.Index:
        raise MemoryError("std::bad_alloc")


def test_neighbours_and_k_means_are_those_of_faiss() -> None:
    for ours, theirs in zip(
        CPU.neighbours(QUERIES, VECTORS, 7), brute_force(VECTORS, QUERIES, 7), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    for spherical in (False, True):
        peer = faiss.Kmeans(
            DIM,
            40,
            niter=4,
            nredo=2,
            seed=5,
            spherical=spherical,
            max_points_per_centroid=60,
            min_points_per_centroid=1,
        )
        peer.train(VECTORS)
        parameters = KMeans(4, 2, 5, spherical, max_points=60)
        centroids = CPU.k_means(VECTORS, 40, parameters)
        np.testing.assert_array_equal(centroids, peer.centroids)
        cells = CPU.neighbours(VECTORS, centroids, 1, parameters.metric)[1]
        np.testing.assert_array_equal(cells, peer.index.search(VECTORS, 1)[1])


@pytest.mark.parametrize("kind", [name for name in KINDS if "hnsw" not in name])
def test_cells_from_a_backend_give_the_same_index_to_the_bit(kind: str) -> None:
    trained = training.draw_training(STORED)
    indexes, eager = [], Eager()
    for backend in (CPU, eager):
        index = training.train_index(kinds.APPROXIMATE[kind], trained)
        training.add_rows(index, STORED, np.arange(0, len(VECTORS), 2), backend=backend)
        training.add_rows(index, STORED, np.arange(1, len(VECTORS), 2), backend=backend)
        indexes.append(faiss.serialize_index(index))
    assert np.array_equal(*indexes)
    assert eager.assigned == (len(VECTORS) if kind in ("ivf-flat", "ivf-sq8", "ivf-sq4", "ivf-disk") else 0)


@pytest.mark.parametrize("dead", [0, 700])
def test_true_neighbours_are_the_same(dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "SAMPLE", 2000)
    monkeypatch.setattr(tuning, "_BLOCK_BYTES", 700 * 4 * DIM)
    rows = np.arange(dead, len(VECTORS))
    (ours, near), (theirs, others) = (
        tuning.hold_out_queries(STORED, rows, nearest=60, backend=backend) for backend in (Eager(), CPU)
    )
    np.testing.assert_allclose(ours.kth, theirs.kth, atol=1e-6)
    np.testing.assert_array_equal(ours.rows, theirs.rows)
    assert not np.isin(near, ours.rows).any()
    rest = np.setdiff1d(rows, ours.rows)
    true = rest[brute_force(VECTORS[rest], ours.queries, 60)[1]]
    assert np.isin(true, near).mean() > 0.999
    assert np.isin(near, others).mean() > 0.99


def test_evaluation_is_the_same() -> None:
    vectors, labels = VECTORS[:800], np.arange(800) % 40
    ours, theirs = (
        evaluate("x", vectors, labels, ks=(1, 4), backend=backend).result for backend in (Eager(), CPU)
    )
    assert ours == theirs


def test_failures_are_reported_once_and_done_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    failing = Failing(Device("cuda"))
    for _ in range(2):
        np.testing.assert_array_equal(
            failing.neighbours(QUERIES, VECTORS, 5)[1], CPU.neighbours(QUERIES, VECTORS, 5)[1]
        )
        parameters = KMeans(2)
        np.testing.assert_array_equal(
            failing.k_means(VECTORS, 9, parameters), CPU.k_means(VECTORS, 9, parameters)
        )
        assert failing.assigner(VECTORS[:9], 1000) is None
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"FAISS failed on GPU 0 ({reason}), so the CPU does this work; free memory of the GPU, or choose the "
        "device cpu"
        for reason in ("StandardGpuResources: alloc fail", "std::bad_alloc")
    ]


@pytest.mark.skipif(bool(gpus()), reason="needs a machine without a GPU")
def test_without_a_gpu_the_cpu_computes(capsys: pytest.CaptureFixture[str]) -> None:
    assert backend_for(Device("cpu")) is CPU
    much = 1 << 60
    assert not backend_for(Device()).pays(much)
    assert capsys.readouterr().err == ""
    assert not backend_for(Device("cuda", 1)).pays(much)
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        line == "FAISS runs on the CPU and not on GPU 1: there is no GPU 1; `lookalike doctor` lists the GPUs"
    )


# ---- on a GPU


class OnGpu(GpuBackend):
    """A backend that gives a GPU small work as well."""

    def pays(self, work: int) -> bool:
        return True

    def _report(self, error: Exception) -> None:
        raise error


class TestGpu:
    pytestmark = needs_gpu
    backend = OnGpu(Device())

    def test_neighbours_are_exact(self) -> None:
        for metric in (faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2):
            ours, theirs = (b.neighbours(QUERIES, VECTORS, 20, metric) for b in (self.backend, CPU))
            np.testing.assert_allclose(ours[0], theirs[0], atol=1e-5)
            assert (ours[1] == theirs[1]).mean() > 0.99

    def test_search_by_blocks_is_exact(self) -> None:
        ours, theirs = (exact_neighbours(VECTORS, VECTORS, 5, backend=b) for b in (self.backend, CPU))
        np.testing.assert_allclose(ours[0], theirs[0], atol=1e-5)

    def test_k_means_is_as_good(self) -> None:
        for spherical in (False, True):
            parameters = KMeans(10, 2, spherical=spherical)
            ours, theirs = (
                CPU.neighbours(VECTORS, b.k_means(VECTORS, 60, parameters), 1, parameters.metric)[0].mean()
                for b in (self.backend, CPU)
            )
            assert ours == pytest.approx(theirs, rel=0.05)

    @pytest.mark.parametrize("kind", ["ivf-flat", "ivf-sq8", "ivf-sq4"])
    def test_cells_are_the_same(self, kind: str) -> None:
        trained = training.draw_training(STORED)
        sizes = []
        for backend in (CPU, self.backend):
            index = training.train_index(kinds.APPROXIMATE[kind], trained)
            training.add_rows(index, STORED, np.arange(len(VECTORS)), backend=backend)
            sizes.append([index.invlists.list_size(cell) for cell in range(index.nlist)])
        assert np.abs(np.subtract(*sizes)).sum() <= 10  # of vectors between two cells
