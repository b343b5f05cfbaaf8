"""Re-ranking: query expansion and k-reciprocal encoding."""

from __future__ import annotations

import numpy as np

ALPHA = 3.0  # the usual value
EXPANSION = 10  # neighbours in the expanded query; galleries often have few images of one thing
K1, K2, WEIGHT = 20, 6, 0.3  # as in the paper; WEIGHT is its lambda


def expand(
    queries: np.ndarray, neighbours: np.ndarray, scores: np.ndarray, alpha: float = ALPHA
) -> np.ndarray:
    """Return queries moved towards their neighbours: alpha-weighted query expansion.

    The expanded query is the sum of the query and of its n nearest neighbours, each weighted by
    max(0, cosine)^alpha, scaled to unit length.

    Args:
        queries: float32 [N, D], unit length.
        neighbours: float32 [N, n, D], unit length.
        scores: Cosine similarities [N, n]; neighbours with 0 or less do not count.
        alpha: Exponent of the weights.

    Returns:
        float32 [N, D], unit length.

    Source: Radenovic, Tolias and Chum, Fine-tuning CNN image retrieval with no human annotation, TPAMI 2018.
    """
    weights = np.maximum(scores, 0) ** alpha
    return unit(queries + np.einsum("qn,qnd->qd", weights, neighbours))


def k_reciprocal(
    query: np.ndarray, candidates: np.ndarray, k1: int = K1, k2: int = K2, weight: float = WEIGHT
) -> np.ndarray:
    """Return distances of a query to its candidates by their shared neighbours: k-reciprocal encoding.

    Two images are k-reciprocal neighbours if each is among the other's k1 nearest. Every image is encoded by
    these neighbours, and by those of its neighbours that mostly agree with it (section 3.2), weighted by
    exp(-distance) (3.3); encodings are averaged over the k2 nearest (3.4), and the final distance is
    (1 - weight) * Jaccard distance + weight * distance (3.5): 0 for the same image, larger for others. The
    distance is the squared Euclidean one, 2 - 2 cosine; as in the authors' code, an encoding sums to one, and
    an image is among its own nearest.

    Neighbours are searched among the query and its candidates only; the paper uses all queries and the whole
    gallery, which costs one search per image.

    Args:
        query: float32 [D], unit length.
        candidates: float32 [M, D], unit length.
        k1: Neighbours in the encoding.
        k2: Nearest images over which encodings are averaged.
        weight: Weight of the original distance; lambda in the paper.

    Returns:
        float64 [M].

    Source: Zhong, Zheng, Cao and Li, Re-ranking person re-identification with k-reciprocal encoding,
        CVPR 2017.
    """
    points = np.concatenate([query[None], candidates]).astype(np.float64)
    distance = np.maximum(2 - 2 * points @ points.T, 0)
    ranking = distance.copy()
    np.fill_diagonal(ranking, -1)  # each image is its own nearest, even among copies of itself
    order = np.argsort(ranking, axis=1, kind="stable")

    reciprocal = _reciprocal(order, k1 + 1)
    half = _reciprocal(order, round(k1 / 2) + 1)
    agreeing = reciprocal & (3 * (reciprocal.astype(float) @ half.T) >= 2 * half.sum(1))
    members = reciprocal | (agreeing.astype(float) @ half > 0)

    encoded = np.where(members, np.exp(-distance), 0)
    encoded /= encoded.sum(1, keepdims=True)
    encoded = encoded[order[:, :k2]].mean(1)
    common = np.minimum(encoded[0], encoded[1:]).sum(1)
    jaccard = 1 - common / (2 - common)  # each sums to one, so the maxima of two sum to 2 - common
    distances: np.ndarray = (1 - weight) * jaccard + weight * distance[0, 1:]
    return distances


def _reciprocal(order: np.ndarray, k: int) -> np.ndarray:
    """Return which pairs are among each other's k nearest: bool [M, M]."""
    near = np.zeros(order.shape, bool)
    np.put_along_axis(near, order[:, :k], True, axis=1)
    mutual: np.ndarray = near & near.T
    return mutual


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors scaled to unit length, float32; zero vectors stay zero."""
    norm = np.linalg.norm(vectors, axis=-1, keepdims=True)
    scaled: np.ndarray = (vectors / np.maximum(norm, 1e-12)).astype(np.float32)
    return scaled
