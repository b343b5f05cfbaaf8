"""CoSENT: the cosines of pairs in the order of their values."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from train.losses.ops import masked_logsumexp, ratio
from train.losses.registry import register, require
from train.losses.view import PairsView, View


@register(
    "loss",
    "cosent",
    source="Su (2022)",
    formula=(
        r"\log \left( 1 + \sum_{i, j \in P_i} \sum_{l, k \in N_l}"
        r" e^{\text{scale} \, (s_{lk} - s_{ij})} \right)"
    ),
    refusal="cosent compares pairs with pairs: it has no positive pair to synthesise from or to mine",
)
class CoSent(nn.Module):
    """log(1 + Σ exp(scale (s_q - s_p))) over all pairs p and q of which p should be more alike.

    Of pairs with scores, these are in their order; the scale of the scores does not matter. In a batch of
    classes, p are the positives of all anchors, and q are the negatives of all anchors.

    Args:
        scale: Of the cosines, above 0.
    """

    paired = False
    takes_pairs = takes_scores = True

    def __init__(self, scale: float = 20.0) -> None:
        super().__init__()
        require(scale > 0, "scale", scale, "above 0")
        self.scale = scale

    def forward(self, view: View) -> Tensor:
        if isinstance(view, PairsView):
            return self._of_scores(view)
        table = view.anchors
        near, positive = table.near(table.cosine)
        pulls = _logsumexp(-self.scale * near, positive)
        pushes = _logsumexp(self.scale * table.cosine, table.negative)
        return _softplus(pulls + pushes, positive.any() & table.negative.any())

    def _of_scores(self, view: PairsView) -> Tensor:
        cosine = view.anchors.cosine[:, 0]
        ordered = (view.values[:, None] > view.values) & view.counted[:, None] & view.counted  # [P, P]
        gap = cosine - cosine[:, None]  # [p, q]: s_q - s_p
        view.report["hard_share"] = ratio((ordered & (gap > 0)).sum(), ordered.sum())
        return _softplus(_logsumexp(self.scale * gap, ordered), ordered.any())


def _logsumexp(x: Tensor, mask: Tensor) -> Tensor:
    return masked_logsumexp(x.flatten(), mask.flatten(), 0)


def _softplus(x: Tensor, exists: Tensor) -> Tensor:
    """Return log(1 + exp(x)), and 0 without a pair of pairs."""
    return torch.where(exists, F.softplus(torch.where(exists, x, 0.0)), 0.0)
