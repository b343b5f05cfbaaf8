"""Maximal marginal relevance, against its definition computed one by one."""

from __future__ import annotations

import numpy as np
import pytest

from retrieval.search.diversity import diversified


def one_by_one(relevance: np.ndarray, vectors: np.ndarray, weight: float, k: int) -> list[int]:
    chosen = [int(np.argmax(relevance))]
    while len(chosen) < min(k, len(relevance)):
        left = [i for i in range(len(relevance)) if i not in chosen]
        values = [
            (1 - weight) * relevance[i] - weight * max(float(vectors[i] @ vectors[j]) for j in chosen)
            for i in left
        ]
        chosen.append(left[int(np.argmax(values))])
    return chosen


@pytest.mark.parametrize("weight", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_order_is_that_of_the_definition(weight: float) -> None:
    random = np.random.default_rng(int(10 * weight))
    vectors = random.standard_normal((60, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    relevance = vectors @ vectors[:3].sum(0)
    found = diversified(relevance, vectors, weight, 25).tolist()
    assert found == one_by_one(relevance, vectors, weight, 25)
    assert found[:9] == diversified(relevance, vectors, weight, 9).tolist()
    if not weight:
        assert found == np.argsort(-relevance, kind="stable")[:25].tolist()


def test_copies_come_last() -> None:
    vectors = np.eye(4, dtype=np.float32)[[0, 0, 0, 1, 2]]
    assert diversified(np.array([0.9, 0.89, 0.88, 0.5, 0.4]), vectors, 0.5, 5).tolist() == [0, 3, 4, 1, 2]
    assert diversified(np.empty(0), np.empty((0, 4), np.float32), 0.5, 3).tolist() == []
