"""Second thoughts about a ranking: what the first neighbours say about the rest."""

from __future__ import annotations

import numpy as np

ALPHA = 3.0  # what is customary
EXPANSION = 10  # neighbours that join the query; a gallery often has few pictures of one thing
K1, K2, WEIGHT = 20, 6, 0.3  # as in the paper; WEIGHT is its lambda


def mean_query(vectors: np.ndarray) -> np.ndarray:
    """One query out of several, float32 [N, D] of unit length -> [D]: their mean, of unit length again."""
    return _unit(vectors.mean(0))


def expand(
    queries: np.ndarray, neighbours: np.ndarray, scores: np.ndarray, alpha: float = ALPHA
) -> np.ndarray:
    """Queries moved towards their neighbours: alpha-weighted query expansion.

    The sum of the query and of its n nearest neighbours, each times max(0, cosine)^alpha, of unit length.

    Args:
        queries: float32 [N, D], unit length.
        neighbours: float32 [N, n, D], unit length.
        scores: cosine similarities [N, n]; 0 or less where a neighbour is not to count.

    Returns:
        float32 [N, D], unit length.

    Source: Radenovic, Tolias and Chum, Fine-tuning CNN image retrieval with no human annotation, TPAMI 2018.
    """
    weights = np.maximum(scores, 0) ** alpha
    return _unit(queries + np.einsum("qn,qnd->qd", weights, neighbours))


def k_reciprocal(
    query: np.ndarray, candidates: np.ndarray, k1: int = K1, k2: int = K2, weight: float = WEIGHT
) -> np.ndarray:
    """Distances of a query to its candidates by the company they keep: k-reciprocal encoding.

    Two pictures are k-reciprocal neighbours when each is among the other's k1 nearest. Every picture is
    described by these neighbours, and by those of its neighbours that mostly agree with it (section 3.2),
    weighted by exp(-distance) (3.3); descriptions are averaged over the k2 nearest (3.4), and the final
    distance is (1 - weight) Jaccard distance + weight * distance (3.5): 0 for the same picture, larger for
    others. The distance is the squared Euclidean one, 2 - 2 cosine; as in the authors' code, a description
    sums to one, and a picture counts among its own nearest.

    Here neighbours are sought among the query and its candidates alone; the paper takes all queries and the
    whole gallery, which costs as many searches as there are pictures.

    Args:
        query: float32 [D], unit length.
        candidates: float32 [M, D], unit length.

    Returns:
        float64 [M].

    Source: Zhong, Zheng, Cao and Li, Re-ranking person re-identification with k-reciprocal encoding,
        CVPR 2017.
    """
    points = np.concatenate([query[None], candidates]).astype(np.float64)
    distance = np.maximum(2 - 2 * points @ points.T, 0)
    ranking = distance.copy()
    np.fill_diagonal(ranking, -1)  # each is its own nearest, also beside copies of itself
    order = np.argsort(ranking, axis=1, kind="stable")

    reciprocal = _reciprocal(order, k1 + 1)
    half = _reciprocal(order, round(k1 / 2) + 1)
    agreeing = reciprocal & (3 * (reciprocal.astype(float) @ half.T) >= 2 * half.sum(1))
    members = reciprocal | (agreeing.astype(float) @ half > 0)

    described = np.where(members, np.exp(-distance), 0)
    described /= described.sum(1, keepdims=True)
    described = described[order[:, :k2]].mean(1)
    common = np.minimum(described[0], described[1:]).sum(1)
    jaccard = 1 - common / (2 - common)  # each sums to one, so the larger of two sum to 2 - common
    return (1 - weight) * jaccard + weight * distance[0, 1:]


def _reciprocal(order: np.ndarray, k: int) -> np.ndarray:
    """Who is among whose k nearest, and the other way round: bool [M, M]."""
    near = np.zeros(order.shape, bool)
    np.put_along_axis(near, order[:, :k], True, axis=1)
    return near & near.T


def _unit(vectors: np.ndarray) -> np.ndarray:
    """float32 of unit length; a sum that cancels to nothing stays as it is."""
    norm = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.maximum(norm, 1e-12)).astype(np.float32)
