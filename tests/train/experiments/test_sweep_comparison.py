"""Comparison of the variants of a sweep: paired differences, tables and figures."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from matplotlib.figure import Figure
from scipy.stats import ttest_rel

from retrieval.evaluation.score import Result
from retrieval.reports.figures import render_figure
from train.experiments.references import Reference
from train.experiments.results_figure import draw_results
from train.experiments.sweep_comparison import Outcome, compare_variants
from train.experiments.sweep_plan import SweptNumber
from train.experiments.sweep_results import SweepResults


def outcome(variant: str, seed: int, **recalls: float) -> Outcome:
    scores = {
        which: Result(which, {"recall_at_1": value, "nmi": 0.5, "map_at_r": value / 2})
        for which, value in recalls.items()
    }
    seconds = 0.25 + 0.5 * seed if scores else None
    return Outcome(variant, seed, scores, None if scores else "it broke", seconds, 2**20 * (seed + 1))


def results(names: Sequence[str], baseline: str, runs: list[Outcome], **others: SweptNumber) -> SweepResults:
    return SweepResults(
        data="digits",
        protocol="40 images, each searched for among all the others",
        command="lookalike sweep",
        baseline=baseline,
        rows=compare_variants(dict.fromkeys(names, ()), baseline, runs),
        outcomes=runs,
        notes=[],
        bad_files=[],
        **others,
    )


def test_variants_are_compared_seed_by_seed_at_the_best_epoch_if_all_runs_have_it() -> None:
    runs = [
        outcome("base", 0, before=0.2, best=0.50, last=0.60),
        outcome("base", 1, before=0.2, best=0.54, last=0.90),
        outcome("base", 2, before=0.2, best=0.56, last=0.90),
        outcome("ours", 2, before=0.2, best=0.66, last=0.10),
        outcome("ours", 0, before=0.2, best=0.60, last=0.10),
        outcome("ours", 1, before=0.2, best=0.62, last=0.10),
        outcome("open", 1, before=0.2, last=0.70),
        outcome("open", 0),
        outcome("open", 2, before=0.2, last=0.75),
        outcome("lost", 0),
        outcome("lost", 1),
        outcome("lost", 2),
    ]
    rows = {row.name: row for row in results(("base", "ours", "open", "lost"), "base", runs).rows}
    assert [row.checkpoint for row in rows.values()] == ["best", "best", "last", None]
    assert rows["base"].recalls == [0.50, 0.54, 0.56]
    assert rows["base"].paired == rows["lost"].paired == {}
    ours, opened = (rows[name].paired["recall_at_1"] for name in ("ours", "open"))
    expected = ttest_rel([0.60, 0.62, 0.66], [0.50, 0.54, 0.56])
    assert (ours.n, ours.difference) == (3, pytest.approx(0.28 / 3))
    assert (ours.t, ours.p) == pytest.approx((expected.statistic, expected.pvalue))
    # The failed run leaves seeds 1 and 2.
    assert (opened.n, opened.difference) == (2, pytest.approx(0.175))
    assert opened.p == pytest.approx(ttest_rel([0.70, 0.75], [0.54, 0.56]).pvalue)
    assert ours.p is not None
    assert ours.p_holm == pytest.approx(2 * ours.p), "two variants are tested"
    assert opened.p_holm == opened.p
    equal = rows["ours"].paired["nmi"]
    assert (equal.difference, equal.p, equal.p_holm, equal.seeds_for_half) == (0, None, None, None)
    assert rows["lost"].recalls == []
    assert rows["open"].runs == 3
    assert rows["base"].seconds_per_step is not None
    assert rows["base"].seconds_per_step.mean == pytest.approx(0.75)
    assert rows["base"].peak_memory == 3 * 2**20
    assert rows["lost"].seconds_per_step is None


def test_tables_have_validation_beside_test_and_the_oracle_apart() -> None:
    names = [f"variant-{number}" for number in range(12)]
    runs = [
        outcome(
            name,
            seed,
            before=0.2,
            best=0.5 + 0.01 * number + 0.003 * ((seed + 1) * (number + 2) % 5),
            last=0.5,
            validation=0.8125,
            oracle=0.9375,
        )
        for number, name in enumerate(names)
        for seed in range(4)
    ]
    found = results(names, "variant-0", runs)
    shown, page, kept = found.to_text(), found.to_markdown(), json.loads(json.dumps(found.to_dict()))
    lines = shown.splitlines()
    assert lines[0].split()[:5] == ["variant", "runs", "Recall@1", "held-out", "last"]
    assert max(map(len, lines[:13])) <= 140
    assert "81.2 ± 0.0" in lines[1]
    assert "93.8 ± 0.0" in page
    assert "it selects on the test split and is not a result" in page
    assert kept["format"] == 2
    last = kept["variants"][-1]
    assert last["scores"]["validation"]["recall_at_1"]["mean"] == pytest.approx(0.8125)
    assert last["scores"]["oracle"]["recall_at_1"]["mean"] == pytest.approx(0.9375)
    test = last["paired"]["recall_at_1"]
    assert list(test) == ["n", "difference", "low", "high", "t", "p", "seeds_for_half", "p_holm"]
    cells = [
        part.strip()
        for line in page.splitlines()
        if line.startswith("| Recall@1 |")
        for part in line[1:-1].split("|")
    ]
    assert cells[-8:-2] == [
        "Recall@1",
        "variant-11",
        "4",
        f"{100 * test['difference']:+.1f}",
        f"[{100 * test['low']:+.1f}, {100 * test['high']:+.1f}]",
        "<0.001" if test["p"] < 0.001 else f"{test['p']:.3f}",
    ]
    assert cells[-1] == str(test["seeds_for_half"])
    assert "oracle" not in shown


def test_variants_that_kept_the_start_are_named() -> None:
    """Their differences are not of training, although the loss has a row."""
    runs = [
        outcome("kept", 0, before=0.5, best=0.5, last=0.4),
        outcome("kept", 1, before=0.6, best=0.6, last=0.6),
        outcome("learned", 0, before=0.5, best=0.5, last=0.4),
        outcome("learned", 1, before=0.6, best=0.7, last=0.7),
        outcome("open", 0, before=0.5, last=0.5),
    ]
    text = results(("kept", "learned"), "kept", runs[:4]).to_text()
    assert "\nkept: no epoch was better than the start" in text
    assert "learned: no epoch" not in text
    assert "no epoch" not in results(("open",), "open", runs[4:]).to_text(), "the last epoch is measured"


def test_curve_over_the_number_in_which_the_variants_differ() -> None:
    values = {"c": 0.4, "a": 0.1, "b": 0.2}
    runs = [
        outcome(name, seed, last=0.5 - value + 0.01 * seed)
        for name, value in {**values, "usual": 0.2}.items()
        for seed in (0, 1)
    ]
    comparison = results([*values, "usual"], "b", runs, swept=SweptNumber("loss.margin", values))
    assert comparison.to_dict()["swept"] == {"setting": "loss.margin", "values": values}
    assert "s/step" in comparison.to_text().splitlines()[0]
    references = [Reference("pca", "pca", {"recall_at_1": 0.25, "nmi": 0.5}, {})]
    drawn: list[Figure] = []

    def draw(figure: Figure) -> None:
        draw_results(comparison.rows, comparison.baseline, comparison.swept, references, figure)
        drawn.append(figure)

    render_figure(draw, 12, 4)
    dots, curve = drawn[0].axes
    assert [tick.get_text() for tick in dots.get_yticklabels()] == ["c", "a", "b", "usual", "pca"]
    line = curve.get_lines()[0]
    assert list(line.get_xdata()) == [0.1, 0.2, 0.4]
    assert list(line.get_ydata()) == pytest.approx([40.5, 30.5, 10.5])
    assert (curve.get_xlabel(), curve.get_xscale()) == ("loss.margin", "log")  # 0.1, 0.2, 0.4 are powers of 2
