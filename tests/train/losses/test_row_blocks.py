"""Losses computed in blocks of rows, and from the columns of the own class, equal those of whole tables."""

from typing import Any
from unittest import mock

import pytest
import torch

from train import losses
from train.losses import ops

DIM, CLASSES = 8, 14
SPECS: list[dict[str, Any]] = [
    *({"name": name} for name in ("contrastive", "binomial-deviance", "equal-weight", "multi-similarity")),
    {"name": "binomial-deviance", "reduction": "sum"},
    {"name": "raw", "mining": None},
    {"name": "raw", "mining": {"positive": "all", "negative": "semi-hard"}},
    {"name": "raw", "mining": {"positive": "hard", "negative": "hard", "duplicate_above": 0.9}},
    {"name": "raw", "memory": 30},
    {"name": "lifted-generalized"},
    {"name": "supcon", "guard": 0.05},
    {"name": "info-nce", "memory": 30},
    {"name": "circle"},
    {"name": "siglip", "mining": {"name": "vthm"}},
    {"name": "soft-triple", "centers": 3},
    {"name": "fast-ap"},
    {"name": "fast-ap", "memory": 30},
    {"name": "histogram"},
    {"name": "recall-at-k"},
    {"name": "recall-at-k", "form": "released", "memory": 30},
    {"name": "smooth-ap"},
    {"name": "margin", "mining": {"positive": "all", "negative": "semi-hard"}, "learn": "per-class"},
    {"name": "triplet", "mining": {"positive": "all", "negative": "semi-hard", "fallback": "farthest"}},
    {"name": "triplet", "mining": {"positive": "all", "negative": "all"}},
    {"name": "triplet", "pairs": "unordered"},
    {"name": "sct"},
    *({"name": "triplet", "negatives": name} for name in ("optimal", "optimal-segment", "symmetric")),
    {"name": "raw", "negatives": "optimal"},
    {"name": "hphn-triplet", "negatives": "optimal"},
]
KEEPS_SECOND = [{"name": "soft-triple"}, {"name": "fast-ap"}]  # second derivatives, however many blocks


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return overlapping clusters of 1 to 7 samples in random order."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.full((1 + c % 7,), c) for c in range(CLASSES)])
    labels = labels[torch.randperm(len(labels), generator=generator)]
    centers = torch.randn(CLASSES, DIM, dtype=torch.float64, generator=generator)
    noise = torch.randn(len(labels), DIM, dtype=torch.float64, generator=generator)
    return centers[labels] + noise, labels


def evaluate(spec: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """Return value, gradient and diagnostics of the second of two batches, which meets a filled memory."""
    torch.manual_seed(0)
    module = losses.build(spec, num_classes=CLASSES, embedding_dim=DIM)
    module(*batch(0))
    x, y = batch(1)
    x.requires_grad_()
    value = module(x, y)
    value.backward()
    assert x.grad is not None
    assert x.grad.any()
    return value.detach(), x.grad, *(module.diagnostics[name] for name in sorted(module.diagnostics))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_blocks_and_columns_equal_whole_tables(spec: dict[str, Any]) -> None:
    with mock.patch.object(torch.compiler, "is_compiling", return_value=True):
        whole = evaluate(spec)  # what accelerators compute
    columns = evaluate(spec)
    with mock.patch.object(ops, "_BLOCK", 200):
        blocks = evaluate(spec)
    for found in (columns, blocks):
        for a, b in zip(found, whole, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["triplet-nca", "lifted-generalized", "raw"])
def test_large_batch(name: str) -> None:
    """Several blocks of rows at the usual size, and a product of which only one half is computed."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(700, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    y = torch.randint(90, (700,), generator=generator)
    value = losses.build({"name": name})(x, y)
    (gradient,) = torch.autograd.grad(value, x)
    with mock.patch.object(torch.compiler, "is_compiling", return_value=True):
        expected = losses.build({"name": name})(x, y)
        (wanted,) = torch.autograd.grad(expected, x)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("spec", [{"name": "raw", "mining": None}, *KEEPS_SECOND], ids=str)
def test_second_derivative(spec: dict[str, Any]) -> None:
    """It is that of central differences; of several blocks, asking a pair loss for it is an error."""
    x, y = batch(2)
    torch.manual_seed(0)
    module = losses.build(spec, num_classes=CLASSES, embedding_dim=DIM).double()
    along = torch.randn_like(x)

    def slope(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(module(x, y), x, create_graph=True)
        return (gradient * along).sum(), x

    (found,) = torch.autograd.grad(*slope(x))
    step = 1e-5 * torch.randn_like(x)
    expected = slope(x + step)[0] - slope(x - step)[0]
    torch.testing.assert_close(2 * (found * step).sum(), expected.detach(), rtol=1e-5, atol=1e-12)
    with mock.patch.object(ops, "_BLOCK", 200):
        if spec in KEEPS_SECOND:
            torch.testing.assert_close(torch.autograd.grad(*slope(x))[0], found)
            return
        with pytest.raises(RuntimeError, match="second derivative"):
            slope(x)


@pytest.mark.parametrize("frozen", ["embeddings", "proxies"])
def test_soft_triple_without_one_gradient(frozen: str) -> None:
    """The gradient by the proxies is the same with frozen embeddings, and the other way round."""
    x, y = batch(3)
    torch.manual_seed(0)
    module = losses.build({"name": "soft-triple"}, num_classes=CLASSES, embedding_dim=DIM).double()
    (proxies,) = module.parameters()
    whole = torch.autograd.grad(module(x.requires_grad_(), y), (x, proxies))
    with torch.no_grad():
        value = module(x, y)
    (x if frozen == "embeddings" else proxies).requires_grad_(False)
    kept, wanted = (proxies, whole[1]) if frozen == "embeddings" else (x, whole[0])
    again = module(x, y)
    assert again == value
    for create_graph in (True, False):
        (found,) = torch.autograd.grad(again, kept, create_graph=create_graph, retain_graph=True)
        torch.testing.assert_close(found, wanted)
