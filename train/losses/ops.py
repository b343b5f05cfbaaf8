"""Masked reductions and square roots with finite values and gradients for empty masks and zeros."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_BLOCK = 65536  # entries of a block: it stays in a processor's cache


class _Root(torch.autograd.Function):
    """Square root with gradient 0 at 0, where a distance has no direction of descent."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clamp(min=0).sqrt()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        return torch.where(root > 0, 0.5 * grad / root, 0.0)


def safe_sqrt(x: Tensor) -> Tensor:
    """Return sqrt(max(x, 0)), with gradient 0 for x <= 0."""
    root: Tensor = _Root.apply(x)
    return root


class _Slope(torch.autograd.Function):
    """A value with a given gradient by a table."""

    @staticmethod
    def forward(value: Tensor, x: Tensor, slope: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        (slope,) = ctx.saved_tensors
        return None, grad * slope, None


def with_slope(value: Tensor, x: Tensor, slope: Tensor) -> Tensor:
    """Return a scalar value whose gradient by x is the table `slope`, whatever computed the value."""
    found: Tensor = _Slope.apply(value.detach(), x, slope)
    return found


def row_blocks(table: Tensor) -> Iterator[slice]:
    """Yield slices of the rows of a [P, Q] table that stay in a processor's cache.

    All rows at once on other devices, where every block would take more launches, and in compiled code.
    """
    rows, columns = table.shape
    step = rows
    if table.device.type == "cpu" and not torch.compiler.is_compiling():
        step = max(1, _BLOCK // columns)
    for start in range(0, rows, step):
        yield slice(start, start + step)


def masked_max(x: Tensor, mask: Tensor, dim: int = 1) -> tuple[Tensor, Tensor]:
    """Return the largest selected entry along `dim` (0 if none is selected) and whether there is one."""
    value = x.masked_fill(~mask, -torch.inf).max(dim).values
    some = mask.any(dim)
    return torch.where(some, value, 0.0), some


def masked_min(x: Tensor, mask: Tensor, dim: int = 1) -> tuple[Tensor, Tensor]:
    """Return the smallest selected entry along `dim` (0 if none is selected) and whether there is one."""
    value = x.masked_fill(~mask, torch.inf).min(dim).values
    some = mask.any(dim)
    return torch.where(some, value, 0.0), some


def masked_logsumexp(x: Tensor, mask: Tensor, dim: int = 1) -> Tensor:
    """Return the log of the sum of exp over the selected entries along `dim`; -inf if none is selected."""
    return x.masked_fill(~mask, -torch.inf).logsumexp(dim)


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of the selected entries; the others may be arbitrary, including infinite."""
    return torch.where(mask, x, 0.0).sum()


def ratio(total: Tensor, count: Tensor) -> Tensor:
    """Return total / count, 0 if count is 0."""
    return total / count.clamp(min=1)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the selected entries, 0 if there are none."""
    return ratio(masked_sum(x, mask), mask.sum())
