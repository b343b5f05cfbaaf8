"""Every loss under torch.compile without graph breaks; `test_trainer` has the default backend."""

import itertools
from typing import Any

import pytest
import torch

from train import losses

from .oracle.matrix import EVERY_RULE

pytestmark = pytest.mark.slow

DIM, CLASSES = 8, 6
Y = torch.arange(CLASSES).repeat_interleave(4)
# Its graph repeats itself in each iteration.
WASSERSTEIN = {"name": "wasserstein", "max_iterations": 4}
# Of each file of losses one, and every operation with a backward pass of its own (`autograd.Function`).
BACKWARD: list[dict[str, Any]] = [
    *(
        {"name": name}
        for name in (
            "triplet",
            "raw",
            "lifted",
            "n-pair",
            "margin",
            "fast-ap",
            "soft-triple",
            "smooth-ap",
            "siglip",
        )
    ),
    {"name": "triplet", "mining": {"positive": "all", "negative": "all"}},
    {"name": "triplet", "negatives": "optimal"},
    {"name": "triplet", "negatives": "optimal-segment"},
    {"name": "triplet", "negatives": "symmetric"},
    {"regularizers": [WASSERSTEIN]},
    {"regularizers": [{"name": "mmd-laplacian"}]},
    {"regularizers": [{"name": "cross-entropy"}]},
]


def specs() -> list[dict[str, Any]]:
    """Every loss, source and regularizer; the miners, which losses of one kind share, with `EVERY_RULE`."""
    found: list[dict[str, Any]] = [{"name": name} for name in losses.names()]
    for name, (positive, negative) in itertools.product(
        EVERY_RULE, (("all", "all"), ("hard", "hard"), ("all", "semi-hard"))
    ):
        found.append({"name": name, "mining": {"positive": positive, "negative": negative}})
    found.append({"name": "margin", "mining": {"positive": "all", "negative": "semi-hard"}})
    found.append({"name": "triplet", "mining": {"name": "rand-disjoint"}})
    found.append({"name": "triplet", "negatives": "interpolated"})
    found += [{"name": name, "negatives": "optimal"} for name in ("lifted", "raw")]
    found += [
        {"regularizers": [{"name": name}]} for name in losses.names("regularizer") if name != "wasserstein"
    ]
    found += [{"regularizers": [WASSERSTEIN | options]} for options in ({"form": "sharp"}, {"debias": True})]
    found.append({"regularizers": [{"name": "mmd-laplacian", "sigma": [0.05, 0.5]}]})
    found.append({"name": "n-pair", "negatives": {"name": "symmetric", "alpha": 1.5, "top_k": 3}})
    found.append({"name": "triplet-nca", "normalization_gradient": "ignored"})
    found += [{"name": "raw", "memory": 10}, {"name": "triplet", "negatives": "optimal", "memory": 10}]
    return BACKWARD + [spec for spec in found if spec not in BACKWARD]


def build(spec: dict[str, Any]) -> torch.nn.Module:
    torch.manual_seed(0)
    return losses.build(spec, num_classes=CLASSES, embedding_dim=DIM, per_class=4)


def steps(module: Any, count: int) -> list[torch.Tensor]:
    """Return values and gradients of a few batches."""
    found = []
    for seed in range(count):
        torch.manual_seed(seed)
        x = torch.randn(len(Y), DIM, requires_grad=True)
        value = module(x, Y)
        value.backward()
        found += [value.detach(), x.grad]
    return found


@pytest.mark.parametrize("spec", specs(), ids=str)
def test_compiles_to_one_graph_with_the_same_result(spec: dict[str, Any]) -> None:
    """Of `BACKWARD` also the backward pass; of the others it is that of the uncompiled operations."""
    torch._dynamo.reset()
    backend = "aot_eager" if spec in BACKWARD else "eager"
    compiled = torch.compile(build(spec), fullgraph=True, backend=backend)
    found = steps(compiled, 2)
    if spec == {"name": "margin"}:  # draws from tables of another shape: finite is all that can be compared
        assert all(torch.isfinite(value).all() for value in found)
        return
    for a, b in zip(found, steps(build(spec), 2), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_values_that_are_not_finite_make_a_compiled_loss_nan() -> None:
    """Also its gradient, so that loss scaling skips the step."""
    torch._dynamo.reset()
    compiled = torch.compile(build({"name": "raw"}), fullgraph=True, backend="aot_eager")
    x = torch.randn(len(Y), DIM)
    assert compiled(x, Y) == build({"name": "raw"})(x, Y)
    for odd in (torch.nan, torch.inf):
        leaf = x.index_fill(0, torch.tensor(3), odd).requires_grad_()
        value = compiled(leaf, Y)
        value.backward()
        assert value.isnan()
        assert leaf.grad is not None
        assert leaf.grad.isnan().any()
