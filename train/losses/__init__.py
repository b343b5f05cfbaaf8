"""Losses, sources of negatives, miners and regularizers, freely combinable by a specification.

    from lookalike import losses
    loss = losses.build({"name": "triplet", "negatives": "optimal", "margin": 0.2})
    value = loss(embeddings, labels)

`losses.names()` and `losses.describe()` list them.
"""

from train.losses import (  # noqa: F401  (each registers its losses)
    contrast,
    cosent,
    discrepancy,
    histograms,
    margin,
    mining,
    negatives,
    pairwise,
    proxies,
    ranks,
    regularizers,
    structured,
    triplet,
    tuplet,
)
from train.losses.builder import build, describe, names
from train.losses.distributed import gather, gather_constant
from train.losses.objective import Objective
from train.losses.pair_weights import pair_weights
from train.losses.pml import PMLCall
from train.losses.registry import register

__all__ = [
    "Objective",
    "PMLCall",
    "build",
    "describe",
    "gather",
    "gather_constant",
    "names",
    "pair_weights",
    "register",
]
