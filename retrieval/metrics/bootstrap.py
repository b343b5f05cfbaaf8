"""How far a mean over queries could be off: 95% confidence intervals by the bootstrap."""

from __future__ import annotations

import numpy as np

RESAMPLES = 1000
_BLOCK = 1 << 21  # queries drawn at once


def intervals(values: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Percentile intervals of the means of several metrics, over the same resampled queries (Efron 1979).

    They say what other queries of these classes would give, not what another training run would.

    Args:
        values: float [N, metrics]; queries with a nan are left out.

    Returns:
        float64 [metrics, 2]: low and high end; nan where there is no query.
    """
    values = values[~np.isnan(values).any(1)]
    count = len(values)
    if count == 0:
        return np.full((values.shape[1], 2), np.nan)
    random = np.random.default_rng(seed)
    means = np.empty((resamples, values.shape[1]))
    step = max(1, _BLOCK // count)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        drawn = random.integers(0, count, (size, count), np.int32)
        drawn += np.arange(size, dtype=np.int32)[:, None] * count
        times = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        means[start : start + size] = times @ values / count
    return np.quantile(means, (0.025, 0.975), axis=0).T
