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
from retrieval.metrics.statistics import bootstrap_intervals, mcnemar, summarize, welch

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


def test_intervals_leave_out_unanswerable_queries_and_are_reproducible() -> None:
    values = np.random.default_rng(0).random((50, 3))
    with_gaps = np.insert(values, [0, 20, 50], np.nan, axis=0)
    np.testing.assert_array_equal(bootstrap_intervals(with_gaps), bootstrap_intervals(values))
    assert np.isnan(bootstrap_intervals(np.full((4, 2), np.nan))).all()


def test_intervals_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).random((50, 2))
    whole = bootstrap_intervals(values)
    monkeypatch.setattr(statistics_module, "_BLOCK", 170)
    np.testing.assert_allclose(bootstrap_intervals(values), whole, atol=1e-12)
