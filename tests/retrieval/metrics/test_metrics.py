"""Retrieval metrics, against loops in plain Python and by properties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval import InputError, metrics
from retrieval.metrics import per_query
from retrieval.metrics.all_pairs import compare_inputs
from retrieval.metrics.inputs import build_inputs
from retrieval.metrics.ranking import rank_inputs

BAD = {
    "NaN": (np.full((3, 2), np.nan), np.zeros(3)),
    "infinite": (np.full((3, 2), np.inf), np.zeros(3)),
    r"labels \[N\]": (np.eye(3), np.zeros(2)),
    "empty": (np.empty((0, 2)), np.empty(0)),
    r"expected embeddings \[N, D\]": (np.ones(3), np.zeros(3)),
    "length 1.41 and not 1": (np.ones((3, 2)), np.zeros(3)),
    "no query has another": (np.eye(3), np.arange(3)),
}
EVERY = {
    "recall": metrics.recall_at_k,
    "precision": metrics.precision_at_k,
    "cmc": metrics.cmc,
    "map@r": metrics.map_at_r,
    "r-precision": metrics.r_precision,
    "map": metrics.mean_average_precision,
}


def unit(count: int, dim: int, seed: int) -> np.ndarray:
    points = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def signs(count: int, dim: int, seed: int) -> np.ndarray:
    """Integers whose dot products are exact, -1 or 1 everywhere: the fewer dimensions, the more ties."""
    return np.random.default_rng(seed).choice([-1, 1], (count, dim))


def by_loops(
    query: np.ndarray,
    labels: Sequence[int],
    gallery: np.ndarray,
    gallery_labels: Sequence[int],
    own: Sequence[int],
    ks: Sequence[int],
) -> dict[str, list[float]]:
    """All metrics of each query by loops over integers."""
    names = [f"{name}@{k}" for name in ("recall", "precision") for k in ks]
    found: dict[str, list[float]] = {name: [] for name in [*names, "map", "map@r", "r-precision"]}
    for i, q in enumerate(query):
        others = [j for j in range(len(gallery)) if j != own[i]]
        ranked = sorted(others, key=lambda j: (-int(q @ gallery[j]), gallery_labels[j] == labels[i]))
        right = [gallery_labels[j] == labels[i] for j in ranked]
        r = sum(right)
        for k in ks:
            found[f"recall@{k}"].append(float(any(right[:k])) if r else np.nan)
            found[f"precision@{k}"].append(sum(right[:k]) / min(k, len(right)) if r else np.nan)
        terms = [sum(right[: n + 1]) / (n + 1) if hit else 0.0 for n, hit in enumerate(right)]
        found["map"].append(sum(terms) / r if r else np.nan)
        found["map@r"].append(sum(terms[:r]) / r if r else np.nan)
        found["r-precision"].append(sum(right[:r]) / r if r else np.nan)
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 40), st.integers(1, 40), st.integers(0, 10_000), st.booleans())
def test_values_of_queries_equal_loops(count: int, dim: int, seed: int, others: bool) -> None:
    random = np.random.default_rng(seed)
    gallery, gallery_labels = signs(count, dim, seed), random.integers(0, 4, count)
    query, labels, own = gallery, gallery_labels, np.arange(count)
    asked: tuple[np.ndarray, ...] = (query / np.sqrt(dim), labels)
    if others:
        query, labels, own = gallery[: count // 2], random.integers(0, 5, count // 2), own[: count // 2]
        own[::3] = -1
        asked = (query / np.sqrt(dim), labels, gallery / np.sqrt(dim), gallery_labels, own)
    ks = (1, 2, 3, count + 5)
    expected = by_loops(query, labels, gallery, gallery_labels, own, ks)
    everything = compare_inputs(build_inputs(*asked))
    ours = {
        "map": everything.average_precision,
        "map@r": everything.map_at_r,
        "r-precision": everything.r_precision,
    }
    for name, value in ours.items():
        np.testing.assert_allclose(value, expected[name], atol=1e-12, err_msg=name)
    for k in ks:  # each k separately: ties reach beyond rank k
        short = rank_inputs(build_inputs(*asked), k)
        for name, values in (
            ("recall", per_query.recall(short, [k])),
            ("precision", per_query.precision(short, [k])),
        ):
            np.testing.assert_allclose(
                values[:, 0], expected[f"{name}@{k}"], atol=1e-12, err_msg=f"{name}@{k}"
            )
    ranking = rank_inputs(build_inputs(*asked), count)
    np.testing.assert_allclose(per_query.map_at_r(ranking), expected["map@r"], atol=1e-12)
    np.testing.assert_allclose(per_query.r_precision(ranking), expected["r-precision"], atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(4, 60), st.integers(1, 40), st.integers(0, 10_000))
def test_metrics_are_invariant_to_order_and_recall_grows_with_k(count: int, dim: int, seed: int) -> None:
    points, labels = signs(count, dim, seed) / np.sqrt(dim), np.arange(count) // 3
    order = np.random.default_rng(seed).permutation(count)
    words = np.array([f"class {99 - label}" for label in labels])
    ks = (1, 2, 5, 10)
    for metric in EVERY.values():
        options = {"ks": ks} if metric in (metrics.recall_at_k, metrics.precision_at_k) else {}
        value = metric(points, labels, **options)
        assert metric(points[order], words[order], **options) == pytest.approx(value, abs=1e-12)
    recall = list(metrics.recall_at_k(points, labels, ks=ks).values())
    assert recall == sorted(recall)
    np.testing.assert_allclose(metrics.cmc(points, labels, k=10)[[0, 1, 4, 9]], recall, atol=1e-12)


@pytest.mark.parametrize("dim", [2, 512])
def test_collapsed_embeddings_find_nothing(dim: int) -> None:
    """With k far below the size, so that ties behind the last rank have to be resolved."""
    points, labels = np.repeat(unit(1, dim, 0), 300, axis=0), np.arange(300) % 3
    assert metrics.recall_at_k(points, labels, ks=(1, 5, 50, 200)) == {1: 0, 5: 0, 50: 0, 200: 0}
    # The 200 wrong ones come first, the 99 right ones after them.
    assert metrics.recall_at_k(points, labels, ks=(201,)) == {201: 1.0}
    assert metrics.map_at_r(points, labels) == metrics.r_precision(points, labels) == 0.0
    places = np.arange(1, 100)
    expected = np.mean(places / (200 + places))
    assert metrics.mean_average_precision(points, labels) == pytest.approx(expected)


def test_tie_across_the_last_rank_is_resolved() -> None:
    """The relevant image ties with 40 others: whichever are fetched, its rank is 41."""
    query = np.array([[1.0, 0.0]], np.float32)
    gallery = np.repeat(np.array([[0.6, 0.8]], np.float32), 41, axis=0)
    for place in (0, 20, 40):
        labels = np.arange(1, 42)
        labels[place] = 0
        found = metrics.recall_at_k(query, np.array([0]), gallery, labels, ks=(1, 40, 41))
        assert found == {1: 0.0, 40: 0.0, 41: 1.0}


def test_duplicates_find_each_other_and_not_themselves() -> None:
    points = np.repeat(unit(3, 8, 0), 4, axis=0)
    ranking = metrics.rank(points, np.repeat([0, 1, 2], 4), k=5)
    assert not (ranking.rows == np.arange(12)[:, None]).any()
    assert ranking.relevant[:, :3].all()
    assert not ranking.relevant[:, 3:].any()
    assert metrics.recall_at_k(points, np.repeat([0, 1, 2], 4), ks=(1,)) == {1: 1.0}


def test_ranking_beyond_the_gallery_is_padded() -> None:
    ranking = metrics.rank(unit(4, 3, 0), np.zeros(4), k=9)
    assert ranking.rows.shape == (4, 4)
    assert (ranking.rows[:, 3] == -1).all()
    assert (ranking.scores[:, 3] == -np.inf).all()
    assert not ranking.relevant[:, 3].any()
    assert ranking.relevant[:, :3].all()
    single = metrics.rank(unit(1, 3, 0), np.zeros(1), k=2)
    assert single.rows.tolist() == [[-1]]
    assert not single.answerable.any()


def test_classes_with_one_image_are_left_out() -> None:
    points = np.eye(4, dtype=np.float32)
    points[1] = points[0]
    assert metrics.recall_at_k(points, np.array([0, 0, 1, 2]), ks=(1,)) == {1: 1.0}


def test_metrics_of_a_single_class_are_1() -> None:
    points, labels = unit(6, 3, 0), np.zeros(6)
    assert metrics.recall_at_k(points, labels, ks=(1, 4)) == {1: 1.0, 4: 1.0}
    found = metrics.similarities(points, labels)
    assert found.average_precision.tolist() == [1.0] * 6
    assert np.isnan(found.hardest_negative).all()
    assert found.overlap == 0.0


def test_zero_vector_has_cosine_0_with_everything() -> None:
    points = np.eye(3, dtype=np.float32)[[0, 0, 1, 2]]
    points[3] = 0.0
    assert metrics.recall_at_k(points, np.array([0, 0, 1, 1]), ks=(1,)) == {1: 0.5}


@pytest.mark.parametrize("metric", EVERY.values(), ids=EVERY)
@pytest.mark.parametrize("message", BAD)
def test_invalid_input_is_refused(metric, message: str) -> None:
    with pytest.raises(InputError, match=message):
        metric(*BAD[message])


@pytest.mark.parametrize(
    ("gallery", "labels", "own", "message"),
    [
        (np.eye(4), np.zeros(4), None, "3 dimensions, the gallery 4"),
        (np.eye(3), None, None, "together"),
        (np.eye(3), np.array(["0", "0", "0"]), None, "float64 of queries and <U1 of the gallery"),
        (None, None, np.arange(3), "it needs a gallery"),
        (np.eye(3), np.zeros(3), np.array([0, 1, 3]), "rows 0 to 3 of a gallery of 3"),
        (np.eye(3), np.zeros(3), np.array([-2, 1, 2]), "rows -2 to 2"),
        (np.eye(3), np.zeros(3), np.zeros(2, int), "3 row numbers"),
        (np.eye(3), np.zeros(3), np.zeros(3), "row numbers, got float64"),
        (np.eye(3) * 2, np.zeros(3), None, "gallery: row 0 has length 2"),
    ],
)
def test_invalid_gallery_is_refused(gallery, labels, own, message: str) -> None:
    with pytest.raises(InputError, match=message):
        metrics.recall_at_k(np.eye(3), np.zeros(3), gallery, labels, own=own)


def test_too_few_neighbours_are_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        metrics.rank(np.eye(3), np.zeros(3), k=0)
    with pytest.raises(InputError, match="1 neighbours, but a query has 2"):
        per_query.map_at_r(metrics.rank(np.eye(3), np.zeros(3), k=1))
