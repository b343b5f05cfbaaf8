"""Transport costs and kernels between classes against POT and GeomLoss: values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.train.losses.test_transport import cloud
from train import losses

ot = pytest.importorskip("ot")
geomloss = pytest.importorskip("geomloss")

EPSILON = 0.05
CLASSES = ("uneven", "two", "clusters")


def ours(x: Tensor, y: Tensor, **parameters: Any) -> Tensor:
    """Return a regularizer without its sign: the paper maximises the discrepancy."""
    return -losses.build({"regularizers": [{"weight": 1.0, **parameters}]})(x, y)


def of_each_class(x: Tensor, y: Tensor, discrepancy: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the sum over the classes of the discrepancy between a class and all others."""
    return torch.stack([discrepancy(x[y == label], x[y != label]) for label in y.unique()]).sum()


def pot(u: Tensor, v: Tensor) -> Tensor:
    """Half the squared distance, and epsilon times the divergence from the product of the marginals."""
    solved = ot.solve(
        ot.dist(u, v) / 2, reg=EPSILON, reg_type="KL", max_iter=20_000, tol=1e-11, grad="envelope"
    )
    return solved.value


def pot_exact(u: Tensor, v: Tensor) -> Tensor:
    return ot.solve(ot.dist(u, v) / 2).value


def sinkhorn(debias: bool) -> Callable[[Tensor, Tensor], Tensor]:
    return geomloss.SamplesLoss(
        "sinkhorn", p=2, blur=EPSILON**0.5, scaling=0.99, debias=debias, backend="tensorized"
    )


def kernel(name: str, width: float) -> Callable[[Tensor, Tensor], Tensor]:
    return geomloss.SamplesLoss(name, blur=width, backend="tensorized")


WASSERSTEIN = {"name": "wasserstein", "epsilon": EPSILON}
CASES: dict[str, tuple[dict[str, Any], Callable[[Tensor, Tensor], Tensor], float]] = {
    "POT": (WASSERSTEIN, pot, 1e-6),
    "POT, exact": ({"name": "wasserstein", "form": "exact"}, pot_exact, 1e-9),
    "GeomLoss": (WASSERSTEIN, sinkhorn(False), 2e-2),  # stops before it has converged: POT is the judge
    "GeomLoss, debiased": ({**WASSERSTEIN, "debias": True}, sinkhorn(True), 2e-2),
    "GeomLoss, Gaussian": (
        {"name": "mmd-gaussian", "sigma": 0.5, "half": True},
        kernel("gaussian", 0.5),
        1e-9,
    ),
    # Its distance of a point from itself is 1e-4.
    "GeomLoss, Laplacian": (
        {"name": "mmd-laplacian", "sigma": 0.5, "half": True},
        kernel("laplacian", 0.5),
        3e-4,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradient(case: str) -> None:
    parameters, peer, tolerance = CASES[case]
    for seed, kind in enumerate(CLASSES):
        x, y = cloud(kind, seed)
        found = []
        for discrepancy in (lambda x, y: ours(x, y, **parameters), lambda x, y: of_each_class(x, y, peer)):
            leaf = x.clone().requires_grad_()
            # Ours compares unit vectors, so it has no gradient along them.
            value = discrepancy(torch.nn.functional.normalize(leaf, dim=1), y)
            found.append((value.detach(), *torch.autograd.grad(value, leaf)))
        (value, slope), (wanted, wanted_slope) = found
        assert float(value) == pytest.approx(float(wanted), rel=tolerance)
        assert float((slope - wanted_slope).norm()) <= tolerance * float(wanted_slope.norm())
