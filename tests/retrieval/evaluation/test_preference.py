"""What visitors prefer: the votes in a log, and the sequence of intervals that may be looked at every day."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.evaluation.preference import Preference, confidence_sequence, log_evidence, preference_of
from retrieval.storage.query_log import Against, LoggedSearch, QueryLog, new_id, read_mixed_searches

MODELS = ("a" * 64, "b" * 64)


def binomial(count: int, share: float) -> list[float]:
    return [math.comb(count, wins) * share**wins * (1 - share) ** (count - wins) for wins in range(count + 1)]


@pytest.mark.parametrize("share", [0.5, 0.2, 0.93])
@pytest.mark.parametrize("count", [0, 1, 7, 60])
def test_evidence_has_mean_one(count: int, share: float) -> None:
    """Against the right share; with independent decisions that makes it a martingale."""
    each = binomial(count, share)
    mean = sum(p * math.exp(log_evidence(wins, count, share)) for wins, p in enumerate(each))
    assert mean == pytest.approx(1)


@given(st.integers(0, 200).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_interval_has_the_shares_with_little_evidence(wins_of: tuple[int, int]) -> None:
    wins, count = wins_of
    low, high = confidence_sequence(wins, count)
    for share in np.linspace(0.001, 0.999, 333):
        is_in = log_evidence(wins, count, float(share)) < math.log(20)
        near_an_end = min(abs(share - low), abs(share - high)) < 1e-6
        assert near_an_end or is_in == (low < share < high)


@pytest.mark.parametrize("share", [0.5, 0.65])
def test_interval_holds_at_every_look(share: float) -> None:
    """Of 1,000 comparisons that are looked at after each of 400 decisions, at most 5% ever miss the share."""
    random = np.random.default_rng(0)
    wins = (random.random((1000, 400)) < share).cumsum(1)
    ever = np.zeros(1000, bool)
    for count in range(1, 401):
        evidence = {int(w): log_evidence(int(w), count, share) for w in np.unique(wins[:, count - 1])}
        ever |= np.array([evidence[int(w)] >= math.log(20) for w in wins[:, count - 1]])
    assert ever.mean() <= 0.05
    late = np.array([abs(w / 400 - share) > 1.96 * math.sqrt(share * (1 - share) / 400) for w in wins[:, -1]])
    assert late.mean() > 0.02  # an interval for one look would miss more than once in 20 over all of them


def logged(
    log: Path, votes: list[tuple[int, list[int], list[int]]], *, models: tuple[str, str] = MODELS
) -> None:
    """Log searches: the number of the query, whose hits 1 and 2 are of the first gallery and 3 and 4 of the
    second; what is opened, and what is marked as wrong."""
    writer = QueryLog(log)
    for query, opened, wrong in votes:
        vector = np.eye(1, 8, query % 8, dtype=np.float32)[0] + query / 100
        against = Against("new.gallery", models[1], [1, 2], [3, 4])
        one = LoggedSearch(new_id(), "image", vector, (), None, [(1, 0.9, None)], against)
        writer.append("old.gallery", models[0], [one])
        for item in opened:
            writer.append_outcome("old.gallery", one.id, item, "opened")
        for item in wrong:
            writer.append_outcome("old.gallery", one.id, item, "wrong")


def measured(log: Path) -> Preference:
    return preference_of(read_mixed_searches(log, "old.gallery", MODELS))


def test_votes(tmp_path: Path) -> None:
    votes = [
        (0, [1], []),  # the first gallery
        (0, [3, 4], []),  # the same query again counts no more
        (1, [3], []),  # the second
        (2, [1, 3], []),  # neither
        (2, [4], []),  # and then the second
        (3, [9], []),  # a hit that both have at the same place
        (4, [], []),  # nothing
        (5, [1, 3], [1]),  # the second, as the other is marked as wrong
    ]
    logged(tmp_path / "log", votes)
    found = measured(tmp_path / "log")
    assert (found.searches, found.chosen, found.first, found.second) == (8, 5, 1, 3)
    assert found.share == 0.75
    assert found.low < 0.5 < found.high
    assert not found.certain
    assert found.p > 0.05
    assert found.needed is None, "four decisions are too few for a forecast"
    evidence = math.exp(log_evidence(3, 4, 0.5))
    assert found.p == pytest.approx(min(1, 1 / evidence))


def test_forecast_holds_if_it_goes_on_like_this(tmp_path: Path) -> None:
    some = [(query, [3], []) if query % 4 else (query, [1], []) for query in range(20)]
    logged(tmp_path / "log", some)
    before = measured(tmp_path / "log")
    assert before.share == 0.75
    assert before.needed is not None
    assert not before.certain
    more = range(101, 105 + before.needed)
    logged(tmp_path / "log", [(number, [3], []) if number % 4 else (number, [1], []) for number in more])
    after = measured(tmp_path / "log")
    assert after.first + after.second == 24 + before.needed
    assert log_evidence(0.75 * (19 + before.needed), 19 + before.needed, 0.5) < math.log(20)
    assert after.certain
    assert after.needed is None
    assert after.low > 0.5


def test_nothing_decides(tmp_path: Path) -> None:
    logged(tmp_path / "log", [(0, [], [])])
    found = measured(tmp_path / "log")
    assert (found.share, found.low, found.high, found.p, found.needed) == (0.5, 0.0, 1.0, 1.0, None)


def test_other_models_are_counted(tmp_path: Path) -> None:
    logged(tmp_path / "log", [(0, [1], [])], models=("c" * 64, "b" * 64))
    logged(tmp_path / "log", [(1, [3], [])])
    mixed = read_mixed_searches(tmp_path / "log", "old.gallery", MODELS)
    assert (mixed.count, len(mixed.chosen)) == (1, 1)
    assert mixed.others == {f"old.gallery of {'c' * 12} and new.gallery of {'b' * 12}": 1}
