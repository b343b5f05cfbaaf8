"""Losses of the nearest negative of every alternate pair: HPHN and the hard lifted surrogate (LoOp)."""

import math
from collections.abc import Sequence

import numpy as np

from .pairs import Labels, Pair, alternate, negatives, positives, rivals
from .sources import distance, embeddings_for, pair_distance


def _negative_distances(z: np.ndarray, y: Labels, p: Pair, source: str, points: int) -> list[float]:
    """Distances from either member to every negative sample, or from the pair to every negative pair."""
    if source == "batch":
        return [distance(z[i], z[k]) for i in p for k in negatives(y, i)]
    between = pair_distance(z, source, points)
    return [between(p, q) for q in rivals(y, p)]


def _pool(distances: Sequence[float], pooling: str) -> float:
    """The negative side's −min d, or log Σ e^−d in the released form."""
    if pooling == "min":
        return -min(distances)
    return math.log(sum(math.exp(-d) for d in distances))


def hphn_triplet(
    x: np.ndarray, y: Labels, margin: float = 0.2, source: str = "batch", points: int = 2
) -> float:
    """1/|𝒫| Σ [max(h_i, h_j) + m − min d]_+, h the distance to the farthest positive (LoOp section 3.3.2)."""
    z = embeddings_for(x, source)
    pairs = alternate(y)
    total = 0.0
    for p in pairs:
        near = max(distance(z[i], z[j]) for i in p for j in positives(y, i))
        far = _negative_distances(z, y, p, source, points)
        if far:
            total += max(0.0, near + margin - min(far))
    return total / len(pairs) if pairs else 0.0


def lifted_hard(
    x: np.ndarray,
    y: Labels,
    margin: float = 0.2,
    source: str = "batch",
    pooling: str = "min",
    points: int = 2,
) -> float:
    """1/|𝒫| Σ [d_ij + m − min d]_+ (LoOp eq. 16); `logsumexp` pools as log Σ e^−d (released code)."""
    z = embeddings_for(x, source)
    pairs = alternate(y)
    total = 0.0
    for p in pairs:
        far = _negative_distances(z, y, p, source, points)
        if far:
            total += max(0.0, distance(z[p[0]], z[p[1]]) + margin + _pool(far, pooling))
    return total / len(pairs) if pairs else 0.0
