"""Confidence intervals of metrics: do they cover what they promise to?"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from retrieval.metrics import bootstrap


def test_equals_scipy() -> None:
    values = np.random.default_rng(0).beta(0.5, 0.8, (400, 2))
    ours = bootstrap.intervals(values, resamples=5000)
    for column, (low, high) in zip(values.T, ours, strict=True):
        theirs = stats.bootstrap((column,), np.mean, n_resamples=5000, method="percentile", rng=1)
        width = theirs.confidence_interval.high - theirs.confidence_interval.low
        assert low == pytest.approx(theirs.confidence_interval.low, abs=0.05 * width)
        assert high == pytest.approx(theirs.confidence_interval.high, abs=0.05 * width)


@pytest.mark.parametrize("recall", [0.3, 0.5, 0.9])
def test_covers_the_recall_that_queries_were_drawn_with(recall: float) -> None:
    """Nineteen times of twenty; within what 500 trials of a true 95% would show by chance (4 deviations)."""
    random = np.random.default_rng(2)
    trials = (random.random((500, 300)) < recall).astype(float)
    ends = np.array(
        [bootstrap.intervals(trial[:, None], resamples=400, seed=i)[0] for i, trial in enumerate(trials)]
    )
    covered = np.mean((ends[:, 0] <= recall) & (recall <= ends[:, 1]))
    assert abs(covered - 0.95) < 4 * np.sqrt(0.05 * 0.95 / 500)


def test_is_as_wide_as_the_exact_binomial_interval() -> None:
    hits = np.repeat([1.0, 0.0], [700, 300])[:, None]
    exact = stats.binomtest(700, 1000).proportion_ci(method="exact")
    np.testing.assert_allclose(bootstrap.intervals(hits)[0], exact, atol=0.004)


def test_leaves_out_what_cannot_be_answered_and_repeats_itself() -> None:
    values = np.random.default_rng(0).random((50, 3))
    with_gaps = np.insert(values, [0, 20, 50], np.nan, axis=0)
    np.testing.assert_array_equal(bootstrap.intervals(with_gaps), bootstrap.intervals(values))
    assert np.isnan(bootstrap.intervals(np.full((4, 2), np.nan))).all()


def test_blocks_do_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).random((50, 2))
    whole = bootstrap.intervals(values)
    monkeypatch.setattr(bootstrap, "_BLOCK", 170)
    np.testing.assert_allclose(bootstrap.intervals(values), whole, atol=1e-12)
