"""Curves of a sweep: means over the seeds, runs that ended early, and the variants files of the papers."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT, draw
from train.experiments.curves import watched_curves, watched_figure
from train.experiments.plan import Experiment, SweepPlan, make_sweep_plan, parse_variants
from train.experiments.sweep import run_sweep
from train.loop.run_folder import Run, initial_loss
from train.settings import parse_changes

FILES = sorted(Path(CHECKOUT, "docs", "figures").glob("symm-*.yaml"))


def records(*recalls: float, split: str = "test") -> list[dict[str, object]]:
    return [{"step": 5 * i, "watched": split, "recall_at_1": value} for i, value in enumerate(recalls)]


def test_mean_and_deviation_are_over_the_runs_that_reached_a_step() -> None:
    runs = {
        "a": [records(0.1, 0.3, 0.6), records(0.2, 0.7), []],
        "b": [records(0.5, split="train")],
        "failed": [[]],
    }
    first, second = watched_curves(runs)
    assert (first.variant, first.split, first.steps, first.runs) == ("a", "test", [0, 5, 10], [2, 2, 1])
    assert first.mean == pytest.approx([0.15, 0.5, 0.6])
    assert first.std == pytest.approx([statistics.stdev([0.1, 0.2]), statistics.stdev([0.3, 0.7]), 0])
    assert (second.variant, second.split, second.mean, second.std) == ("b", "train", [0.5], [0.0])
    drawn = watched_figure([first])
    assert "Recall@1 of test images, not to be selected on" in drawn
    assert drawn == watched_figure([first])


def test_sweep_draws_the_curves_of_its_runs(tmp_path: Path) -> None:
    for hue in range(4):
        for split in ("train", "test"):
            folder = tmp_path / "data" / split / f"{hue}"
            folder.mkdir(parents=True)
            for seed in range(4):
                draw(seed + 10 * (split == "test"), hue=hue).save(folder / f"{seed}.png")
    changes = ["preprocess.size=24", "batch.classes=2", "batch.per_class=2", "batch.per_epoch=2", "epochs=2"]
    shared = parse_changes([*changes, "watch.split=test", "model.embedding_dim=8"])
    experiment = Experiment(f"folder:{tmp_path / 'data'}", None, shared)
    plan = make_sweep_plan(
        tmp_path / "out", experiment, parse_variants(["a", "b:loss.margin=0.4"]), (0, 1), None
    )
    found = run_sweep(tmp_path / "out", plan, lambda _: None)
    assert [(curve.variant, curve.steps, curve.runs) for curve in found.curves] == [
        ("a", [0, 2, 4], [2, 2, 2]),
        ("b", [0, 2, 4], [2, 2, 2]),
    ]
    last = [Run(tmp_path / "out" / "b" / f"seed-{seed}").watched()[-1]["recall_at_1"] for seed in (0, 1)]
    assert found.curves[1].mean[-1] == pytest.approx(statistics.mean(last))
    assert "![Recall@1 of the watched images over training](curves.svg)" in (
        (tmp_path / "out" / "results.md").read_text()
    )
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
