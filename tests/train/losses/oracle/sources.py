"""Sources of negatives: the distance and similarity between two positive pairs of different classes."""

from collections.abc import Callable

import numpy as np

from .geometry import (
    arc_distance,
    distance,
    nearest,
    segment_distance,
    unit_rows,
    with_interpolated,
    with_mirrors,
)
from .pairs import Pair

PairDistance = Callable[[Pair, Pair], float]


def pair_distance(x: np.ndarray, source: str, points: int = 2) -> PairDistance:
    """The function (p, q) -> distance of the nearest points the source allows; x as the loss takes it."""
    between: dict[str, Callable[[Pair, Pair], float]] = {
        "batch": lambda p, q: nearest([x[i] for i in p], [x[k] for k in q]),
        "optimal": lambda p, q: arc_distance(*unit_rows(x[[*p, *q]])),
        "optimal-segment": lambda p, q: segment_distance(*x[[*p, *q]]),
        "chord": lambda p, q: segment_distance(*x[[*p, *q]]),
        "symmetric": lambda p, q: nearest(with_mirrors(x[p[0]], x[p[1]]), with_mirrors(x[q[0]], x[q[1]])),
        "interpolated": lambda p, q: nearest(
            with_interpolated(x[p[0]], x[p[1]], points), with_interpolated(x[q[0]], x[q[1]], points)
        ),
    }
    return between[source]


def embeddings_for(x: np.ndarray, source: str) -> np.ndarray:
    """The embeddings a distance-based loss works on: unit length except with segments (LoOp section 4.2).

    A chord is a segment between unit vectors.
    """
    return x if source == "optimal-segment" else unit_rows(x)


__all__ = ["PairDistance", "distance", "embeddings_for", "pair_distance"]
