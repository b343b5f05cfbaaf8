"""Tests of progress output without a terminal."""

from __future__ import annotations

import re

import pytest

from retrieval import progress
from retrieval.progress import Progress


def test_lines_have_count_rate_and_remaining_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with Progress("training", 1000, "steps", begun=400) as bar:
        now = 10.0
        bar.update(100, "loss 0.5")
        now = 12.0
        bar.update(20)
        bar.write("something else")
        now = 21.0
        bar.update(90)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "training: 500/1000 steps, 10.0/s, 0:50 left, loss 0.5"
    assert lines[1] == "something else"
    assert lines[2] == "training: 610/1000 steps, 10.0/s, 0:39 left, loss 0.5"
    assert re.fullmatch(r"training: 610/1000 steps, .*", lines[3])


def test_short_work_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("blinking", 10) as bar:
        bar.update(10)
    assert not capsys.readouterr().err


def test_duration_of_an_hour_or_more_shows_hours() -> None:
    assert progress._duration(59.6) == "1:00"
    assert progress._duration(3725) == "1:02:05"


def test_silent_progress_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("quiet", 10, show=False) as bar:
        bar.update(10, "note")
        bar.write("no")
    assert not capsys.readouterr().err
