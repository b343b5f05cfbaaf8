"""Confidence intervals and significance tests: bootstrap over queries, Welch over runs, McNemar."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 1000
_BLOCK = 1 << 21  # queries drawn at once


@dataclass(frozen=True)
class Summary:
    """Mean of a number over several runs.

    Attributes:
        n: Number of runs.
        mean: Mean over the runs.
        std: Standard deviation of the sample (n - 1); `None` for a single run.
        low: Lower end of the 95% confidence interval of the mean (Student's t); `None` for a single run.
        high: Upper end of that interval; `None` for a single run.
    """

    n: int
    mean: float
    std: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Welch:
    """Welch's t-test, two-sided, of the hypothesis that two means are equal (Welch 1947)."""

    t: float
    df: float
    p: float


@dataclass(frozen=True)
class McNemar:
    """McNemar's exact test, two-sided, that two models are right equally often (McNemar 1947).

    Only queries that exactly one model gets right count; under the hypothesis each of them is a fair coin.
    """

    only_ours: int
    only_theirs: int
    p: float


def bootstrap_intervals(values: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Return 95% percentile intervals of the means of several metrics over resampled queries (Efron 1979).

    All metrics share the same resamples. The intervals cover other queries of the same classes, not other
    training runs.

    Args:
        values: Values of the queries, float [N, metrics]; queries with a nan are left out.
        resamples: Number of bootstrap resamples.
        seed: Seed of the resampling.

    Returns:
        Lower and upper ends, float64 [metrics, 2]; nan if there are no queries.
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


def summarize(values: Sequence[float]) -> Summary:
    """Return mean, standard deviation and 95% interval of at least one value."""
    n, mean = len(values), float(np.mean(values))
    if n < 2:
        return Summary(n, mean, None, None, None)
    from scipy import stats  # slow to import

    std = float(np.std(values, ddof=1))
    half = float(stats.t.ppf(0.975, n - 1)) * std / math.sqrt(n)
    return Summary(n, mean, std, mean - half, mean + half)


def welch(ours: Sequence[float], theirs: Sequence[float]) -> Welch | None:
    """Compare two samples; t is positive if ours are larger.

    Returns:
        The test, or `None` if the spread cannot be estimated: fewer than two values on a side, or constant
        values on both.
    """
    if min(len(ours), len(theirs)) < 2 or len(set(ours)) == len(set(theirs)) == 1:
        return None
    from scipy import stats  # slow to import

    with warnings.catch_warnings():  # scipy warns if one side is constant; the test holds all the same
        warnings.simplefilter("ignore", RuntimeWarning)
        found = stats.ttest_ind(ours, theirs, equal_var=False)
    return Welch(float(found.statistic), float(found.df), float(found.pvalue))


def mcnemar(ours: np.ndarray, theirs: np.ndarray) -> McNemar:
    """Compare the correct answers of two models to the same queries, bool [N] each.

    If the models never differ, p is 1.
    """
    only_ours, only_theirs = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    from scipy import stats  # slow to import

    differ = only_ours + only_theirs
    p = float(stats.binomtest(only_ours, differ, 0.5).pvalue) if differ else 1.0
    return McNemar(only_ours, only_theirs, p)
