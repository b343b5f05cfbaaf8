"""Matryoshka losses: against the loss of each prefix alone, one after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from train import losses

DIM, CLASSES = 12, 6
SPECS: list[dict[str, Any]] = [
    {"name": "triplet", "margin": 0.3},
    {"name": "multi-similarity"},
    {"name": "contrastive"},
    {"name": "n-pair", "negatives": "symmetric"},
    {"name": "triplet", "normalization_gradient": "ignored"},
    {"name": "triplet", "regularizers": [{"name": "wasserstein", "weight": 0.5}]},
    {"name": "pml:SupConLoss"},
]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(18, DIM, dtype=torch.float64), torch.arange(CLASSES).repeat_interleave(3)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: "-".join(map(str, spec.values()))[:40])
def test_value_and_gradient_are_those_of_the_prefixes(spec: dict[str, Any]) -> None:
    x, y = batch()
    weights = [1.0, 3.0, 2.0]
    ours = losses.build({**spec, "dims": [3, 7], "dim_weights": weights}, embedding_dim=DIM)
    alone = losses.build(spec)
    both = [x.clone().requires_grad_() for _ in range(2)]
    value = ours(both[0], y)
    expected = sum(
        weight / 6 * alone(both[1][:, :dim], y) for weight, dim in zip(weights, [3, 7, DIM], strict=True)
    )
    torch.testing.assert_close(value, expected)
    value.backward()
    expected.backward()
    torch.testing.assert_close(both[0].grad, both[1].grad)
    for name, number in alone.diagnostics.items():  # of the whole embedding, the last one
        torch.testing.assert_close(ours.diagnostics[name], number)


@pytest.mark.parametrize("name", ["proxy-anchor", "normalized-softmax", "soft-triple"])
def test_proxies_are_cut_off_alike(name: str) -> None:
    """The prefixes share the leading dimensions of the proxies."""
    x, y = batch()
    ours = losses.build({"name": name, "dims": [4]}, num_classes=CLASSES, embedding_dim=DIM)
    value = ours(x, y)
    expected = torch.zeros((), dtype=torch.float64)
    for dim in (4, DIM):
        alone = losses.build({"name": name}, num_classes=CLASSES, embedding_dim=dim)
        alone.term.proxies.data = ours.term.proxies.data[:, :dim]
        expected = expected + alone(x[:, :dim], y) / 2
    torch.testing.assert_close(value, expected)
    value.backward()
    assert ours.term.proxies.grad.abs().sum(0).min() > 0
    with pytest.raises(ValueError, match="embeddings have 11 dimensions"):
        ours(x[:, :11], y)


def test_memory_is_cut_off_alike() -> None:
    x, y = batch()
    ours = losses.build({"name": "triplet", "memory": 18, "dims": [4]}, embedding_dim=DIM)
    ours(x, y)
    torch.manual_seed(1)
    other = torch.randn(18, DIM, dtype=torch.float64)
    alone = losses.build({"name": "triplet"})
    expected = sum(
        alone(other[:, :dim], y, ref_embeddings=x[:, :dim].float().double(), ref_labels=y) for dim in (4, DIM)
    )
    torch.testing.assert_close(ours(other, y), expected / 2, rtol=1e-5, atol=1e-6)


def test_a_prefix_of_zeros_has_no_gradient() -> None:
    x, y = batch()
    x[2, :5] = 0
    ours = losses.build({"name": "contrastive", "dims": [5], "dim_weights": [1.0, 1e-9]}, embedding_dim=DIM)
    ours(x.requires_grad_(), y).backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert x.grad[2, :5].abs().max() < 1e-6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dims": [8, 4]}, "a list of ascending whole numbers from 1 to 12"),
        ({"dims": [4, 13]}, "from 1 to 12"),
        ({"dims": []}, "from 1 to 12"),
        ({"dims": [4], "dim_weights": [1.0]}, r"2 numbers from 0, one for each of \[4, 12\]"),
        ({"dim_weights": [1.0]}, "left out without dims"),
        ({"name": "pml:ProxyNCALoss", "num_classes": 6, "embedding_size": 12, "dims": [4]}, "leave dims out"),
    ],
)
def test_unusable_dims_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        losses.build({"name": "triplet", **changes}, embedding_dim=DIM)
