"""Objective of MIC against plain loops, the signs of its gradients, and no reads from the device."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.train.pretend_device import Watch, pretend_device
from train import losses
from train.losses.mic import MicObjective, correlation, reverse_gradient

D, A, FIRST, ALL = 3, 4, 8, 20
SPEC = {"name": "triplet", "margin": 0.3, "regularizers": [{"name": "energy", "weight": 0.5}]}
PLAIN = {"name": "triplet", "margin": 0.3}


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    outputs = torch.randn(ALL, D + A + D, dtype=torch.float64, requires_grad=True)
    return outputs, torch.cat([torch.arange(FIRST) // 2, torch.arange(ALL - FIRST) // 4])


def objective(weight: float = 7.0) -> MicObjective:
    return MicObjective(losses.build(SPEC), losses.build(PLAIN), weight, FIRST, (D, A))


def unit(row: list[float]) -> list[float]:
    length = math.sqrt(sum(x * x for x in row))
    return [x / length for x in row]


def by_loops(outputs: Tensor) -> float:
    total = 0.0
    for row in outputs.tolist():
        z, r = unit(row[:D]), unit(row[D + A :])
        for d in range(D):
            total += (z[d] * r[d]) ** 2
    return total / (len(outputs) * D)


def test_value_is_the_sum_of_three_terms() -> None:
    outputs, labels = batch()
    loss = objective()
    value = loss(outputs, labels)
    x, a = outputs[:FIRST, :D], outputs[FIRST:, D : D + A]
    of_classes = losses.build(SPEC)(x, labels[:FIRST])
    of_surrogates = losses.build(PLAIN)(a, labels[FIRST:])
    assert value.item() == pytest.approx(
        of_classes.item() + of_surrogates.item() - 7 * by_loops(outputs), rel=1e-12
    )
    assert loss.diagnostics["correlation"].item() == pytest.approx(D * by_loops(outputs), rel=1e-12)
    assert loss.diagnostics["class_loss"].item() == pytest.approx(of_classes.item())
    assert loss.diagnostics["auxiliary_loss"].item() == pytest.approx(of_surrogates.item())


def test_encoders_have_the_reversed_gradient_and_the_projection_the_plain_one() -> None:
    """By central differences: of the loss for what is predicted, of its negative for the embedding."""
    outputs, _ = batch()
    x, r = outputs[:, :D].detach().requires_grad_(), outputs[:, D + A :].detach().requires_grad_()
    (-correlation(x, r)).backward()
    assert x.grad is not None
    assert r.grad is not None
    step = 1e-6
    for tensor, sign in ((x, -1), (r, 1)):
        for place in ((0, 0), (3, 2), (19, 1)):
            values = []
            for move in (step, -step):
                moved = tensor.detach().clone()
                moved[place] += move
                both = (moved, r.detach()) if tensor is x else (x.detach(), moved)
                values.append(-by_loops(torch.cat([both[0], torch.zeros(ALL, A), both[1]], 1)))
            slope = (values[0] - values[1]) / (2 * step)
            assert tensor.grad[place].item() == pytest.approx(sign * slope, rel=1e-5, abs=1e-10)


def test_reversed_gradient() -> None:
    x = torch.randn(5, requires_grad=True)
    assert torch.equal(reverse_gradient(x), x)
    (reverse_gradient(x) * torch.arange(5.0)).sum().backward()
    assert torch.equal(x.grad, -torch.arange(5.0))


def test_each_loss_moves_its_own_part_alone() -> None:
    """With weight 0: the embeddings of images of clusters have no gradient, and neither has the reverse."""
    outputs, labels = batch()
    objective(0.0)(outputs, labels).backward()
    assert outputs.grad is not None
    assert not outputs.grad[FIRST:, :D].any()
    assert not outputs.grad[:FIRST, D:].any()
    assert not outputs.grad[:, D + A :].any()
    assert outputs.grad[:FIRST, :D].any()
    assert outputs.grad[FIRST:, D : D + A].any()


def test_ratio_is_that_of_the_classes_and_a_teacher_teaches_them_alone() -> None:
    outputs, labels = batch()
    loss = objective()
    loss.measures_gradients = True
    loss(outputs, labels)
    alone = losses.build(SPEC)
    alone.measures_gradients = True
    x = outputs[:FIRST, :D]
    alone(x, labels[:FIRST])
    assert loss.diagnostics["gradient_ratio"].item() == alone.diagnostics["gradient_ratio"].item()
    taught = losses.build(PLAIN, distillation=2.0)
    targets = torch.randn(ALL, D, dtype=torch.float64)
    joint = MicObjective(taught, losses.build(PLAIN), 0.0, FIRST, (D, A))
    joint(outputs, labels, targets=targets)
    expected = taught(x, labels[:FIRST], targets=targets[:FIRST])
    assert joint.diagnostics["class_loss"].item() == pytest.approx(expected.item())


def test_no_read_and_no_copy() -> None:
    with pretend_device() as device:
        with device:
            spec = {"name": "margin", "learn": "per-class"}
            module = MicObjective(
                losses.build(spec, num_classes=4, embedding_dim=D, per_class=2),
                losses.build(spec, num_classes=3, embedding_dim=A, per_class=4),
                7.0,
                FIRST,
                (D, A),
            )
            outputs = torch.randn(ALL, D + A + D, requires_grad=True)
            labels = torch.arange(ALL) // 8
        with Watch() as watch:
            module(outputs, labels).backward()
        assert watch.found == []
