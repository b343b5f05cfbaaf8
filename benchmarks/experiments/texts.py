"""Numbers of the page as text: percentages, differences with their intervals, p-values."""

from __future__ import annotations

from benchmarks.experiments.divisions import Stratified
from retrieval.metrics.statistics import Paired

NAMES = {
    "recall_at_1": "Recall@1",
    "map_at_r": "MAP@R",
    "nmi": "NMI",
    "probe_noisy": "probe, given labels",
    "probe_clean": "probe, true labels",
    "mean_similarity": "mean cosine",
    "hard_anchor_share": "hard anchors",
    "synthetic_share": "synthetic",
    "crossing_share": "crossing",
    "gradient_ratio": "gradient ratio",
    "kernel_active": "kernel",
}
PLAIN = {"mean_similarity", "gradient_ratio", "kernel_active"}  # no percentages
PROJECTIONS = {
    "features": "*features, no head*",
    "pca": "*PCA*",
    "pca-half-whitened": "*half-whitened PCA*",
    "pca-whitened": "*whitened PCA*",
    "lda": "*LDA*",
    "network": "*network before training*",
}


def number(value: float, metric: str) -> str:
    """Return a value of a metric, in percent unless it is no share."""
    return f"{value:.2f}" if metric in PLAIN else f"{100 * value:.1f}"


def signed(value: float, metric: str) -> str:
    """Return a difference of a metric, in points unless it is no share."""
    return f"{value:+.2f}" if metric in PLAIN else f"{100 * value:+.1f}"


def interval(one: Paired | Stratified, metric: str) -> str:
    """Return a difference with its 95% interval."""
    text = signed(one.difference, metric)
    if one.low is None or one.high is None:
        return text
    return f"{text} [{signed(one.low, metric)}, {signed(one.high, metric)}]"


def probability(p: float | None) -> str:
    """Return a p-value; "-" without."""
    if p is None:
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"
