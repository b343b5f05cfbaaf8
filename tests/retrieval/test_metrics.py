"""Metrics against loops, scikit-learn and pytorch-metric-learning."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score

from retrieval import InputError, metrics


def unit(count: int, dim: int, seed: int) -> np.ndarray:
    points = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def recall_by_loops(query, labels, gallery, gallery_labels, own, k: int) -> float:
    answers = []
    for i, q in enumerate(query):
        others = [j for j in range(len(gallery)) if j != own[i]]
        if labels[i] not in [gallery_labels[j] for j in others]:
            continue
        best = sorted(others, key=lambda j: -float(q @ gallery[j]))[:k]
        answers.append(labels[i] in [gallery_labels[j] for j in best])
    return float(np.mean(answers))


@settings(max_examples=30)
@given(st.integers(4, 40), st.integers(2, 5), st.integers(0, 10_000))
def test_leave_one_out_recall_equals_loops(count: int, classes: int, seed: int) -> None:
    points, labels = unit(count, 5, seed), np.random.default_rng(seed).integers(0, classes, count)
    labels[:2] = labels[0]
    ours = metrics.recall_at_k(points, labels, ks=(1, 3, 100))
    for k, value in ours.items():
        assert value == pytest.approx(recall_by_loops(points, labels, points, labels, range(count), k))


@settings(max_examples=30)
@given(st.integers(1, 20), st.integers(3, 40), st.integers(0, 10_000))
def test_gallery_recall_equals_loops(queries: int, count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    query, gallery = unit(queries, 4, seed), unit(count, 4, seed + 1)
    query_labels, gallery_labels = random.integers(0, 5, queries), random.integers(0, 4, count)
    query_labels[0] = gallery_labels[0]
    own = random.integers(-1, count, queries)
    own[0] = -1
    ours = metrics.recall_at_k(query, query_labels, gallery, gallery_labels, ks=(1, 2, 50), own=own)
    for k, value in ours.items():
        expected = recall_by_loops(query, query_labels, gallery, gallery_labels, own, k)
        assert value == pytest.approx(expected)


def test_precision_at_1_of_pytorch_metric_learning() -> None:
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    points, labels = unit(300, 16, 3), np.random.default_rng(3).integers(0, 10, 300)
    theirs = AccuracyCalculator(include=("precision_at_1",), k=1).get_accuracy(
        torch.from_numpy(points), torch.from_numpy(labels)
    )
    ours = metrics.recall_at_k(points, labels, ks=(1,))[1]
    assert ours == pytest.approx(theirs["precision_at_1"], abs=1e-9)


def test_duplicates_find_each_other_and_not_themselves() -> None:
    points = np.repeat(unit(3, 8, 0), 4, axis=0)
    assert metrics.recall_at_k(points, np.repeat([0, 1, 2], 4), ks=(1,)) == {1: 1.0}
    found = metrics.neighbours(points, points, 5, np.arange(12))
    assert not (found == np.arange(12)[:, None]).any()


def test_classes_of_one_are_left_out() -> None:
    points = np.eye(4, dtype=np.float32)
    points[1] = points[0]
    assert metrics.recall_at_k(points, np.array([0, 0, 1, 2]), ks=(1,)) == {1: 1.0}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60))
def test_nmi_equals_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    labels, clusters = np.array(pairs).T
    expected = normalized_mutual_info_score(labels, clusters)
    if len(set(labels)) == len(set(clusters)) == 1:
        expected = 1.0
    assert metrics.nmi(labels, clusters) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=25))
def test_pair_f1_equals_counting_pairs(pairs: list[tuple[int, int]]) -> None:
    same_class = {(i, j) for i, j in combinations(range(len(pairs)), 2) if pairs[i][0] == pairs[j][0]}
    together = {(i, j) for i, j in combinations(range(len(pairs)), 2) if pairs[i][1] == pairs[j][1]}
    both, either = len(same_class & together), len(same_class) + len(together)
    labels, clusters = np.array(pairs).T
    assert metrics.pair_f1(labels, clusters) == pytest.approx(2 * both / either if either else 0.0)


def test_kmeans_finds_separate_groups() -> None:
    centres = np.eye(5, dtype=np.float32) * 10
    labels = np.repeat(np.arange(5), 30)
    points = centres[labels] + np.random.default_rng(0).normal(size=(150, 5)).astype(np.float32) * 0.1
    clusters = metrics.kmeans(points, 5)
    assert metrics.nmi(labels, clusters) == pytest.approx(1.0)
    np.testing.assert_array_equal(clusters, metrics.kmeans(points, 5))


@pytest.mark.parametrize(
    ("embeddings", "labels", "message"),
    [
        (np.full((3, 2), np.nan), np.zeros(3), "NaN"),
        (np.ones((3, 2)), np.zeros(2), "labels"),
        (np.empty((0, 2)), np.empty(0), "empty"),
        (np.ones((3, 2)), np.arange(3), "no query"),
    ],
)
def test_unusable_input_says_why(embeddings: np.ndarray, labels: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        metrics.recall_at_k(embeddings, labels)
