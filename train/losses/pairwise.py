"""Pair losses: contrastive, binomial deviance, multi-similarity (RAW) and equal weights."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from train.losses.mining import PairMiner, VariableThresholdMiner
from train.losses.negatives import NegativeSource
from train.losses.ops import masked_sum, ratio, sum_over_rows
from train.losses.pml import PMLMiner
from train.losses.registry import Inert, register, require
from train.losses.triplet import SOURCES
from train.losses.view import View

NO_PAIRS = (
    "counts each pair of samples alone: it has no positive pair to synthesise from and no triplet to draw"
)


def log_one_plus_sum_exp(x: Tensor, mask: Tensor) -> Tensor:
    """Return [R] log(1 + sum of exp(x)) over the selected entries of each row."""
    value: Tensor = _LogOnePlusSumExp.apply(x, mask)[0]
    return value


class _LogOnePlusSumExp(torch.autograd.Function):
    """The logarithm, with the exponentials kept for the backward pass instead of computed again."""

    @staticmethod
    def forward(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.where(mask, x, -torch.inf)
        top = x.amax(1, keepdim=True).clamp(min=0)
        share = x.sub_(top).exp_()
        total = share.sum(1, keepdim=True) + (-top).exp()
        return (top + total.log())[:, 0], share.div_(total)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, of_share: Tensor | None) -> tuple[Tensor | None, None]:
        (share,) = ctx.saved_tensors
        found = None if grad is None else grad[:, None] * share
        if of_share is not None:  # in a second derivative
            part = of_share * share
            part = part - share * part.sum(1, keepdim=True)
            found = part if found is None else found + part
        return found, None


class PairTerm(nn.Module):
    """Base class of the pair losses: every sample is an anchor, and a miner may select its pairs."""

    paired = False
    reduction: Literal["mean", "sum"] = "mean"

    def __init__(self, mining: PairMiner | None) -> None:
        super().__init__()
        self.mining: PairMiner | PMLMiner | None = mining

    def forward(self, view: View) -> Tensor:
        table = view.anchors
        chosen = self.mining.masks(view) if isinstance(self.mining, PMLMiner) else None

        def terms(rows: slice, far: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            part = table.rows(rows, table.cosine[rows] if scored else far)
            (near, positive), negative = part.near(far), part.negative
            pairs = positive.count_nonzero() + negative.count_nonzero()
            if chosen is not None:
                positive = positive & part.near(chosen[0][rows])[0]
                negative = negative & chosen[1][rows]
            elif self.mining is not None and not isinstance(self.mining, PMLMiner):
                own = part.near(part.cosine)[0] if scored else near
                positive, negative = self.mining.select(own, positive, part.cosine, negative, dim=view.dim)
            active = positive.count_nonzero() + self.active(far, negative).count_nonzero()
            return self.total(near, positive, far, negative), active, pairs

        scores = self.score(table.cosine)  # outside of the blocks, for the gradients of its parameters
        scored = scores is not table.cosine
        total, active, pairs = sum_over_rows(terms, scores)
        view.report["active_share"] = ratio(active, pairs)
        return total if self.reduction == "sum" else total / len(table.cosine)

    def score(self, cosine: Tensor) -> Tensor:
        """Return a table of what the loss is a function of; miners compare the cosines."""
        return cosine

    def active(self, far: Tensor, negative: Tensor) -> Tensor:
        """Return the mask of selected negatives that receive a gradient."""
        return negative

    def total(self, near: Tensor, positive: Tensor, far: Tensor, negative: Tensor) -> Tensor:
        """Return the sum over the rows of the loss of some anchors.

        Args:
            near, positive: [R, S] scores and the mask of the positives that count.
            far, negative: [R, C] scores and the mask of the negatives that count.
        """
        raise NotImplementedError


@register(
    "loss",
    "contrastive",
    source="RAW eq. 5",
    formula=(
        r"\frac{1}{B} \sum_i \left( \sum_{j \in P_i} \left( \text{positive\_offset} - s_{ij} \right)"
        r" + \sum_{k \in N_i} \left[ s_{ik} - \text{threshold} \right]_+ \right)"
    ),
    mining=("vthm", "triplet"),
    refusal=f"contrastive {NO_PAIRS}",
)
class Contrastive(PairTerm):
    """Per anchor, the sum of positive_offset - s over positives and of [s - threshold]_+ over negatives.

    The mean over all anchors. It may be negative with offset 0.

    Args:
        threshold: Cosine below which a negative contributes nothing.
        positive_offset: 0 (the paper) or 1 (the authors' code); it changes the value, not the gradient.
    """

    takes_pairs = True

    def __init__(
        self,
        threshold: float = 0.5,
        positive_offset: float = 0.0,
        *,
        mining: PairMiner | None = None,
    ) -> None:
        super().__init__(mining)
        self.threshold, self.positive_offset = threshold, positive_offset

    def active(self, far: Tensor, negative: Tensor) -> Tensor:
        return negative & (far > self.threshold)

    def total(self, near: Tensor, positive: Tensor, far: Tensor, negative: Tensor) -> Tensor:
        pull = masked_sum(self.positive_offset - near, positive)
        return pull + masked_sum(F.relu(far - self.threshold), negative)


@register(
    "loss",
    "binomial-deviance",
    source="RAW eq. 12",
    formula=(
        r"\frac{1}{B} \sum_i \left( \frac{1}{|P_i|} \sum_{j \in P_i}"
        r" \log \left( 1 + e^{\alpha (\text{threshold} - s_{ij})} \right)"
        r" + \frac{1}{|N_i|} \sum_{k \in N_i} \log \left( 1 + e^{\beta (s_{ik} -"
        r" \text{threshold})} \right) \right)"
    ),
    mining=("vthm", "triplet"),
    refusal=f"binomial deviance {NO_PAIRS}",
)
class BinomialDeviance(PairTerm):
    """Per anchor, mean of softplus(alpha (threshold - s)) over positives plus mean of
    softplus(beta (s - threshold)) over negatives.

    The weights of the pairs saturate at alpha / |P| and beta / |N| (RAW, eqs. 13-14): with the paper's slopes
    all negatives together weigh 25 times as much as all positives. `slopes: normalized` multiplies the two
    terms by 2 / alpha and 2 / beta; both weights then saturate at 2 over the number of pairs.

    Args:
        alpha, beta: Slopes, above 0.
        threshold: Cosine that separates positives from negatives.
        reduction: Mean or sum over the anchors.
        slopes: Printed, as in RAW eq. 12, or normalized, as in the authors' code.
    """

    takes_pairs = True

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 50.0,
        threshold: float = 0.5,
        reduction: Literal["mean", "sum"] = "mean",
        slopes: Literal["printed", "normalized"] = "printed",
        *,
        mining: PairMiner | None = None,
    ) -> None:
        super().__init__(mining)
        require(alpha > 0, "alpha", alpha, "above 0")
        require(beta > 0, "beta", beta, "above 0")
        self.alpha, self.beta, self.threshold, self.reduction = alpha, beta, threshold, reduction
        printed = slopes == "printed"
        self.pull, self.push = (1.0, 1.0) if printed else (2 / alpha, 2 / beta)

    def total(self, near: Tensor, positive: Tensor, far: Tensor, negative: Tensor) -> Tensor:
        pull = torch.where(positive, F.softplus(self.alpha * (self.threshold - near)), 0.0).sum(1)
        push = torch.where(negative, F.softplus(self.beta * (far - self.threshold)), 0.0).sum(1)
        pull, push = ratio(pull, positive.sum(1)), ratio(push, negative.sum(1))
        return (self.pull * pull + self.push * push).sum()


@register(
    "loss",
    "equal-weight",
    source="RAW table 1",
    formula=(
        r"\frac{1}{B} \sum_i \left( \frac{1}{|\tilde{P}_i|} \sum_{j \in \tilde{P}_i} (1 - s_{ij})"
        r" + \frac{1}{|\tilde{N}_i|} \sum_{k \in \tilde{N}_i} s_{ik} \right)"
    ),
    mining=("vthm", "triplet"),
    default_mining={"name": "vthm"},
    refusal=f"equal weighting {NO_PAIRS}",
)
class EqualWeight(PairTerm):
    """Per anchor, mean of 1 - s over the selected positives plus mean of s over the selected negatives.

    The mean over all anchors. Selects by vthm by default: the row "VTHM" of RAW, table 1, whose text says
    "equal weights" and gives no formula; this is that of the authors' code.
    """

    def __init__(self, *, mining: PairMiner | None = None) -> None:
        super().__init__(mining)

    def total(self, near: Tensor, positive: Tensor, far: Tensor, negative: Tensor) -> Tensor:
        pull = ratio(torch.where(positive, 1 - near, 0.0).sum(1), positive.sum(1))
        push = ratio(torch.where(negative, far, 0.0).sum(1), negative.sum(1))
        return (pull + push).sum()


@register(
    "loss",
    "raw",
    "multi-similarity",
    source="RAW eq. 17; multi-similarity (CVPR 2019) eq. 15; LoOp section 3.3.4",
    formula=(
        r"\frac{1}{B} \sum_i \left("
        r" \frac{1}{\alpha} \log \left( 1 + \sum_{j \in \tilde{P}_i} e^{-\alpha (s_{ij} -"
        r" \text{threshold})} \right)"
        r" + \frac{1}{\beta} \log \left( 1 + \sum_{k \in \tilde{N}_i} e^{\beta (s_{ik} -"
        r" \text{threshold})} \right)"
        r" \right)"
    ),
    negatives=SOURCES,
    mining=("vthm", "triplet"),
    default_mining={"name": "vthm"},
    inert=(
        Inert("positive_rule", lambda o: o["negatives"] is None, "without a source of negatives"),
        Inert(
            "positive_rule",
            lambda o: not isinstance(o["mining"], VariableThresholdMiner),
            "without the miner vthm",
        ),
    ),
    refusal="it weights all pairs of an anchor together, and rand-disjoint draws one triplet",
)
class MultiSimilarity(PairTerm):
    """Per anchor, log(1 + Σ exp(-alpha (s - threshold))) / alpha over positives plus
    log(1 + Σ exp(beta (s - threshold))) / beta over negatives.

    The mean over all anchors; selects by vthm (margin 0.1) by default. With a source of negatives, the mean
    over the alternate pairs p = (i, k): positives are the samples of their class that either member is
    compared with, negatives the closest points of p and the pairs of other classes.

    Rows of RAW, table 1: "RAW+VTHM" is the default, "RAW" is `mining: null`, "RAW+DW" is `mining: {positive:
    all, negative: distance-weighted}`, "RAW+SemiHard" is `mining: {positive: all, negative: semi-hard}`.

    Args:
        alpha, beta: Slopes, above 0.
        threshold: Cosine that separates positives from negatives.
        positive_rule: With a source and the miner vthm, the negatives that it compares positives with: the
            synthetic ones (optimal) or the samples (batch).
    """

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 50.0,
        threshold: float = 0.5,
        positive_rule: Literal["optimal", "batch"] = "optimal",
        *,
        negatives: NegativeSource | None = None,
        mining: PairMiner | None = None,
    ) -> None:
        super().__init__(mining)
        require(alpha > 0, "alpha", alpha, "above 0")
        require(beta > 0, "beta", beta, "above 0")
        self.alpha, self.beta, self.threshold = alpha, beta, threshold
        self.positive_rule, self.negatives, self.paired = positive_rule, negatives, negatives is not None

    def soft_extremes(self, cosine: Tensor, positive: Tensor, other: Tensor, negative: Tensor) -> Tensor:
        """Return [R] both terms of each row, positives from one table and negatives from another."""
        pull = log_one_plus_sum_exp(self.alpha * (self.threshold - cosine), positive)
        push = log_one_plus_sum_exp(self.beta * (other - self.threshold), negative)
        return pull / self.alpha + push / self.beta

    def total(self, near: Tensor, positive: Tensor, far: Tensor, negative: Tensor) -> Tensor:
        return self.soft_extremes(near, positive, far, negative).sum()

    def forward(self, view: View) -> Tensor:
        if self.negatives is None:
            return super().forward(view)
        members, pairs = view.members, len(view.pair_valid)
        closest, negative = self.negatives.closest(view, "cosine")  # [P, Q]
        # Positives of p = (i, k): the rows of i and of k side by side, without the repeated pair (k, i).
        both = torch.cat(members.cosine.split(pairs)[:2], 1)  # [P, 2C]
        first, second = members.positive.split(pairs)[:2]
        own = torch.arange(pairs, device=first.device)
        second = second & (torch.arange(second.shape[1], device=first.device) != own[:, None])
        positive = torch.cat([first, second], 1) & view.pair_valid[:, None]
        kept_positive, kept_negative = positive, negative
        if self.mining is not None:
            assert not isinstance(self.mining, PMLMiner), "refused with a source"
            kept_positive, kept_negative = self.mining.select(both, positive, closest, negative, dim=view.dim)
            if self.positive_rule == "batch":
                samples = torch.cat(members.negative.split(pairs)[:2], 1)  # [P, 2C]
                kept_positive, _ = self.mining.select(both, positive, both, samples, dim=view.dim)
        total = positive.sum() + negative.sum()
        view.report["active_share"] = ratio(kept_positive.sum() + kept_negative.sum(), total)
        terms = self.soft_extremes(both, kept_positive, closest, kept_negative)
        return ratio(masked_sum(terms, view.pair_valid), view.pair_valid.sum())
