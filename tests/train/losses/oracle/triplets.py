"""Triplet losses: over positive pairs and all their negatives, or over mined triplets."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from .pairs import PAIRS, Labels, alternate, negatives, positives, rivals
from .sources import distance, embeddings_for, pair_distance

Triplet = tuple[float, float]  # distance anchor-positive, distance anchor-negative
Term = Callable[[float, float], float | None]  # None: the triplet is left out of the mean as well


def cosine(d: float) -> float:
    """s = 1 − d²/2 of unit vectors."""
    return 1 - d * d / 2


def softplus(t: float) -> float:
    """log(1 + e^t)."""
    return max(t, 0.0) + math.log1p(math.exp(-abs(t)))


def hinge(margin: float = 0.2, squared: bool = False) -> Term:
    """[d_ap − d_an + m]_+ (LoOp eq. 14), or of the squared distances (SCT eq. 20, Symm eq. 3)."""
    power = 2 if squared else 1
    return lambda ap, an: max(0.0, ap**power - an**power + margin)


def nca(temperature: float = 1.0) -> Term:
    """softplus((s_an − s_ap)/T) (SCT eq. 1)."""
    return lambda ap, an: softplus((cosine(an) - cosine(ap)) / temperature)


def cosine_hinge(margin: float = 0.1) -> Term:
    """[s_an − s_ap + m]_+ (RAW eq. 7)."""
    return lambda ap, an: max(0.0, cosine(an) - cosine(ap) + margin)


def selectively_contrastive(base: Term, weight: float = 1.0, gate: float | None = None) -> Term:
    """λ s_an for a hard triplet, s_an > s_ap, and the base loss otherwise (SCT eq. 13).

    With a gate a triplet with s_an > gate is hard as well, and exact ties count nowhere (released code).
    """

    def term(ap: float, an: float) -> float | None:
        s_ap, s_an = cosine(ap), cosine(an)
        if gate is None:
            return weight * s_an if s_an > s_ap else base(ap, an)
        if s_an > s_ap or s_an > gate:
            return weight * s_an
        return base(ap, an) if s_an < s_ap and s_an < gate else None

    return term


def choose_negatives(
    ap: float, candidates: Sequence[float], rule: str, fallback: str = "drop"
) -> list[float]:
    """The distances of the negatives that a rule selects for one positive at distance `ap`."""
    if not candidates:
        return []
    if rule == "all":
        return list(candidates)
    if rule == "hard":
        return [min(candidates)]
    assert rule == "semi-hard"
    beyond = [an for an in candidates if an > ap]
    if beyond:
        return [min(beyond)]
    return [max(candidates)] if fallback == "farthest" else []


def mine(
    z: np.ndarray,
    y: Labels,
    positive: str = "easy",
    negative: str = "hard",
    fallback: str = "drop",
    duplicate_above: float | None = None,
    anchors: int | None = None,
) -> list[Triplet]:
    """SCT section 3: the triplets of the (first) anchors, with their easiest, hardest or every positive."""
    found = []
    for a in range(anchors or len(y)):
        near = [distance(z[a], z[p]) for p in positives(y, a)]
        if duplicate_above is not None:
            near = [ap for ap in near if cosine(ap) <= duplicate_above]
        if positive != "all" and near:
            near = [min(near) if positive == "easy" else max(near)]
        far = [distance(z[a], z[n]) for n in negatives(y, a)]
        found += [(ap, an) for ap in near for an in choose_negatives(ap, far, negative, fallback)]
    return found


def mine_pairs(
    x: np.ndarray, y: Labels, source: str, negative: str = "hard", fallback: str = "drop", points: int = 2
) -> list[Triplet]:
    """Triplets of the alternate pairs with synthetic negatives: one pooled distance per negative pair."""
    between = pair_distance(x, source, points)
    found = []
    for p in alternate(y):
        ap = distance(x[p[0]], x[p[1]])
        far = [between(p, q) for q in rivals(y, p)]
        found += [(ap, an) for an in choose_negatives(ap, far, negative, fallback)]
    return found


def reduce(triplets: Sequence[Triplet], term: Term, reduction: str = "mean") -> float:
    """Mean, sum, or mean over the positive terms; 0 of nothing."""
    values = [v for v in (term(ap, an) for ap, an in triplets) if v is not None]
    if reduction == "mean-active":
        values = [v for v in values if v > 0]
    total = sum(values)
    return total / len(values) if values and reduction != "sum" else total


def mined(
    x: np.ndarray, y: Labels, term: Term, source: str = "batch", reduction: str = "mean", **mining: object
) -> float:
    """A triplet loss over mined triplets."""
    z = embeddings_for(x, source)
    triplets = mine(z, y, **mining) if source == "batch" else mine_pairs(z, y, source, **mining)  # type: ignore[arg-type]
    return reduce(triplets, term, reduction)


def over_pairs(
    x: np.ndarray,
    y: Labels,
    term: Term,
    source: str = "batch",
    pairs: str = "alternate",
    negative_reduction: str = "sum",
    degenerate: bool = False,
    points: int = 2,
) -> float:
    """1/|𝒫| Σ over positive pairs Σ over negatives (LoOp eqs. 14 and 15, Symm eqs. 3 and 4).

    From the batch the anchor is a pair's first member and the negatives are samples; from another source
    both are pairs.
    """
    z = embeddings_for(x, source)
    chosen = PAIRS[pairs](y)
    between = pair_distance(z, source, points)
    total = 0.0
    for i, j in chosen:
        ap = distance(z[i], z[j])
        if source == "batch":
            far = [distance(z[i], z[k]) for k in negatives(y, i)]
        else:
            far = [between((i, j), q) for q in rivals(y, (i, j), degenerate)]
        if negative_reduction == "min":
            far = [min(far)] if far else []
        values = [term(ap, an) or 0.0 for an in far]
        if values:
            total += sum(values) / (len(values) if negative_reduction == "mean" else 1)
    return total / len(chosen) if chosen else 0.0
