"""Losses on smooth ranks: recall at k with similarity mixup, and Smooth-AP.

The rank of a positive is 1 + the number of images that are more similar to the anchor, each counted by a
sigmoid of the difference. So an anchor with S positives among C images takes S C sigmoids.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from train.losses.ops import ratio, sum_over_rows
from train.losses.registry import Inert, register, require
from train.losses.structured import BY_DEFINITION
from train.losses.view import Table, View

REFUSAL = f"no miner and no source: it ranks all images of the batch, so that {BY_DEFINITION}"
KS = (1, 2, 4, 8, 16)


def count_above(near: Tensor, far: Tensor) -> Tensor:
    """Return [R, S] the number of entries of `far` [R, C] above each of `near` [R, S], of the same row.

    An entry counts by the sigmoid of its difference, one half if they are equal, and none if it is -inf.
    """
    return (far[:, None, :] - near[:, :, None]).sigmoid().sum(2)


class RankTerm(nn.Module):
    """Base class of the losses on ranks: the mean over the anchors with a positive and a negative."""

    paired = False
    counts_anchor = False  # whether an anchor is in its own list, where it comes first

    def __init__(self, temperature: float, per_class: int | None) -> None:
        super().__init__()
        require(temperature > 0, "temperature", temperature, "above 0")
        self.temperature, self.per_class = temperature, per_class

    def forward(self, view: View) -> Tensor:
        return self.over_rows(view.anchors, self.per_class)

    def over_rows(self, table: Table, per_class: int | None) -> Tensor:
        """Return the mean over the rows of a table.

        Args:
            table: Anchors and candidates.
            per_class: Rows of each class, if all have as many.
        """
        own = table.own(per_class)

        def terms(rows: slice, cosine: Tensor) -> tuple[Tensor, Tensor]:
            part, exists = table.rows(rows, cosine), own.positive[rows]
            listed = part.positive | part.negative
            if self.counts_anchor:
                listed = listed | part.itself
            scaled = cosine / self.temperature
            near, far = scaled.gather(1, own.column[rows]), torch.where(listed, scaled, -torch.inf)
            rank = 0.5 + count_above(near, far)  # one half: it is not above itself
            valid = exists.any(1) & part.negative.any(1)
            return torch.where(valid, self.value(rank, near, exists), 0.0).sum(), valid.sum()

        total, count = sum_over_rows(terms, table.cosine, tables=own.column.shape[1])
        return ratio(total, count)

    def value(self, rank: Tensor, near: Tensor, exists: Tensor) -> Tensor:
        """Return [R] the loss of each anchor.

        Args:
            rank: [R, S] ranks of its positives, from 1.
            near: [R, S] their cosines over the temperature.
            exists: [R, S] bool; elsewhere the other two are arbitrary.
        """
        raise NotImplementedError


@register(
    "loss",
    "recall-at-k",
    source="Patel et al. (CVPR 2022)",
    formula=(
        r"1 - \frac{1}{B} \sum_i \frac{1}{|\text{ks}|} \sum_{k \in \text{ks}} \frac{1}{\min(k, |P_i|)}"
        r" \min \left( k, \sum_{j \in P_i} \operatorname{sig} \frac{k - r_{ij}}{\text{rank\_temperature}}"
        r" \right), \quad r_{ij} = 1 + \sum_{l \neq i, j} \operatorname{sig} \frac{s_{il} -"
        r" s_{ij}}{\text{temperature}}, \quad \operatorname{sig} t = \frac{1}{1 + e^{-t}}"
    ),
    refusal=REFUSAL,
    inert=(
        Inert("rank_temperature", lambda o: o["form"] == "released", "with form: released, where it is k"),
    ),
)
class RecallAtK(RankTerm):
    """1 - the mean over `ks` of the recall in the first k images of each anchor's list, made smooth by two
    sigmoids.

    The mean over the anchors with a positive and a negative. The recall at k is the number of positives whose
    rank is at most k, over the largest number possible, min(k, |P|). A positive at rank k counts one half, so
    the value does not reach 0. With a large batch it estimates the recall in the whole gallery; the setting
    `chunk` of training allows it in little memory.

    With `mixup`, every two images of a class give a virtual one between them, a u + (1 - a) v of their unit
    vectors, not normalised, a uniform in [0, 1]: an anchor and a candidate like the others (SiMix). Its
    similarities are means of those of u and v. A batch with n images of each class grows by (n - 1) / 2 times
    its size. On accelerators and in compiled code all classes of a batch must then have as many images.

    Args:
        ks: Whole numbers from 1; by default 1, 2, 4, 8 and 16.
        temperature: Of the sigmoid of differences of cosines, above 0.
        rank_temperature: Of the sigmoid of k - rank, above 0.
        mixup: Add the virtual images.
        form: Paper, or released: an anchor is in its own list, so that other ranks begin at 2, and
            rank_temperature is k, as in the authors' code.
    """

    def __init__(
        self,
        ks: list[int] | None = None,
        temperature: float = 0.01,
        rank_temperature: float = 1.0,
        mixup: bool = False,
        form: Literal["paper", "released"] = "paper",
        *,
        per_class: int | None = None,
    ) -> None:
        super().__init__(temperature, per_class)
        require(ks is None or (bool(ks) and min(ks) >= 1), "ks", ks, "a list of whole numbers from 1")
        require(rank_temperature > 0, "rank_temperature", rank_temperature, "above 0")
        self.ks = list(ks or KS)
        self.mixup, self.counts_anchor = mixup, form == "released"
        self.rank_temperatures = self.ks if form == "released" else [rank_temperature] * len(self.ks)

    def forward(self, view: View) -> Tensor:
        if not self.mixup:
            return super().forward(view)
        table, size = view.anchors, self.per_class
        first, second = _siblings(view.labels, size)
        share = torch.rand(len(first), dtype=table.cosine.dtype, device=table.cosine.device)
        return self.over_rows(table.mixed(first, second, share), size and size * (size + 1) // 2)

    def value(self, rank: Tensor, near: Tensor, exists: Tensor) -> Tensor:
        count, recall = exists.sum(1), torch.zeros_like(rank[:, 0])
        for k, temperature in zip(self.ks, self.rank_temperatures, strict=True):
            found = torch.where(exists, ((k - rank) / temperature).sigmoid(), 0.0).sum(1)
            recall = recall + ratio(found.clamp(max=k), count.clamp(max=k))
        return 1 - recall / len(self.ks)


def _siblings(labels: Tensor, per_class: int | None) -> tuple[Tensor, Tensor]:
    """Return [V] and [V] the two samples of every pair of samples of one class."""
    if labels.device.type == "cpu" and not torch.compiler.is_compiling():
        first, second = (labels[:, None] == labels[None, :]).triu(1).nonzero(as_tuple=True)
        return first, second
    if per_class is None or len(labels) % per_class:
        raise ValueError(
            "mixup: on an accelerator all classes of a batch must have the same number of images; set "
            "batch.layout to exact"
        )
    members = labels.argsort(stable=True).view(-1, per_class)
    first, second = torch.triu_indices(per_class, per_class, 1, device=labels.device)
    return members[:, first].flatten(), members[:, second].flatten()


@register(
    "loss",
    "smooth-ap",
    source="Brown et al. (ECCV 2020), eq. 7",
    formula=(
        r"1 - \frac{1}{B} \sum_i \frac{1}{|P_i|} \sum_{j \in P_i} \frac{1 + \sum_{l \in P_i, \, l \neq j}"
        r" \operatorname{sig} \frac{s_{il} - s_{ij}}{\text{temperature}}}{1 + \sum_{l \neq i, j}"
        r" \operatorname{sig} \frac{s_{il} - s_{ij}}{\text{temperature}}},"
        r" \quad \operatorname{sig} t = \frac{1}{1 + e^{-t}}"
    ),
    refusal=REFUSAL,
)
class SmoothAP(RankTerm):
    """1 - the average precision of each anchor's list, made smooth by a sigmoid.

    The mean over the anchors with a positive and a negative. The average precision is the mean over the
    positives of their rank among the positives over their rank among all images. The authors' code and
    pytorch-metric-learning also count the anchor as the first of its own positives.

    Args:
        temperature: Of the sigmoid of differences of cosines, above 0.
    """

    def __init__(self, temperature: float = 0.01, *, per_class: int | None = None) -> None:
        super().__init__(temperature, per_class)

    def value(self, rank: Tensor, near: Tensor, exists: Tensor) -> Tensor:
        own = 0.5 + count_above(near, torch.where(exists, near, -torch.inf))
        return 1 - ratio(torch.where(exists, own / rank, 0.0).sum(1), exists.sum(1))
