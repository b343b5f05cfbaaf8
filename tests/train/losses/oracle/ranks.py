"""Losses on smooth ranks: recall at k, with similarity mixup, and Smooth-AP."""

import math
from collections.abc import Sequence

import numpy as np

from .geometry import unit_rows
from .pairs import Labels


def sigmoid(t: float) -> float:
    """1 / (1 + e^{-t})."""
    return 1 / (1 + math.exp(-t)) if t > 0 else math.exp(t) / (1 + math.exp(t))


def soft_rank(s: Sequence[float], j: int, among: Sequence[int], temperature: float) -> float:
    """1 + Σ_{k ≠ j} σ((s_k − s_j) / τ): Heaviside's step of the rank made smooth."""
    return 1 + sum(sigmoid((s[k] - s[j]) / temperature) for k in among if k != j)


def recall_at_k(
    x: np.ndarray,
    y: Labels,
    ks: Sequence[int] = (1, 2, 4, 8, 16),
    temperature: float = 0.01,
    rank_temperature: float = 1.0,
    released: bool = False,
    normalized: bool = False,
) -> float:
    """1 − mean over queries and k of min(k, Σ_{x ∈ P} σ((k − r(x)) / τ₁)) / min(k, |P|) (Patel 2022).

    Released: the query is in its own list, and τ₁ = k. Normalized: the points are taken as they are.
    """
    z = x if normalized else unit_rows(x)
    total, queries = 0.0, 0
    for q in range(len(y)):
        s = [float(z[q] @ row) for row in z]
        own = [j for j in range(len(y)) if j != q and y[j] == y[q]]
        if not own or all(label == y[q] for label in y):
            continue
        queries += 1
        listed = [j for j in range(len(y)) if j != q or released]
        ranks = [soft_rank(s, j, listed, temperature) for j in own]
        for k in ks:
            found = sum(sigmoid((k - r) / (k if released else rank_temperature)) for r in ranks)
            total += min(k, found) / min(k, len(own)) / len(ks)
    return 1 - total / queries if queries else 0.0


def with_mixtures(x: np.ndarray, y: Labels, shares: Sequence[float]) -> tuple[np.ndarray, Labels]:
    """The unit points, and a·z_i + (1 − a)·z_j for every two of a class, in lexical order (SiMix)."""
    z = unit_rows(x)
    pairs = [(i, j) for i in range(len(y)) for j in range(i + 1, len(y)) if y[i] == y[j]]
    mixtures = [a * z[i] + (1 - a) * z[j] for a, (i, j) in zip(shares, pairs, strict=True)]
    return np.array([*z, *mixtures]), (*y, *(y[i] for i, _ in pairs))


def smooth_ap(x: np.ndarray, y: Labels, temperature: float = 0.01, own_positive: bool = False) -> float:
    """1 − mean_q 1/|P| Σ_{i ∈ P} r(i; P) / r(i; P ∪ N) (Brown 2020, eq. 7).

    Own positive: the query is the first of its positives, as in the authors' code.
    """
    z = unit_rows(x)
    total, queries = 0.0, 0
    for q in range(len(y)):
        s = [float(z[q] @ row) for row in z]
        own = [j for j in range(len(y)) if y[j] == y[q] and (j != q or own_positive)]
        others = [j for j in range(len(y)) if y[j] != y[q]]
        if not own or not others:
            continue
        queries += 1
        ratios = [
            soft_rank(s, j, own, temperature) / soft_rank(s, j, [*own, *others], temperature) for j in own
        ]
        total += sum(ratios) / len(ratios)
    return 1 - total / queries if queries else 0.0
