"""Sums over all triplets of a batch in O(B²) memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

FEW = 8  # up to this many positives per anchor, evaluating all triplets is faster than sorting
_CHUNK = 1 << 22  # entries of the largest temporary


class AllTriplets(NamedTuple):
    """Sums over all triplets of each anchor."""

    total: Tensor  # [R] sum of the losses
    number: Tensor  # [R] number of triplets
    active: Tensor  # number of triplets with a loss above 0
    hard: Tensor  # number of triplets with the negative above the positive


def compact_columns(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the columns [R, S] of the selected entries of each row of a table [R, C], and which exist.

    On the CPU, where reading it needs no synchronisation, S is the largest number of selected entries in a
    row; elsewhere, and in compiled code, it is C.
    """
    width = mask.shape[1]
    if mask.device.type == "cpu" and not torch.compiler.is_compiling():
        width = max(1, int(mask.sum(1).max()))
    place = torch.where(mask, mask.cumsum(1) - 1, width)
    columns = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    empty = columns.new_zeros((len(mask), width + 1))  # one more column for the entries not selected
    exists = torch.arange(width, device=mask.device) < mask.sum(1, keepdim=True)
    return empty.scatter(1, place, columns)[:, :width], exists


class _Hinge(torch.autograd.Function):
    """Sum of [n - p + margin]_+ over the positives p and negatives n of each row, by sorting.

    The hinge is linear where it is active, so one row of sorted negatives with prefix sums serves every
    positive; the gradient of an entry is the number of its active triplets.
    """

    @staticmethod
    def forward(
        positive: Tensor, is_positive: Tensor, negative: Tensor, is_negative: Tensor, margin: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ascending, index = (-negative).masked_fill(~is_negative, torch.inf).sort(1)
        limit = margin - positive  # active: -n < margin - p
        active = torch.searchsorted(ascending, limit) * is_positive  # [R, S]
        hard = torch.searchsorted(ascending, -positive) * is_positive
        prefix = torch.nn.functional.pad(ascending.masked_fill(ascending == torch.inf, 0).cumsum(1), (1, 0))
        total = torch.where(is_positive, active * limit - prefix.gather(1, active), 0.0).sum(1)  # [R]
        return total, active, hard.sum(), index

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(inputs[1], output[1], output[3])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        is_positive, active, index = ctx.saved_tensors
        # The r-th negative is active with the positives that have more than r active ones.
        reach = grad.new_zeros((index.shape[0], index.shape[1] + 1))
        reach = reach.scatter_add(1, active, is_positive.to(grad.dtype)).cumsum(1)[:, :-1]
        met = torch.empty_like(reach).scatter(1, index, is_positive.sum(1, keepdim=True) - reach)
        return -grad[:, None] * active, None, grad[:, None] * met, None, None


def hinge_over_triplets(
    positive: Tensor, is_positive: Tensor, negative: Tensor, is_negative: Tensor, margin: float
) -> AllTriplets:
    """Return the sums of [n - p + margin]_+ over all positives p and negatives n of each row.

    Args:
        positive, is_positive: [R, S] similarities and mask.
        negative, is_negative: [R, C] similarities and mask.
        margin: Margin of the hinge.
    """
    if positive.shape[1] <= FEW:
        return sum_over_triplets(
            lambda p, n: torch.relu(n - p + margin), positive, is_positive, negative, is_negative
        )
    total, active, hard, _ = _Hinge.apply(positive, is_positive, negative, is_negative, margin)
    return AllTriplets(total, is_positive.sum(1) * is_negative.sum(1), active.sum(), hard)


def sum_over_triplets(
    losses: Callable[[Tensor, Tensor], Tensor],
    positive: Tensor,
    is_positive: Tensor,
    negative: Tensor,
    is_negative: Tensor,
    counts: Callable[[Tensor, Tensor], Tensor | bool] = lambda p, n: True,
) -> AllTriplets:
    """Return `hinge_over_triplets` for any loss of a positive and a negative, over the triplets that count.

    Takes O(R S C) time. Large batches are processed in blocks of rows that the backward pass recomputes
    (activation checkpointing), so that the memory stays O(B²).
    """

    def block(p: Tensor, is_p: Tensor, n: Tensor, is_n: Tensor) -> tuple[Tensor, ...]:
        p, n = p[:, :, None], n[:, None, :]
        valid = is_p[:, :, None] & is_n[:, None, :] & counts(p, n)  # [rows, S, C]
        terms = torch.where(valid, losses(p, n), 0.0)
        hard = valid & (n > p)
        return terms.sum((1, 2)), valid.sum((1, 2)), (terms > 0).sum((1, 2)), hard.sum((1, 2))

    tables = (positive, is_positive, negative, is_negative)
    rows = max(1, _CHUNK // (positive.shape[1] * negative.shape[1]))
    if rows >= len(positive):
        total, number, active, hard = block(*tables)
    else:
        parts = [
            checkpoint(block, *of_rows, use_reentrant=False, preserve_rng_state=False)
            for of_rows in zip(*(x.split(rows) for x in tables), strict=True)
        ]
        total, number, active, hard = (torch.cat(part) for part in zip(*parts, strict=True))
    return AllTriplets(total, number, active.sum(), hard.sum())
