"""Margin loss with a learnable boundary between positive and negative distances."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from train.losses.checks import check_classes
from train.losses.mining import TripletMiner
from train.losses.ops import ratio
from train.losses.registry import register
from train.losses.triplet import distance
from train.losses.view import Table, View


@register(
    "loss",
    "margin",
    source="Wu et al. (ICCV 2017), eq. 5",
    formula=(
        r"\frac{1}{\operatorname{active}} \sum_{(a, p, n) \in \mathcal{T}} \left("
        r" \left[ d_{ap} - \text{boundary} + \text{margin} \right]_+"
        r" + \left[ \text{boundary} - d_{an} + \text{margin} \right]_+ \right)"
    ),
    mining=("triplet",),
    default_mining={"positive": "all", "negative": "distance-weighted"},
    refusal="it has no positive pair to synthesise from, and mines by the rules of the triplet miner",
)
class Margin(nn.Module):
    """[d(a, p) - boundary + margin]_+ + [boundary - d(a, n) + margin]_+ over triplets, mean of active terms.

    By default draws one distance-weighted negative for each ordered positive pair.

    Args:
        margin: Margin in units of the distance.
        boundary: Boundary between positive and negative distances, or its initial value.
        learn: none, shared (one learnt boundary) or per-class; a parameter of the module that needs a
            learning rate of its own.
    """

    paired = False

    def __init__(
        self,
        margin: float = 0.2,
        boundary: float = 1.2,
        learn: Literal["none", "shared", "per-class"] = "none",
        *,
        num_classes: int | None = None,
        mining: TripletMiner | None = None,
    ) -> None:
        super().__init__()
        if learn == "per-class" and num_classes is None:
            raise ValueError("'margin' learns a boundary for each class; pass num_classes to build")
        self.margin, self.learn, self.mining = margin, learn, mining or TripletMiner("all", "all")
        self.boundary: nn.Parameter | float = boundary
        if learn != "none":
            count = num_classes if learn == "per-class" and num_classes else 1
            self.boundary = nn.Parameter(torch.full((count,), float(boundary)))

    def forward(self, view: View) -> Tensor:
        table = view.anchors
        boundary = self._boundary(view, table)
        positive, exists = self.mining.positives(*table.near(table.cosine), "all")
        if self.mining.negative == "all" and positive.shape[1] > 1:  # each pair, times its partners
            negative, has_negative = table.cosine, table.negative
            pulls = exists * has_negative.sum(1, keepdim=True)
            pushes = has_negative * exists.sum(1, keepdim=True)
        else:
            positive, negative, valid = self.mining.negatives(
                positive, exists, table.cosine, table.negative, dim=view.dim
            )
            pulls = pushes = valid.to(torch.int64)
        pull = F.relu(distance(positive, normalized=True, squared=False) - boundary + self.margin)
        push = F.relu(boundary - distance(negative, normalized=True, squared=False) + self.margin)
        active = (pulls * (pull > 0)).sum() + (pushes * (push > 0)).sum()
        view.report["active_share"] = ratio(active, pulls.sum() + pushes.sum())
        total = (
            torch.where(pulls > 0, pulls * pull, 0.0).sum()
            + torch.where(pushes > 0, pushes * push, 0.0).sum()
        )
        return ratio(total, active)

    def _boundary(self, view: View, table: Table) -> Tensor | float:
        """Return one boundary for all, or [B, 1] for the class of each anchor."""
        if not isinstance(self.boundary, nn.Parameter):
            return self.boundary
        boundary = self.boundary.to(table.cosine.dtype)
        if self.learn == "shared":
            return boundary
        check_classes(view.labels, len(boundary))
        return boundary[table.labels.long()][:, None]
