"""Other published losses: margin, histogram, FastAP, spread-out, and losses with proxies or a linear head."""

import math
from collections.abc import Sequence

import numpy as np

from .geometry import distance, unit_rows
from .pairs import Labels, positives, unordered
from .triplets import Triplet, mine
from .weighted import similarities


def margin(
    x: np.ndarray,
    y: Labels,
    margin: float = 0.2,
    boundary: float = 1.2,
    positive: str = "all",
    negative: str = "hard",
) -> float:
    """[d_ap − β + α]_+ + [β − d_an + α]_+ over the triplets, divided by the active terms (Wu 2017, eq. 5)."""
    triplets: list[Triplet] = mine(unit_rows(x), y, positive, negative)
    terms = [max(0.0, ap - boundary + margin) for ap, _ in triplets]
    terms += [max(0.0, boundary - an + margin) for _, an in triplets]
    active = sum(t > 0 for t in terms)
    return sum(terms) / active if active else 0.0


def spread_out(x: np.ndarray, y: Labels) -> float:
    """(mean s_neg)² + [mean s_neg² − 1/D]_+ over the negative pairs (Zhang 2017, eq. 5)."""
    s = similarities(x)
    values = [s[i][j] for i in range(len(y)) for j in range(i) if y[i] != y[j]]
    if not values:
        return 0.0
    first = sum(values) / len(values)
    second = sum(v * v for v in values) / len(values)
    return first**2 + max(0.0, second - 1 / x.shape[1])


def soft_histogram(values: Sequence[float], low: float, high: float, cells: int) -> list[float]:
    """Σ of the triangular weights of the values on cells + 1 evenly spaced nodes."""
    width = (high - low) / cells
    nodes = [low + r * width for r in range(cells + 1)]
    return [sum(max(0.0, 1 - abs(v - node) / width) for v in values) for node in nodes]


def histogram(x: np.ndarray, y: Labels, cells: int = 100) -> float:
    """Σ_r h⁻_r Φ⁺_r with soft histograms of s on [−1, 1] (Ustinova & Lempitsky 2016, eqs. 2–5)."""
    s = similarities(x)
    pos = [s[i][j] for i, j in unordered(y)]
    neg = [s[i][j] for i in range(len(y)) for j in range(i + 1, len(y)) if y[i] != y[j]]
    if not pos or not neg:
        return 0.0
    h_pos = [h / len(pos) for h in soft_histogram(pos, -1, 1, cells)]
    h_neg = [h / len(neg) for h in soft_histogram(neg, -1, 1, cells)]
    return sum(h_neg[r] * sum(h_pos[: r + 1]) for r in range(cells + 1))


def fast_ap(x: np.ndarray, y: Labels, cells: int = 10) -> float:
    """1 − mean_i 1/|P_i| Σ_b h⁺_b H⁺_b / H_b with soft histograms of d² on [0, 4] (Cakir 2019, eq. 8)."""
    z = unit_rows(x)
    precisions = []
    for i in range(len(y)):
        pos = positives(y, i)
        if not pos:
            continue
        others = [j for j in range(len(y)) if j != i]
        h_pos = soft_histogram([distance(z[i], z[j]) ** 2 for j in pos], 0, 4, cells)
        h_all = soft_histogram([distance(z[i], z[j]) ** 2 for j in others], 0, 4, cells)
        total = 0.0
        for b in range(cells + 1):
            if sum(h_all[: b + 1]) > 0:
                total += h_pos[b] * sum(h_pos[: b + 1]) / sum(h_all[: b + 1])
        precisions.append(total / len(pos))
    return 1 - sum(precisions) / len(precisions) if precisions else 0.0


def _log_sum_exp(values: Sequence[float]) -> float:
    """log Σ e^t."""
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


def _cross_entropy(logits: Sequence[float], target: int) -> float:
    """−log softmax."""
    return _log_sum_exp(logits) - logits[target]


def proxy_nca(
    x: np.ndarray, y: Labels, proxies: np.ndarray, scale: float = 1.0, include_positive: bool = False
) -> float:
    """mean −log e^{−‖z−p_y‖²} / Σ_{c≠y} e^{−‖z−p_c‖²}, z and p of length `scale` (Movshovitz-Attias 2017).

    The sum includes c = y in Proxy-NCA++ (Teh 2020, eq. 4).
    """
    z, p = scale * unit_rows(x), scale * unit_rows(proxies)
    total = 0.0
    for i in range(len(y)):
        far = [-(distance(z[i], p[c]) ** 2) for c in range(len(p)) if c != y[i] or include_positive]
        total += distance(z[i], p[y[i]]) ** 2 + _log_sum_exp(far)
    return total / len(y)


def proxy_anchor(
    x: np.ndarray, y: Labels, proxies: np.ndarray, alpha: float = 32.0, delta: float = 0.1
) -> float:
    """1/|P⁺| Σ_p log(1 + Σ e^{−a(s−δ)}) + 1/|P| Σ_p log(1 + Σ e^{a(s+δ)}) (Kim 2020, eq. 4)."""
    z, p = unit_rows(x), unit_rows(proxies)
    near, far = 0.0, 0.0
    for c in range(len(p)):
        near += math.log1p(sum(math.exp(-alpha * (z[i] @ p[c] - delta)) for i in range(len(y)) if y[i] == c))
        far += math.log1p(sum(math.exp(alpha * (z[i] @ p[c] + delta)) for i in range(len(y)) if y[i] != c))
    return near / len(set(y)) + far / len(p)


def soft_triple(
    x: np.ndarray,
    y: Labels,
    centers: np.ndarray,
    scale: float = 20.0,
    gamma: float = 0.1,
    margin: float = 0.01,
) -> float:
    """Cross-entropy of λ(S_c − δ[c = y]), S_c = Σ_k softmax_k(s_ck/γ) s_ck; centers [C, K, D] (Qian 2019)."""
    z = unit_rows(x)
    total = 0.0
    for i in range(len(y)):
        logits = []
        for c in range(len(centers)):
            s = [float(z[i] @ w) for w in unit_rows(centers[c])]
            weights = [math.exp((v - max(s)) / gamma) for v in s]
            pooled = sum(w * v for w, v in zip(weights, s, strict=True)) / sum(weights)
            logits.append(scale * (pooled - (margin if c == y[i] else 0.0)))
        total += _cross_entropy(logits, y[i])
    return total / len(y)


def normalized_softmax(
    x: np.ndarray,
    y: Labels,
    weights: np.ndarray,
    scale: float,
    cosine_margin: float = 0.0,
    angular_margin: float = 0.0,
) -> float:
    """Cross-entropy of σ ẑ·ŵ, the own cosine less m (CosFace eq. 4) or its angle plus m (ArcFace eq. 3)."""
    z, w = unit_rows(x), unit_rows(weights)
    total = 0.0
    for i in range(len(y)):
        logits = [float(z[i] @ row) for row in w]
        target = math.acos(max(-1.0, min(1.0, logits[y[i]]))) + angular_margin
        logits[y[i]] = math.cos(target) - cosine_margin
        total += _cross_entropy([scale * t for t in logits], y[i])
    return total / len(y)


def linear_cross_entropy(
    x: np.ndarray, y: Labels, weights: np.ndarray, bias: np.ndarray | None = None
) -> float:
    """Cross-entropy of a linear head on the embedding."""
    offset = np.zeros(len(weights)) if bias is None else bias
    return sum(
        _cross_entropy([float(x[i] @ weights[c] + offset[c]) for c in range(len(weights))], y[i])
        for i in range(len(y))
    ) / len(y)
