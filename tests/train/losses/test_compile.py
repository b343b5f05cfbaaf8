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
SOURCES = ("optimal", "optimal-segment", "symmetric", "interpolated")


def specs() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, entry in losses.names().items():
        found.append({"name": name})
        if "triplet" in entry.mining:
            found.append({"name": name, "mining": {"positive": "all", "negative": "semi-hard"}})
    for name, rule in itertools.product(EVERY_RULE, ("all", "hard")):  # one miner for all losses
        found.append({"name": name, "mining": {"positive": rule, "negative": rule}})
    found.append({"name": "triplet", "mining": {"name": "rand-disjoint"}})
    found += [{"name": "triplet", "negatives": source} for source in SOURCES]
    found += [{"name": name, "negatives": "optimal"} for name in ("lifted", "raw")]
    found += [{"regularizers": [{"name": name}]} for name in losses.names("regularizer")]
    for options in ({"form": "sharp"}, {"debias": True}):  # a graph as long as its iterations: once all 30
        found.append({"regularizers": [{"name": "wasserstein", "max_iterations": 4, **options}]})
    found.append({"regularizers": [{"name": "mmd-laplacian", "sigma": [0.05, 0.5]}]})
    found.append({"name": "triplet-nca", "normalization_gradient": "ignored"})
    found.append({"name": "n-pair", "negatives": {"name": "symmetric", "alpha": 1.5, "top_k": 3}})
    found += [{"name": "raw", "memory": 10}, {"name": "triplet", "negatives": "optimal", "memory": 10}]
    return found


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
    """Also the backward pass, except of miners and sources that are compiled with `EVERY_RULE` too."""
    torch._dynamo.reset()
    repeated = spec.get("name") not in EVERY_RULE and ("mining" in spec or spec.get("negatives") in SOURCES)
    compiled = torch.compile(build(spec), fullgraph=True, backend="eager" if repeated else "aot_eager")
    found = steps(compiled, 2)
    if spec == {"name": "margin"}:  # draws from tables of another shape: finite is all that can be compared
        assert all(torch.isfinite(value).all() for value in found)
        return
    for a, b in zip(found, steps(build(spec), 2), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_values_that_are_not_finite_make_a_compiled_loss_nan(odd: float) -> None:
    """Also its gradient, so that loss scaling skips the step."""
    torch._dynamo.reset()
    compiled = torch.compile(build({"name": "raw"}), fullgraph=True, backend="aot_eager")
    x = torch.randn(len(Y), DIM)
    finite = compiled(x, Y)
    assert finite == build({"name": "raw"})(x, Y)
    x[3, 2] = odd
    x.requires_grad_()
    value = compiled(x, Y)
    value.backward()
    assert value.isnan()
    assert x.grad is not None
    assert x.grad.isnan().any()
