"""Tuplet losses: N-pair and angular, one positive pair against many negatives."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from train.losses.negatives import NegativeSource, Symmetric
from train.losses.ops import masked_sum, ratio
from train.losses.pairwise import log_one_plus_sum_exp
from train.losses.registry import register, require
from train.losses.structured import BY_DEFINITION
from train.losses.triplet import SOURCES, resolve_measure
from train.losses.view import View

Candidates = Literal["all", "positives"]
Combinations = Literal["all", "released"]


def _mean_over_pairs(view: View, terms: Tensor) -> Tensor:
    """Return the mean of [A, P] terms over the valid pairs."""
    valid = view.pair_valid.expand_as(terms)
    return ratio(masked_sum(terms, valid), valid.sum())


def _check_combinations(combinations: Combinations, negatives: NegativeSource | None) -> None:
    if combinations == "all":
        return
    if not isinstance(negatives, Symmetric):
        raise ValueError("combinations: released requires mirrored points; set negatives to symmetric")
    if negatives.top_k != 1:
        raise ValueError(
            f"top_k is {negatives.top_k}, but the released combinations keep the hardest one; "
            "leave out top_k or combinations"
        )


class PairAgainstAll(nn.Module):
    """Base class of N-pair and angular: every alternate pair against all its negatives in one softmax."""

    paired = True

    def __init__(
        self,
        normalize: bool | None,
        l2_reg: float,
        negatives: NegativeSource | None,
        combinations: Combinations,
    ) -> None:
        super().__init__()
        _check_combinations(combinations, negatives)
        require(l2_reg >= 0, "l2_reg", l2_reg, "0 or more")
        self.l2_reg, self.negatives, self.combinations = l2_reg, negatives, combinations
        self.measure = resolve_measure(normalize, negatives, "dot", default=False)

    def forward(self, view: View) -> Tensor:
        value = _mean_over_pairs(view, self.terms(view))
        if self.l2_reg:
            value = value + 0.25 * self.l2_reg * 2 * _mean_over_pairs(view, view.pair_squares)
        return value

    def terms(self, view: View) -> Tensor:
        """Return [A, P] the loss of every pair, once or for each of its members as the anchor."""
        raise NotImplementedError

    def _compare(self, view: View, positive: Tensor, negative: Tensor, mask: Tensor) -> Tensor:
        """Return [P] log(1 + Σ exp(negative - positive)) over the selected negatives [P, N]."""
        gap = negative - positive[:, None]
        view.report["active_share"] = ratio((mask & (gap > 0)).sum(), mask.sum())
        return log_one_plus_sum_exp(gap, mask)

    def _mirrored(self, view: View) -> tuple[Tensor, Tensor, Tensor]:
        """Return similarities of mirrored points.

        Returns:
            [4, 4, P, Q] similarities of the points (i, j, i', j') of p and q; [1, Q] bool, q has two members;
            and the [P, Q] mask of negatives.
        """
        assert isinstance(self.negatives, Symmetric)
        normalized = self.measure == "cosine"
        tables, masks = zip(*self.negatives.tables(view, normalized=normalized), strict=True)
        parts = [self.negatives.similarities(table, normalized=normalized) for table in tables]
        apart = torch.cat([table.q.gap > 0 for table in tables], 1)
        return torch.cat(parts, 3), apart, torch.cat(masks, 1)


@register(
    "loss",
    "n-pair",
    source="Sohn (NeurIPS 2016); Symm eqs. 7-8; DCDL eq. 3",
    formula=(
        r"\frac{1}{|\mathcal{P}|} \sum_{(i, j) \in \mathcal{P}}"
        r" \log \left( 1 + \sum_{k \in N_i} e^{x_i \cdot x_k - x_i \cdot x_j} \right)"
    ),
    negatives=SOURCES,
    refusal=f"no miner: {BY_DEFINITION}",
)
class NPair(PairAgainstAll):
    """Per alternate pair (i, j), log(1 + Σ exp(S_ik - S_ij)) over the negatives k of i.

    The mean over the pairs. With a source, one term for each pair of another class: its closest points.

    Args:
        candidates: All samples of other classes, or the positives (second members) of the other pairs.
        anchors: The first member of each pair, or both in turn.
        normalize: Use cosines instead of raw dot products; the default is raw for samples and for mirrored
            points, cosines for the other sources.
        l2_reg: Adds l2_reg / 4 times the mean squared lengths of first and of second members (0.002 in the
            code of Symm's authors).
        combinations: With mirrored points, all 16, or the 6 of the authors' code, which pools the positive
            logit over them as well.
    """

    def __init__(
        self,
        candidates: Candidates = "all",
        anchors: Literal["first", "both"] = "first",
        normalize: bool | None = None,
        l2_reg: float = 0.0,
        combinations: Combinations = "all",
        *,
        negatives: NegativeSource | None = None,
    ) -> None:
        super().__init__(normalize, l2_reg, negatives, combinations)
        if negatives is not None and (candidates, anchors) != ("all", "first"):
            raise ValueError(
                "with synthetic negatives a pair is compared as a whole; leave out candidates and anchors"
            )
        self.candidates, self.anchors = candidates, anchors

    def terms(self, view: View) -> Tensor:
        positive = view.pair_similarity(self.measure)  # [P]
        if self.combinations == "released":
            similarity, apart, mask = self._mirrored(view)
            u, v = torch.triu_indices(4, 4, 1, device=similarity.device)
            logits, which = similarity[u, v].max(0)  # [P, Q]
            view.count_points((u[which] > 1).long() + ((v[which] > 1) & apart), 2, mask)
            return self._compare(view, logits.diagonal(), logits, mask)[None]
        if self.negatives is not None:
            closest, mask = self.negatives.closest(view, self.measure)
            return self._compare(view, positive, closest, mask)[None]
        negative, mask = self._samples(view, len(positive))
        anchors = len(negative) // len(positive)
        return self._compare(view, positive.repeat(anchors), negative, mask).view(anchors, -1)

    def _samples(self, view: View, pairs: int) -> tuple[Tensor, Tensor]:
        """Return the candidates of the first, and possibly the second, members with the negative mask."""
        if self.candidates == "positives":
            tables = view.pair_tables(normalized=self.measure == "cosine")
            both = (tables.il, tables.jk)[: 1 + (self.anchors == "both")]
            return torch.cat(both), view.pair_negative.repeat(len(both), 1)
        table = view.members if self.anchors == "both" else view.members.head(pairs)
        return table.similarity(self.measure), table.negative


@register(
    "loss",
    "angular",
    source="Wang et al. (ICCV 2017); Symm eqs. 9-10; DCDL eq. 4",
    formula=(
        r"\frac{1}{|\mathcal{P}|} \sum_{(i, j) \in \mathcal{P}} \log \left( 1 + \sum_{k \in N_i} e^{"
        r"4 t (x_i + x_j) \cdot x_k - 2 (1 + t) \, x_i \cdot x_j} \right), \quad t = \tan^2 \text{angle}"
    ),
    negatives=SOURCES,
    refusal=f"no miner: {BY_DEFINITION}",
)
class Angular(PairAgainstAll):
    """Per alternate pair (i, j), log(1 + Σ exp(4 tan²a (x_i + x_j)·x_k - 2 (1 + tan²a) x_i·x_j)).

    The mean over the pairs; k runs over the samples of other classes. With mirrored points, each pair of
    another class counts once, by the largest of the 24 triplets of two distinct points of p and one of q.
    With the other sources both dot products with the negative become that of the closest points.

    Args:
        angle: Angle a in degrees, between 0 and 90.
        candidates: See n-pair; positives in the code of Symm's authors.
        anchors: First or both; the loss is symmetric in i and j, so both give the same value.
        normalize, l2_reg: See n-pair.
        combinations: With mirrored points, all 24, or the 12 of the authors' code, which pools the positive
            logit over them as well.
    """

    def __init__(
        self,
        angle: float = 45.0,
        candidates: Candidates = "all",
        anchors: Literal["first", "both"] = "first",
        normalize: bool | None = None,
        l2_reg: float = 0.0,
        combinations: Combinations = "all",
        *,
        negatives: NegativeSource | None = None,
    ) -> None:
        super().__init__(normalize, l2_reg, negatives, combinations)
        require(0 < angle < 90, "angle", angle, "between 0 and 90 degrees")
        if negatives is not None and candidates != "all":
            raise ValueError("with synthetic negatives a pair is compared as a whole; leave out candidates")
        self.candidates, self.anchors = candidates, anchors
        self.slope = math.tan(math.radians(angle)) ** 2

    def terms(self, view: View) -> Tensor:
        positive = view.pair_similarity(self.measure)  # [P]
        if self.combinations == "released":
            similarity, apart, mask = self._mirrored(view)
            number = torch.arange(12, device=positive.device)  # ordered couples of different points
            x, y = number // 3, number % 3
            y = y + (y >= x)
            positive = similarity.diagonal(dim1=2, dim2=3)[x, y].max(0).values
            negative, which = (similarity[x, y] + similarity[y, y]).max(0)  # [P, Q]
            x, y = x[which], y[which]
            view.count_points((x > 1).long() + (y > 1) + ((y > 1) & apart), 3, mask)
        elif isinstance(self.negatives, Symmetric):
            similarity, apart, mask = self._mirrored(view)
            x, y = torch.triu_indices(4, 4, 1, device=positive.device)
            triplets = (similarity[x] + similarity[y]).flatten(0, 1)  # [24, P, Q]
            negative, which = self.negatives.hardest(triplets)
            two, other = which // 4, which % 4
            view.count_points((x[two] > 1).long() + (y[two] > 1) + ((other > 1) & apart), 3, mask)
        elif self.negatives is not None:
            closest, mask = self.negatives.closest(view, self.measure)
            negative = 2 * closest
        elif self.candidates == "positives":
            tables = view.pair_tables(normalized=self.measure == "cosine")
            negative, mask = tables.il + tables.jl, view.pair_negative  # [P, Q]
        else:
            first, second = view.members.similarity(self.measure).unflatten(0, (2, -1)).unbind(0)
            negative, mask = first + second, view.members.negative[: len(positive)]  # [P, C]
        return self._compare(view, 2 * (1 + self.slope) * positive, 4 * self.slope * negative, mask)[None]


@register(
    "loss",
    "angular-n-pair",
    source="Wang et al. (ICCV 2017); DCDL section 5.2",
    formula=(
        r"L_{\operatorname{n-pair}} + \text{angular\_weight} \cdot"
        r" L_{\operatorname{angular}}(\text{angle})"
    ),
    negatives=SOURCES,
    refusal=f"no miner: {BY_DEFINITION}",
)
class AngularNPair(nn.Module):
    """The N-pair loss plus angular_weight times the angular loss.

    Args:
        angle: Angle in degrees, between 0 and 90.
        angular_weight: Weight of the angular loss.
        anchors, normalize: See n-pair.
        l2_reg: As for n-pair, added once.
    """

    paired = True

    def __init__(
        self,
        angle: float = 45.0,
        angular_weight: float = 2.0,
        anchors: Literal["first", "both"] = "first",
        normalize: bool | None = None,
        l2_reg: float = 0.0,
        *,
        negatives: NegativeSource | None = None,
    ) -> None:
        super().__init__()
        self.negatives, self.angular_weight = negatives, angular_weight
        self.n_pair = NPair(anchors=anchors, normalize=normalize, l2_reg=l2_reg, negatives=negatives)
        self.angular = Angular(angle, anchors=anchors, normalize=normalize, negatives=negatives)
        self.measure = self.n_pair.measure

    def forward(self, view: View) -> Tensor:
        value: Tensor = self.n_pair(view) + self.angular_weight * self.angular(view)
        return value
