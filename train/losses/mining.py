"""Miners by similarity: triplet mining rules, and variable-threshold hard mining of pairs (VTHM, RAW)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from train.losses.batch_all import FEW, compact_rows
from train.losses.ops import masked_max, masked_min
from train.losses.registry import register

PositiveRule = Literal["easy", "hard", "all", "random"]
NegativeRule = Literal["hard", "semi-hard", "all", "random", "distance-weighted"]


class Mined(NamedTuple):
    """Mined triplets: similarities that broadcast against each other, and a mask of valid triplets."""

    positive: Tensor
    negative: Tensor
    valid: Tensor


@register(
    "mining", "triplet", source="SCT (ECCV 2020), section 3; FaceNet (CVPR 2015); Wu et al. (ICCV 2017)"
)
class TripletMiner:
    """Choose the positives and the negatives of every anchor.

    `positive`: the easy (most similar), the hard (least similar), all, or a random one. `negative`: the
    hard (most similar), the semi-hard (most similar of those strictly less similar than the positive), all,
    a random one, or one drawn with a probability that makes all distances equally likely
    (distance-weighted). An anchor without a semi-hard negative is dropped, or takes its farthest negative
    (`fallback`). Positives more similar than `duplicate_above` are copies and do not count.
    """

    def __init__(
        self,
        positive: PositiveRule | None = None,
        negative: NegativeRule = "hard",
        fallback: Literal["drop", "farthest"] = "drop",
        duplicate_above: float | None = None,
    ) -> None:
        self.positive, self.negative = positive, negative
        self.fallback, self.duplicate_above = fallback, duplicate_above

    def positives(self, similarity: Tensor, mask: Tensor, default: PositiveRule) -> tuple[Tensor, Tensor]:
        """Return the chosen positives, [R, 1] or [R, S] for all, and a mask of those that exist."""
        if self.duplicate_above is not None:
            mask = mask & (similarity <= self.duplicate_above)
        rule = self.positive or default
        if rule == "all":
            return compact_rows(similarity, mask)
        if rule == "random":
            return draw_entries(similarity, mask)
        value, some = masked_max(similarity, mask) if rule == "easy" else masked_min(similarity, mask)
        return value[:, None], some[:, None]

    def negatives(
        self, positive: Tensor, valid: Tensor, similarity: Tensor, mask: Tensor, *, dim: int
    ) -> Mined:
        """Return triplets of the given positives ([R, 1] or [R, S]) and the negatives chosen for them.

        With `all` the positives must be [R, 1]. `dim` is the embedding dimension.
        """
        if self.negative == "all":
            return Mined(positive, similarity, valid & mask)
        if self.negative == "hard":
            value, some = masked_max(similarity, mask)
            return Mined(positive, value[:, None], valid & some[:, None])
        if self.negative == "semi-hard":
            return self._semi_hard(positive, valid, similarity, mask)
        logits = None
        if self.negative == "distance-weighted":
            logits = distance_logits(similarity, dim)
        value, some = draw_entries(similarity, mask, logits, copies=positive.shape[1])
        return Mined(positive, value, valid & some)

    def _semi_hard(self, positive: Tensor, valid: Tensor, similarity: Tensor, mask: Tensor) -> Mined:
        """Return the most similar negative strictly below each positive, by binary search in sorted rows."""
        if positive.shape[1] <= FEW:
            candidates = similarity[:, None, :]
            value, some = masked_max(candidates, mask[:, None, :] & (candidates < positive[:, :, None]), 2)
        else:
            ascending, index = similarity.detach().masked_fill(~mask, torch.inf).sort(1)
            place = torch.searchsorted(ascending, positive.detach().contiguous()) - 1
            some = place >= 0
            value = similarity.gather(1, index.gather(1, place.clamp(min=0)))
        if self.fallback == "farthest":
            farthest, any_negative = masked_min(similarity, mask)
            value = torch.where(some, value, farthest[:, None])
            some = some | any_negative[:, None]
        return Mined(positive, value, valid & some)


def draw_entries(
    similarity: Tensor, mask: Tensor, logits: Tensor | None = None, copies: int = 1
) -> tuple[Tensor, Tensor]:
    """Draw selected entries of each row, independently, with probability proportional to exp(logits).

    Returns:
        [R, copies] similarities of the drawn entries, and a mask of rows that had one.
    """
    weight = mask.to(similarity.dtype)
    if logits is not None:
        weight = torch.where(mask, (logits - masked_max(logits, mask)[0][:, None]).exp(), 0.0)
    cumulative = weight.cumsum(1)  # [R, C]
    shape = (similarity.shape[0], copies)
    uniform = torch.rand(shape, device=similarity.device, dtype=similarity.dtype) * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, uniform, right=True).clamp(max=similarity.shape[1] - 1)
    return similarity.gather(1, index), mask.gather(1, index)


def distance_logits(cosine: Tensor, dim: int, nearest: float = 0.5, cutoff: float = 1.4) -> Tensor:
    """Return -log q(d), q the density of distances between random unit vectors (Wu et al., eq. 3).

    log q(d) = (D - 2) log d + (D - 3) / 2 log(1 - d²/4), with d at least `nearest`. Negatives beyond `cutoff`
    are drawn only by anchors that have none within.
    """
    square = (2 - 2 * cosine.detach()).clamp(nearest**2, 4 - 1e-6)
    logits = -0.5 * (dim - 2) * square.log() - 0.5 * (dim - 3) * (1 - 0.25 * square).log()
    # Distant negatives share one logit far below all eligible ones: drawn only if there is nothing else.
    return torch.where(square <= cutoff**2, logits, -1e6)


@register("mining", "vthm", source="RAW (ICLR 2020 submission), section 5.1; multi-similarity (CVPR 2019)")
class VariableThresholdMiner:
    """Keep negatives above the least similar positive - margin, and positives below the most similar
    negative + margin."""

    def __init__(self, margin: float = 0.1) -> None:
        self.margin = margin

    def select(self, similarity: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return the masks [R, C] of the selected positives and negatives."""
        lowest, has_positive = masked_min(similarity.detach(), positive)
        highest, has_negative = masked_max(similarity.detach(), negative)
        keep_negative = negative & has_positive[:, None] & (similarity > lowest[:, None] - self.margin)
        keep_positive = positive & has_negative[:, None] & (similarity < highest[:, None] + self.margin)
        return keep_positive, keep_negative
