"""Composed queries: one vector of several images, items and texts, wanted and unwanted ones."""

from __future__ import annotations

import numpy as np

from retrieval.errors import InputError

NEGATIVE_WEIGHT = 0.5  # `benchmarks.feedback` measures others
_MIN_NORM = 1e-3  # a shorter sum of unit vectors has no meaningful direction


def compose(
    positive: np.ndarray, negative: np.ndarray | None = None, weight: float = NEGATIVE_WEIGHT
) -> np.ndarray:
    """Return the query of several unit vectors, float32 [D], unit length: mean(positive) - w mean(negative).

    Without negatives it is the mean. Each side is a mean, so that three words to avoid do not outweigh one
    image; negatives count half, since what is to be avoided shares most of its vector with what is wanted.

    This is Rocchio's relevance feedback (The SMART Retrieval System, 1971; Salton and Buckley, JASIS 41,
    1990), with the first query among the positives, and Qdrant's "average vector".

    Args:
        positive: Vectors that hits should be close to, float32 [N, D].
        negative: Vectors that hits should be far from, float32 [M, D]; `None` or empty for none.
        weight: Weight w of the negatives.

    Raises:
        InputError: The vectors cancel out.
    """
    query = positive.mean(0)
    if negative is not None and len(negative):
        query = query - weight * negative.mean(0)
    norm = np.linalg.norm(query)
    if norm < _MIN_NORM:
        raise InputError("query: the vectors cancel out, so their sum has no direction; leave one part out")
    found: np.ndarray = (query / norm).astype(np.float32)
    return found
