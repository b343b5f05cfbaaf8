"""Intervals and tests against SciPy, published examples, printed tables and the standard library."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from retrieval.metrics import statistics as statistics_module
from retrieval.metrics.statistics import (
    MOST_SEEDS,
    bootstrap_intervals,
    class_intervals,
    holm,
    mcnemar,
    mcnemar_by_class,
    mean_of_parts,
    paired,
    pairs_for_effect,
    summarize,
    welch,
    wilson_interval,
)

# Rosetta Code, "Welch's t-test", whose p-values come from R.
A = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4]
B = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5, 24.4]
C = [17.2, 20.9, 22.6, 18.1, 21.7, 21.4, 23.5, 24.2, 14.7, 21.8]
D = [21.5, 22.8, 21.0, 23.0, 21.6, 23.6, 22.5, 20.7, 23.4, 21.8]
D += [20.7, 21.7, 21.5, 22.5, 23.6, 21.5, 22.5, 23.5, 21.5, 21.8]

shares = st.floats(0, 1, width=32)


@pytest.mark.parametrize(("ours", "theirs", "p"), [(A, B, 0.021378001462867), (C, D, 0.148841696605327)])
def test_welch_on_published_samples(ours: list[float], theirs: list[float], p: float) -> None:
    found = welch(ours, theirs)
    assert found is not None
    assert found.p == pytest.approx(p, rel=1e-9)
    assert found.t < 0


@given(st.lists(shares, min_size=2, max_size=6), st.lists(shares, min_size=2, max_size=6))
def test_welch_equals_its_formula(ours: list[float], theirs: list[float]) -> None:
    found = welch(ours, theirs)
    a, b = (statistics.variance(side) / len(side) for side in (ours, theirs))
    if len(set(ours)) == len(set(theirs)) == 1:
        assert found is None
        return
    if a + b < 1e-10:  # too near to no variation for float arithmetic
        return
    assert found is not None
    assert found.t == pytest.approx(
        (statistics.mean(ours) - statistics.mean(theirs)) / (a + b) ** 0.5, abs=1e-6
    )
    df = (a + b) ** 2 / (a**2 / (len(ours) - 1) + b**2 / (len(theirs) - 1))
    assert found.df == pytest.approx(df, rel=1e-6)
    assert 0 <= found.p <= 1


@given(st.lists(shares, min_size=2, max_size=9))
def test_mean_and_deviation_equal_the_standard_library(values: list[float]) -> None:
    found = summarize(values)
    assert found.mean == pytest.approx(statistics.mean(values), abs=1e-9)
    assert found.std == pytest.approx(statistics.stdev(values), abs=1e-9)


@pytest.mark.parametrize(("n", "t"), [(2, 12.706), (3, 4.303), (5, 2.776), (11, 2.228)])
def test_interval_equals_printed_tables_of_t(n: int, t: float) -> None:
    found = summarize([0.1 * i for i in range(n)])
    assert found.low is not None
    assert found.std is not None
    assert found.mean - found.low == pytest.approx(t * found.std / n**0.5, rel=1e-3)


def test_one_run_and_equal_runs_have_no_p_value() -> None:
    assert summarize([0.5]).std is None
    assert welch([0.5], [0.1, 0.2]) is None
    assert welch([0.5, 0.5], [0.5, 0.5, 0.5]) is None
    assert welch([0.5, 0.5], [0.1, 0.2]) is not None


# ---- paired runs

# Student (1908), "The probable error of a mean": hours of sleep that two drugs added, ten patients. R's
# example(t.test) prints t = -4.0621, p = 0.002833 and the interval -2.4598858 .. -0.7001142.
FIRST_DRUG = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND_DRUG = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def test_paired_on_published_samples() -> None:
    found = paired(FIRST_DRUG, SECOND_DRUG)
    assert found.n == 10
    assert found.difference == pytest.approx(-1.58)
    assert found.t == pytest.approx(-4.0621, abs=5e-5)
    assert found.p == pytest.approx(0.002833, abs=5e-7)
    assert (found.low, found.high) == pytest.approx((-2.4598858, -0.7001142))


@given(st.lists(st.tuples(shares, shares), min_size=2, max_size=8))
def test_paired_equals_scipy(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = np.array(pairs, float).T
    found = paired(ours.tolist(), theirs.tolist())
    if np.ptp(ours - theirs) < 1e-6:  # too near to no variation for float arithmetic
        return
    expected = stats.ttest_rel(ours, theirs)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.t, found.low, found.high) == pytest.approx(
        (expected.statistic, interval.low, interval.high)
    )


# Sample sizes of the paired t-test at 5%, two-sided, power 80%, for a small, a medium and a large effect, as
# printed by G*Power (Faul et al. 2007) and statsmodels' TTestPower.
@pytest.mark.parametrize(("effect", "pairs"), [(0.2, 199), (0.5, 34), (-0.5, 34), (0.8, 15), (1e9, 2)])
def test_number_of_pairs_equals_published_sample_sizes(effect: float, pairs: int) -> None:
    assert pairs_for_effect(effect) == pairs


def test_seeds_for_half_detect_half_the_difference_in_most_experiments() -> None:
    """In 80% of 20,000 drawn experiments, and in fewer with one seed less."""
    found = paired([0.52, 0.55, 0.51, 0.58, 0.56], [0.50, 0.50, 0.50, 0.50, 0.50])
    seeds, spread = found.seeds_for_half, statistics.stdev([2, 5, 1, 8, 6]) / 100
    assert seeds is not None
    normal = np.random.default_rng(0).standard_normal
    detected = [
        (
            stats.ttest_1samp(found.difference / 2 + spread * normal((20_000, n)), 0, axis=1).pvalue < 0.05
        ).mean()
        for n in (seeds - 1, seeds)
    ]
    assert detected[0] - 0.01 < 0.8 < detected[1] + 0.01
    assert detected[0] < detected[1]


def test_pairs_without_variation_have_no_test() -> None:
    """Equal differences too, which float arithmetic makes differ in the last digit."""
    for ours, theirs in [([0.5], [0.4]), ([0.5, 0.6], [0.5, 0.6]), ([0.3, 0.7, 0.9], [0.2, 0.6, 0.8])]:
        found = paired(ours, theirs)
        assert found.n == len(ours)
        assert found.difference == pytest.approx(ours[0] - theirs[0])
        assert {found.low, found.high, found.t, found.p, found.seeds_for_half} == {None}


def test_no_number_of_seeds_shows_half_of_nothing() -> None:
    none = paired([0.5, 0.6], [0.6, 0.5])
    assert (none.p, none.seeds_for_half) == (1.0, None)
    assert paired([0.5, 0.6], [0.6, 0.4999]).seeds_for_half == MOST_SEEDS


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_rejects_like_its_procedure(ps: list[float]) -> None:
    """Step down: reject the smallest p while it is at most the level divided by the number of those left."""
    corrected = holm(ps)
    for level in (0.01, 0.05, 0.2, *(p * k for p in ps for k in (1, 2, 3))):
        if level > 1 or any(abs(value - level) < 1e-9 for value in corrected):
            continue
        left, rejected = sorted(range(len(ps)), key=lambda i: ps[i]), set()
        while left and ps[left[0]] <= level / len(left):
            rejected.add(left.pop(0))
        assert {i for i, value in enumerate(corrected) if value <= level} == rejected


def test_holm_on_a_published_example() -> None:
    """Wikipedia, "Holm-Bonferroni method"."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


answers = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40)


@given(answers)
def test_mcnemar_is_a_fair_coin_over_the_queries_that_differ(pairs: list[tuple[bool, bool]]) -> None:
    ours, theirs = np.array(pairs).T
    found = mcnemar(ours, theirs)
    b, c = sum(x and not y for x, y in pairs), sum(y and not x for x, y in pairs)
    assert (found.only_ours, found.only_theirs) == (b, c)
    # Both tails of a fair coin; they are the same, and each of b = c heads would be counted twice.
    tail = sum(math.comb(b + c, heads) for heads in range(min(b, c) + 1)) / 2 ** (b + c)
    assert found.p == pytest.approx(min(1.0, 2 * tail))


def test_mcnemar_is_near_its_chi_squared_form_on_many_queries() -> None:
    """The table of Agresti, Categorical Data Analysis (1990), p. 350: 150 against 86 of 1,600."""
    before = np.repeat([True, True, False, False], [794, 150, 86, 570])
    after = np.repeat([True, False, True, False], [794, 150, 86, 570])
    corrected = (abs(150 - 86) - 1) ** 2 / (150 + 86)
    assert mcnemar(before, after).p == pytest.approx(math.erfc(math.sqrt(corrected / 2)), rel=0.15)


# ---- bootstrap


def test_intervals_equal_scipy() -> None:
    values = np.random.default_rng(0).beta(0.5, 0.8, (400, 2))
    ours = bootstrap_intervals(values, resamples=5000)
    for column, (low, high) in zip(values.T, ours, strict=True):
        theirs = stats.bootstrap((column,), np.mean, n_resamples=5000, method="percentile", rng=1)
        width = theirs.confidence_interval.high - theirs.confidence_interval.low
        assert low == pytest.approx(theirs.confidence_interval.low, abs=0.05 * width)
        assert high == pytest.approx(theirs.confidence_interval.high, abs=0.05 * width)


@pytest.mark.parametrize("recall", [0.3, 0.5, 0.9])
def test_intervals_cover_the_recall_that_queries_were_drawn_with(recall: float) -> None:
    """In 95% of 500 trials, within 4 standard deviations."""
    random = np.random.default_rng(2)
    trials = (random.random((500, 300)) < recall).astype(float)
    ends = np.array(
        [bootstrap_intervals(trial[:, None], resamples=400, seed=i)[0] for i, trial in enumerate(trials)]
    )
    covered = np.mean((ends[:, 0] <= recall) & (recall <= ends[:, 1]))
    assert abs(covered - 0.95) < 4 * np.sqrt(0.05 * 0.95 / 500)


def test_intervals_are_as_wide_as_the_exact_binomial_interval() -> None:
    hits = np.repeat([1.0, 0.0], [700, 300])[:, None]
    exact = stats.binomtest(700, 1000).proportion_ci(method="exact")
    np.testing.assert_allclose(bootstrap_intervals(hits)[0], exact, atol=0.004)


@pytest.mark.parametrize(("right", "count"), [(0, 14), (7, 14), (14, 14), (1, 1), (730, 1000)])
def test_wilson_interval_is_that_of_scipy(right: int, count: int) -> None:
    expected = stats.binomtest(right, count).proportion_ci(method="wilson")
    assert wilson_interval(right, count) == pytest.approx(tuple(expected), abs=1e-12)
    assert wilson_interval(0, 0) == (0, 1)


def test_tests_by_class_equal_one_test_for_each() -> None:
    random = np.random.default_rng(3)
    classes = random.integers(0, 7, 200)
    ours, theirs = random.random((2, 200)) < [[0.4], [0.7]]
    alone = [mcnemar(ours[classes == n], theirs[classes == n]).p for n in range(7)]
    np.testing.assert_allclose(mcnemar_by_class(ours, theirs, classes), holm(alone))


def test_intervals_leave_out_unanswerable_queries_and_are_reproducible() -> None:
    values = np.random.default_rng(0).random((50, 3))
    with_gaps = np.insert(values, [0, 20, 50], np.nan, axis=0)
    np.testing.assert_array_equal(bootstrap_intervals(with_gaps), bootstrap_intervals(values))
    assert np.isnan(bootstrap_intervals(np.full((4, 2), np.nan))).all()


@pytest.mark.parametrize(("classes", "size"), [(60, 12), (8, 40)])
def test_intervals_over_classes_cover_the_mean_of_other_classes(classes: int, size: int) -> None:
    """In about 95% of 400 trials; those over queries would cover it in 60% or less."""
    random = np.random.default_rng(5)
    covered = {"classes": 0, "queries": 0}
    for trial in range(400):
        sizes = random.integers(size // 2, size * 2, classes)
        of_class = np.repeat(np.arange(classes), sizes)
        values = random.normal(0, 1, classes)[of_class] + random.normal(0, 1, len(of_class))
        for what, ends in (
            ("classes", bootstrap_intervals(values[:, None], of_class, resamples=500, seed=trial)),
            ("queries", bootstrap_intervals(values[:, None], resamples=500, seed=trial)),
        ):
            covered[what] += int(ends[0, 0] <= 0 <= ends[0, 1])
    assert 0.91 <= covered["classes"] / 400 <= 0.99
    assert covered["queries"] / 400 < 0.75


def test_intervals_over_classes_equal_a_loop_over_resampled_queries() -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(list("abcdefghijklmnopqrst"), random.integers(1, 9, 20))
    values = random.random((len(labels), 2)) + (labels < "f")[:, None]
    values[3] = np.nan
    rows_of = [np.flatnonzero(labels == name) for name in np.unique(labels)]
    means = []
    for _ in range(4000):
        rows = np.concatenate([rows_of[number] for number in random.integers(0, 20, 20)])
        means.append(np.nanmean(values[rows], 0))
    reach = stats.t.ppf(0.975, 19) * np.sqrt(20 / 19)  # Hesterberg's expansion
    expected = np.quantile(means, [stats.norm.cdf(-reach), stats.norm.cdf(reach)], axis=0).T
    found = bootstrap_intervals(values, labels, resamples=4000)
    np.testing.assert_allclose(found, expected, atol=0.02)
    assert np.isnan(bootstrap_intervals(values[:3], np.zeros(3))).all()


def test_intervals_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).random((50, 2))
    whole = bootstrap_intervals(values)
    monkeypatch.setattr(statistics_module, "_BLOCK", 170)
    np.testing.assert_allclose(bootstrap_intervals(values), whole, atol=1e-12)


def test_strata_are_resampled_for_themselves() -> None:
    """The mean of the means of the parts, and how much it varies, against loops and the exact variance."""
    random = np.random.default_rng(0)
    sizes, spread = (400, 60), (0.1, 0.2)
    strata = np.repeat(["large", "small"], sizes)
    values = np.concatenate([random.normal(m, s, n) for m, s, n in zip((0, 5), spread, sizes, strict=True)])
    table, classes = values[:, None], np.arange(len(values)) // 2
    parts = [values[strata == name] for name in ("large", "small")]
    assert mean_of_parts(table, strata)[0] == pytest.approx(sum(part.mean() for part in parts) / 2)
    ((low, high),) = bootstrap_intervals(table, strata=strata, resamples=4000)
    deviation = sum(part.var() / len(part) for part in parts) ** 0.5 / 2
    assert (high - low) / (2 * 1.96 * deviation) == pytest.approx(1, abs=0.06)
    ((low, high),) = bootstrap_intervals(table)  # the share of the parts varies as well
    assert high - low > 3 * 2 * 1.96 * deviation
    over = class_intervals(table, classes, strata)
    assert over is not None
    assert class_intervals(table[395:], classes[395:], strata[395:]) is None  # three classes of one part
