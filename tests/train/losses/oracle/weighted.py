"""Pair losses of the weight-assignment view (RAW), with optional mining, and multi-similarity with LoOp."""

import math
from typing import Any

import numpy as np

from .pairs import Labels, alternate, negatives, positives, rivals
from .sources import pair_distance
from .triplets import cosine, softplus


def similarities(x: np.ndarray) -> list[list[float]]:
    """s_ij = x_i·x_j / (‖x_i‖ ‖x_j‖)."""
    norms = [math.sqrt(float(row @ row)) for row in x]
    return [[float(x[i] @ x[j]) / (norms[i] * norms[j]) for j in range(len(x))] for i in range(len(x))]


Mining = float | dict[str, Any] | None  # the margin of vthm, the rules of the triplet miner, or none


def vthm(near: list[float], far: list[float], margin: float) -> tuple[list[float], list[float]]:
    """Ñ_i = {k: s_ik > min s_ip − λ}, P̃_i = {j: s_ij < max s_in + λ} (RAW section 5.1)."""
    if not near or not far:
        return [], []
    return [s for s in near if s < max(far) + margin], [s for s in far if s > min(near) - margin]


def in_triplets(
    near: list[float],
    far: list[float],
    positive: str = "all",
    negative: str = "hard",
    fallback: str = "drop",
    duplicate_above: float | None = None,
) -> tuple[list[float], list[float]]:
    """The similarities of the pairs that occur in at least one mined triplet of an anchor, each once."""
    candidates = [j for j, s in enumerate(near) if duplicate_above is None or s <= duplicate_above]
    if positive != "all" and candidates:
        candidates = [(max if positive == "easy" else min)(candidates, key=lambda j: near[j])]
    triplets = set()
    for j in candidates:
        others = list(range(len(far)))
        if negative == "semi-hard":
            others = [k for k in others if far[k] < near[j]]
        if negative != "all" and others:
            others = [max(others, key=lambda k: far[k])]
        if not others and far and fallback == "farthest":
            others = [min(range(len(far)), key=lambda k: far[k])]
        triplets |= {(j, k) for k in others}
    return [near[j] for j in {j for j, _ in triplets}], [far[k] for k in {k for _, k in triplets}]


def select(near: list[float], far: list[float], mining: Mining) -> tuple[list[float], list[float]]:
    """The similarities of the mined positives and negatives of an anchor."""
    if mining is None:
        return near, far
    return in_triplets(near, far, **mining) if isinstance(mining, dict) else vthm(near, far, mining)


def _sides(
    x: np.ndarray, y: Labels, mining: Mining, anchors: int | None = None
) -> list[tuple[list[float], list[float]]]:
    """Per (leading) anchor the similarities of its (mined) positives and negatives."""
    s = similarities(x)
    return [
        select([s[i][j] for j in positives(y, i)], [s[i][k] for k in negatives(y, i)], mining)
        for i in range(anchors or len(y))
    ]


def _mean(values: list[float]) -> float:
    """The mean, 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def contrastive(
    x: np.ndarray,
    y: Labels,
    threshold: float = 0.5,
    offset: float = 0.0,
    mining: Mining = None,
    anchors: int | None = None,
) -> float:
    """1/m Σ_i {Σ_{P_i} (offset − s) + Σ_{N_i} [s − λ]_+} (RAW eq. 5; offset 1 as in the authors' code)."""
    total = 0.0
    for pos, neg in _sides(x, y, mining, anchors):
        total += sum(offset - s for s in pos) + sum(max(0.0, s - threshold) for s in neg)
    return total / (anchors or len(y))


def binomial_deviance(
    x: np.ndarray,
    y: Labels,
    alpha: float = 2.0,
    beta: float = 50.0,
    threshold: float = 0.5,
    reduction: str = "mean",
    normalized: bool = False,
    mining: Mining = None,
    anchors: int | None = None,
) -> float:
    """Σ_i {mean_{P_i} softplus(α(γ − s)) + mean_{N_i} softplus(β(s − γ))} (RAW eq. 12).

    Normalized: the two means times 2/α and 2/β (authors' code).
    """
    total = 0.0
    for pos, neg in _sides(x, y, mining, anchors):
        pull = _mean([softplus(alpha * (threshold - s)) for s in pos])
        push = _mean([softplus(beta * (s - threshold)) for s in neg])
        total += 2 / alpha * pull + 2 / beta * push if normalized else pull + push
    return total / ((anchors or len(y)) if reduction == "mean" else 1)


def _log_terms(pos: list[float], neg: list[float], alpha: float, beta: float, threshold: float) -> float:
    """1/α log(1 + Σ e^{−α(s−γ)}) + 1/β log(1 + Σ e^{β(s−γ)})."""
    return (
        math.log1p(sum(math.exp(-alpha * (s - threshold)) for s in pos)) / alpha
        + math.log1p(sum(math.exp(beta * (s - threshold)) for s in neg)) / beta
    )


def raw(
    x: np.ndarray,
    y: Labels,
    alpha: float = 2.0,
    beta: float = 50.0,
    threshold: float = 0.5,
    mining: Mining = 0.1,
    anchors: int | None = None,
) -> float:
    """RAW eq. 17, the same as multi-similarity: the mean over all anchors of the two log terms."""
    sides = _sides(x, y, mining, anchors)
    return sum(_log_terms(pos, neg, alpha, beta, threshold) for pos, neg in sides) / len(sides)


def equal_weight(x: np.ndarray, y: Labels, mining: Mining = 0.1) -> float:
    """1/m Σ_i {mean_{P̃_i} (1 − s) + mean_{Ñ_i} s} (RAW table 1, "VTHM only")."""
    return sum(_mean([1 - s for s in pos]) + _mean(neg) for pos, neg in _sides(x, y, mining)) / len(y)


def generalized_lifted(
    x: np.ndarray, y: Labels, margin: float = 0.5, printed: bool = False, mining: Mining = None
) -> float:
    """1/m Σ_i [lse_{P_i}(−s) + lse_{N_i}(λ + s)]_+ (RAW eq. 9, its sign corrected or as printed)."""
    total = 0.0
    for pos, neg in _sides(x, y, mining):
        if not pos or not neg:
            continue
        near = math.log(sum(math.exp(-s) for s in pos))
        if printed:
            far = -math.log(sum(math.exp(margin - s) for s in neg))
        else:
            far = math.log(sum(math.exp(margin + s) for s in neg))
        total += max(0.0, near + far)
    return total / len(y)


def multi_similarity_pairs(
    x: np.ndarray,
    y: Labels,
    source: str = "optimal",
    alpha: float = 2.0,
    beta: float = 50.0,
    threshold: float = 0.5,
    mining: Mining = -0.02,
    positive_rule: str = "source",
    points: int = 2,
) -> float:
    """LoOp with multi-similarity: one term per alternate pair.

    Positives are the distinct same-class similarities that touch a member; negatives are 1 − d²/2 of the
    other classes' pairs. Positives are compared with the largest of these, or of the batch's own.
    """
    z = np.stack([row / math.sqrt(float(row @ row)) for row in x])
    s = similarities(x)
    between = pair_distance(z, source, points)
    pairs = alternate(y)
    total = 0.0
    for p in pairs:
        touching = {(min(i, j), max(i, j)) for i in p for j in positives(y, i)}
        pos = [s[i][j] for i, j in sorted(touching)]
        neg = [cosine(between(p, q)) for q in rivals(y, p)]
        kept, neg = select(pos, neg, mining)
        if positive_rule == "batch":
            kept, _ = select(pos, [s[i][k] for i in p for k in negatives(y, i)], mining)
        total += _log_terms(kept, neg, alpha, beta, threshold)
    return total / len(pairs) if pairs else 0.0
