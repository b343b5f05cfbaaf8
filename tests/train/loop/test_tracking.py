"""Where a run's numbers go: read back by those who will read them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from retrieval import InputError
from train import settings
from train.loop.run_folder import Run
from train.loop.tracking import Tracker

RECORDS = [{"step": step, "epoch": 0, "loss": 1.0 / step} for step in (1, 2, 3)]


def begin(folder: Path, *overrides: str) -> Run:
    return Run.start(folder, settings.resolve("digits", None, overrides))


def keep(run: Run, records: list[dict], step: int = 0, **options: bool) -> None:
    with Tracker(run, run.config, step, **options) as tracker:
        for record in records:
            tracker.log(record)


def test_records_are_in_the_file_and_in_tensorboard(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    keep(run, RECORDS)
    assert [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()] == RECORDS
    board = EventAccumulator(str(run.folder))
    board.Reload()
    assert [(e.step, e.value) for e in board.Scalars("loss")] == [
        (r["step"], pytest.approx(r["loss"])) for r in RECORDS
    ]


def test_what_a_resumed_run_does_again_is_recorded_once(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    keep(run, RECORDS)
    keep(run, RECORDS[2:], step=2)
    assert run.metrics() == RECORDS


def test_only_the_leader_keeps_records(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "wandb=project")
    keep(run, RECORDS, active=False)
    assert [path.name for path in run.folder.iterdir()] == ["config.yaml"]


def test_weights_and_biases_gets_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network its library keeps what would be sent in a file, the values as text."""
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = begin(tmp_path / "run", "wandb=lookalike-tests")
    keep(run, RECORDS)
    (file,) = run.folder.glob("wandb/offline-run-*/*.wandb")
    kept = file.read_bytes()
    for text in ("lookalike-tests", "optimizer", *(json.dumps(record["loss"]) for record in RECORDS)):
        assert text.encode() in kept, text


def test_missing_weights_and_biases_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match="pip install wandb"):
        keep(begin(tmp_path / "run", "wandb=project"), RECORDS)
