"""k-means, NMI and pair F1."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score

from retrieval import InputError, metrics
from retrieval.metrics import clustering


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


def groups(classes: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Small clusters, far apart."""
    labels = np.repeat(np.arange(classes), each)
    noise = np.random.default_rng(0).normal(size=(len(labels), classes)) * 0.1
    return (np.eye(classes)[labels] * 10 + noise).astype(np.float32), labels


def test_kmeans_finds_separate_groups() -> None:
    points, labels = groups(5, 30)
    clusters = metrics.kmeans(points, 5)
    assert metrics.nmi(labels, clusters) == pytest.approx(1.0)
    np.testing.assert_array_equal(clusters, metrics.kmeans(points, 5))


def test_few_iterations_suffice_for_many_small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reduced effort for large sets, against the usual one."""
    points, labels = groups(200, 5)
    thorough = metrics.nmi(labels, metrics.kmeans(points, 200))
    monkeypatch.setattr(clustering, "_MANY", 0)
    assert metrics.nmi(labels, metrics.kmeans(points, 200)) == pytest.approx(thorough, abs=0.01)


def test_equal_points_are_one_cluster() -> None:
    points = np.ones((50, 4), np.float32) / 2
    assert len(np.unique(metrics.kmeans(points, 7))) == 1
    assert metrics.nmi(np.arange(50) % 7, metrics.kmeans(points, 7)) == 0.0


@pytest.mark.parametrize(
    ("points", "clusters"), [(np.ones((3, 2)), 4), (np.ones((3, 2)), 0), (np.full((3, 2), np.nan), 1)]
)
def test_invalid_points_are_refused(points: np.ndarray, clusters: int) -> None:
    with pytest.raises(InputError, match="cannot make"):
        metrics.kmeans(points, clusters)


def test_each_label_needs_a_cluster() -> None:
    numbers = np.arange(6) % 3
    for measure in (metrics.nmi, metrics.pair_f1):
        with pytest.raises(InputError, match=r"got \(3,\) and \(2,\)"):
            measure(np.zeros(3), np.zeros(2))
        for labels, clusters in ((numbers[:, None], numbers), (numbers[:, None], numbers[:, None])):
            with pytest.raises(InputError, match=r"got \(6, 1\) and"):
                measure(labels, clusters)
