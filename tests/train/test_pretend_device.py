"""Each kind of read or copy is recorded, in the forward and in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from tests.train.pretend_device import Watch, pretend_device


class _CopiesBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * torch.arange(4.0).to(grad.device)


FAULTS: dict[str, Callable[[Tensor], Any]] = {
    "_local_scalar_dense": lambda x: x.sum().item(),
    "nonzero": lambda x: (x > 0).nonzero(),
    "index.Tensor": lambda x: x[x > 0],
    "index_put": lambda x: torch.zeros_like(x).index_put_((x > 0,), x.detach().sum()),
    "unique": lambda x: x.detach().unique(),
    "arange": lambda x: torch.arange(4),
    "cpu": lambda x: x.cpu(),
    "_to_copy": lambda x: _CopiesBackward.apply(x).sum().backward(),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_recorded(fault: str) -> None:
    with pretend_device() as device:
        x = torch.randn(4, device=device, requires_grad=True)
        with Watch() as watch, suppress(DataDependentOutputException, DynamicOutputShapeException):
            FAULTS[fault](x)
        assert any(fault in line for line in watch.found)


def test_work_on_the_device_is_not_recorded() -> None:
    with pretend_device() as device:
        x = torch.randn(4, 4, device=device, requires_grad=True)
        with Watch() as watch:
            y = torch.where(x > 0, x @ x.T, 0.5)
            y[torch.arange(2, device=device)].logsumexp(1).sum().backward()
    assert watch.found == []


def test_tensors_cannot_come_from_numbers() -> None:
    with pretend_device() as device, pytest.raises(NotImplementedError, match="pretend"):
        torch.tensor([1.0, 2.0], device=device)


def test_other_tests_see_no_accelerator() -> None:
    with pretend_device():
        assert torch.accelerator.is_available()
    assert torch.accelerator.is_available() == torch.cuda.is_available()
