"""Lifted, N-pair and angular losses, with samples or synthetic points as negatives (Symm section 4)."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from .geometry import mirror, unit_rows, with_mirrors
from .pairs import PAIRS, Labels, Pair, alternate, negatives, rivals
from .sources import distance, embeddings_for, pair_distance
from .triplets import cosine


def lifted(
    x: np.ndarray,
    y: Labels,
    margin: float = 1.0,
    source: str = "batch",
    pairs: str = "unordered",
    points: int = 2,
) -> float:
    """1/(2|𝒫|) Σ [log(Σ_{N_i} e^{m−d_ik} + Σ_{N_j} e^{m−d_jk}) + d_ij]²_+ (Symm eq. 5).

    From another source 1/|𝒫| Σ [log Σ_q e^{m−d_pq} + d_ij]²_+ (eq. 6).
    """
    z = embeddings_for(x, source)
    chosen = PAIRS[pairs](y) if source == "batch" else alternate(y)
    between = pair_distance(z, source, points)
    total = 0.0
    for p in chosen:
        if source == "batch":
            far = [distance(z[i], z[k]) for i in p for k in negatives(y, i)]
        else:
            far = [between(p, q) for q in rivals(y, p)]
        if far:
            pooled = math.log(sum(math.exp(margin - d) for d in far))
            total += max(0.0, pooled + distance(z[p[0]], z[p[1]])) ** 2
    if not chosen:
        return 0.0
    return total / len(chosen) / (2 if source == "batch" else 1)


def log_one_plus(exponents: Sequence[float]) -> float:
    """log(1 + Σ e^t)."""
    top = max([0.0, *exponents])
    return top + math.log(math.exp(-top) + sum(math.exp(t - top) for t in exponents))


def _candidates(y: Labels, p: Pair, candidates: str) -> list[int]:
    """Every sample of another class, or only the second members of their pairs (Sohn 2016)."""
    if candidates == "all":
        return negatives(y, p[0])
    return [q[1] for q in rivals(y, p)]


def _anchored(y: Labels, anchors: str) -> list[Pair]:
    """The alternate pairs, in both directions where every sample is an anchor."""
    pairs = alternate(y)
    return pairs if anchors == "first" else pairs + [(j, i) for i, j in pairs]


def n_pair(
    x: np.ndarray,
    y: Labels,
    candidates: str = "all",
    normalize: bool = False,
    anchors: str = "first",
    l2_reg: float = 0.0,
) -> float:
    """1/|𝒫| Σ log(1 + Σ_k e^{S_ik − S_ij}) (Symm eq. 7), plus l2_reg/4 (mean ‖a‖² + mean ‖p‖²)."""
    z = unit_rows(x) if normalize else x
    pairs = _anchored(y, anchors)
    if not pairs:
        return 0.0
    total = 0.0
    for i, j in pairs:
        total += log_one_plus([z[i] @ z[k] - z[i] @ z[j] for k in _candidates(y, (i, j), candidates)])
    squares = sum(z[i] @ z[i] for i, _ in pairs) + sum(z[j] @ z[j] for _, j in pairs)
    return float(total + 0.25 * l2_reg * squares) / len(pairs)


def symm_n_pair(x: np.ndarray, y: Labels) -> float:
    """Symm eq. 8: one term per negative pair, the largest of the 16 products of its and our points."""
    pairs = alternate(y)
    total = 0.0
    for i, j in pairs:
        ours = with_mirrors(x[i], x[j])
        exponents = []
        for k, l in rivals(y, (i, j)):  # noqa: E741
            theirs = with_mirrors(x[k], x[l])
            exponents.append(max(float(u @ v) for u in ours for v in theirs) - float(x[i] @ x[j]))
        total += log_one_plus(exponents)
    return total / len(pairs) if pairs else 0.0


def n_pair_synthetic(x: np.ndarray, y: Labels, source: str, points: int = 2) -> float:
    """1/|𝒫| Σ log(1 + Σ_q e^{s_pq − s_ij}) on unit vectors, s_pq of the closest points of two pairs."""
    z = unit_rows(x)
    between = pair_distance(z, source, points)
    pairs = alternate(y)
    total = 0.0
    for p in pairs:
        near = cosine(distance(z[p[0]], z[p[1]]))
        total += log_one_plus([cosine(between(p, q)) - near for q in rivals(y, p)])
    return total / len(pairs) if pairs else 0.0


def _released_order(x: np.ndarray, p: Pair) -> list[np.ndarray]:
    """[a, p, a', p']: the order of the released Symm code."""
    a, b = x[p[0]], x[p[1]]
    return [a, b, mirror(a, b), mirror(b, a)]


def symm_n_pair_released(x: np.ndarray, y: Labels) -> float:
    """The released Symm N-pair: type u with a later type v, 6 of the 16; the positive logit is pooled too."""
    pairs = alternate(y)
    types = list(itertools.combinations(range(4), 2))
    total = 0.0
    for p in pairs:
        ours = _released_order(x, p)
        logit = max(float(ours[u] @ ours[v]) for u, v in types)
        exponents = []
        for q in rivals(y, p):
            theirs = _released_order(x, q)
            exponents.append(max(float(ours[u] @ theirs[v]) for u, v in types) - logit)
        total += log_one_plus(exponents)
    return total / len(pairs) if pairs else 0.0


def angular(
    x: np.ndarray,
    y: Labels,
    angle: float = 45.0,
    candidates: str = "all",
    normalize: bool = False,
    anchors: str = "first",
) -> float:
    """1/|𝒫| Σ log(1 + Σ_k e^{f^n − f^p}) (Symm eq. 9).

    f^p = 2(1 + t²) x_i·x_j and f^n = 4t² (x_i + x_j)·x_k with t = tan α.
    """
    z = unit_rows(x) if normalize else x
    t2 = math.tan(math.radians(angle)) ** 2
    pairs = _anchored(y, anchors)
    total = 0.0
    for i, j in pairs:
        fp = 2 * (1 + t2) * (z[i] @ z[j])
        total += log_one_plus(
            [4 * t2 * ((z[i] + z[j]) @ z[k]) - fp for k in _candidates(y, (i, j), candidates)]
        )
    return total / len(pairs) if pairs else 0.0


def symm_angular(x: np.ndarray, y: Labels, angle: float = 45.0) -> float:
    """Symm eq. 10: f^n is the largest over two distinct points of one pair and one of the other, 24."""
    t2 = math.tan(math.radians(angle)) ** 2
    pairs = alternate(y)
    total = 0.0
    for i, j in pairs:
        ours = with_mirrors(x[i], x[j])
        fp = 2 * (1 + t2) * float(x[i] @ x[j])
        exponents = []
        for k, l in rivals(y, (i, j)):  # noqa: E741
            theirs = with_mirrors(x[k], x[l])
            fn = max(4 * t2 * float((u + v) @ n) for u, v in itertools.combinations(ours, 2) for n in theirs)
            exponents.append(fn - fp)
        total += log_one_plus(exponents)
    return total / len(pairs) if pairs else 0.0


def symm_angular_released(x: np.ndarray, y: Labels, angle: float = 45.0) -> float:
    """The released Symm angular: ordered types (X, Y), the negative of type Y, 12 of 24; f^p pooled too."""
    t2 = math.tan(math.radians(angle)) ** 2
    pairs = alternate(y)
    types = list(itertools.permutations(range(4), 2))
    total = 0.0
    for p in pairs:
        ours = _released_order(x, p)
        fp = max(2 * (1 + t2) * float(ours[u] @ ours[v]) for u, v in types)
        exponents = []
        for q in rivals(y, p):
            theirs = _released_order(x, q)
            fn = max(4 * t2 * float((ours[u] + ours[v]) @ theirs[v]) for u, v in types)
            exponents.append(fn - fp)
        total += log_one_plus(exponents)
    return total / len(pairs) if pairs else 0.0


def angular_n_pair(
    x: np.ndarray,
    y: Labels,
    angle: float = 45.0,
    angular_weight: float = 2.0,
    normalize: bool = False,
    anchors: str = "first",
) -> float:
    """L_NP + λ L_Ang (DCDL section 5.2)."""
    return n_pair(x, y, normalize=normalize, anchors=anchors) + angular_weight * angular(
        x, y, angle=angle, normalize=normalize, anchors=anchors
    )
