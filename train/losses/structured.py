"""Lifted-structure losses and HPHN triplet: each positive pair against its hardest or all negatives."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from train.losses.mining import PairMiner
from train.losses.negatives import NegativeSource
from train.losses.ops import masked_logsumexp, masked_max, ratio
from train.losses.pairwise import NO_PAIRS, PairTerm
from train.losses.registry import register
from train.losses.triplet import SOURCES, distance, resolve_measure
from train.losses.view import View

BY_DEFINITION = "its positives and negatives are part of its definition"


class HardPairTerm(nn.Module):
    """Base class of the hardest-negative losses: one hinge for every alternate pair."""

    paired = True

    def __init__(self, margin: float, normalize: bool | None, negatives: NegativeSource | None) -> None:
        super().__init__()
        self.margin, self.negatives = margin, negatives
        self.measure = resolve_measure(normalize, negatives, "distance", default=True)

    def _distance(self, similarity: Tensor) -> Tensor:
        return distance(similarity, normalized=self.measure == "cosine", squared=False)

    def _per_member(self, similarity: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return [P] the largest selected similarity of either member of each pair, and whether it exists."""
        value, some = masked_max(similarity, mask)  # [2P]
        value = torch.where(some, value, -torch.inf).unflatten(0, (2, -1)).max(0).values
        some = some.unflatten(0, (2, -1)).any(0)
        return torch.where(some, value, 0.0), some

    def _hardest_negative(self, view: View) -> tuple[Tensor, Tensor]:
        """Return [P] the similarity of the hardest negative of each pair, and whether it exists."""
        if self.negatives is not None:
            return masked_max(*self.negatives.closest(view, self.measure))
        return self._per_member(view.members.similarity(self.measure), view.members.negative)

    def _hinge(self, view: View, positive: Tensor, negative: Tensor, some: Tensor) -> Tensor:
        """Return the mean over the pairs of [positive - negative + margin]_+ of distances [P]."""
        valid = view.pair_valid & some
        losses = torch.where(valid, F.relu(positive - negative + self.margin), 0.0)
        view.report["active_share"] = ratio((losses > 0).sum(), valid.sum())
        view.report["hard_share"] = ratio((valid & (negative < positive)).sum(), valid.sum())
        return ratio(losses.sum(), valid.sum())


@register(
    "loss",
    "hphn-triplet",
    source="LoOp section 3.3.2",
    formula=(
        r"\frac{1}{|\mathcal{P}|} \sum_{(i, j) \in \mathcal{P}} \left[ \max(h_i, h_j) + \text{margin}"
        r" - \underset{k \in N_i}{\min} \, \min(d_{ik}, d_{jk}) \right]_+,"
        r" \quad h_i = \underset{j \in P_i}{\max} \, d_{ij}"
    ),
    negatives=SOURCES,
    refusal=f"no miner: {BY_DEFINITION}",
)
class HardPositiveHardNegative(HardPairTerm):
    """Per alternate pair (i, j), [max(h_i, h_j) + margin - nearest negative of either]_+, h the distance of
    the farthest positive.

    The mean over the pairs. With a source the nearest negative is the closest pair of another class.

    Args:
        margin: Margin in units of the distance.
        normalize: Use unit vectors (default; with `optimal-segment` the default is the raw embeddings).
    """

    def __init__(
        self, margin: float = 0.2, normalize: bool | None = None, *, negatives: NegativeSource | None = None
    ) -> None:
        super().__init__(margin, normalize, negatives)

    def forward(self, view: View) -> Tensor:
        near, own = view.members.near(view.members.similarity(self.measure))
        farthest, _ = self._per_member(-near, own)
        negative, some = self._hardest_negative(view)
        return self._hinge(view, self._distance(-farthest), self._distance(negative), some)


@register(
    "loss",
    "lifted-hard",
    source="LoOp eq. 16",
    formula=(
        r"\frac{1}{|\mathcal{P}|} \sum_{(i, j) \in \mathcal{P}} \left[ d_{ij} + \text{margin}"
        r" - \underset{k \in N_i}{\min} \, \min(d_{ik}, d_{jk}) \right]_+"
    ),
    negatives=SOURCES,
    refusal=f"no miner: {BY_DEFINITION}",
)
class LiftedHard(HardPairTerm):
    """Per alternate pair (i, j), [d_ij + margin - nearest negative of either]_+: the hard form of lifted.

    The mean over the pairs. With a source the nearest negative is the closest pair of another class.

    Args:
        margin: Margin in units of the distance.
        normalize: Use unit vectors (default; with `optimal-segment` the default is the raw embeddings).
        pooling: Min, or logsumexp for the soft minimum -log Σ exp(-d) (the authors' code).
    """

    def __init__(
        self,
        margin: float = 0.2,
        normalize: bool | None = None,
        pooling: Literal["min", "logsumexp"] = "min",
        *,
        negatives: NegativeSource | None = None,
    ) -> None:
        super().__init__(margin, normalize, negatives)
        self.pooling = pooling

    def forward(self, view: View) -> Tensor:
        positive = self._distance(view.pair_similarity(self.measure))
        if self.pooling == "min":
            negative, some = self._hardest_negative(view)
            return self._hinge(view, positive, self._distance(negative), some)
        if self.negatives is not None:
            similarity, mask = self.negatives.closest(view, self.measure)
        else:
            pairs = len(positive)
            similarity = torch.cat(view.members.similarity(self.measure).split(pairs), 1)  # [P, 2C]
            mask = torch.cat(view.members.negative.split(pairs), 1)
        some = mask.any(1)
        soft_min = -masked_logsumexp(-self._distance(similarity), mask)
        return self._hinge(view, positive, torch.where(some, soft_min, 0.0), some)


@register(
    "loss",
    "lifted",
    source="Oh Song et al. (CVPR 2016); Symm eqs. 5-6",
    formula=(
        r"\frac{1}{2 |\mathcal{P}|} \sum_{(i, j) \in \mathcal{P}} \left[ \log \sum_{k \in N_i}"
        r" \left( e^{\text{margin} - d_{ik}} + e^{\text{margin} - d_{jk}} \right) + d_{ij} \right]_+^2"
    ),
    negatives=SOURCES,
    refusal=f"no miner: {BY_DEFINITION}",
)
class Lifted(nn.Module):
    """Per positive pair, [log Σ exp(margin - d_ik) over the negatives of both members + d_ij]²_+.

    The mean over the pairs, halved for samples (Symm eq. 5); not halved for a source (eq. 6), where the sum
    runs over the pairs of other classes. A reference's own negatives are those in the batch.

    Args:
        margin: Margin in units of the distance.
        normalize: Use unit vectors (default; with `optimal-segment` the default is the raw embeddings).
        pairs: Unordered (default), ordered or alternate pairs; a source always uses alternate ones.
    """

    def __init__(
        self,
        margin: float = 1.0,
        normalize: bool | None = None,
        pairs: Literal["unordered", "ordered", "alternate"] | None = None,
        *,
        negatives: NegativeSource | None = None,
    ) -> None:
        super().__init__()
        self.margin, self.negatives = margin, negatives
        self.pairs = pairs or ("unordered" if negatives is None else "alternate")
        if negatives is not None and self.pairs != "alternate":
            raise ValueError(
                f"pairs is {pairs!r}, but synthetic negatives need alternate pairs; leave `pairs` out"
            )
        self.measure = resolve_measure(normalize, negatives, "distance", default=True)
        self.paired = self.pairs == "alternate"

    def _distance(self, similarity: Tensor) -> Tensor:
        return distance(similarity, normalized=self.measure == "cosine", squared=False)

    def forward(self, view: View) -> Tensor:
        if self.negatives is not None:
            closest, mask = self.negatives.closest(view, self.measure)  # [P, Q]
            negative = masked_logsumexp(self.margin - self._distance(closest), mask)
            return self._mean(
                view, negative, self._distance(view.pair_similarity(self.measure)), view.pair_valid
            )
        table = view.members if self.paired else view.anchors
        distances = self._distance(table.similarity(self.measure))  # [R, C]
        negative = masked_logsumexp(self.margin - distances, table.negative)  # [R]
        if self.paired:
            positive = self._distance(view.pair_similarity(self.measure))
            joint = torch.logaddexp(*negative.unflatten(0, (2, -1)).unbind(0))
            return 0.5 * self._mean(view, joint, positive, view.pair_valid)
        mask = table.positive & table.later if self.pairs == "unordered" else table.positive
        # logaddexp of the rows' log-sums: one logarithm per pair for the joint sum.
        others = negative
        if distances.shape[1] != distances.shape[0]:
            others = masked_logsumexp(self.margin - distances, table.negative, dim=0)  # [C]
        return 0.5 * self._mean(view, torch.logaddexp(negative[:, None], others[None, :]), distances, mask)

    def _mean(self, view: View, negative: Tensor, positive: Tensor, mask: Tensor) -> Tensor:
        losses = torch.where(mask & (negative > -torch.inf), F.relu(negative + positive), 0.0).square()
        count = mask.sum()
        view.report["active_share"] = ratio((losses > 0).sum(), count)
        return ratio(losses.sum(), count)


@register(
    "loss",
    "lifted-generalized",
    source="Hermans et al. (2017); RAW eq. 9, sign corrected",
    formula=(
        r"\frac{1}{B} \sum_i \left[ \log \sum_{j \in P_i} e^{-s_{ij}}"
        r" + \log \sum_{k \in N_i} e^{\text{margin} + s_{ik}} \right]_+"
    ),
    mining=("vthm", "triplet"),
    refusal=f"generalised lifted {NO_PAIRS}",
)
class LiftedGeneralized(PairTerm):
    """Per anchor, [log Σ exp(-s) over positives + log Σ exp(margin + s) over negatives]_+.

    The mean over all anchors; those without a positive or a negative count as 0.

    Args:
        margin: Margin in units of the cosine.
        form: Corrected, or printed: - log Σ exp(margin - s) over negatives, as in RAW eq. 9, which is 0 on
            nearly every batch and pushes the easiest negatives most.
    """

    def __init__(
        self,
        margin: float = 0.5,
        form: Literal["corrected", "printed"] = "corrected",
        *,
        mining: PairMiner | None = None,
    ) -> None:
        super().__init__(mining)
        self.margin, self.form = margin, form

    def total(self, near: Tensor, positive: Tensor, far: Tensor, negative: Tensor) -> Tensor:
        sign = 1 if self.form == "corrected" else -1
        pull = masked_logsumexp(-near, positive)
        push = sign * masked_logsumexp(self.margin + sign * far, negative)
        valid = positive.any(1) & negative.any(1)
        return torch.where(valid, F.relu(pull + push), 0.0).sum()
