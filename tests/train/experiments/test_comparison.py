"""Comparison of the variants of a sweep."""

from __future__ import annotations

import pytest

from retrieval.evaluation.score import Result
from train.experiments.comparison import Outcome, compare_variants


def outcome(variant: str, seed: int, **recalls: float) -> Outcome:
    scores = {
        which: Result(which, {"recall_at_1": value, "nmi": 0.5, "f1": 0.4})
        for which, value in recalls.items()
    }
    return Outcome(variant, seed, scores, None if scores else "it broke")


def test_variants_are_compared_by_the_best_checkpoint_if_all_runs_have_it() -> None:
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
        row.name: row
        for row in compare_variants(dict.fromkeys(("base", "ours", "open", "lost"), ()), "base", runs)
    }
    assert [row.checkpoint for row in rows.values()] == ["best", "best", "last", None]
    assert rows["base"].recalls == [0.50, 0.54]
    assert rows["base"].differences == rows["base"].tests == {}
    assert rows["ours"].differences["recall_at_1"] == pytest.approx(0.09)
    # By hand: variances 0.0008 and 0.0002, t = 0.09 / sqrt(0.0004 + 0.0001), df = 25 / (16 + 1).
    test = rows["ours"].tests["recall_at_1"]
    assert test.t == pytest.approx(0.09 / 0.0005**0.5)
    assert test.df == pytest.approx(25 / 17)
    assert rows["open"].differences["recall_at_1"] == pytest.approx(0.18)
    assert rows["open"].tests == rows["lost"].tests == rows["lost"].differences == {}
    assert rows["lost"].recalls == []
    assert rows["open"].runs == 2
