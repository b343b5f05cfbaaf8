"""Metric tracking, read back from metrics.jsonl, TensorBoard and Weights & Biases."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from retrieval import InputError
from tests.conftest import wait_until
from train import settings
from train.loop.run_folder import Run
from train.loop.tracking import Tracker, WaitingHint

RECORDS = [{"step": step, "epoch": 0, "loss": 1.0 / step} for step in (1, 2, 3)]


def begin(folder: Path, *overrides: str) -> Run:
    return Run.start(folder, settings.resolve("digits", None, overrides))


def log_records(run: Run, records: list[dict], step: int = 0, **options: bool) -> None:
    with Tracker(run, run.config, step, **options) as tracker:
        for record in records:
            tracker.log(record)


def test_records_are_in_the_file_and_in_tensorboard(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    log_records(run, RECORDS)
    assert [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()] == RECORDS
    board = EventAccumulator(str(run.folder))
    board.Reload()
    assert [(e.step, e.value) for e in board.Scalars("loss")] == [
        (r["step"], pytest.approx(r["loss"])) for r in RECORDS
    ]


def test_repeated_steps_of_a_resumed_run_are_logged_once(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    log_records(run, RECORDS)
    log_records(run, RECORDS[2:], step=2)
    assert run.metrics() == RECORDS
    board = EventAccumulator(str(run.folder))
    board.Reload()
    assert [event.step for event in board.Scalars("loss")] == [1, 2, 3]


def test_watched_images_have_names_of_their_own(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    validated = {"step": 1, "epoch": 0, "recall_at_1": 0.25}
    watched = {"step": 1, "watched": "test", "recall_at_1": 0.75}
    log_records(run, [validated, watched])
    assert (run.metrics(), run.watched()) == ([validated], [watched])
    board = EventAccumulator(str(run.folder))
    board.Reload()
    (own,), (other,) = (
        board.Scalars(tag)
        for tag in ("recall_at_1", "watched test images, not to be selected on/recall_at_1")
    )
    assert (own.value, other.value) == (0.25, 0.75)


def test_only_the_main_process_logs(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "wandb=project")
    log_records(run, RECORDS, active=False)
    assert [path.name for path in run.folder.iterdir()] == ["config.yaml"]


def payload(log: bytes) -> bytes:
    """Return the records of a LevelDB log without the chunk headers, which can fall inside a text."""
    block, head, at, parts = 2**15, 7, 7, []  # the file starts with 7 bytes of its own
    while at + head <= len(log):
        length = int.from_bytes(log[at + 4 : at + 6], "little")
        parts.append(log[at + head : at + head + length])
        at += head + length
        if block - at % block < head:  # no header fits: the block is padded
            at += block - at % block
    return b"".join(parts)


def test_records_are_sent_to_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, its library stores the data in a file, with values as text."""
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = begin(tmp_path / "run", "wandb=lookalike-tests")
    log_records(run, RECORDS)
    (file,) = run.folder.glob("wandb/offline-run-*/*.wandb")
    texts = ("lookalike-tests", "optimizer", *(json.dumps(record["loss"]) for record in RECORDS))
    # A process of the library writes the file, and may do so after the run has been finished.
    wait_until(lambda: all(text.encode() in payload(file.read_bytes()) for text in texts))


def test_missing_weights_and_biases_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"pip install 'lookalike\[wandb\]'"):
        log_records(begin(tmp_path / "run", "wandb=project"), RECORDS)


def test_advice_is_given_once_after_waiting_for_three_records() -> None:
    waits = [0.5, 0.3, 0.1, 0.9, 0.21, 0.4, 0.9, 0.9, 0.9]
    hint = WaitingHint(2_340_000_000)
    given = [hint.advice(share) for share in waits]
    assert [i for i, advice in enumerate(given) if advice] == [5]
    assert "40% of the time: set loader.cache=DIR to decode each image once (2.3 GB)" in str(given[5])
    assert not any(WaitingHint(None).advice(share) for share in waits)
