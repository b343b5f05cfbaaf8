"""`normalization_gradient: ignored`: the gradient by the unit vectors in place of that by the embeddings."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from train import losses

from .oracle.batches import make_batch

IGNORED = {"normalization_gradient": "ignored"}
BATCH = make_batch(21, (3, 4, 2, 3), dim=6, spread=0.9, raw=True)
X, Y = torch.tensor(BATCH.x), torch.tensor(BATCH.y)
ON_UNIT_VECTORS: list[dict[str, Any]] = [
    {"name": "triplet"},
    {"name": "triplet", "negatives": "optimal"},
    {"name": "triplet-nca"},
    {"name": "sct"},
    {"name": "raw"},
    {"name": "raw", "negatives": "symmetric"},
    {"name": "n-pair", "normalize": True},
    {"name": "lifted"},
    {"name": "contrastive"},
    {"name": "margin", "mining": {"positive": "all", "negative": "hard"}},
    {"name": "proxy-anchor"},
    {"name": "fast-ap"},
    {"name": "smooth-ap"},
    {"regularizers": [{"name": "wasserstein"}]},
    {"name": "triplet-nca", "regularizers": [{"name": "energy", "weight": 0.5}]},
]


def evaluate(spec: dict[str, Any], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return value and gradient."""
    torch.manual_seed(0)
    loss = losses.build(spec, num_classes=4, embedding_dim=x.shape[1]).double()
    leaf = x.clone().requires_grad_()
    value = loss(leaf, Y[: len(x)])
    value.backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


@pytest.mark.parametrize("spec", ON_UNIT_VECTORS, ids=str)
def test_value_is_unchanged_and_the_gradient_projects_onto_the_exact_one(spec: dict[str, Any]) -> None:
    """(I - z zᵀ) g / |x| of the ignoring gradient g is the exact one: all that differs is normalisation."""
    value, exact = evaluate(spec, X)
    same, ignoring = evaluate({**spec, **IGNORED}, X)
    assert torch.equal(same, value)
    z, norm = F.normalize(X, dim=1), X.norm(dim=1, keepdim=True)
    tangent = ignoring - (ignoring * z).sum(1, keepdim=True) * z
    torch.testing.assert_close(tangent / norm, exact, rtol=1e-7, atol=1e-10)
    assert (ignoring - tangent).norm() > 1e-3 * ignoring.norm()


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_gradient_of_one_triplet(scale: float) -> None:
    """SCT eqs. 2-6: g_a = b (n - p), g_p = -b a, g_n = b a, whatever the lengths of the embeddings."""
    a, p, n = F.normalize(torch.tensor([[1.0, 0.1, 0], [0.7, 0.6, 0.1], [0.8, 0, 0.7]]), dim=1).double()
    weight = math.exp(float(a @ n)) / (math.exp(float(a @ p)) + math.exp(float(a @ n)))
    loss = losses.build({"name": "triplet-nca", **IGNORED})
    x = (scale * a[None]).requires_grad_()
    references = (scale * torch.stack([p, n])).requires_grad_()
    loss(x, torch.tensor([0]), ref_embeddings=references, ref_labels=torch.tensor([0, 1])).backward()
    torch.testing.assert_close(x.grad[0], weight * (n - p))
    torch.testing.assert_close(references.grad, weight * torch.stack([-a, a]))


def test_steps_lengthen_the_embeddings() -> None:
    """Positives are pulled along each other, so that part of every step is lost in the length."""
    loss = losses.build({"name": "triplet-nca", **IGNORED})
    exact = losses.build({"name": "triplet-nca"})
    x = F.normalize(torch.tensor(make_batch(2, (2, 2, 2), dim=8, spread=0.3).x), dim=1)
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    grown = []
    for each in (loss, exact):
        leaf = x.clone().requires_grad_()
        each(leaf, y).backward()
        grown.append(float((leaf.grad * x).sum(1).abs().max()))
    assert grown[0] > 0.01
    assert grown[1] < 1e-12


def test_unit_vectors_of_zero_embeddings() -> None:
    """A zero vector gets the gradient that its (zero) unit vector has."""
    x = X.clone()
    x[0] = 0
    _, gradient = evaluate({"name": "triplet", **IGNORED}, x)
    assert gradient.isfinite().all()


def test_memory_and_float32() -> None:
    loss = losses.build({"name": "contrastive", "memory": 8, **IGNORED}, embedding_dim=6)
    plain = losses.build({"name": "contrastive", "memory": 8}, embedding_dim=6)
    for _ in range(2):
        assert float(loss(X.float(), Y)) == float(plain(X.float(), Y))


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "n-pair"},
        {"name": "angular-n-pair"},
        {"name": "triplet", "normalize": False},
        {"name": "lifted", "normalize": False},
        {"name": "n-pair", "regularizers": [{"name": "energy"}]},
        {"regularizers": [{"name": "cross-entropy"}]},
        {"name": "pml:ContrastiveLoss"},
    ],
    ids=str,
)
def test_losses_on_raw_embeddings_refuse_it(spec: dict[str, Any]) -> None:
    losses.build({**spec, "normalization_gradient": "exact"}, num_classes=4, embedding_dim=6)
    with pytest.raises(ValueError, match=r"normalization_gradient is 'ignored', but .* raw embeddings"):
        losses.build({**spec, **IGNORED}, num_classes=4, embedding_dim=6)


def test_wrong_values_get_suggestions() -> None:
    with pytest.raises(ValueError, match=r"normalization_gradient is 'ignore'.*'ignored'"):
        losses.build({"name": "sct", "normalization_gradient": "ignore"})
    with pytest.raises(ValueError, match="'normalization_gradient'"):
        losses.build({"name": "sct", "normalisation_gradient": "ignored"})
    assert "normalization_gradient: exact" in losses.describe()


def test_training_step_equals_simulation() -> None:
    """A step on one triplet moves its cosines as SCT eqs. 7-10 say."""
    s_ap, s_an, rate = 0.6, 0.85, 0.3
    a = np.array([1.0, 0, 0])
    p = np.array([s_ap, math.sqrt(1 - s_ap**2), 0])
    n = np.array([s_an, 0, math.sqrt(1 - s_an**2)])
    x = torch.tensor(a[None]).requires_grad_()
    others = torch.tensor(np.stack([p, n])).requires_grad_()
    loss = losses.build({"name": "triplet-nca", **IGNORED})
    loss(x, torch.tensor([0]), ref_embeddings=others, ref_labels=torch.tensor([0, 1])).backward()
    b = rate * math.exp(s_an) / (math.exp(s_ap) + math.exp(s_an))
    s_pn = float(p @ n)
    dot_ap = (1 + b * b) * s_ap + 2 * b - b * s_pn - b * b * s_an
    dot_an = (1 + b * b) * s_an - 2 * b + b * s_pn - b * b * s_ap
    new_a = x.detach()[0] - rate * x.grad[0]
    new_p, new_n = (others.detach() - rate * others.grad).unbind(0)
    assert float(new_a @ new_p) == pytest.approx(dot_ap)
    assert float(new_a @ new_n) == pytest.approx(dot_an)
