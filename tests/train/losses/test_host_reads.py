"""No loss reads a value back from the device, makes a tensor on the host or copies one, forward or backward.

Each of these would wait for the device in every training step, or break the capture of a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.train.pretend_device import Watch, pretend_device
from train import losses

from .oracle.matrix import EVERY_RULE, MATRIX

DIM, CLASSES = 8, 6
# Parameters that choose another computation than the default.
OPTIONS: list[dict[str, Any]] = [
    {"name": "n-pair", "negatives": "symmetric", "combinations": "released", "l2_reg": 0.1},
    {"name": "angular", "negatives": "symmetric", "combinations": "released"},
    {"name": "n-pair", "negatives": {"name": "symmetric", "alpha": 1.5, "top_k": 3}},
    {"name": "angular", "candidates": "positives", "normalize": True},
    {"name": "triplet", "negatives": {"name": "optimal", "leftover": "degenerate"}, "memory": 10},
    {"name": "triplet", "negatives": "optimal-segment", "normalize": True, "negative_reduction": "min"},
    {"name": "triplet", "negatives": "interpolated", "memory": 10},
    {"name": "triplet-nca", "normalization_gradient": "ignored"},
    {"name": "raw", "negatives": "optimal", "positive_rule": "batch"},
    {"name": "raw", "memory": 10},
    {"name": "lifted-hard", "pooling": "logsumexp", "negatives": "optimal"},
    {"name": "lifted", "pairs": "alternate", "memory": 10},
    {"name": "margin", "learn": "per-class"},
    {"name": "recall-at-k", "mixup": True},
    {"name": "smooth-ap", "memory": 10},
    {"name": "supcon", "guard": 0.1},
    *({"regularizers": [{"name": name}]} for name in losses.names("regularizer")),
    {"regularizers": [{"name": "wasserstein", "form": "sharp"}]},
    {"regularizers": [{"name": "wasserstein", "form": "entropic", "debias": True}]},
    {"regularizers": [{"name": "mmd-laplacian", "sigma": [0.05, 0.5], "classes": "mean"}]},
]


def specs() -> Iterator[Any]:
    """Yield every loss and the options above; marked slow, the sources and the miners.

    All losses of a kind call a miner in their base class, and all sources pass it the same tables: of the
    losses that have every miner, those with samples and with arcs suffice.
    """
    mine = (*EVERY_RULE, "margin", "lifted-generalized")  # one of each base class
    for spec in (combination.spec for combination in MATRIX):
        if "mining" not in spec and spec["negatives"] == "batch":
            yield spec
        elif "mining" not in spec or (spec["name"] in mine and spec["negatives"] in ("batch", "optimal")):
            yield pytest.param(spec, marks=pytest.mark.slow)
    yield from OPTIONS


@pytest.mark.parametrize("spec", list(specs()), ids=str)
def test_no_read_and_no_copy(spec: dict[str, Any]) -> None:
    with pretend_device() as device:
        with device:
            module = losses.build(spec, num_classes=CLASSES, embedding_dim=DIM, per_class=4)
            x = torch.randn(4 * CLASSES, DIM, requires_grad=True)
            y = torch.arange(CLASSES).repeat_interleave(4)
        module.measures_gradients = "regularizers" in spec
        with Watch() as watch:
            value = module(x, y)
            value.backward()
        assert watch.found == []
        assert x.grad is not None
        assert x.grad.device == value.device
        assert all(number.shape == () for number in (value, *module.diagnostics.values()))


def test_losses_that_read_are_found() -> None:
    """The exact transport plans come from SciPy."""
    spec = {"regularizers": [{"name": "wasserstein", "form": "exact"}]}
    with pretend_device() as device, Watch() as watch:
        x, y = torch.randn(8, 4, device=device), torch.arange(8, device=device) // 2
        with pytest.raises(RuntimeError, match="numpy"):
            losses.build(spec)(x, y)
    assert [line for line in watch.found if line.startswith("aten._to_copy")]
