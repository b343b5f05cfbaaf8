"""Distillation loss against NumPy, alone, with a loss, and for prefixes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from train import losses


def batch(teacher_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(12, 6, dtype=torch.float64, requires_grad=True)
    return x, torch.arange(4).repeat_interleave(3), torch.randn(12, teacher_dim, dtype=torch.float64)


def by_definition(x: Tensor, teacher: Tensor) -> float:
    z, t = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x.detach().numpy(), teacher.numpy()))
    if z.shape[1] == t.shape[1]:
        return float(np.mean([1 - a @ b for a, b in zip(z, t, strict=True)]))
    rows = [
        np.corrcoef(np.delete(z @ z[i], i), np.delete(t @ t[i], i))[0, 1]  # of the cosines with all others
        for i in range(len(z))
    ]
    return float(np.mean(1 - np.array(rows)))


@pytest.mark.parametrize("teacher_dim", [6, 9])
def test_value_is_that_of_the_definition(teacher_dim: int) -> None:
    x, y, teacher = batch(teacher_dim)
    alone = losses.build({}, distillation=2.0)
    value = alone(x, y, targets=teacher)
    assert value.item() == pytest.approx(2 * by_definition(x, teacher), rel=1e-9)
    assert alone.diagnostics["distillation"].item() == pytest.approx(by_definition(x, teacher), rel=1e-9)
    assert torch.autograd.gradcheck(lambda x: alone(x, y, targets=teacher), x)
    spec = {"name": "multi-similarity"}
    both = losses.build(spec, distillation=2.0)(x, y, targets=teacher)
    torch.testing.assert_close(both, losses.build(spec)(x, y) + value)


def test_prefixes_have_the_relations_of_the_teacher() -> None:
    x, y, teacher = batch(6)
    value = losses.build({"dims": [2]}, embedding_dim=6, distillation=1.0)(x, y, targets=teacher)
    expected = (by_definition(x[:, :2], teacher) + by_definition(x, teacher)) / 2
    assert value.item() == pytest.approx(expected, rel=1e-9)


def test_needs_a_teacher_and_ignores_what_it_could_not_read() -> None:
    x, y, teacher = batch(6)
    loss = losses.build({}, distillation=1.0)
    with pytest.raises(ValueError, match="vectors of a teacher"):
        loss(x, y)
    teacher[3] = 0
    loss(x, y, targets=teacher).backward()
    assert x.grad is not None
    assert not x.grad[3].any()
    assert x.grad[2].any()
