"""Losses, sources of negatives, miners and regularizers as one algebra.

    from train import losses
    loss = losses.build({"name": "triplet", "negatives": "optimal", "margin": 0.2})
    value = loss(embeddings, labels)

`losses.names()` and `losses.describe()` tell what exists.
"""

from train.losses import (  # noqa: F401  (each enters its losses into the registry)
    discrepancy,
    histograms,
    margin,
    mining,
    negatives,
    pairwise,
    proxies,
    regularizers,
    structured,
    triplet,
    tuplet,
)
from train.losses.builder import build, describe, names
from train.losses.distributed import gather
from train.losses.objective import Objective
from train.losses.pair_weights import pair_weights

__all__ = ["Objective", "build", "describe", "gather", "names", "pair_weights"]
