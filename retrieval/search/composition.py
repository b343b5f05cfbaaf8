"""Vectors of queries: given ones, and one of several images, items and texts, wanted and unwanted ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from retrieval.errors import InputError

NEGATIVE_WEIGHT = 0.5  # `benchmarks.feedback` measures others
_MIN_NORM = 1e-3  # a shorter sum of unit vectors has no meaningful direction
_ROUNDING = 1e-5  # of the squared norm of a vector of unit length in float32


def unit_vectors(vectors: Any, dim: int) -> np.ndarray:
    """Return the vectors of queries at unit length, float32 [N, D]; those that have it are left as they are.

    Args:
        vectors: Numbers [N, D], in an array or tensor of any library or in lists; any norm but zero.
        dim: Their dimension D.

    Raises:
        InputError: Another shape, or a vector that is zero or not finite.
    """
    try:
        given = np.asarray(vectors)
    except (TypeError, ValueError, RuntimeError) as error:  # such as of a tensor on another device
        raise InputError(f"queries must be finite [N, {dim}], and are no array ({error})") from error
    if given.size == 0 and given.ndim == 1:  # an empty list
        given = given.reshape(0, dim)
    if given.ndim != 2 or given.shape[1] != dim or given.dtype.kind not in "fiu":
        what = f"queries must be finite [N, {dim}], got {given.dtype} {list(given.shape)}"
        raise InputError(f"{what}; pass one vector as vector[None]" if given.shape == (dim,) else what)
    if given.dtype != np.float32:
        given = given.astype(np.float64)  # before norms, which may be beyond float32
    other = np.flatnonzero(~(np.abs(np.einsum("nd,nd->n", given, given) - 1) < _ROUNDING))
    if not len(other):
        return np.ascontiguousarray(given, np.float32)
    some = given[other].astype(np.float64)
    largest = np.abs(some).max(1)
    if (unusable := other[~np.isfinite(largest) | (largest == 0)]).size:
        which = f"query {unusable[0]}: " if len(given) > 1 else ""
        raise InputError(f"{which}the vector is zero or not finite")
    some /= largest[:, None]  # so that no square overflows or underflows
    found = (
        np.array(given, np.float32, order="C")
        if len(other) < len(given)
        else np.empty(given.shape, np.float32)
    )
    found[other] = some / np.linalg.norm(some, axis=1, keepdims=True)
    return found


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
