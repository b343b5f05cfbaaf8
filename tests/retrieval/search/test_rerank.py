"""Re-ranking against a direct implementation of the papers' formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from retrieval.search.rerank import expand, k_reciprocal


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def clustered(seed: int, count: int, dim: int = 6, spread: float = 0.6) -> np.ndarray:
    """Unit vectors around four centres, so that neighbourhoods overlap without being the same."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(4, dim))
    return unit(centres[random.integers(0, 4, count)] + spread * random.normal(size=(count, dim)))


def slow_k_reciprocal(
    query: np.ndarray, candidates: np.ndarray, k1: int, k2: int, weight: float
) -> list[float]:
    """Return the paper's distances, computed with sets and dictionaries, one image at a time."""
    points = [query.astype(float), *candidates.astype(float)]
    everyone = range(len(points))
    distance = [[float(((a - b) ** 2).sum()) for b in points] for a in points]

    def nearest(i: int, k: int) -> list[int]:
        return sorted(everyone, key=lambda j: (j != i, distance[i][j]))[: k + 1]  # itself and k others

    def reciprocal(i: int, k: int) -> set[int]:
        return {j for j in nearest(i, k) if i in nearest(j, k)}

    described: list[dict[int, float]] = []
    for i in everyone:
        core = reciprocal(i, k1)
        members = set(core)
        for j in core:
            theirs = reciprocal(j, k1 // 2)
            if len(core & theirs) * 3 >= len(theirs) * 2:
                members |= theirs
        weights = {j: float(np.exp(-distance[i][j])) for j in members}
        described.append({j: w / sum(weights.values()) for j, w in weights.items()})
    averaged = [
        {
            j: sum(described[n].get(j, 0.0) for n in nearest(i, k2 - 1)) / len(nearest(i, k2 - 1))
            for j in everyone
        }
        for i in everyone
    ]
    final = []
    for i in list(everyone)[1:]:
        least = sum(min(averaged[0][j], averaged[i][j]) for j in everyone)
        most = sum(max(averaged[0][j], averaged[i][j]) for j in everyone)
        final.append((1 - weight) * (1 - least / most) + weight * distance[0][i])
    return final


@pytest.mark.parametrize(
    ("k1", "k2", "weight"), [(20, 6, 0.3), (6, 3, 0.3), (4, 1, 0.0), (8, 2, 1.0), (60, 60, 0.5)]
)
def test_k_reciprocal_matches_the_paper(k1: int, k2: int, weight: float) -> None:
    points = clustered(seed=k1, count=41)
    found = k_reciprocal(points[0], points[1:], k1, k2, weight)
    np.testing.assert_allclose(found, slow_k_reciprocal(points[0], points[1:], k1, k2, weight), atol=1e-6)


@given(
    st.integers(0, 2**32),
    st.integers(1, 30),
    st.integers(1, 12).map(lambda half: 2 * half),
    st.integers(1, 8),
)
def test_k_reciprocal_on_random_neighbourhoods(seed: int, count: int, k1: int, k2: int) -> None:
    points = clustered(seed, count + 1)
    cosines = np.sort(points.astype(float) @ points.T.astype(float), axis=1)
    assume(np.diff(cosines[:, :-1], axis=1).min(initial=1) > 1e-6)  # rounding decides the order of near ties
    found = k_reciprocal(points[0], points[1:], k1, k2)
    np.testing.assert_allclose(found, slow_k_reciprocal(points[0], points[1:], k1, k2, 0.3), atol=1e-6)


def test_k_reciprocal_ranks_a_copy_first_in_any_order() -> None:
    points = clustered(seed=3, count=60)
    candidates = np.concatenate([points[1:], points[:1]])
    found = k_reciprocal(points[0], candidates)
    assert np.argmin(found) == len(candidates) - 1
    shuffled = np.random.default_rng(0).permutation(len(candidates) - 1)  # the copy stays last
    np.testing.assert_allclose(
        k_reciprocal(points[0], candidates[shuffled]), k_reciprocal(points[0], points[1:])[shuffled]
    )


def test_k_reciprocal_prefers_shared_neighbours() -> None:
    """An outsider nearer than a far member of the query's cluster is ranked behind it."""
    random = np.random.default_rng(1)
    cluster = unit(np.eye(1, 32) + 0.12 * random.normal(size=(24, 32)))
    query, far = cluster[0], cluster[np.argmin(cluster @ cluster[0])]
    toward = unit(random.normal(size=32))
    toward = unit(toward - (toward @ query) * query)
    cosine = float(far @ query) + 0.02
    outsider = unit(cosine * query + np.sqrt(1 - cosine**2) * toward)
    others = unit(toward + 0.2 * random.normal(size=(40, 32)))  # the outsider's own cluster
    candidates = np.concatenate([cluster[1:], outsider[None], others])
    row, far_row = len(cluster) - 1, int(np.flatnonzero((candidates == far).all(1))[0])
    assert candidates[row] @ query > candidates[far_row] @ query
    distances = k_reciprocal(query, candidates)
    assert distances[row] > distances[far_row]


def test_k_reciprocal_with_one_or_no_candidate() -> None:
    points = clustered(seed=5, count=2)
    assert k_reciprocal(points[0], points[1:]).shape == (1,)
    assert k_reciprocal(points[0], points[:0]).shape == (0,)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
def test_query_expansion_is_the_weighted_sum(alpha: float) -> None:
    queries, gallery = clustered(1, 5), clustered(2, 50)
    scores = queries @ gallery.T
    order = np.argsort(-scores, axis=1)[:, :7]
    found = expand(queries, gallery[order], np.take_along_axis(scores, order, 1), alpha)
    for query, row, expanded in zip(queries, order, found, strict=True):
        total = query.astype(float).copy()
        for i in row:
            total += max(0.0, float(query @ gallery[i])) ** alpha * gallery[i]
        np.testing.assert_allclose(expanded, total / np.linalg.norm(total), atol=1e-6)


def test_negative_neighbours_do_not_count() -> None:
    query = unit(np.array([[1.0, 0.0]]))
    opposite = unit(np.array([[[-1.0, 0.1]]]))
    np.testing.assert_array_equal(expand(query, opposite, np.array([[-1.0]])), query)
