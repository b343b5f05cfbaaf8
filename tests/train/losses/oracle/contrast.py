"""Losses of an anchor against many: supervised contrastive, InfoNCE, circle and sigmoid pairs."""

import math

import numpy as np

from .pairs import Labels, negatives, positives
from .triplets import softplus
from .weighted import Mining, select, similarities


def _sides(
    x: np.ndarray, y: Labels, mining: Mining, guard: float | None = None
) -> list[tuple[list[float], list[float]]]:
    """Per anchor with both, the similarities of its positives and negatives; of all others, nothing.

    Guard: negatives above the most similar positive + guard are left out.
    """
    s = similarities(x)
    found = []
    for i in range(len(y)):
        near, far = select([s[i][j] for j in positives(y, i)], [s[i][k] for k in negatives(y, i)], mining)
        if guard is not None and near:
            far = [t for t in far if t <= max(near) + guard]
        if near and far:
            found.append((near, far))
    return found


def supcon(
    x: np.ndarray,
    y: Labels,
    temperature: float = 0.1,
    guard: float | None = None,
    mining: Mining = None,
) -> float:
    """1/m Σ_i −1/|P_i| Σ_p log e^{s_p/τ} / Σ_{a ≠ i} e^{s_a/τ} (Khosla 2020, eq. 2)."""
    total = 0.0
    for near, far in _sides(x, y, mining, guard):
        below = sum(math.exp(s / temperature) for s in [*near, *far])
        total -= sum(math.log(math.exp(s / temperature) / below) for s in near) / len(near)
    return total / len(y)


def info_nce(
    x: np.ndarray,
    y: Labels,
    temperature: float = 0.1,
    guard: float | None = None,
    mining: Mining = None,
) -> float:
    """1/m Σ_i −1/|P_i| Σ_p log e^{s_p/τ} / (e^{s_p/τ} + Σ_n e^{s_n/τ}) (van den Oord 2018, eq. 4)."""
    total = 0.0
    for near, far in _sides(x, y, mining, guard):
        rivals = sum(math.exp(s / temperature) for s in far)
        for s in near:
            own = math.exp(s / temperature)
            total -= math.log(own / (own + rivals)) / len(near)
    return total / len(y)


def circle(
    x: np.ndarray,
    y: Labels,
    margin: float = 0.4,
    scale: float = 80.0,
    mining: Mining = None,
    weighed_at: np.ndarray | None = None,
) -> float:
    """1/m Σ_i log(1 + Σ_n e^{γ α_n (s_n − m)} Σ_p e^{−γ α_p (s_p − 1 + m)}) (Sun 2020, eqs. 6 to 8).

    Weighed at: the points that the weights α are taken of; those of eq. 10 have no gradient.
    """
    total = 0.0
    fixed = _sides(x if weighed_at is None else weighed_at, y, mining)
    for (near, far), (near_then, far_then) in zip(_sides(x, y, mining), fixed, strict=True):
        push = [scale * max(0.0, then + margin) * (s - margin) for s, then in zip(far, far_then, strict=True)]
        pull = [
            -scale * max(0.0, 1 + margin - then) * (s - 1 + margin)
            for s, then in zip(near, near_then, strict=True)
        ]
        total += softplus(_log_sum_exp(push) + _log_sum_exp(pull))
    return total / len(y)


def _log_sum_exp(values: list[float]) -> float:
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


def siglip(
    x: np.ndarray,
    y: Labels,
    scale: float = 10.0,
    bias: float = -10.0,
    mining: Mining = None,
) -> float:
    """−1/m Σ_i Σ_{j ≠ i} log 1 / (1 + e^{z_ij (−t s_ij − b)}), z = ±1: same class or not (Zhai 2023)."""
    s, total = similarities(x), 0.0
    for i in range(len(y)):
        near, far = select([s[i][j] for j in positives(y, i)], [s[i][k] for k in negatives(y, i)], mining)
        total += sum(softplus(-scale * t - bias) for t in near) + sum(softplus(scale * t + bias) for t in far)
    return total / len(y)


def cosent(x: np.ndarray, y: Labels, scale: float = 20.0) -> float:
    """log(1 + Σ e^{λ (s_q − s_p)}), p the positives and q the negatives of all anchors (Su 2022)."""
    s, total = similarities(x), 0.0
    for i in range(len(y)):
        for p in positives(y, i):
            for j in range(len(y)):
                for q in negatives(y, j):
                    total += math.exp(scale * (s[j][q] - s[i][p]))
    return math.log(1 + total)
