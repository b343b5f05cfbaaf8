"""Losses on distributions of similarities: histogram loss and FastAP."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from train.losses.ops import ratio, row_blocks
from train.losses.registry import register, require
from train.losses.structured import BY_DEFINITION
from train.losses.view import View

REFUSAL = f"no miner and no source: it compares whole distributions, so that {BY_DEFINITION}"


def soft_histogram(cosine: Tensor, mask: Tensor, bins: int, origin: int) -> Tensor:
    """Return [R, bins + 1] weights of the selected entries of each row at evenly spaced nodes in [-1, 1].

    Every entry is shared linearly between its two neighbouring nodes (triangular bins), so that the counts
    have a gradient. The first node is at `origin`, -1 or 1.
    """
    counts: Tensor = _SoftHistogram.apply(cosine, mask, bins, origin)
    return counts


class _SoftHistogram(torch.autograd.Function):
    """The histogram in blocks of rows, of which nothing is kept for the backward pass but its arguments."""

    @staticmethod
    def forward(cosine: Tensor, mask: Tensor, bins: int, origin: int) -> Tensor:
        found = []
        for rows in row_blocks(cosine):
            position = _position(cosine[rows], bins, origin).clamp_(0, bins)
            left = _left(position, bins)
            share = torch.where(mask[rows], position.sub_(left), 0.0)
            counts = cosine.new_zeros((len(share), bins + 1))
            counts = counts.scatter_add(1, left + 1, share)
            found.append(counts.scatter_add(1, left, mask[rows].to(share.dtype) - share))
        return torch.cat(found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.nodes = inputs[2:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        cosine, mask = ctx.saved_tensors
        bins, origin = ctx.nodes
        slope = grad.diff(dim=1) * (-origin * bins / 2)  # [R, bins] in each bin
        found = []
        for rows in row_blocks(cosine):
            position = _position(cosine[rows], bins, origin)
            inside = (position >= 0) & (position <= bins) & mask[rows]
            found.append(torch.where(inside, slope[rows].gather(1, _left(position, bins)), 0.0))
        return torch.cat(found), None, None, None


def _position(cosine: Tensor, bins: int, origin: int) -> Tensor:
    """Return the distance from `origin` in bins."""
    return (cosine - origin) * (-origin * bins / 2)


def _left(position: Tensor, bins: int) -> Tensor:
    """Return the number of the bin that holds each position."""
    return position.long().clamp_(0, bins - 1)


@register(
    "loss",
    "histogram",
    source="Ustinova and Lempitsky (NeurIPS 2016), eq. 4",
    formula=r"\sum_{r = 0}^{\text{bins}} h^-_r \sum_{q = 0}^{r} h^+_q",
    refusal=REFUSAL,
)
class HistogramLoss(nn.Module):
    """Probability that a random negative is more similar than a random positive, Σ_r h⁻_r Φ⁺_r.

    h⁻ and h⁺ are soft histograms of the cosines of unordered pairs and Φ⁺ is the cumulative h⁺.

    Args:
        bins: Number of bins between -1 and 1.
    """

    paired = False

    def __init__(self, bins: int = 100) -> None:
        super().__init__()
        require(bins >= 1, "bins", bins, "at least 1")
        self.bins = bins

    def forward(self, view: View) -> Tensor:
        table = view.anchors
        positive = self._distribution(table.cosine, table.positive & table.later)
        negative = self._distribution(table.cosine, table.negative & table.later)
        return (negative * positive.cumsum(0)).sum()

    def _distribution(self, cosine: Tensor, mask: Tensor) -> Tensor:
        return ratio(soft_histogram(cosine, mask, self.bins, -1).sum(0), mask.sum())  # [bins + 1]


@register(
    "loss",
    "fast-ap",
    source="Cakir et al. (CVPR 2019), eq. 7",
    formula=(
        r"1 - \frac{1}{B} \sum_i \frac{1}{|P_i|} \sum_{b = 0}^{\text{bins}} h^+_{ib}"
        r" \frac{H^+_{ib}}{H_{ib}}"
    ),
    refusal=REFUSAL,
)
class FastAP(nn.Module):
    """1 - the mean over anchors of their average precision, from soft histograms of squared distances.

    The average precision of an anchor is Σ_b h⁺_b H⁺_b / H_b over its number of positives, H the cumulative
    counts of all its neighbours and H⁺ of its positives. Anchors without positives or negatives do not count.

    Args:
        bins: Number of bins between 0 and 4.
    """

    paired = False

    def __init__(self, bins: int = 10) -> None:
        super().__init__()
        require(bins >= 1, "bins", bins, "at least 1")
        self.bins = bins

    def forward(self, view: View) -> Tensor:
        table = view.anchors
        near, own = table.near(table.cosine)
        # The squared distance 2 - 2 cosine grows from 0 at the cosine 1.
        positive = soft_histogram(near, own, self.bins, 1)  # [B, bins + 1]
        negative = soft_histogram(table.cosine, table.negative, self.bins, 1)
        up_to = positive.cumsum(1)
        all_up_to = up_to + negative.cumsum(1)
        # Below the first neighbour both counts are 0, and so is their share.
        share = torch.where(all_up_to > 0, up_to / torch.where(all_up_to > 0, all_up_to, 1.0), 0.0)
        count = own.sum(1)
        valid = (count > 0) & table.negative.any(1)
        precision = ratio((positive * share).sum(1), count)
        return ratio(torch.where(valid, 1 - precision, 0.0).sum(), valid.sum())
