"""Matryoshka losses: the loss of an embedding plus those of its prefixes (Kusupati et al. 2022, eq. 1).

Each prefix has a matrix of cosines of its own. Adding up the products of the blocks between the prefixes, in
place of multiplying each prefix, saved 3 to 7% of the time of a loss with four prefixes (512 to 1024
dimensions, batches of 128 to 1024), because most of it is work on the matrices: not worth the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from train.losses.registry import require


def prefix_weights(spec: Mapping[str, Any], embedding_dim: int | None) -> dict[int, float]:
    """Return the weight of each prefix of a loss specification by its dimension, ascending; their sum is 1.

    Args:
        spec: Loss specification; `dims` and `dim_weights` are read.
        embedding_dim: Embedding dimension D, which is always among the dimensions.

    Returns:
        Empty without `dims`.

    Raises:
        ValueError: Dimensions that are not ascending or not below D, or weights that do not fit.
    """
    given, weights = spec.get("dims"), spec.get("dim_weights")
    if given is None:
        require(weights is None, "dim_weights", weights, "left out without dims")
        return {}
    if embedding_dim is None:
        raise ValueError("dims are prefixes of the embedding; pass embedding_dim to build")
    whole = isinstance(given, list) and all(type(dim) is int for dim in given)
    fits = whole and given == sorted(set(given)) and given and min(given) >= 1 and max(given) <= embedding_dim
    require(fits, "dims", given, f"a list of ascending whole numbers from 1 to {embedding_dim}")
    dims = [*given, *([] if given[-1] == embedding_dim else [embedding_dim])]
    if weights is None:
        weights = [1.0] * len(dims)
    numbers = isinstance(weights, list) and all(type(weight) in (int, float) for weight in weights)
    fits = numbers and len(weights) == len(dims) and min(weights) >= 0 and weights[-1] > 0
    require(
        fits, "dim_weights", weights, f"{len(dims)} numbers from 0, one for each of {dims}, the last above 0"
    )
    return {dim: weight / sum(weights) for dim, weight in zip(dims, weights, strict=True)}
