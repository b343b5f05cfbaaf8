"""Strength of the class-wise regularizers: norm of their gradient over that of the triplet loss.

The embeddings are drawn, not learnt: unit vectors around class centres, as early in training (all cosines are
about 0.8) and midway (0.57 within classes, 0 between them). `docs/regularizers.md` has the table.

    python benchmarks/regularizers.py
    python benchmarks/regularizers.py --weight 0.2 --names mmd-laplacian --seeds 3
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from train import losses

BATCHES = ((10, 10), (20, 10), (32, 4))  # classes x samples: CIFAR-10, CIFAR-100, fine-grained sets
DIM = 64
TRIPLET = {
    "name": "triplet",
    "squared": True,
    "margin": 0.5,
    "mining": {"positive": "all", "negative": "semi-hard", "fallback": "farthest"},
}
STATES = {
    "start": (0.79, 0.01),
    "middle": (0.0, 0.57),
}  # cosine shared by all samples, and by a class beyond it


def draw(classes: int, samples: int, state: str, seed: int) -> tuple[Tensor, Tensor]:
    """Return unit vectors [classes x samples, DIM] and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(samples)
    common, own = STATES[state]
    parts = (
        (common, torch.randn(1, DIM, generator=generator)),
        (own, torch.randn(classes, DIM, generator=generator)[labels]),
        (1 - common - own, torch.randn(len(labels), DIM, generator=generator)),
    )
    total = sum((math.sqrt(share) * F.normalize(x, dim=1) for share, x in parts), torch.zeros(1))
    return F.normalize(total, dim=1), labels


def ratio(regularizer: dict[str, object], classes: int, samples: int, state: str, seeds: int) -> float:
    """Return the mean ratio of gradient norms over several batches."""
    loss = losses.build({**TRIPLET, "regularizers": [regularizer]})
    loss.measures_gradients = True
    found = []
    for seed in range(seeds):
        x, y = draw(classes, samples, state, seed)
        loss(x.requires_grad_(), y)
        found.append(float(loss.diagnostics["gradient_ratio"]))
    return sum(found) / seeds


def cost(classes: int, samples: int) -> tuple[float, float]:
    """Return the milliseconds of a step of loss and regularizer, without and with the ratio."""
    loss = losses.build({**TRIPLET, "regularizers": [{"name": "wasserstein", "weight": 0.5}]})
    x, y = draw(classes, samples, "middle", 0)
    x.requires_grad_()
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(20):
        for measured, took in times.items():
            loss.measures_gradients = measured
            began = time.perf_counter()
            loss(x, y).backward()
            took.append(1e3 * (time.perf_counter() - began))
    return sorted(times[False])[10], sorted(times[True])[10]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--names", nargs="+", default=["wasserstein", "mmd-laplacian", "energy"])
    parser.add_argument("--weight", type=float, default=0.5, help="of the sum over classes (default: 0.5)")
    parser.add_argument("--seeds", type=int, default=5, help="batches to average (default: 5)")
    parser.add_argument("--quick", action="store_true", help="a single batch")
    given = parser.parse_args(arguments)
    seeds = 1 if given.quick else given.seeds
    variants = [("sum", given.weight), ("mean", 10 * given.weight)]
    titles = [f"`classes: {classes}`, weight {weight:g}" for classes, weight in variants]
    print(f"| regularizer | batch | {' | '.join(titles)} |")
    print("|---|---|---|---|")
    for name in given.names:
        for classes, samples in BATCHES:
            cells = []
            for kind, weight in variants:
                part = {"name": name, "classes": kind, "weight": weight}
                cells.append(" / ".join(f"{ratio(part, classes, samples, s, seeds):.2g}" for s in STATES))
            print(f"| `{name}` | {classes} x {samples} | {' | '.join(cells)} |", flush=True)
    for classes, samples in BATCHES:
        plain, measured = cost(classes, samples)
        print(f"\n{classes} x {samples}: {plain:.1f} ms, with the ratio {measured:.1f} ms", end="")
    print()


if __name__ == "__main__":
    main()
