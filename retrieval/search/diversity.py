"""Maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998): hits unlike those before them."""

from __future__ import annotations

import numpy as np


def diversified(relevance: np.ndarray, vectors: np.ndarray, weight: float, k: int) -> np.ndarray:
    """Return the order of the first k candidates by maximal marginal relevance.

    The next one has the highest (1 - weight) relevance - weight cosine, the cosine to the most similar one
    before it. The first one has the highest relevance, and more candidates continue the order.

    Args:
        relevance: Relevance of each candidate, such as the cosine to the query, [n].
        vectors: Vectors of the candidates, float32 [n, D], unit length.
        weight: Weight of diversity, from 0 (the order of relevance) to 1.
        k: Number of candidates.

    Returns:
        Positions, int64 [min(k, n)]; of equal ones the first is first.
    """
    worth = (1 - weight) * np.asarray(relevance, np.float64)
    nearest = np.full(len(worth), -np.inf)  # cosine to the most similar one before
    chosen = np.empty(min(k, len(worth)), np.int64)
    for place in range(len(chosen)):
        values = worth - weight * nearest if place else np.asarray(relevance, np.float64).copy()
        values[chosen[:place]] = -np.inf
        chosen[place] = np.argmax(values)
        nearest = np.maximum(nearest, vectors @ vectors[chosen[place]])
    return chosen
