"""Alternate pairs: samples (1, 2), (3, 4), ... of each class in batch order; an odd sample is left over."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_SORTED = 512  # places up to which a compiler sorts within one kernel, joined with others; a scatter is three


class PairLayout(NamedTuple):
    """Positions of the members of the alternate pairs, in shapes that depend on the batch size alone.

    `order` sorts the samples into [first members, second members, the rest]: sample `order[q]` is paired with
    sample `order[q + slots]`. A slot without a pair holds any two samples and is marked invalid. Pairs with a
    member in the batch occupy the first `anchors` slots.
    """

    order: Tensor  # [C] int64
    inverse: Tensor  # [C] int64: the place of each sample in the order
    valid: Tensor  # [Q] bool
    anchored: Tensor  # [Q] bool: the pair is valid and its first member belongs to the batch
    slots: int  # Q
    anchors: int  # P <= Q


def alternate_pairs(labels: Tensor, batch: int, usable: Tensor | None = None) -> PairLayout:
    """Pair the samples of each class in order, without host-device synchronisation.

    Args:
        labels: [C] integers, the batch first, then the references.
        batch: Number of samples in the batch.
        usable: [C] bool; samples marked False join no pair.
    """
    count = labels.shape[0]
    position = torch.arange(count, device=labels.device)
    if count < 2:  # one slot with the sample twice, so that no table is empty
        none = torch.zeros(1, dtype=torch.bool, device=labels.device)
        return PairLayout(position.repeat(2), position, none, none, 1, 1)
    if usable is not None:  # sort unusable samples last
        labels = torch.where(usable, labels, torch.iinfo(labels.dtype).max)
    by_class, index = torch.sort(labels, stable=True)
    starts = torch.ones_like(by_class, dtype=torch.bool)
    starts[1:] = by_class[1:] != by_class[:-1]
    rank = position - torch.where(starts, position, 0).cummax(0).values  # place within the class
    first = (rank % 2 == 0) & ~starts.roll(-1)
    if usable is not None:
        first &= usable[index]
    second = first.roll(1)
    anchored = first & (index < batch)
    loose = first & ~anchored
    pairs = first.sum()
    slots = count // 2
    slot = torch.where(anchored, anchored.cumsum(0), anchored.sum() + loose.cumsum(0)) - 1
    slot = torch.where(second, slot.roll(1) + slots, slot)
    rest = ~(first | second)
    spare = rest.cumsum(0) - 1  # left-over samples fill the free slots, then the end
    spare = torch.where(spare < slots - pairs, pairs + spare, 2 * pairs + spare)
    place = torch.where(rest, spare, slot)
    order, inverse = _joined(place, index), _joined(index, place)
    number = position[:slots]
    return PairLayout(order, inverse, number < pairs, number < anchored.sum(), slots, min(batch, slots))


def _joined(places: Tensor, values: Tensor) -> Tensor:
    """Return the values [C] by their places, a permutation."""
    if torch.compiler.is_compiling() and len(places) <= _SORTED:
        return values[places.argsort()]
    return torch.empty_like(values).scatter_(0, places, values)
