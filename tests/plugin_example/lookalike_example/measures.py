"""Plug-ins that need no torch: a metric and an embedder."""

from __future__ import annotations

import numpy as np

from lookalike import Preprocess
from retrieval.metrics.table import Evidence, Metric


def reciprocal_rank(evidence: Evidence) -> np.ndarray:
    """Return 1 / rank of the first image of the query's class, 0 beyond the ranking, nan without one, [N]."""
    first = evidence.ranking.first_relevant
    found = np.where(first > 0, 1 / np.maximum(first, 1), 0.0)
    return np.where(evidence.ranking.answerable, found, np.nan)


MRR = Metric("mrr", "MRR", "1 / rank of the first image of the query's class", per_query=reciprocal_rank)


class Colours:
    """Histogram of the colours of an image, as its embedding.

    Args:
        argument: Bins of each channel.
        device: Device that was asked for; it runs on the CPU.
    """

    def __init__(self, argument: str, device: str) -> None:
        self.bins = int(argument)
        self.dim = 3 * self.bins
        self.preprocess = Preprocess(size=32)
        self.fingerprint = f"histogram of {self.bins} bins"

    def embed(self, images: np.ndarray) -> np.ndarray:
        bins = (images.astype(np.int64) * self.bins) >> 8  # [N, S, S, 3]
        counts = (bins[..., None] == np.arange(self.bins)).mean((1, 2))  # [N, 3, bins]
        roots = np.sqrt(counts.reshape(len(images), self.dim) / 3)
        return roots.astype(np.float32)
