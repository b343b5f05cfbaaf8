"""Rankings and all pairs without the views of a query's own product, against one comparison at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.metrics import per_query
from retrieval.metrics.all_pairs import compare_inputs
from retrieval.metrics.inputs import build_inputs
from retrieval.metrics.ranking import TIE, rank_inputs


def unit_vectors(seed: int, count: int, dim: int) -> np.ndarray:
    points = np.random.default_rng(seed).normal(size=(count, dim))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def expected(
    vectors: np.ndarray, classes: np.ndarray, products: np.ndarray, query: int
) -> tuple[list[bool], int]:
    """Return which of the other products' images are of the query's class, nearest first, and how many.

    Among similarities within `TIE`, those of other classes come first.
    """
    others = [row for row in range(len(vectors)) if products[row] != products[query]]
    cosines = vectors.astype(float) @ vectors[query].astype(float)
    cosines -= TIE * (classes == classes[query])
    others.sort(key=lambda row: (-round(cosines[row], 9), classes[row] == classes[query]))
    relevant = [bool(classes[row] == classes[query]) for row in others]
    return relevant, sum(relevant)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(8, 60),
    most_views=st.integers(1, 6),
    class_count=st.integers(2, 4),
    k=st.integers(1, 12),
    repeated=st.booleans(),
)
def test_views_of_the_own_product_are_left_out(
    seed: int, count: int, most_views: int, class_count: int, k: int, repeated: bool
) -> None:
    random = np.random.default_rng(seed)
    vectors = unit_vectors(seed, count, 5)
    if repeated:  # many equal ones, so that ties go on behind the last rank
        vectors[: count // 2] = vectors[0]
    products = np.sort(random.integers(0, max(2, count // most_views), count))
    classes = random.integers(0, class_count, count)
    inputs = build_inputs(vectors, classes, products=(products, products))
    wanted = [expected(vectors, classes, products, query) for query in range(count)]
    np.testing.assert_array_equal(inputs.num_relevant, [number for _, number in wanted])
    ranking = rank_inputs(inputs, k)
    pairs = compare_inputs(inputs)
    recall = per_query.recall(ranking, [1, k])
    for query, (relevant, number) in enumerate(wanted):
        kept = ranking.rows[query][ranking.rows[query] >= 0]
        assert products[query] not in products[kept]
        assert len(kept) == min(k, len(relevant))
        if not number:
            assert np.isnan(recall[query]).all()
            continue
        if not repeated:
            assert ranking.relevant[query, : len(kept)].tolist() == relevant[:k]
        assert recall[query].tolist() == [any(relevant[:1]), any(relevant[:k])]
        ranks = np.flatnonzero(relevant) + 1
        precision = np.arange(1, number + 1) / ranks
        assert pairs.average_precision[query] == pytest.approx(precision.mean())
        assert pairs.map_at_r[query] == pytest.approx(precision[ranks <= number].sum() / number)
    assert pairs.positive.sum() == sum(number for _, number in wanted)
    left_out = int((products[:, None] == products).sum())
    assert pairs.negative.sum() == count * count - left_out - pairs.positive.sum()


def test_a_gallery_apart_from_its_queries() -> None:
    vectors, classes = unit_vectors(1, 20, 4), np.arange(20) % 2
    products = np.arange(20) // 4
    queries = np.array([0, 5])
    inputs = build_inputs(
        vectors[queries], classes[queries], vectors, classes, queries, (products[queries], products)
    )
    ranking = rank_inputs(inputs, 20)
    assert inputs.num_relevant.tolist() == [8, 8]
    for line, query in enumerate(queries.tolist()):
        assert (
            sorted(ranking.rows[line][:16].tolist()) == np.flatnonzero(products != products[query]).tolist()
        )
        assert (ranking.rows[line][16:] == -1).all()
