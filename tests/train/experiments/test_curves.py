"""Curves of a sweep: means over the seeds, runs that ended early, and the variants files of the papers."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from retrieval.reports.figures import render_figure
from tests.conftest import CHECKOUT, draw_classes
from train.experiments.curves import curves_figure, draw_curves, learning_curves
from train.experiments.experiment import Experiment
from train.experiments.sweep import run_sweep
from train.experiments.sweep_plan import SweepPlan, make_sweep_plan, parse_variants
from train.loop.run_folder import Run, initial_loss
from train.settings import parse_changes

FILES = sorted(Path(CHECKOUT, "docs", "figures").glob("symm-*.yaml"))


def watched(*recalls: float, split: str = "test") -> list[dict[str, object]]:
    return [{"step": 5 * i, "watched": split, "recall_at_1": value} for i, value in enumerate(recalls)]


def test_mean_and_deviation_are_over_the_runs_that_reached_a_step() -> None:
    held_out = [{"step": 0, "recall_at_1": 0.25}, {"step": 10, "recall_at_1": 0.75}]
    losses = [{"step": 3, "loss": 2.0, "recall": 0}, {"step": 7, "loss": 1.0}]
    runs = {
        "a": [[*watched(0.1, 0.3, 0.6), *held_out, *losses], watched(0.2, 0.7), []],
        "b": [watched(0.5, split="train")],
        "failed": [[]],
    }
    loss, validation, first, second = learning_curves(runs)
    assert (loss.quantity, loss.steps, loss.mean) == ("loss", [3, 7], [2.0, 1.0])
    assert (validation.quantity, validation.steps, validation.mean) == ("held-out", [0, 10], [0.25, 0.75])
    assert (first.variant, first.quantity) == ("a", "watched test")
    assert (first.steps, first.runs) == ([0, 5, 10], [2, 2, 1])
    assert first.mean == pytest.approx([0.15, 0.5, 0.6])
    assert first.std == pytest.approx([statistics.stdev([0.1, 0.2]), statistics.stdev([0.3, 0.7]), 0])
    assert (second.variant, second.quantity, second.mean) == ("b", "watched train", [0.5])
    assert second.std == [0.0]
    drawn = curves_figure([first])
    assert "Recall@1 of test images, not to be selected on" in drawn
    assert drawn == curves_figure([first])


def test_losses_of_long_runs_are_averaged_within_a_hundredth_of_the_steps() -> None:
    runs = [[{"step": step, "loss": step + shift} for step in range(10, 2001, 10)] for shift in (0, 2)]
    (curve,) = learning_curves({"a": runs})
    assert curve.steps == list(range(20, 2001, 20))
    assert curve.mean == pytest.approx([step - 5 + 1 for step in curve.steps])
    assert curve.std == pytest.approx([2**0.5] * 100)


def test_figure_has_a_panel_per_quantity_and_one_legend() -> None:
    records = [
        *watched(0.1, 0.2),
        {"step": 5, "loss": 300.0},
        {"step": 10, "loss": 2.0},
    ]
    curves = learning_curves({"a": [records], "b": [records[:2]]})
    drawn: list[Figure] = []

    def draw(figure: Figure) -> None:
        draw_curves(curves, figure)
        drawn.append(figure)

    render_figure(draw, 10, 4)
    loss, recall = drawn[0].axes
    assert (loss.get_yscale(), recall.get_yscale()) == ("log", "linear")
    assert list(recall.get_lines()[1].get_ydata()) == pytest.approx([10, 20])
    (legend,) = drawn[0].legends
    assert [entry.get_text() for entry in legend.get_texts()] == ["a", "b"]
    assert recall.get_lines()[1].get_color() == legend.get_lines()[1].get_color()


def test_sweep_draws_the_curves_of_its_runs(tmp_path: Path) -> None:
    for split, first in (("train", 0), ("test", 10)):
        draw_classes(tmp_path / "data" / split, 4, 4, first=first)
    changes = ["preprocess.size=24", "batch.classes=2", "batch.per_class=2", "batch.per_epoch=2", "epochs=2"]
    shared = parse_changes([*changes, "watch.split=test", "model.embedding_dim=8"])
    experiment = Experiment(f"folder:{tmp_path / 'data'}", None, shared)
    plan = make_sweep_plan(
        tmp_path / "out", experiment, parse_variants(["a", "b:loss.alpha=3"]), (0, 1), None
    )
    found = run_sweep(tmp_path / "out", plan, lambda _: None)
    assert [(curve.variant, curve.quantity, curve.steps, curve.runs) for curve in found.curves] == [
        ("a", "loss", [2, 4], [2, 2]),
        ("a", "watched test", [0, 2, 4], [2, 2, 2]),
        ("b", "loss", [2, 4], [2, 2]),
        ("b", "watched test", [0, 2, 4], [2, 2, 2]),
    ]
    last = [Run(tmp_path / "out" / "b" / f"seed-{seed}").watched()[-1]["recall_at_1"] for seed in (0, 1)]
    assert found.curves[3].mean[-1] == pytest.approx(statistics.mean(last))
    assert "![Learning curves of the variants](curves.svg)" in ((tmp_path / "out" / "results.md").read_text())
    for row in found.rows:
        runs = [Run(tmp_path / "out" / row.name / f"seed-{seed}") for seed in (0, 1)]
        best = [max(record["recall_at_1"] for record in run.watched()) for run in runs]
        oracle = row.summary("recall_at_1", "oracle")
        assert oracle is not None
        assert oracle.mean == pytest.approx(statistics.mean(best))
    assert json.loads((tmp_path / "out" / "results.json").read_text())["curves"][0]["variant"] == "a"
    assert (tmp_path / "out" / "curves.svg").is_file()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_variants_of_the_papers_differ_from_their_recipe_in_the_loss_alone(file: Path) -> None:
    """The settings are those of the row, and every loss can be built."""
    experiment = Experiment("cars196:nowhere", "symm/table2/symm-n-pair-cars196")
    plan = SweepPlan(experiment, parse_variants([], file), (0,), "n-pair")
    configs, row = plan.configs(), experiment.config()
    assert row.loss["negatives"] == "symmetric"
    assert row in configs.values(), "the row itself"
    for name, config in configs.items():
        loss = dict(config.loss)
        negatives = loss.pop("negatives", "batch")
        assert config.model_copy(update={"loss": row.loss, "published": row.published}) == row
        assert loss == {key: value for key, value in row.loss.items() if key != "negatives"}
        assert (name == "n-pair") == (negatives == "batch")
        initial_loss(config, 98)


def test_figures_of_the_papers_have_variants() -> None:
    assert [file.stem for file in FILES] == ["symm-figure4", "symm-figure5"]
