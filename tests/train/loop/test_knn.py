"""k-nearest-neighbour search on the training device, here the CPU, against FAISS and a full sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from retrieval import metrics
from retrieval.metrics.ranking import exact_neighbours
from train.loop import knn

CPU = torch.device("cpu")
HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def unit(count: int, dim: int, seed: int) -> np.ndarray:
    points = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return points / np.linalg.norm(points, axis=1, keepdims=True)


@pytest.mark.parametrize("k", [1, 7, 300])
def test_device_search_equals_faiss(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn, "_CELLS", 10_000)  # several blocks, the last one smaller
    query, gallery = unit(101, 32, 0), unit(300, 32, 1)
    scores, rows = knn.device_neighbours(query, gallery, k, device=HERE)
    expected, _ = exact_neighbours(query, gallery, k)
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    np.testing.assert_allclose(np.einsum("nd,nkd->nk", query, gallery[rows]), expected, atol=1e-6)
    assert all(len(set(row)) == k for row in rows.tolist())


@pytest.mark.parametrize("directions", [1, 4, 40])
def test_ties_are_resolved_in_the_same_way(directions: int) -> None:
    """Every vector occurs several times, so that most similarities are equal."""
    random = np.random.default_rng(0)
    points = unit(directions, 16, 0)[random.integers(0, directions, 200)]
    labels = random.integers(0, 3, 200)
    for k in (1, 5, 60):
        on_device = metrics.rank(
            points,
            labels,
            k=k,
            search=lambda *args, **kind: knn.device_neighbours(*args, device=HERE, **kind),
        )
        np.testing.assert_array_equal(on_device.relevant, metrics.rank(points, labels, k=k).relevant)


def test_faiss_is_used_on_the_cpu_and_torch_elsewhere() -> None:
    assert knn.neighbour_search(CPU) is exact_neighbours
    search = knn.neighbour_search(HERE)
    points, labels = unit(50, 8, 0), np.arange(50) // 5
    assert metrics.recall_at_k(points, labels, search=search) == metrics.recall_at_k(points, labels)


def test_matmul_precision_is_restored() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        knn.device_neighbours(unit(5, 8, 0), unit(9, 8, 1), 2, device=HERE)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
