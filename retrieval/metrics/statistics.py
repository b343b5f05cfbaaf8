"""Confidence intervals and tests: bootstrap over queries or classes, t-tests over runs, McNemar."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.metrics.distributions import coin_tail, normal_cdf, t_power, t_quantile, t_tail

RESAMPLES = 1000
LEAST_CLASSES = 8  # with fewer, an interval over classes covers less than it says
MOST_SEEDS = 10_000  # `seeds_for_half` stops here
_LEVEL, _POWER = 0.05, 0.8  # of the test that `seeds_for_half` plans
_NO_SPREAD = 1e-12  # differences of shares that are equal up to rounding
_LARGEST_EFFECT = 40.0  # beyond it two pairs are enough
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
class Paired:
    """Paired differences of two groups of runs, such as two variants trained with the same seeds.

    Attributes:
        n: Number of pairs.
        difference: Mean of the differences, ours - theirs.
        low: Lower end of the 95% confidence interval of the mean difference (Student's t). This and the
            following are `None` with fewer than two pairs, or if all differences are equal.
        high: Upper end of that interval.
        t: Statistic of the paired t-test.
        p: Its p-value, two-sided.
        seeds_for_half: Pairs with which the test would detect half of this difference at the 5% level in 80%
            of experiments, if the spread is as observed; `MOST_SEEDS` stands for this many or more.
        p_holm: p corrected for the number of comparisons (`holm`); `None` if it was not corrected.
    """

    n: int
    difference: float
    low: float | None = None
    high: float | None = None
    t: float | None = None
    p: float | None = None
    seeds_for_half: int | None = None
    p_holm: float | None = None


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


def bootstrap_intervals(
    values: np.ndarray,
    classes: np.ndarray | None = None,
    *,
    strata: np.ndarray | None = None,
    comparisons: int = 1,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> np.ndarray:
    """Return 95% intervals of the means of several metrics by the bootstrap (Efron 1979).

    Without classes, queries are resampled: the percentile interval covers other queries of the same classes.
    With classes, whole classes are resampled, each with all its queries: it covers other classes like these.
    As classes are often few, the percentiles are then expanded to Student's t (Hesterberg 2015, section 4.3);
    with fewer than eight classes it is still too narrow, and `class_intervals` gives none.
    Neither covers other training runs. All metrics share the same resamples.

    Args:
        values: Values of the queries, float [N, metrics]; queries with a nan are left out.
        classes: Class of each query, [N]; `None` to resample queries.
        strata: Part of the data that each query belongs to, [N]: the mean of the means of all parts is meant,
            and each part is resampled for itself. The expansion is that of the smallest part.
        comparisons: Number of intervals that are to hold together, by Bonferroni's inequality.
        resamples: Number of bootstrap resamples.
        seed: Seed of the resampling.

    Returns:
        Lower and upper ends, float64 [metrics, 2]; nan if there are no queries, or fewer than two classes.
    """
    known = ~np.isnan(values).any(1)
    values, classes = values[known], None if classes is None else classes[known]
    groups = [np.arange(len(values))]
    if strata is not None:
        _, stratum = np.unique(strata[known], return_inverse=True)
        groups = [np.flatnonzero(stratum == number) for number in range(stratum.max(initial=-1) + 1)]
    units = [_units(values[rows], None if classes is None else classes[rows]) for rows in groups]
    count = min((len(sums) for sums, _ in units), default=0)
    if count < (1 if classes is None else 2):
        return np.full((values.shape[1], 2), np.nan)
    tail = _LEVEL / 2 / comparisons
    level = tail if classes is None else _expanded_level(count, tail)
    random = np.random.default_rng(seed)
    means = np.mean([_resampled_means(sums, sizes, resamples, random) for sums, sizes in units], 0)
    return np.quantile(means, (level, 1 - level), axis=0).T


def mean_of_parts(values: np.ndarray, strata: np.ndarray | None) -> np.ndarray:
    """Return the mean of the means of all parts, float64 [metrics]; arguments as above, without nan."""
    if strata is None:
        return np.asarray(values.mean(0))
    return np.asarray(np.mean([values[strata == part].mean(0) for part in np.unique(strata)], 0))


def _units(values: np.ndarray, classes: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the sums of the values of what is resampled, [units, metrics], and the queries of each."""
    if classes is None:
        return values, None
    _, unit_of, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    return np.stack([np.bincount(unit_of, column, len(sizes)) for column in values.T], 1), sizes


def _resampled_means(
    sums: np.ndarray, sizes: np.ndarray | None, resamples: int, random: np.random.Generator
) -> np.ndarray:
    """Return the means of the metrics in each resample, float64 [resamples, metrics]."""
    count = len(sums)
    means = np.empty((resamples, sums.shape[1]))
    step = max(1, _BLOCK // count)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        drawn = random.integers(0, count, (size, count), np.int32)
        drawn += np.arange(size, dtype=np.int32)[:, None] * count
        times = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        queries = count if sizes is None else (times @ sizes)[:, None]
        means[start : start + size] = times @ sums / queries
    return means


def class_intervals(
    values: np.ndarray, classes: np.ndarray, strata: np.ndarray | None = None
) -> np.ndarray | None:
    """Return `bootstrap_intervals` over classes; `None` with fewer than `LEAST_CLASSES`, in any stratum."""
    known = ~np.isnan(values).any(1)
    parts = np.zeros(len(classes), np.int64) if strata is None else strata
    fewest = min((len(np.unique(classes[known & (parts == part)])) for part in np.unique(parts)), default=0)
    return bootstrap_intervals(values, classes, strata=strata) if fewest >= LEAST_CLASSES else None


def _expanded_level(count: int, tail: float) -> float:
    """Return the level of the percentile that replaces a tail for so many resampled units, two or more."""
    return normal_cdf(-t_quantile(tail, count - 1) * math.sqrt(count / (count - 1)))


def wilson_interval(right: int, count: int) -> tuple[float, float]:
    """Return the 95% score interval of a share (Wilson 1927), also for few trials; 0 to 1 without any."""
    if not count:
        return 0.0, 1.0
    z = 1.959963984540054
    share, spread = right / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    reach = z * (share * (1 - share) / count + spread / (4 * count)) ** 0.5 / (1 + spread)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def mcnemar_by_class(ours: np.ndarray, theirs: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Run McNemar's exact test for every class, and correct p for their number (Holm 1979).

    Args:
        ours: Which queries one model answers correctly, bool [N].
        theirs: Those of the other model, bool [N].
        classes: Class of each query, from 0, int [N].

    Returns:
        p of each class, float64 [classes]; 1 where the models do not differ.
    """
    count = int(classes.max()) + 1
    only_ours = np.bincount(classes, ours & ~theirs, count)
    only_theirs = np.bincount(classes, theirs & ~ours, count)
    pairs = zip(only_ours.astype(int).tolist(), only_theirs.astype(int).tolist(), strict=True)
    return np.array(holm([_coin_test(*pair) for pair in pairs]))


def summarize(values: Sequence[float]) -> Summary:
    """Return mean, standard deviation and 95% interval of at least one value."""
    n, mean = len(values), float(np.mean(values))
    if n < 2:
        return Summary(n, mean, None, None, None)
    std = float(np.std(values, ddof=1))
    half = t_quantile(_LEVEL / 2, n - 1) * std / math.sqrt(n)
    return Summary(n, mean, std, mean - half, mean + half)


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Paired:
    """Compare runs in pairs, such as those of one seed.

    Args:
        ours: Values of at least one run.
        theirs: Values of the other run of each pair, in the same order.
    """
    differences = np.subtract(ours, theirs)
    n, mean = len(differences), float(differences.mean())
    std = float(differences.std(ddof=1)) if n > 1 else 0.0
    if std < _NO_SPREAD:
        return Paired(n, mean)
    error = std / math.sqrt(n)
    t, half = mean / error, t_quantile(_LEVEL / 2, n - 1) * error
    p = 2 * t_tail(abs(t), n - 1)
    needed = None if abs(mean) < _NO_SPREAD else pairs_for_effect(mean / 2 / std)
    return Paired(n, mean, mean - half, mean + half, t, p, needed)


def pairs_for_effect(effect: float) -> int:
    """Return the pairs with which a paired t-test detects an effect at the 5% level in 80% of experiments.

    Exact, by the noncentral t distribution (Cohen 1988, chapter 2).

    Args:
        effect: Mean of the differences divided by their standard deviation, not 0.

    Returns:
        The number of pairs, at least 2 and at most `MOST_SEEDS`.
    """
    effect = min(abs(effect), _LARGEST_EFFECT)

    def is_enough(n: int) -> bool:
        return t_power(_LEVEL, n - 1, effect * math.sqrt(n)) >= _POWER

    return bisect_left(range(MOST_SEEDS), True, lo=2, key=is_enough)


def holm(ps: Sequence[float]) -> list[float]:
    """Correct p-values for their number: the level then holds for all tests together (Holm 1979).

    Returns:
        The corrected p-values, in the order given.
    """
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    corrected, largest = [0.0] * len(ps), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[i]))
        corrected[i] = largest
    return corrected


def welch(ours: Sequence[float], theirs: Sequence[float]) -> Welch | None:
    """Compare two samples; t is positive if ours are larger.

    Returns:
        The test, or `None` if the spread cannot be estimated: fewer than two values on a side, or constant
        values on both.
    """
    if min(len(ours), len(theirs)) < 2 or len(set(ours)) == len(set(theirs)) == 1:
        return None
    errors = [float(np.var(side, ddof=1)) / len(side) for side in (ours, theirs)]  # squared
    t = float(np.mean(ours) - np.mean(theirs)) / math.sqrt(sum(errors))
    freedom = sum(e * e / (len(side) - 1) for e, side in zip(errors, (ours, theirs), strict=True))
    df = sum(errors) ** 2 / freedom
    return Welch(t, df, 2 * t_tail(abs(t), df))


def mcnemar(ours: np.ndarray, theirs: np.ndarray) -> McNemar:
    """Compare the correct answers of two models to the same queries, bool [N] each.

    If the models never differ, p is 1.
    """
    only_ours, only_theirs = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    return McNemar(only_ours, only_theirs, _coin_test(only_ours, only_theirs))


def _coin_test(heads: int, tails: int) -> float:
    """Return the two-sided p-value of the hypothesis that a coin is fair."""
    return min(1.0, 2 * coin_tail(min(heads, tails), heads + tails))
