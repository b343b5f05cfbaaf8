"""Classes of a batch as equal blocks of rows, so that a problem per class is one row of a batched tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from train.losses.checks import refuse_unless


@dataclass(frozen=True)
class ClassGroups:
    """The samples of a batch in G groups of n rows, with the weights of the classes.

    A group holds one class, padded to n rows where classes differ in size; or all samples are in one group
    of n = B rows, with a mask of the rows of one class. Sums over a class have the shape [G, 1], or [1, n]
    with the sum repeated for every sample of the class; both broadcast against [G, n].
    """

    member: Tensor  # [G, n] position in the batch; any of the class in padded rows
    slot: Tensor  # [B] place of every sample in the flattened groups
    each: Tensor  # [G, n] 1 / size of the class, 0 in padded rows
    row: Tensor  # [G, n] the same, 0 if the batch has no other class
    column: (
        Tensor  # [G, 1, B], or [1, n, B]: 1 / (B - size of the class) for samples of other classes, 0 else
    )
    same: Tensor | None  # [n, n] 1 for rows of one class, if there is one group for all

    def gather(self, table: Tensor) -> Tensor:
        """Return the rows of a [B, B] table by group, [G, n, B]."""
        return table[self.member]

    def scatter(self, grouped: Tensor) -> Tensor:
        """Return the [B, B] table of [G, n, B] rows."""
        return grouped.flatten(0, 1)[self.slot]

    def of_samples(self, x: Tensor) -> Tensor:
        """Return [B] the entries of [G, n] of every sample."""
        return x.flatten()[self.slot]

    def padding(self, value: float) -> Tensor:
        """Return [G, n] the value in padded rows, 0 elsewhere."""
        return (self.each == 0).to(self.each.dtype) * value

    def total(self, x: Tensor) -> Tensor:
        """Return the sums over each class of [G, n]."""
        return x.sum(1, keepdim=True) if self.same is None else x @ self.same

    def largest(self, x: Tensor) -> Tensor:
        """Return the largest value in each class of [G, n] values, at least 0."""
        return x.amax(1, keepdim=True) if self.same is None else (self.same * x).amax(1)[None]

    def total_rows(self, x: Tensor) -> Tensor:
        """Return the sums over the rows of each class of [G, n, B]: [G, 1, B], or [1, n, B]."""
        return x.sum(1, keepdim=True) if self.same is None else (self.same @ x[0])[None]

    def softmax(self, logits: Tensor) -> Tensor:
        """Return the softmax of [G, n, B] over the rows of each class."""
        if self.same is None:
            return logits.softmax(1)
        peak, total = self._exponentials(logits[0])
        return (logits[0] - (peak + total.log())).exp()[None]

    def logsumexp(self, logits: Tensor) -> Tensor:
        """Return the log-sum-exp of [G, n, B] over the rows of each class: [G, 1, B], or [1, n, B]."""
        if self.same is None:
            return logits.logsumexp(1, keepdim=True)
        peak, total = self._exponentials(logits[0])
        return (peak + total.log())[None]

    def _exponentials(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest of [n, B] logits over each class, and the sum of exp of the differences."""
        assert self.same is not None
        first = self.same.argmax(1)  # [n] the first row of the class
        peak = torch.full_like(logits, -torch.inf)
        peak = peak.scatter_reduce(0, first[:, None].expand_as(peak), logits, "amax")[first]
        share = (logits - peak).exp()
        return peak, torch.zeros_like(share).index_add_(0, first, share)[first]

    def products(self, x: Tensor) -> Tensor:
        """Return [G, n, n] products of the rows of [G, n, B] of one class, 0 between classes."""
        found = x @ x.mT
        return found if self.same is None else found * self.same

    def outer(self, x: Tensor) -> Tensor:
        """Return [G, n, n] the products of the entries of [G, n] within each class."""
        found = x[:, :, None] * x[:, None, :]
        return found if self.same is None else found * self.same


def class_groups(labels: Tensor, dtype: torch.dtype, per_class: int | None = None) -> ClassGroups:
    """Group the samples of a batch by class, without host-device synchronisation.

    On the CPU the sizes of the classes are read from the labels. Elsewhere, and in compiled code, all classes
    have `per_class` samples, or without it all samples form one group.

    Args:
        labels: [B] integers.
        dtype: Of the weights.
        per_class: Size of every class of the batch.

    Raises:
        ValueError: On a device, and in compiled code: classes of another size.
    """
    if labels.device.type == "cpu" and not torch.compiler.is_compiling():
        return _from_sizes(labels, dtype)
    if per_class is None or len(labels) % per_class:
        return _together(labels, dtype)
    found = _equal(labels, dtype, per_class)
    ordered = labels[found.member]  # [G, n], sorted
    equal = (ordered[:, 0] == ordered[:, -1]).all() & (ordered[1:, 0] != ordered[:-1, 0]).all()
    refuse_unless(equal, f"this loss was built for batches with {per_class} samples of every class")
    return found


def _from_sizes(labels: Tensor, dtype: torch.dtype) -> ClassGroups:
    sizes = labels.unique(return_counts=True)[1]  # [G]
    count, longest = len(sizes), int(sizes.max())
    if count * longest == len(labels):
        return _equal(labels, dtype, longest)
    if count * longest > 2 * len(labels):  # mostly padding
        return _together(labels, dtype)
    order = labels.argsort(stable=True)
    within = torch.arange(longest)
    exists = within < sizes[:, None]  # [G, n]
    start = sizes.cumsum(0) - sizes
    member = order[start[:, None] + within * exists]
    slot = torch.empty_like(order).scatter_(0, order, exists.flatten().nonzero()[:, 0])
    return _weighted(labels, member, slot, exists / sizes[:, None].to(dtype), sizes[:, None].to(dtype))


def _equal(labels: Tensor, dtype: torch.dtype, size: int) -> ClassGroups:
    order = labels.argsort(stable=True)
    slot = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    member = order.view(-1, size)
    sizes = torch.full((len(member), 1), size, dtype=dtype, device=labels.device)
    return _weighted(labels, member, slot, (1 / sizes).expand_as(member), sizes)


def _weighted(labels: Tensor, member: Tensor, slot: Tensor, each: Tensor, sizes: Tensor) -> ClassGroups:
    """Return groups of one class each, of the given sizes [G, 1]."""
    rest = len(labels) - sizes
    other = labels != labels[member[:, :1]]  # [G, B]
    column = (other / rest.clamp(min=1))[:, None]
    return ClassGroups(member, slot, each, each * (rest > 0), column, None)


def _together(labels: Tensor, dtype: torch.dtype) -> ClassGroups:
    place = torch.arange(len(labels), device=labels.device)
    same = (labels[:, None] == labels).to(dtype)  # [B, B]
    size = same.sum(1)
    rest = len(labels) - size
    column = ((1 - same) / rest.clamp(min=1)[:, None])[None]
    each = 1 / size[None]
    return ClassGroups(place[None], place, each, each * (rest > 0), column, same)
