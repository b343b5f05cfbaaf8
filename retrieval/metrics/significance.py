"""Whether a difference is more than chance: over repeated runs, and over the same queries."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Summary:
    """One number measured in several runs.

    Attributes:
        std: of the sample (n - 1); `None` with one run.
        low, high: 95% confidence interval of the mean, by Student's t; `None` with one run.
    """

    n: int
    mean: float
    std: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Welch:
    """Welch's t-test, two-sided: may these two means be the same? (Welch 1947)"""

    t: float
    df: float
    p: float


@dataclass(frozen=True)
class McNemar:
    """McNemar's exact test, two-sided: may two models be right equally often? (McNemar 1947)

    Only queries that one of them alone gets right say anything; under the hypothesis each is a fair coin.
    """

    only_ours: int
    only_theirs: int
    p: float


def summarize(values: Sequence[float]) -> Summary:
    """Mean, standard deviation and 95% interval of one value or more."""
    n, mean = len(values), float(np.mean(values))
    if n < 2:
        return Summary(n, mean, None, None, None)
    std = float(np.std(values, ddof=1))
    half = float(stats.t.ppf(0.975, n - 1)) * std / math.sqrt(n)
    return Summary(n, mean, std, mean - half, mean + half)


def welch(ours: Sequence[float], theirs: Sequence[float]) -> Welch | None:
    """Compare two samples; t is positive where ours are larger.

    Returns:
        `None` where there is nothing to estimate the spread from: fewer than two values on a side, or
        values that do not vary on either.
    """
    if min(len(ours), len(theirs)) < 2 or len(set(ours)) == len(set(theirs)) == 1:
        return None
    with warnings.catch_warnings():  # that one side does not vary is no reason to doubt the other
        warnings.simplefilter("ignore", RuntimeWarning)
        found = stats.ttest_ind(ours, theirs, equal_var=False)
    return Welch(float(found.statistic), float(found.df), float(found.pvalue))


def mcnemar(ours: np.ndarray, theirs: np.ndarray) -> McNemar:
    """Compare what two models get right on the same queries, bool [N] each; p is 1 if they never differ."""
    only_ours, only_theirs = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    differ = only_ours + only_theirs
    p = float(stats.binomtest(only_ours, differ, 0.5).pvalue) if differ else 1.0
    return McNemar(only_ours, only_theirs, p)


def p_value(p: float) -> str:
    """As people read it."""
    return f"{p:.3f}" if p >= 0.001 else "<0.001"
