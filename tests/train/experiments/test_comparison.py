"""Comparison of the variants of a sweep."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from retrieval.evaluation.score import Result
from retrieval.reports.figures import render_figure
from train.experiments.comparison import Outcome, SweepComparison, compare_variants, draw_sweep, sweep_table
from train.experiments.plan import SweptNumber


def outcome(variant: str, seed: int, **recalls: float) -> Outcome:
    scores = {
        which: Result(which, {"recall_at_1": value, "nmi": 0.5, "f1": 0.4})
        for which, value in recalls.items()
    }
    seconds = 0.25 + 0.5 * seed if scores else None
    return Outcome(variant, seed, scores, None if scores else "it broke", seconds)


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
    assert rows["base"].seconds_per_step is not None
    assert rows["base"].seconds_per_step.mean == pytest.approx(0.5)
    assert rows["lost"].seconds_per_step is None


def test_curve_over_the_number_in_which_the_variants_differ() -> None:
    values = {"c": 0.4, "a": 0.1, "b": 0.2}
    runs = [
        outcome(name, seed, last=0.5 - value + 0.01 * seed)
        for name, value in values.items()
        for seed in (0, 1)
    ]
    comparison = SweepComparison(
        data="digits",
        protocol="",
        command="",
        baseline="b",
        rows=compare_variants(dict.fromkeys(values, ()), "b", runs),
        outcomes=runs,
        notes=[],
        bad_files=[],
        swept=SweptNumber("loss.margin", values),
    )
    assert comparison.to_dict()["swept"] == {"setting": "loss.margin", "values": values}
    assert "s/step" in sweep_table(comparison).splitlines()[0]
    drawn: list[Figure] = []

    def draw(figure: Figure) -> None:
        draw_sweep(comparison, figure)
        drawn.append(figure)

    render_figure(draw, 12, 4)
    dots, curve = drawn[0].axes
    assert [tick.get_text() for tick in dots.get_yticklabels()] == ["c", "a", "b"]
    line = curve.get_lines()[0]
    assert list(line.get_xdata()) == [0.1, 0.2, 0.4]
    assert list(line.get_ydata()) == pytest.approx([40.5, 30.5, 10.5])
    assert (curve.get_xlabel(), curve.get_xscale()) == ("loss.margin", "log")  # 0.1, 0.2, 0.4 are powers of 2
