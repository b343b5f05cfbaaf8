"""Miners: triplet mining rules, hard mining of pairs by variable thresholds (VTHM), random triplets."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from train.losses.batch_all import FEW, compact_columns
from train.losses.ops import row_blocks
from train.losses.pairs import alternate_pairs
from train.losses.registry import Inert, register

PositiveRule = Literal["easy", "hard", "all", "random"]
_NEGLIGIBLE = -80.0  # logarithm of a weight, relative to the largest, that counts as 0

NegativeRule = Literal["hard", "semi-hard", "all", "random", "distance-weighted"]


class Chosen(NamedTuple):
    """Entries chosen from the rows of a table."""

    column: Tensor  # [R, S] int64
    exists: Tensor  # [R, S] bool; where it is False the column is arbitrary


class Mined(NamedTuple):
    """Mined triplets: similarities that broadcast against each other, and a mask of valid triplets."""

    positive: Tensor
    negative: Tensor
    valid: Tensor


@register(
    "mining",
    "triplet",
    source="SCT (ECCV 2020), section 3; FaceNet (CVPR 2015); Wu et al. (ICCV 2017)",
    formula=(
        r"p_{\operatorname{easy}} = \underset{j \in P_a}{\operatorname{argmax}} \, s_{aj},"
        r" \quad n_{\operatorname{hard}} = \underset{k \in N_a}{\operatorname{argmax}} \, s_{ak},"
        r" \quad n_{\operatorname{semi-hard}} = \underset{k \in N_a, \, s_{ak} <"
        r" s_{ap}}{\operatorname{argmax}} \, s_{ak}"
    ),
    inert=(Inert("fallback", lambda o: o["negative"] != "semi-hard", "without negative: semi-hard"),),
)
class TripletMiner:
    """Choose the positives and the negatives of every anchor.

    A pair loss takes the pairs (anchor, positive) and (anchor, negative) that occur in at least one of these
    triplets, each of them once. RAW, table 1, names the two samplings (distance-weighted, semi-hard) without
    details; one negative for each positive pair is the sampling of the papers that it cites, Wu et al. and
    FaceNet, and a set of pairs is what RAW, eq. 17, sums over.

    Args:
        positive: The easy (most similar), the hard (least similar), all, or a random one; if it is left out,
            easy in triplet losses, all in pair losses and in `margin`.
        negative: One for each chosen positive: the hard (most similar), the semi-hard (most similar of those
            strictly less similar than the positive), all, a random one, or one drawn with a probability that
            makes all distances equally likely (distance-weighted).
        fallback: An anchor without a semi-hard negative is dropped, or takes its farthest negative.
        duplicate_above: Positives more similar than this are copies and do not count.
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

    @property
    def random(self) -> bool:
        """Whether the choice is random."""
        return self.positive == "random" or self.negative in ("random", "distance-weighted")

    def positives(self, similarity: Tensor, mask: Tensor, default: PositiveRule) -> tuple[Tensor, Tensor]:
        """Return the chosen positives, [R, 1] or [R, S] for all, and a mask of those that exist."""
        column, exists = self._positives(similarity.detach(), mask, default)
        return similarity.gather(1, column), exists

    def negatives(
        self, positive: Tensor, valid: Tensor, similarity: Tensor, mask: Tensor, *, dim: int
    ) -> Mined:
        """Return triplets of the given positives ([R, 1] or [R, S]) and the negatives chosen for them.

        With `all` the positives must be [R, 1]. `dim` is the embedding dimension.
        """
        if self.negative == "all":
            return Mined(positive, similarity, valid & mask)
        column, exists = self._negatives(positive.detach(), similarity.detach(), mask, dim)
        return Mined(positive, similarity.gather(1, column), valid & exists)

    def select(
        self, near: Tensor, positive: Tensor, far: Tensor, negative: Tensor, *, dim: int
    ) -> tuple[Tensor, Tensor]:
        """Return the masks of the positives and of the negatives that occur in a mined triplet.

        Args:
            near, positive: [R, C] similarities and the mask of the positives.
            far, negative: [R, Q] similarities and the mask of the negatives.
            dim: Embedding dimension.
        """
        near, far = near.detach(), far.detach()
        column, exists = self._positives(near, positive, "all")
        if self.negative == "all":
            exists = exists & negative.any(1, keepdim=True)
            return _mark(column, exists, near.shape[1]), negative & exists.any(1, keepdim=True)
        opposite, some = self._negatives(near.gather(1, column), far, negative, dim)
        valid = exists & some
        return (
            _mark(column, valid, near.shape[1]),
            _mark(opposite.expand_as(valid), valid, far.shape[1]),
        )

    def _positives(self, similarity: Tensor, mask: Tensor, default: PositiveRule) -> Chosen:
        if self.duplicate_above is not None:
            mask = mask & (similarity <= self.duplicate_above)
        rule = self.positive or default
        if rule == "all":
            return Chosen(*compact_columns(mask))
        if rule == "random":
            return _draw(mask.to(similarity.dtype), mask)
        return _most(similarity, mask) if rule == "easy" else _most(-similarity, mask)

    def _negatives(self, positive: Tensor, similarity: Tensor, mask: Tensor, dim: int) -> Chosen:
        """Return one negative for each positive [R, S], in [R, 1] if it does not depend on the positive."""
        found = [
            self._choose(positive[rows], similarity[rows], mask[rows], dim) for rows in row_blocks(similarity)
        ]
        return found[0] if len(found) == 1 else Chosen(*map(torch.cat, zip(*found, strict=True)))

    def _choose(self, positive: Tensor, similarity: Tensor, mask: Tensor, dim: int) -> Chosen:
        """Return the negatives of some rows."""
        if self.negative == "hard":
            return _most(similarity, mask)
        if self.negative == "semi-hard":
            return self._semi_hard(positive, similarity, mask)
        weight = mask.to(similarity.dtype)
        if self.negative == "distance-weighted":
            logits = torch.where(mask, distance_logits(similarity, dim), -torch.inf)
            top = logits.amax(1, keepdim=True)
            logits = logits - torch.where(top > -torch.inf, top, 0.0)
            # Numbers below the normal range of float32 take a processor many times longer.
            weight = F.threshold(logits, _NEGLIGIBLE, -torch.inf).exp()
        return _draw(weight, mask, copies=positive.shape[1])

    def _semi_hard(self, positive: Tensor, similarity: Tensor, mask: Tensor) -> Chosen:
        """Return the most similar negative strictly below each positive, by binary search in sorted rows."""
        if positive.shape[1] <= FEW:
            candidates = similarity[:, None, :]
            below = torch.where(mask, similarity, torch.inf)[:, None, :] < positive[:, :, None]
            candidates = torch.where(below, candidates, -torch.inf)  # [R, S, C]
            column = candidates.argmax(2)
            exists = candidates.gather(2, column[:, :, None])[:, :, 0] > -torch.inf
        else:
            ascending, index = similarity.masked_fill(~mask, torch.inf).sort(1)
            place = torch.searchsorted(ascending, positive.contiguous()) - 1
            exists = place >= 0
            column = index.gather(1, place.clamp(min=0))
        if self.fallback == "farthest":
            farthest = _most(-similarity, mask)
            column = torch.where(exists, column, farthest.column)
            exists = exists | farthest.exists
        return Chosen(column, exists)


def _most(similarity: Tensor, mask: Tensor) -> Chosen:
    """Choose the largest selected entry of each row, [R, 1]."""
    column = torch.where(mask, similarity, -torch.inf).argmax(1, keepdim=True)
    return Chosen(column, mask.gather(1, column))


def _draw(weight: Tensor, mask: Tensor, copies: int = 1) -> Chosen:
    """Draw `copies` selected entries of each row, independently, with probability proportional to weight."""
    cumulative = weight.cumsum(1)  # [R, C]
    shape = (weight.shape[0], copies)
    uniform = torch.rand(shape, device=weight.device, dtype=weight.dtype) * cumulative[:, -1:]
    column = torch.searchsorted(cumulative, uniform, right=True).clamp(max=weight.shape[1] - 1)
    return Chosen(column, mask.gather(1, column))


def _mark(column: Tensor, chosen: Tensor, width: int) -> Tensor:
    """Return the mask [R, width] that is True in the chosen columns [R, S]."""
    mask = torch.zeros((len(column), width + 1), dtype=torch.bool, device=column.device)
    return mask.scatter(1, torch.where(chosen, column, width), True)[:, :width]


def distance_logits(cosine: Tensor, dim: int, nearest: float = 0.5, cutoff: float = 1.4) -> Tensor:
    """Return -log q(d), q the density of distances between random unit vectors (Wu et al., eq. 3).

    log q(d) = (D - 2) log d + (D - 3) / 2 log(1 - d²/4), with d at least `nearest`. Negatives beyond `cutoff`
    are drawn only by anchors that have none within.
    """
    square = (2 - 2 * cosine).clamp(nearest**2, 4 - 1e-6)
    logits = -0.5 * (dim - 2) * square.log() - 0.5 * (dim - 3) * (1 - 0.25 * square).log()
    # Distant negatives share one logit far below all eligible ones: drawn only if there is nothing else.
    return torch.where(square <= cutoff**2, logits, -1e6)


@register(
    "mining",
    "vthm",
    source="RAW (ICLR 2020 submission), section 5.1; multi-similarity (CVPR 2019)",
    formula=(
        r"\tilde{P}_i = \{ j \in P_i : s_{ij} < \underset{k \in N_i}{\max} \, s_{ik} + \text{margin} \},"
        r" \quad \tilde{N}_i = \{ k \in N_i : s_{ik} > \underset{j \in P_i}{\min} \, s_{ij} -"
        r" \text{margin} \}"
    ),
)
class VariableThresholdMiner:
    """Keep negatives above the least similar positive - margin, and positives below the most similar
    negative + margin.

    Args:
        margin: Margin in units of the cosine; below 0 it keeps fewer pairs.
    """

    random = False

    def __init__(self, margin: float = 0.1) -> None:
        self.margin = margin

    def select(
        self, near: Tensor, positive: Tensor, far: Tensor, negative: Tensor, *, dim: int
    ) -> tuple[Tensor, Tensor]:
        """Return the masks of the selected positives [R, C] and negatives [R, Q].

        Args:
            near, positive: [R, C] similarities and the mask of the positives.
            far, negative: [R, Q] similarities and the mask of the negatives.
            dim: Embedding dimension; not used.
        """
        near, far = near.detach(), far.detach()
        # Infinite where there are none, so that nothing is selected.
        lowest = near.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
        highest = far.masked_fill(~negative, -torch.inf).amax(1, keepdim=True)
        return positive & (near < highest + self.margin), negative & (far > lowest - self.margin)


class DrawnTriplets(NamedTuple):
    """Positions of drawn triplets in the batch followed by the references, and a mask of valid ones."""

    anchor: Tensor  # [T]
    positive: Tensor  # [T]
    negative: Tensor  # [T]
    valid: Tensor  # [T] bool


@register(
    "mining",
    "rand-disjoint",
    source="LoOp (ICCV 2021), table 3",
    formula=(
        r"\mathcal{T} = \{ (a_t, p_t, n_t) \}, \quad |\mathcal{T}| \leq \left\lfloor \frac{B}{3}"
        r" \right\rfloor"
    ),
)
class RandomDisjointMiner:
    """Draw random triplets in which every sample occurs at most once.

    LoOp's baseline "Rand-disjoint", "random sampling of disjoint tuples" (table 3), whose numbers are those
    of "Triplet" in table 2: unlike LoOp eq. 14, a positive pair meets one random negative. The paper says no
    more; the rest is ours. A batch of B samples gives B // 3 triplets, or as many as it has disjoint
    positive pairs: the samples of each class are paired at random, random pairs become anchors and
    positives, and the other samples are matched with them at random as negatives of another class. If one
    class is so large that some pairs find no negative, these are left out.
    """

    random = True

    def draw(self, labels: Tensor, batch: int, usable: Tensor | None = None) -> DrawnTriplets:
        """Draw triplets with anchors in the batch, by torch's generator, without synchronisation.

        Args:
            labels: [C] integers, the batch first, then the references.
            batch: Number of samples in the batch.
            usable: [C] bool; samples marked False join no triplet.
        """
        count, device = len(labels), labels.device
        if count < 3:
            place = torch.zeros(1, dtype=torch.int64, device=device)
            return DrawnTriplets(place, place, place, place > 0)
        references = batch + torch.randperm(count - batch, device=device)
        shuffle = torch.cat([torch.randperm(batch, device=device), references])
        classes = _shuffle_classes(labels)[shuffle]
        usable = None if usable is None else usable[shuffle]
        layout = alternate_pairs(classes, batch, usable)
        anchored = layout.anchored[: layout.anchors]
        # Anchored pairs come first, class by class; so do those of a sorted random choice among them.
        key = torch.rand(layout.anchors, device=device) + (~anchored).float()
        slot = key.argsort()[: count // 3].sort().values  # [T]
        anchor, positive = layout.order[slot], layout.order[layout.slots + slot]
        number = torch.arange(len(slot), device=device)
        valid = anchored[slot]
        if usable is not None:
            valid = valid & (number < usable.sum() // 3)
        negative = self._match(classes, anchor, positive, valid, usable)
        valid = valid & (classes[negative] != classes[anchor])
        anchor, positive, negative = (
            torch.where(valid, shuffle[place], 0) for place in (anchor, positive, negative)
        )
        return DrawnTriplets(anchor, positive, negative, valid)

    def _match(
        self, classes: Tensor, anchor: Tensor, positive: Tensor, valid: Tensor, usable: Tensor | None
    ) -> Tensor:
        """Return the negatives [T] of valid pairs sorted by class, different samples outside these pairs.

        The free samples are sorted by class, too, and shifted against the pairs by a random number of places
        among those that match the fewest pairs with their own class.
        """
        count = len(classes)
        members = torch.where(valid, torch.stack([anchor, positive]), count).flatten()
        taken = torch.zeros(count + 1, dtype=torch.bool, device=classes.device).scatter(0, members, True)
        taken = taken[:count] if usable is None else taken[:count] | ~usable
        pool = classes.argsort()
        pool = pool[taken[pool].to(torch.int8).argsort(stable=True)]  # the free samples first
        free = (~taken).sum().clamp(min=1)
        place, shift = (torch.arange(n, device=classes.device) for n in (len(anchor), count))
        candidates = pool[(place[:, None] + shift) % free]  # [T, C]
        own = (classes[candidates] == classes[anchor][:, None]) & valid[:, None]
        misses = torch.where(shift < free, own.sum(0), count) + torch.rand(count, device=classes.device)
        return pool[(place + misses.argmin()) % free]


def _shuffle_classes(labels: Tensor) -> Tensor:
    """Return different random numbers for different labels."""
    ordered, index = labels.sort()
    number = torch.nn.functional.pad((ordered[1:] != ordered[:-1]).long().cumsum(0), (1, 0))
    shuffled = torch.randperm(len(labels), device=labels.device)[number]
    return torch.empty_like(shuffled).scatter(0, index, shuffled)


PairMiner = VariableThresholdMiner | TripletMiner
"""Miners that select pairs."""
