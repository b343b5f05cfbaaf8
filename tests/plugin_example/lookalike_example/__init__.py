"""Plug-ins for training: a loss, a source of negatives, a miner, a regularizer and a backbone."""

from __future__ import annotations

from torch import Tensor, nn

from train.losses.mining import Mined, TripletMiner
from train.losses.negatives import OptimalSegments
from train.losses.view import View


class Gap(nn.Module):
    """Mean cosine with other classes minus mean cosine with the own class, plus a margin, at least 0.

    Args:
        margin: Gap from which an anchor contributes nothing.
    """

    def __init__(self, margin: float = 0.5) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, view: View) -> Tensor:
        table = view.anchors
        own, other = (
            (table.cosine * mask).sum(1) / mask.sum(1).clamp(min=1)
            for mask in (table.positive, table.negative)
        )
        return (other - own + self.margin).relu().mean()


class Mirrored(OptimalSegments):
    """The nearest points of two segments, as `optimal-segment` has them."""


class SecondHardest(TripletMiner):
    """The second most similar negative of each anchor: the most similar one may have a wrong label."""

    def __init__(self) -> None:
        super().__init__("easy", "hard")

    def negatives(
        self, positive: Tensor, valid: Tensor, similarity: Tensor, mask: Tensor, *, dim: int
    ) -> Mined:
        first = similarity.detach().masked_fill(~mask, -2).argmax(1, keepdim=True)
        rest = mask.scatter(1, first, False)
        return super().negatives(positive, valid, similarity, rest, dim=dim)


class Centered(nn.Module):
    """Squared length of the mean of the unit embeddings of a batch."""

    def forward(self, view: View) -> Tensor:
        return view.unit.mean(0).square().sum()


def tiny() -> nn.Module:
    """Return a network of one convolution, [N, 3, S, S] -> [N, 8, S / 4, S / 4]."""
    return nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.BatchNorm2d(8), nn.ReLU())
