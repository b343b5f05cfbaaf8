"""Weight of the class-wise regularizers: sum and mean over classes, and the ratio of gradient norms."""

from typing import Any

import pytest
import torch

from train import losses

from .oracle.batches import make_batch

CLASSWISE = ["wasserstein", "mmd-laplacian", "mmd-gaussian", "energy"]
BATCH = make_batch(12, (4, 3, 2, 1, 5), dim=6, spread=0.6, raw=True)
X, Y = torch.tensor(BATCH.x), torch.tensor(BATCH.y)


def gradient(spec: dict[str, Any], x: torch.Tensor = X, y: torch.Tensor = Y) -> torch.Tensor:
    leaf = x.clone().requires_grad_()
    losses.build(spec)(leaf, y).backward()
    assert leaf.grad is not None
    return leaf.grad


def regularizer(name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, **({"sigma": 0.5} if name.startswith("mmd") else {}), **options}


@pytest.mark.parametrize("name", CLASSWISE)
def test_default_weights_agree_for_ten_classes(name: str) -> None:
    """Without a weight: the sum at 1 and the mean at 10."""
    for classes, same in ((10, True), (5, False)):
        batch = make_batch(3, (3,) * classes, dim=6, spread=0.6)
        x, y = torch.tensor(batch.x), torch.tensor(batch.y)
        total = gradient({"regularizers": [regularizer(name)]}, x, y)
        mean = gradient({"regularizers": [regularizer(name, classes="mean")]}, x, y)
        given = gradient({"regularizers": [regularizer(name, classes="mean", weight=1.0)]}, x, y)
        torch.testing.assert_close(mean, 10 * given)
        torch.testing.assert_close(mean, total * 10 / classes)
        assert torch.allclose(mean, total) == same


def test_default_weight_is_listed() -> None:
    for name in CLASSWISE:
        assert "default weight: 1; 10 with classes: mean" in losses.describe(name)
    assert losses.describe("spread-out").endswith("default weight: 1")
    assert losses.names("regularizer")["energy"].default_weight({"classes": "mean"}) == 10


@pytest.mark.parametrize("name", CLASSWISE)
@pytest.mark.parametrize("weight", [0.5, -2.0])
def test_gradient_ratio(name: str, weight: float) -> None:
    """Against the norms of both gradients, computed apart."""
    loss = {"name": "triplet", "mining": {"positive": "all", "negative": "all"}}
    part = regularizer(name, weight=weight)
    module = losses.build({**loss, "regularizers": [part]})
    module.measures_gradients = True
    x = X.clone().requires_grad_()
    value = module(x, Y)
    expected = gradient({"regularizers": [part]}).norm() / gradient(loss).norm()
    assert float(module.diagnostics["gradient_ratio"]) == pytest.approx(float(expected), rel=1e-9)
    # Measuring changes neither the value nor the gradient.
    value.backward()
    assert torch.equal(x.grad, gradient({**loss, "regularizers": [part]}))


def test_gradient_ratio_of_all_regularizers_together() -> None:
    parts = [regularizer("energy", weight=0.5), regularizer("wasserstein", weight=0.1)]
    module = losses.build({"name": "n-pair", "memory": 4, "regularizers": parts}, embedding_dim=6)
    module.measures_gradients = True
    module(X.clone().requires_grad_(), Y)
    expected = gradient({"regularizers": parts}).norm() / gradient({"name": "n-pair"}).norm()
    assert float(module.diagnostics["gradient_ratio"]) == pytest.approx(float(expected), rel=1e-9)


def test_gradient_ratio_only_where_there_is_one() -> None:
    part = {"name": "energy"}
    for spec, measures in (
        ({"name": "triplet"}, True),
        ({"regularizers": [part]}, True),
        ({"name": "triplet", "regularizers": [part]}, False),
    ):
        module = losses.build(spec)
        module.measures_gradients = measures
        module(X.clone().requires_grad_(), Y)
        assert "gradient_ratio" not in module.diagnostics
    module = losses.build({"name": "triplet", "regularizers": [part]})
    module.measures_gradients = True
    with torch.no_grad():
        module(X, Y)
    assert module.diagnostics["gradient_ratio"].isnan()
    alone = torch.arange(3)  # no positives, so the loss has no gradient
    module(X[:3].clone().requires_grad_(), alone)
    assert module.diagnostics["gradient_ratio"].isinf()
