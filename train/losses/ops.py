"""Masked reductions and square roots with finite values and gradients for empty masks and zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

_BLOCK = 1 << 18  # entries of a block: its tables stay in a processor's cache, and calls are few


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


class _SlopeOfRows(_Slope):
    """The same for `sum_over_rows`, which keeps nothing that a second derivative could be taken of."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "create_graph: a loss in blocks of rows has no second derivative; use a smaller batch"
            )
        return _Slope.backward(ctx, grad)


def row_blocks(table: Tensor, tables: int = 1) -> Iterator[slice]:
    """Yield slices of the rows of a [P, Q] table that stay in a processor's cache.

    All rows at once on other devices, where every block would take more launches, and in compiled code.

    Args:
        table: [P, Q].
        tables: How many times the usual memory the work on a block takes.
    """
    rows, columns = table.shape
    step = rows
    if table.device.type == "cpu" and not torch.compiler.is_compiling():
        step = max(1, _BLOCK // (tables * columns))
    for start in range(0, rows, step):
        yield slice(start, start + step)


def sum_over_rows(
    terms: Callable[[slice, Tensor], tuple[Tensor, ...]], table: Tensor, tables: int = 1
) -> tuple[Tensor, ...]:
    """Return the sums over blocks of rows of what `terms` returns for a block, differentiable by the table.

    The gradient of a block is taken at once, so that its intermediates stay in the cache and only one table
    is kept for the backward pass. Of more than one block there is no second derivative.

    Args:
        terms: Returns a scalar, and numbers without gradient, for a slice of the rows and these rows, on
            which alone the gradient of the scalar may depend.
        table: [P, Q].
        tables: How many times the usual memory the work on a block takes.
    """
    blocks = list(row_blocks(table, tables))
    if len(blocks) == 1:
        return terms(blocks[0], table)
    slope = torch.empty_like(table) if table.requires_grad and torch.is_grad_enabled() else None
    found = []
    for rows in blocks:
        leaf = table.detach()[rows].requires_grad_(slope is not None)
        value, *numbers = terms(rows, leaf)
        if slope is not None:
            (slope[rows],) = torch.autograd.grad(value, leaf)
        found.append((value.detach(), *numbers))
    total, *numbers = (torch.stack(column).sum() for column in zip(*found, strict=True))
    return total if slope is None else _SlopeOfRows.apply(total, table, slope), *numbers


def stack(parts: Sequence[Tensor]) -> Tensor:
    """Return torch.stack(parts); in compiled code joined with its use, where a stack is a kernel for each."""
    if not torch.compiler.is_compiling():
        return torch.stack([*parts])
    place = torch.arange(len(parts), device=parts[0].device).view(-1, *[1] * parts[0].ndim)
    found = parts[-1][None]
    for number, part in enumerate(parts[:-1]):
        found = torch.where(place == number, part, found)
    return found


class _Diagonal(torch.autograd.Function):
    """The diagonal, whose gradient a compiler computes with the table's instead of adding it to zeros."""

    @staticmethod
    def forward(table: Tensor) -> Tensor:
        return table.diagonal().clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        rows, columns = (torch.arange(size, device=grad.device) for size in ctx.shape)
        return torch.where(rows[:, None] == columns, grad[:, None], 0.0)


def diagonal(table: Tensor) -> Tensor:
    """Return the diagonal, [P], of a [P, Q] table with Q >= P."""
    found: Tensor = _Diagonal.apply(table) if torch.compiler.is_compiling() else table.diagonal()
    return found


class _Permuted(torch.autograd.Function):
    """Rows in another order, whose gradient is read in the opposite order instead of added to zeros."""

    @staticmethod
    def forward(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        return x[order]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return _Permuted.apply(grad, inverse, order), None, None


def permuted(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Return x[order], where order[inverse] counts from 0; an order may also repeat rows."""
    joined = torch.compiler.is_compiling() and len(order) == len(x)
    found: Tensor = _Permuted.apply(x, order, inverse) if joined else x[order]
    return found


def masked_max(x: Tensor, mask: Tensor, dim: int = 1) -> tuple[Tensor, Tensor]:
    """Return the largest selected entry along `dim` (0 if none is selected) and whether there is one."""
    value = x.masked_fill(~mask, -torch.inf).max(dim).values
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
