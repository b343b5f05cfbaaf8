"""Distances of LoOp's points: how far the optimal points are below the nearest of the four corners."""

from __future__ import annotations

import numpy as np
import torch

from train.losses.arcs import closest_points
from train.losses.view import View

_BATCHES = 20


@torch.no_grad()
def arc_geometry(
    vectors: np.ndarray, labels: np.ndarray, classes: int, per_class: int, seed: int
) -> dict[str, float]:
    """Measure batches of P classes x K images, drawn at random; return means over pairs of pairs.

    Args:
        vectors: Unit vectors, float32 [N, D].
        labels: Labels, int [N].
        classes: Classes of a batch, P.
        per_class: Images of each class, K.
        seed: Seed of the batches.

    Returns:
        "corner_distance": distance of the nearest corners; "below_corner": how much smaller the distance of
        the optimal points is; the same with "nearest_" for the nearest pair of another class of each pair;
        "synthetic": share of the optimal points that are no corner, among those of the nearest pairs.
    """
    random = np.random.default_rng(seed)
    rows = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    rows = [row for row in rows if len(row) >= per_class]
    found = []
    for _ in range(_BATCHES):
        drawn = random.choice(len(rows), min(classes, len(rows)), replace=False)
        batch = np.concatenate([random.choice(rows[i], per_class, replace=False) for i in drawn])
        found.append(_batch(torch.from_numpy(vectors[batch]).double(), torch.from_numpy(labels[batch])))
    return {key: float(np.mean([one[key] for one in found])) for key in found[0]}


def _batch(vectors: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    view = View(vectors, labels, paired=True)
    tables = view.pair_tables(normalized=True)
    cosine, *weights = closest_points(tables)
    corner = torch.stack([tables.ik, tables.il, tables.jk, tables.jl]).amax(0)
    far, near = (torch.sqrt((2 - 2 * c).clamp(min=0)) for c in (corner, cosine))
    negative = view.pair_negative
    nearest = cosine.masked_fill(~negative, -torch.inf).argmax(1, keepdim=True)
    between = [((one != 0) & (other != 0)).double() for one, other in (weights[:2], weights[2:])]
    synthetic = sum(point.gather(1, nearest).mean() for point in between) / 2
    return {
        "corner_distance": float(far[negative].mean()),
        "below_corner": float((far - near)[negative].mean()),
        "nearest_corner_distance": float(far.gather(1, nearest).mean()),
        "nearest_below_corner": float((far - near).gather(1, nearest).mean()),
        "synthetic": float(synthetic),
    }
