"""Recorded metrics of runs, as numbers and as a figure."""

import json
from pathlib import Path

import click.testing
import numpy as np
import pytest
import torch

from retrieval.errors import InputError
from retrieval.reports.figures import render_figure
from tests.conftest import lookalike_here
from train import losses
from train.papers import training
from train.papers.analyze.losses import training as command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> Path:
    """A run of four epochs, with synthetic negatives and a held-out class."""
    folder = tmp_path_factory.mktemp("runs") / "loop"
    settings = {
        "epochs": "4",
        "preprocess.size": "32",
        "model.embedding_dim": "8",
        "batch.classes": "2",
        "batch.per_class": "4",
        "loss": "{name: triplet, negatives: optimal}",
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    lookalike_here("train", "--recipe", "scratch", "--data", f"folder:{shop}", "--out", str(folder), *words)
    return folder


def write(folder: Path, records: list[dict[str, float]]) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text("data: digits\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.mark.slow
def test_history_of_a_real_run(run: Path) -> None:
    found = training.read_history(run, "loop")
    steps, values = found.series["loss"]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert values.tolist() == [record["loss"] for record in records if "loss" in record]
    assert (np.diff(steps) > 0).all()
    assert {"synthetic_share", "hard_share", "hard_anchor_share", "mean_positive", "lr"} <= set(found.series)


@pytest.mark.slow
def test_training_command(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "training.svg"
    words = [str(run), "--out", str(out)]
    done = click.testing.CliRunner().invoke(command, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "synthetic_share" in done.stdout
    assert b"Synthetic among the selected points" in out.read_bytes()


def test_only_recorded_metrics_have_a_panel(tmp_path: Path) -> None:
    first = training.read_history(write(tmp_path / "a", [{"step": 10, "loss": 2.0, "lr": 0.1}]), "a")
    second = training.read_history(write(tmp_path / "b", [{"step": 5, "recall_at_1": 0.5}]), "b")
    assert training.recorded_metrics([first, second]) == ["loss", "recall_at_1", "lr"]
    assert second.to_dict()["series"] == {"recall_at_1": {"steps": [5], "values": [0.5]}}


def test_watched_images_are_curves_of_their_own(tmp_path: Path) -> None:
    """Records of several splits and of validation, which are never mixed."""
    records = [
        {"step": 0, "recall_at_1": 0.25},
        {"step": 0, "watched": "test", "recall_at_1": 0.5, "recall_at_2": 0.75},
        {"step": 7, "watched": "test", "recall_at_1": 0.625},
    ]
    found = training.read_history(write(tmp_path / "a", records), "a")
    other = training.read_history(
        write(tmp_path / "b", [{"step": 3, "watched": "train", "recall_at_1": 1}]), "b"
    )
    assert found.to_dict()["series"] == {
        "recall_at_1": {"steps": [0], "values": [0.25]},
        "watched_test": {"steps": [0, 7], "values": [0.5, 0.625]},
    }
    assert training.recorded_metrics([found, other]) == ["recall_at_1", "watched_train", "watched_test"]
    drawn = render_figure(lambda figure: training.training_figure([found, other], figure), 12, 4)
    assert b"Recall@1 of test images, not to be selected on" in drawn


def test_running_mean_matches_a_loop() -> None:
    values = np.random.default_rng(0).normal(size=50)
    found = training.running_mean(values, 7)
    for i in range(50):
        reach = min(3, i, 49 - i)
        assert found[i] == pytest.approx(values[i - reach : i + reach + 1].mean())
    np.testing.assert_allclose(training.running_mean(values, 1), values)
    linear = np.arange(9.0)
    np.testing.assert_allclose(training.running_mean(linear, 5), linear)


def test_long_runs_are_smoothed(tmp_path: Path) -> None:
    records = [{"step": step, "loss": 1 / step} for step in range(1, 1001)]
    found = training.read_history(write(tmp_path / "long", records), "long")
    assert training.running_mean_width([found]) == 11
    short = training.read_history(write(tmp_path / "short", records[:200]), "short")
    assert training.running_mean_width([short]) == 1


def test_unusable_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a training run"):
        training.read_history(tmp_path, "none")
    with pytest.raises(InputError, match="no metrics recorded yet"):
        training.read_history(write(tmp_path / "empty", []), "empty")
    damaged = write(tmp_path / "damaged", [{"step": 1, "loss": 1.0}])
    with (damaged / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    with pytest.raises(InputError, match="damaged"):
        training.read_history(damaged, "damaged")


def test_figure_is_deterministic_and_limits_the_runs(tmp_path: Path) -> None:
    records = [{"step": 10 * i, "loss": 1.0 / i, "hard_share": 0.5 / i} for i in range(1, 20)]
    runs = [training.read_history(write(tmp_path / str(i), records), f"run $ {i}") for i in range(7)]
    first, second = (
        render_figure(lambda figure: training.training_figure(runs, figure), *training.figure_size(runs))
        for _ in range(2)
    )
    assert first == second
    with pytest.raises(InputError, match="at most 18"):
        render_figure(lambda figure: training.training_figure(runs * 3, figure), 8, 8)


def test_hard_anchor_share_is_recorded_by_a_loss() -> None:
    """Share of the anchors whose nearest neighbour in the batch has another class."""
    x = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
    y = torch.arange(24) // 4
    y[-1] = 9  # alone, so that it has no positive
    loss = losses.build({"name": "contrastive"})
    loss(x, y)
    unit = torch.nn.functional.normalize(x)
    similarity = (unit @ unit.T).fill_diagonal_(-2)
    nearest = similarity.argmax(1)
    expected = (y[nearest] != y)[:-1].float().mean()
    assert float(loss.diagnostics["hard_anchor_share"]) == pytest.approx(float(expected))
    assert 0 < expected < 1
