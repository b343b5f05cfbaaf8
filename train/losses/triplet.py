"""Triplet losses: margin, cosine, NCA and selectively contrastive (SCT)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from train.losses.batch_all import AllTriplets, hinge_over_triplets, sum_over_triplets
from train.losses.mining import Mined, PositiveRule, RandomDisjointMiner, TripletMiner
from train.losses.negatives import NegativeSource
from train.losses.ops import ratio, safe_sqrt
from train.losses.registry import Inert, register, require
from train.losses.view import Measure, View

Reduction = Literal["mean", "mean-active", "sum"]
Pairs = Literal["alternate", "unordered", "ordered"]

PAIRS_ONLY = "vthm selects pairs; a triplet is selected by its positive and its negative"
SOURCES = ("batch", "optimal", "optimal-segment", "symmetric", "interpolated")


def hinge(positive: Tensor, negative: Tensor, margin: float) -> Tensor:
    """Return [negative - positive + margin]_+ of similarities."""
    return F.relu(negative - positive + margin)


def nca(positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """Return softplus((negative - positive) / temperature) of cosines (SCT, eq. 1)."""
    return F.softplus((negative - positive) / temperature)


def distance(similarity: Tensor, *, normalized: bool, squared: bool) -> Tensor:
    """Return the (squared) distance for a cosine, or for minus half a squared distance."""
    square = 2 - 2 * similarity if normalized else -2 * similarity
    return square if squared else safe_sqrt(square)


def resolve_measure(
    normalize: bool | None, negatives: NegativeSource | None, raw: Measure, default: bool
) -> Measure:
    """Return the similarity measure that a loss and its source of negatives work on.

    Args:
        normalize: Value in the specification, None if absent.
        negatives: Source of negatives, None for samples.
        raw: Measure of the loss on raw embeddings.
        default: Whether the loss normalises by default.

    Raises:
        ValueError: The source of negatives requires another measure.
    """
    measure: Measure = "cosine" if (default if normalize is None else normalize) else raw
    preferred = () if negatives is None else negatives.prefers
    proper = next((m for m in preferred if m in ("cosine", raw)), measure)
    if normalize is None or negatives is None:
        return proper
    if negatives.only_preferred and measure not in preferred:
        where = "on the unit sphere" if proper == "cosine" else "on raw embeddings"
        raise ValueError(
            f"normalize is {str(normalize).lower()}, but this source of negatives works {where}; leave it out"
        )
    return measure


def never_hard(mining: object) -> bool:
    """Return whether a miner selects only negatives that are less similar than the positive."""
    if not isinstance(mining, TripletMiner):
        return False
    return mining.negative == "semi-hard" and mining.fallback == "drop"


class TripletTerm(nn.Module):
    """Base class of the triplet losses: selection of triplets and averaging of their losses.

    With a source of negatives, every alternate pair is compared with every pair of another class. With a
    miner, every sample is an anchor and the loss is the mean over the mined triplets.
    """

    def __init__(
        self,
        negatives: NegativeSource | None,
        mining: TripletMiner | RandomDisjointMiner | None,
        measure: Measure,
        reduction: Reduction,
        pairs: Pairs = "ordered",
        default_positive: PositiveRule = "easy",
    ) -> None:
        super().__init__()
        self.negatives, self.mining, self.measure = negatives, mining, measure
        self.reduction, self.pairs, self.default_positive = reduction, pairs, default_positive
        self.unmined = TripletMiner("all", "all")
        self.paired = negatives is not None or (mining is None and pairs == "alternate")
        if isinstance(mining, RandomDisjointMiner):
            if negatives is not None:
                raise ValueError(
                    "mining rand-disjoint draws samples, but synthetic negatives are points of pairs; leave "
                    "out `negatives` or `mining`"
                )
            return
        if negatives is not None and mining is not None and mining.positive is not None:
            raise ValueError(
                f"mining.positive is {mining.positive!r}, but with synthetic negatives the positive of a "
                "sample is the other member of its pair; leave `positive` out"
            )
        if mining is not None and mining.duplicate_above is not None:
            if negatives is not None:
                raise ValueError(
                    "mining: duplicate_above has no effect with synthetic negatives, where the positive of a "
                    "sample is the other member of its pair; leave it out"
                )
            if measure != "cosine":
                raise ValueError(
                    "mining: duplicate_above is a cosine, but this loss works on raw embeddings; leave it "
                    "out or set normalize: true"
                )
        if measure != "cosine" and mining is not None and mining.negative == "distance-weighted":
            raise ValueError(
                "distance-weighted mining is defined on the unit sphere; this loss works on raw embeddings"
            )

    def values(self, similarity: Tensor) -> Tensor:
        """Return the similarity in terms of which the loss is defined, increasing in the mined one."""
        return similarity

    def losses(self, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the loss of every triplet from the values of its positive and its negative."""
        raise NotImplementedError

    def counts(self, positive: Tensor, negative: Tensor) -> Tensor | bool:
        """Return the mask of triplets that count."""
        return True

    def sum_over_all(self, positive: Tensor, exists: Tensor, negative: Tensor, mask: Tensor) -> AllTriplets:
        """Return the sums over all triplets of the values of positives [R, S] and negatives [R, C]."""
        return sum_over_triplets(self.losses, positive, exists, negative, mask, self.counts)

    def forward(self, view: View) -> Tensor:
        if isinstance(self.mining, RandomDisjointMiner):
            return self._over_drawn(view, self.mining)
        mining = self.mining or self.unmined
        if self.paired:
            return self._over_pairs(view, mining)
        table = view.anchors
        similarity = table.similarity(self.measure)
        if self.mining is None and self.pairs == "unordered":
            near, mask = similarity, table.positive & table.later
        else:
            near, mask = table.near(similarity)
        positive, exists = mining.positives(near, mask, self.default_positive)
        if mining.negative == "all" and positive.shape[1] > 1:
            return self._over_all(view, positive, exists, similarity, table.negative)
        return self._over_mined(
            view, mining.negatives(positive, exists, similarity, table.negative, dim=view.dim)
        )

    def _over_drawn(self, view: View, mining: RandomDisjointMiner) -> Tensor:
        drawn = mining.draw(view.candidate_labels, view.batch, view.usable)
        similarity = view.anchors.similarity(self.measure)
        positive, negative = (
            similarity[drawn.anchor, other][:, None] for other in (drawn.positive, drawn.negative)
        )
        return self._over_mined(view, Mined(positive, negative, drawn.valid[:, None]))

    def _over_pairs(self, view: View, mining: TripletMiner) -> Tensor:
        positive, exists = view.pair_similarity(self.measure)[:, None], view.pair_valid[:, None]  # [P, 1]
        if self.negatives is None:
            firsts = view.members.head(len(exists))
            similarity, mask = firsts.similarity(self.measure), firsts.negative  # [P, C]
        else:
            similarity, mask = self.negatives.closest(view, self.measure)  # [P, Q]
        return self._over_mined(view, mining.negatives(positive, exists, similarity, mask, dim=view.dim))

    def _over_mined(self, view: View, mined: Mined) -> Tensor:
        positive, negative, valid = mined
        valid = valid & self.counts(positive, negative)
        losses = torch.where(valid, self.losses(self.values(positive), self.values(negative)), 0.0)
        hard = (valid & (negative > positive)).sum()
        number = valid.sum(1)
        pairs = valid.any(1) if positive.shape[1] == 1 else number
        return self._reduce(view, losses.sum(1), number, pairs, (losses > 0).sum(), hard)

    def _over_all(
        self, view: View, positive: Tensor, exists: Tensor, similarity: Tensor, mask: Tensor
    ) -> Tensor:
        sums = self.sum_over_all(self.values(positive), exists, self.values(similarity), mask)
        pairs = torch.where(mask.any(1), exists.sum(1), 0)
        return self._reduce(view, sums.total, sums.number, pairs, sums.active, sums.hard)

    def _reduce(
        self, view: View, totals: Tensor, number: Tensor, pairs: Tensor, active: Tensor, hard: Tensor
    ) -> Tensor:
        """Reduce the sums and counts of triplets and positive pairs of each row to a scalar."""
        view.report["active_share"] = ratio(active, number.sum())
        view.report["hard_share"] = ratio(hard, number.sum())
        if self.reduction == "sum":
            return totals.sum()
        if self.reduction == "mean-active":
            return ratio(totals.sum(), active)
        return self.mean(totals, number, pairs)

    def mean(self, totals: Tensor, number: Tensor, pairs: Tensor) -> Tensor:
        """Return the mean over all triplets."""
        return ratio(totals.sum(), number.sum())


class _Hinge(TripletTerm):
    """Base class of the hinge losses [negative - positive + margin]_+."""

    margin: float

    def losses(self, positive: Tensor, negative: Tensor) -> Tensor:
        return hinge(positive, negative, self.margin)

    def sum_over_all(self, positive: Tensor, exists: Tensor, negative: Tensor, mask: Tensor) -> AllTriplets:
        return hinge_over_triplets(positive, exists, negative, mask, self.margin)


@register(
    "loss",
    "triplet",
    source="LoOp eqs. 14-15; Symm eqs. 3-4; FaceNet",
    formula=(
        r"\frac{1}{|\mathcal{P}|} \sum_{(a, p) \in \mathcal{P}} \sum_{n \in N_a}"
        r" \left[ d_{ap} - d_{an} + \text{margin} \right]_+"
    ),
    negatives=SOURCES,
    mining=("triplet", "rand-disjoint"),
    refusal=PAIRS_ONLY,
    inert=(
        Inert(
            "pairs",
            lambda o: o["negatives"] is None and o["mining"] is not None,
            "with `mining`, where every sample is an anchor",
        ),
        Inert(
            "pairs",
            lambda o: o["negatives"] is not None and o["pairs"] != "alternate",
            "with synthetic negatives, which come from alternate pairs",
        ),
        Inert(
            "negative_reduction",
            lambda o: o["mining"] is not None,
            "with `mining`, which averages over the mined triplets",
        ),
        Inert(
            "negative_reduction",
            lambda o: (
                (o["reduction"], o["negative_reduction"])
                in (("sum", "mean"), ("mean-active", "mean"), ("mean-active", "sum"))
            ),
            "with reduction sum or mean-active, which are taken over all triplets",
        ),
    ),
)
class Triplet(_Hinge):
    """Margin on the distances of triplets: [d(a, p) - d(a, n) + margin]_+.

    Without mining: the sum over negatives of each positive pair, averaged over the pairs; the first member
    of a pair is the anchor. With a source of negatives d(a, n) is the distance of the closest points.

    Published forms:

    - LoOp: eqs. 14 and 15 are the default, without and with `negatives: optimal`; Algorithm 1, line 7, takes
      the nearest pair of another class instead of the sum, `negative_reduction: min`. The rows "Triplet" of
      table 2 and "Rand-disjoint" of table 3 have the same numbers: `mining: {name: rand-disjoint}`.
    - Symm: eqs. 3 and 4 have squared distances, so `negatives: symmetric` is Symm's loss only with
      `squared: true`; the default is LoOp's, not squared.
    - FaceNet: `squared: true, mining: {positive: all, negative: semi-hard}`.

    Args:
        margin: Margin in units of the (squared) distance.
        squared: Use squared distances.
        normalize: Use unit vectors (default; with `optimal-segment` the default is the raw embeddings).
        pairs: Alternate, unordered or ordered positive pairs, without mining and without a source, which
            always uses alternate ones.
        negative_reduction: Sum or mean over the negatives of a pair, or the nearest negative alone (min),
            without mining.
        reduction: Mean, mean over the active (positive) terms, or sum.
    """

    def __init__(
        self,
        margin: float = 0.2,
        squared: bool = False,
        normalize: bool | None = None,
        pairs: Pairs = "alternate",
        negative_reduction: Literal["sum", "mean", "min"] = "sum",
        reduction: Reduction = "mean",
        *,
        negatives: NegativeSource | None = None,
        mining: TripletMiner | RandomDisjointMiner | None = None,
    ) -> None:
        measure = resolve_measure(normalize, negatives, "distance", default=True)
        super().__init__(negatives, mining, measure, reduction, pairs)
        self.margin, self.squared, self.negative_reduction = margin, squared, negative_reduction
        if negative_reduction == "min":
            self.unmined = TripletMiner("all", "hard")

    def values(self, similarity: Tensor) -> Tensor:
        return -distance(similarity, normalized=self.measure == "cosine", squared=self.squared)

    def mean(self, totals: Tensor, number: Tensor, pairs: Tensor) -> Tensor:
        if self.mining is not None:
            return super().mean(totals, number, pairs)
        if self.negative_reduction == "mean":
            totals = totals * pairs / number.clamp(min=1)
        return ratio(totals.sum(), pairs.sum())


@register(
    "loss",
    "triplet-cosine",
    source="RAW eq. 7",
    formula=(
        r"\frac{1}{|\mathcal{T}|} \sum_{(a, p, n) \in \mathcal{T}} \left[ s_{an} - s_{ap} +"
        r" \text{margin} \right]_+"
    ),
    negatives=SOURCES,
    mining=("triplet", "rand-disjoint"),
    refusal=PAIRS_ONLY,
)
class TripletCosine(_Hinge):
    """Margin on the cosines of triplets: [s(a, n) - s(a, p) + margin]_+, the mean over all triplets.

    Args:
        margin: Margin in units of the cosine.
        reduction: Mean, mean over the active (positive) terms, or sum.
    """

    def __init__(
        self,
        margin: float = 0.1,
        reduction: Reduction = "mean",
        *,
        negatives: NegativeSource | None = None,
        mining: TripletMiner | RandomDisjointMiner | None = None,
    ) -> None:
        super().__init__(negatives, mining, "cosine", reduction)
        self.margin = margin


@register(
    "loss",
    "triplet-nca",
    source="SCT eq. 1",
    formula=(
        r"\frac{1}{|\mathcal{T}|} \sum_{(a, p, n) \in \mathcal{T}}"
        r" \log \left( 1 + \exp \frac{s_{an} - s_{ap}}{\text{temperature}} \right)"
    ),
    negatives=SOURCES,
    mining=("triplet", "rand-disjoint"),
    refusal=PAIRS_ONLY,
    default_mining={"negative": "hard"},
)
class TripletNCA(TripletTerm):
    """Softmax of triplets: softplus((s(a, n) - s(a, p)) / temperature), the mean over mined triplets.

    Mines the easy positive and the hard negative by default.

    Args:
        temperature: Above 0.
        reduction: Mean or sum.
    """

    def __init__(
        self,
        temperature: float = 1.0,
        reduction: Literal["mean", "sum"] = "mean",
        *,
        negatives: NegativeSource | None = None,
        mining: TripletMiner | RandomDisjointMiner | None = None,
    ) -> None:
        super().__init__(negatives, mining, "cosine", reduction)
        require(temperature > 0, "temperature", temperature, "above 0")
        self.temperature = temperature

    def losses(self, positive: Tensor, negative: Tensor) -> Tensor:
        return nca(positive, negative, self.temperature)


@register(
    "loss",
    "sct",
    source="SCT eq. 13",
    formula=(
        r"\frac{1}{|\mathcal{T}|} \sum_{(a, p, n) \in \mathcal{T}} \begin{cases}"
        r" \text{weight} \cdot s_{an} & s_{an} > s_{ap} \\"
        r" \log \left( 1 + \exp \frac{s_{an} - s_{ap}}{\text{temperature}} \right) & \operatorname{else}"
        r" \end{cases}"
    ),
    negatives=SOURCES,
    mining=("triplet", "rand-disjoint"),
    refusal=PAIRS_ONLY,
    default_mining={"negative": "hard"},
    inert=(
        Inert("temperature", lambda o: o["base"] == "margin", "with base margin"),
        Inert("margin", lambda o: o["base"] == "nca", "with base nca"),
        Inert(
            "weight",
            lambda o: o["gate"] is None and never_hard(o["mining"]),
            "with mining negative: semi-hard, which selects no hard negative",
        ),
    ),
)
class SelectivelyContrastive(TripletTerm):
    """Push hard negatives away instead of comparing them: weight * s(a, n) where s(a, n) > s(a, p), else the
    base loss; the mean over mined triplets.

    Discontinuous at s(a, n) = s(a, p). Mines the easy positive and the hard negative by default.

    Args:
        weight: Weight of the contrastive term (the paper: 1 on CUB and Cars, 0.1 on larger sets).
        base: Loss of the other triplets: nca, softplus((s_an - s_ap) / temperature), or margin,
            [2 (s_an - s_ap) + margin]_+.
        temperature: Above 0, for base nca.
        margin: Margin, for base margin.
        gate: Negatives more similar than this are hard as well; exact ties then count as neither (the
            authors' code: 0.8).
        reduction: Mean or sum.
    """

    def __init__(
        self,
        weight: float = 1.0,
        base: Literal["nca", "margin"] = "nca",
        temperature: float = 1.0,
        margin: float = 0.2,
        gate: float | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        *,
        negatives: NegativeSource | None = None,
        mining: TripletMiner | RandomDisjointMiner | None = None,
    ) -> None:
        super().__init__(negatives, mining, "cosine", reduction)
        require(temperature > 0, "temperature", temperature, "above 0")
        self.weight, self.base, self.gate = weight, base, gate
        self.temperature, self.margin = temperature, margin

    def counts(self, positive: Tensor, negative: Tensor) -> Tensor | bool:
        if self.gate is None:
            return True
        tied = (negative == positive) | (negative == self.gate)
        return ~tied | (negative > self.gate)

    def losses(self, positive: Tensor, negative: Tensor) -> Tensor:
        if self.base == "nca":
            base = nca(positive, negative, self.temperature)
        else:
            base = F.relu(2 * (negative - positive) + self.margin)
        hard = negative > positive
        if self.gate is not None:
            hard = hard | (negative > self.gate)
        return torch.where(hard, self.weight * negative, base)
