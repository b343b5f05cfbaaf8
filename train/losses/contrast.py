"""Pair losses of one anchor against many: supervised contrastive, InfoNCE, sigmoid pairs, circle."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from train.losses.mining import PairMiner, TripletMiner
from train.losses.ops import masked_logsumexp, masked_max, masked_sum, ratio
from train.losses.pairwise import NO_PAIRS, PairTerm, log_one_plus_sum_exp
from train.losses.registry import Inert, register, require

GUARD = Inert(
    "guard",
    lambda o: (
        isinstance(o["mining"], TripletMiner)
        and o["mining"].negative == "semi-hard"
        and o["guard"] >= 0
        and o["mining"].fallback == "drop"
    ),
    "with semi-hard negatives, which are less similar than a positive",
)


class Contrast(PairTerm):
    """Base class of the losses that compare the positives of an anchor with its negatives in a softmax."""

    def __init__(
        self, temperature: float = 0.1, guard: float | None = None, *, mining: PairMiner | None = None
    ) -> None:
        super().__init__(mining)
        require(temperature > 0, "temperature", temperature, "above 0")
        self.temperature, self.guard = temperature, guard

    def total(self, near: Tensor, positive: Tensor, far: Tensor, negative: Tensor) -> Tensor:
        if self.guard is not None:
            nearest = masked_max(near.detach(), positive)[0][:, None]
            negative = negative & (far.detach() <= nearest + self.guard)
        valid = positive.any(1) & negative.any(1)
        terms = self.terms(near / self.temperature, positive, far / self.temperature, negative)
        return torch.where(valid, terms, 0.0).sum()

    def terms(self, near: Tensor, positive: Tensor, far: Tensor, negative: Tensor) -> Tensor:
        """Return [R] the loss of each anchor, arbitrary without positives or negatives.

        Args:
            near, positive: [R, S] cosines over the temperature, and the mask of the positives that count.
            far, negative: [R, C] the same of the negatives.
        """
        raise NotImplementedError


@register(
    "loss",
    "supcon",
    source="Khosla et al. (NeurIPS 2020), eq. 2; guard: Solatorio (2024)",
    formula=(
        r"-\frac{1}{B} \sum_i \frac{1}{|P_i|} \sum_{j \in P_i}"
        r" \log \frac{e^{s_{ij} / \text{temperature}}}{\sum_{l \neq i} e^{s_{il} / \text{temperature}}}"
    ),
    mining=("vthm", "triplet"),
    inert=(GUARD,),
    refusal=f"supcon {NO_PAIRS}",
)
class SupervisedContrastive(Contrast):
    """Per anchor, the mean over its positives of -log of their softmax among all positives and negatives.

    The mean over all anchors; those without a positive or a negative count as 0. The sum over the positives
    is outside of the logarithm (the paper's L_out).

    Args:
        temperature: Of the cosines, above 0.
        guard: Leave out negatives that are more similar to the anchor than its most similar positive by more
            than this, as likely to be of its class (false negatives); null for none, below 0 for more. The
            comparison is by the embeddings themselves, where GISTEmbed takes a second model.
    """

    def terms(self, near: Tensor, positive: Tensor, far: Tensor, negative: Tensor) -> Tensor:
        own = torch.where(positive.any(1), masked_logsumexp(near, positive), 0.0)
        mean = ratio(torch.where(positive, near, 0.0).sum(1), positive.sum(1))
        return own - mean + log_one_plus_sum_exp(far - own[:, None], negative)


@register(
    "loss",
    "info-nce",
    source="van den Oord et al. (2018), eq. 4; guard: Solatorio (2024)",
    formula=(
        r"-\frac{1}{B} \sum_i \frac{1}{|P_i|} \sum_{j \in P_i} \log \frac{e^{s_{ij} / \text{temperature}}}"
        r"{e^{s_{ij} / \text{temperature}} + \sum_{k \in N_i} e^{s_{ik} / \text{temperature}}}"
    ),
    mining=("vthm", "triplet"),
    inert=(GUARD,),
    refusal=f"info-nce {NO_PAIRS}",
)
class InfoNCE(Contrast):
    """Per anchor, the mean over its positives of -log of the softmax of each among the negatives.

    The mean over all anchors; those without a positive or a negative count as 0. Unlike in `supcon`,
    positives do not compete with each other. With one positive of each anchor both are the same (NT-Xent).

    Args:
        temperature: Of the cosines, above 0.
        guard: Leave out negatives that are more similar to the anchor than its most similar positive by more
            than this, as likely to be of its class (false negatives); null for none.
    """

    def terms(self, near: Tensor, positive: Tensor, far: Tensor, negative: Tensor) -> Tensor:
        rivals = torch.where(negative.any(1), masked_logsumexp(far, negative), 0.0)
        terms = F.softplus(rivals[:, None] - near)
        return ratio(torch.where(positive, terms, 0.0).sum(1), positive.sum(1))


@register(
    "loss",
    "circle",
    source="Sun et al. (CVPR 2020), eqs. 6-8",
    formula=(
        r"\frac{1}{B} \sum_i \log \left( 1 + \sum_{k \in N_i} e^{\text{scale} [s_{ik} + \text{margin}]_+"
        r" (s_{ik} - \text{margin})} \sum_{j \in P_i} e^{-\text{scale} [1 + \text{margin} - s_{ij}]_+"
        r" (s_{ij} - 1 + \text{margin})} \right)"
    ),
    mining=("vthm", "triplet"),
    refusal=f"circle {NO_PAIRS}",
)
class Circle(PairTerm):
    """Per anchor, log(1 + Σ exp(scale a_k (s_k - margin)) Σ exp(-scale a_j (s_j - 1 + margin))) over its
    negatives k and positives j, in which each pair has a weight a by its distance from the optimum.

    The weights are a_k = [s_k + margin]_+ and a_j = [1 + margin - s_j]_+; they have no gradient (eq. 10). The
    mean over all anchors; those without a positive or a negative count as 0.

    Args:
        margin: Of the circle s_n² + (1 - s_p)² = 2 margin² that separates, in units of the cosine.
        scale: Above 0.
    """

    def __init__(self, margin: float = 0.4, scale: float = 80.0, *, mining: PairMiner | None = None) -> None:
        super().__init__(mining)
        require(scale > 0, "scale", scale, "above 0")
        self.margin, self.scale = margin, scale

    def total(self, near: Tensor, positive: Tensor, far: Tensor, negative: Tensor) -> Tensor:
        pull = F.relu(1 + self.margin - near.detach()) * (1 - self.margin - near)
        push = F.relu(far.detach() + self.margin) * (far - self.margin)
        valid = positive.any(1) & negative.any(1)
        pulls = torch.where(valid, masked_logsumexp(self.scale * pull, positive), 0.0)
        return torch.where(
            valid, log_one_plus_sum_exp(self.scale * push + pulls[:, None], negative), 0.0
        ).sum()


@register(
    "loss",
    "siglip",
    source="Zhai et al. (ICCV 2023), eq. 1",
    formula=(
        r"\frac{1}{B} \sum_i \left( \sum_{j \in P_i} \log \left( 1 + e^{-\text{scale} \, s_{ij} -"
        r" \text{bias}} \right) + \sum_{k \in N_i} \log \left( 1 + e^{\text{scale} \, s_{ik} + \text{bias}}"
        r" \right) \right)"
    ),
    mining=("vthm", "triplet"),
    refusal=f"siglip {NO_PAIRS}",
)
class SigmoidPairs(PairTerm):
    """Per anchor, the sum of -log of the sigmoid of ±(scale s + bias) over all pairs, + for positives.

    The mean over all anchors: a classifier of pairs into same and different. Scale and bias are learnt from
    their first values; they are parameters of the module that need a learning rate of their own.

    Args:
        scale: First value, above 0; the logarithm of its growth is what is learnt.
        bias: First value.
    """

    takes_pairs = True

    def __init__(self, scale: float = 10.0, bias: float = -10.0, *, mining: PairMiner | None = None) -> None:
        super().__init__(mining)
        require(scale > 0, "scale", scale, "above 0")
        self.scale = scale
        self.growth = nn.Parameter(torch.zeros(()))
        self.bias = nn.Parameter(torch.full((), float(bias)))

    def score(self, cosine: Tensor) -> Tensor:
        return self.scale * self.growth.to(cosine.dtype).exp() * cosine + self.bias.to(cosine.dtype)

    def total(self, near: Tensor, positive: Tensor, far: Tensor, negative: Tensor) -> Tensor:
        return masked_sum(F.softplus(-near), positive) + masked_sum(F.softplus(far), negative)
