"""Tails of distributions against SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from retrieval.metrics.distributions import (
    coin_tail,
    incomplete_beta,
    normal_cdf,
    t_power,
    t_quantile,
    t_tail,
)

shapes = st.floats(-1, 9).map(math.exp)


@given(shapes, shapes, st.floats(0, 1))
def test_incomplete_beta_equals_scipy(a: float, b: float, x: float) -> None:
    assert incomplete_beta(a, b, x, 1 - x) == pytest.approx(
        float(special.betainc(a, b, x)), rel=1e-9, abs=1e-12
    )


@given(st.floats(-40, 40), shapes)
def test_tail_of_t_equals_scipy(t: float, df: float) -> None:
    assert t_tail(t, df) == pytest.approx(float(stats.t.sf(t, df)), rel=1e-9)
    assert normal_cdf(t) == pytest.approx(float(special.ndtr(t)), rel=1e-12)


@pytest.mark.parametrize("tail", [0.4, 0.025, 0.0005])
def test_quantiles_of_t_equal_scipy(tail: float) -> None:
    every = [1, 2, 3, 4.5, 7, 19, 100, 1000, 9_999, 100_000]
    assert [t_quantile(tail, df) for df in every] == pytest.approx(stats.t.isf(tail, every), rel=1e-10)


@pytest.mark.parametrize("df", [1, 2, 3, 7, 33, 998, 9_998])
def test_power_equals_the_noncentral_t_of_scipy(df: int) -> None:
    """Its lower tail is nan in SciPy for some large shifts, where it is below 1e-14."""
    critical = stats.t.isf(0.025, df)
    for shift in (0, 0.5, 2.8, 4, 7.9):
        expected = stats.nct.sf(critical, df, shift) + np.nan_to_num(stats.nct.cdf(-critical, df, shift))
        assert t_power(0.05, df, shift) == pytest.approx(expected, abs=1e-10)


@given(st.integers(0, 400), st.integers(0, 400))
def test_tail_of_a_coin_equals_counting(heads: int, tails: int) -> None:
    """Exactly, in integers of any size."""
    throws = heads + tails
    expected = sum(math.comb(throws, few) for few in range(heads + 1)) / 2**throws
    assert coin_tail(heads, throws) == pytest.approx(expected, rel=1e-10)
