"""Varied batches: regular and irregular classes, clustered and i.i.d., unit and raw norms, shuffled."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .geometry import unit_rows


class Batch(NamedTuple):
    """Embeddings [B, D] in float64 and their labels."""

    x: np.ndarray
    y: tuple[int, ...]


def make_batch(
    seed: int,
    sizes: Sequence[int],
    dim: int = 6,
    labels: Sequence[int] | None = None,
    spread: float | None = None,
    raw: bool = False,
    shuffle: bool = True,
) -> Batch:
    """Classes of the given sizes: clusters of that spread around random centres, i.i.d. without one."""
    rng = np.random.default_rng(seed)
    names = list(labels) if labels is not None else list(range(len(sizes)))
    members = [c for c, size in enumerate(sizes) for _ in range(size)]
    if shuffle:
        rng.shuffle(members)
    x = rng.normal(size=(len(members), dim))
    if spread is not None:
        x = unit_rows(rng.normal(size=(len(sizes), dim)))[members] + spread * x / np.sqrt(dim)
    x = unit_rows(x)
    if raw:
        x = x * rng.uniform(0.3, 2.0, size=(len(members), 1))
    return Batch(x, tuple(names[c] for c in members))


BATCHES = {
    "regular-iid-unit": make_batch(1, (4, 4, 4), shuffle=False),
    "regular-clustered-raw": make_batch(2, (2, 2, 2, 2, 2), spread=0.8, raw=True),
    "irregular-iid-raw": make_batch(3, (3, 2, 4, 1), labels=(-7, 0, 10**12, 5), raw=True),
    "irregular-clustered-unit": make_batch(4, (3, 2, 4, 1), labels=(2, -1, 0, -(10**10)), spread=0.8),
    "overlapping-raw": make_batch(5, (4, 3, 5), dim=4, spread=1.5, raw=True),
    "tight-unit": make_batch(6, (4, 2, 2, 4), dim=8, spread=0.2),
}
CLOSED_SET = {  # labels 0 … C − 1, for losses with a parameter per class
    "regular": make_batch(7, (3, 3, 3, 3), spread=0.8),
    "irregular-raw": make_batch(8, (3, 2, 4, 1), raw=True),
}
