"""The statistics of a sweep against published examples, tables and the standard library."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.evaluation import Result
from train.comparison import Outcome, compare
from train.significance import summarize, welch

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
def test_welch_is_its_formula(ours: list[float], theirs: list[float]) -> None:
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
def test_mean_and_standard_deviation_are_those_of_the_standard_library(values: list[float]) -> None:
    found = summarize(values)
    assert found.mean == pytest.approx(statistics.mean(values), abs=1e-9)
    assert found.std == pytest.approx(statistics.stdev(values), abs=1e-9)


@pytest.mark.parametrize(("n", "t"), [(2, 12.706), (3, 4.303), (5, 2.776), (11, 2.228)])
def test_the_interval_is_that_of_printed_tables_of_t(n: int, t: float) -> None:
    found = summarize([0.1 * i for i in range(n)])
    assert found.low is not None
    assert found.std is not None
    assert found.mean - found.low == pytest.approx(t * found.std / n**0.5, rel=1e-3)


def test_one_run_and_equal_runs_have_no_p_value() -> None:
    assert summarize([0.5]).std is None
    assert welch([0.5], [0.1, 0.2]) is None
    assert welch([0.5, 0.5], [0.5, 0.5, 0.5]) is None
    assert welch([0.5, 0.5], [0.1, 0.2]) is not None


def outcome(variant: str, seed: int, **recalls: float) -> Outcome:
    scores = {which: Result(which, {1: value}, 0.5, 0.4) for which, value in recalls.items()}
    return Outcome(variant, seed, scores, None if scores else "it broke")


def test_variants_are_compared_by_the_checkpoint_that_was_not_chosen_on_the_test_split() -> None:
    runs = [
        outcome("base", 0, before=0.2, best=0.50, last=0.60),
        outcome("base", 1, before=0.2, best=0.54, last=0.90),
        outcome("ours", 0, before=0.2, best=0.60, last=0.10),
        outcome("ours", 1, before=0.2, best=0.62, last=0.10),
        outcome("open", 0, before=0.2, last=0.70),
        outcome("open", 1),
        outcome("lost", 0),
        outcome("lost", 1),
    ]
    rows = {
        row.name: row for row in compare(dict.fromkeys(("base", "ours", "open", "lost"), ()), "base", runs)
    }
    assert [row.checkpoint for row in rows.values()] == ["best", "best", "last", None]
    assert rows["base"].recalls == [0.50, 0.54]
    assert rows["base"].difference is rows["base"].test is None
    assert rows["ours"].difference == pytest.approx(0.09)
    # By hand: variances 0.0008 and 0.0002, t = 0.09 / sqrt(0.0004 + 0.0001), df = 25 / (16 + 1).
    assert rows["ours"].test is not None
    assert rows["ours"].test.t == pytest.approx(0.09 / 0.0005**0.5)
    assert rows["ours"].test.df == pytest.approx(25 / 17)
    assert (rows["open"].difference, rows["open"].test) == (pytest.approx(0.18), None)
    assert (rows["lost"].difference, rows["lost"].recalls) == (None, [])
    assert rows["open"].runs == 2
