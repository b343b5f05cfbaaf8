"""Similarities of all pairs, against the whole matrix in double precision."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from retrieval import metrics
from retrieval.metrics import all_pairs
from retrieval.metrics.inputs import build_inputs


def clustered(count: int, classes: int, dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, count)
    points = random.normal(size=(classes, dim))[labels] + random.normal(size=(count, dim))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32), labels


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 60), st.integers(1, 6), st.integers(0, 10_000), st.booleans(), st.integers(1, 50))
def test_blocks_equal_the_whole_matrix(count: int, classes: int, seed: int, others: bool, block: int) -> None:
    points, labels = clustered(count, classes, 8, seed)
    query, wanted, own = points, labels, np.arange(count)
    arrays: tuple[np.ndarray, ...] = (points, labels)
    if others:
        own = np.random.default_rng(seed).permutation(count)[: count // 2 + 1]
        query, wanted = points[own], labels[own] + (own % 3 == 0)  # some of another class, some of none
        own[::2] = -1
        arrays = (query, wanted, points, labels, own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(all_pairs, "_QUERIES", block)
        found = all_pairs.compare_inputs(build_inputs(*arrays))
    cosines = query.astype(float) @ points.T.astype(float)
    there = np.arange(count) != own[:, None]
    right = (wanted[:, None] == labels) & there
    wrong = (wanted[:, None] != labels) & there
    # A cosine at the edge of a bin may fall on either side in single precision; such a pair counts twice.
    for mask, histogram in ((right, found.positive), (wrong, found.negative)):
        assert histogram.sum() == mask.sum()
        np.testing.assert_allclose(np.cumsum(histogram), _below(cosines[mask], found.edges), atol=2)
    for mask, value in ((right, found.easiest_positive), (wrong, found.hardest_negative)):
        some = mask.any(1)
        best = np.where(mask, cosines, -np.inf).max(1)
        np.testing.assert_allclose(value[some], best[some], atol=1e-6)
        assert np.isnan(value[~some]).all()
    some, row = right.any(1), found.easiest_positive_row
    np.testing.assert_allclose(cosines[some, row[some]], found.easiest_positive[some], atol=1e-6)
    assert right[some, row[some]].all()
    assert (row[~some] == -1).all()


def _below(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Number of values below the upper edge of each bin; the last one includes larger values."""
    return np.array([(values < edge).sum() for edge in edges[1:-1]] + [len(values)])


def test_cosines_beyond_one_stay_in_the_histogram() -> None:
    """Vectors in half precision may be a little too long, so that cosines leave [-1, 1]."""
    points = np.array([[1.004, 0], [1.004, 0], [-1.004, 0], [0, 0]], np.float32)
    found = metrics.similarities(points, np.array([0, 0, 1, 1]))
    assert found.positive[-1] == 2
    assert found.positive[100] == 2  # with the zero vector: cosine 0
    assert found.negative[0] == 4
    assert found.negative[100] == 4
    assert found.positive.sum() + found.negative.sum() == 12


def test_overlap_is_0_for_separate_and_1_for_collapsed_classes() -> None:
    labels = np.arange(40) % 4
    apart = metrics.similarities(np.eye(4)[labels], labels)
    assert apart.overlap == 0.0
    assert metrics.similarities(np.eye(4)[labels * 0], labels).overlap == pytest.approx(1.0)
    mixed = metrics.similarities(*clustered(300, 4, 8, 0))
    shares = mixed.positive / mixed.positive.sum(), mixed.negative / mixed.negative.sum()
    # The area of two distributions in common is one minus half of what they differ by.
    assert mixed.overlap == pytest.approx(1 - np.abs(shares[0] - shares[1]).sum() / 2)
    assert 0.1 < mixed.overlap < 0.9


def test_sorting_and_counting_give_the_same_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points, labels = clustered(400, 3, 6, 0)
    by_sorting = metrics.similarities(points, labels)
    monkeypatch.setattr(all_pairs, "_COUNT_EACH", 1000)
    by_counting = metrics.similarities(points, labels)
    np.testing.assert_array_equal(by_sorting.average_precision, by_counting.average_precision)
    cosines = points.astype(float) @ points.T.astype(float)
    np.fill_diagonal(cosines, -2)
    right = (labels[:, None] == labels) & ~np.eye(400, dtype=bool)
    for i in (0, 100, 399):
        places = rankdata(-(cosines[i] - 1e-6 * right[i]))  # among all
        own = rankdata(-cosines[i][right[i]])  # among those of its class
        assert by_sorting.average_precision[i] == pytest.approx(np.mean(own / places[right[i]]), abs=1e-9)


def test_memory_stays_below_the_whole_matrix() -> None:
    points, labels = clustered(6000, 600, 8, 0)
    whole = 4 * len(points) ** 2
    tracemalloc.start()
    metrics.similarities(points, labels)
    similar = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    metrics.recall_at_k(
        points[:, :1] / np.abs(points[:, :1]), labels, ks=(1, 8)
    )  # two directions: ties alone
    tied = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert similar < whole / 4
    assert tied < whole / 2
