"""Tests of progress output, on a terminal and without one."""

from __future__ import annotations

import functools
import io
import re
from contextlib import redirect_stderr

import pytest
from tqdm import tqdm

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


class _Terminal(io.StringIO):
    """A terminal of 90 columns."""

    def isatty(self) -> bool:
        return True

    @property
    def last_line(self) -> str:
        """What the last line shows: text after a carriage return covers what was there."""
        shown = ""
        for part in self.getvalue().rpartition("\n")[2].split("\r"):
            shown = part + shown[len(part) :]
        return shown.rstrip()


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tqdm.tqdm", functools.partial(tqdm, ncols=90, mininterval=0))


@pytest.mark.usefixtures("narrow")
def test_terminal_forgets_short_work() -> None:
    with redirect_stderr(_Terminal()) as terminal, Progress("blinking", 10) as bar:
        bar.update(5)
        assert terminal.last_line.startswith("blinking:  50%|")
        bar.update(5)
    assert terminal.last_line == ""
    assert "\n" not in terminal.getvalue()


@pytest.mark.usefixtures("narrow")
def test_terminal_keeps_the_bar_of_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_MIN_SECONDS_TO_STAY", 0.0)
    with redirect_stderr(_Terminal()) as terminal, Progress("staring", 10) as bar:
        bar.update(10)
    assert re.search(r"staring: 100%\|.*10/10.*\n$", terminal.getvalue())


@pytest.mark.usefixtures("narrow")
def test_note_fits_beside_the_bar() -> None:
    note = "epoch 18/20, loss 0.7079, 8436 images/s, 6% waiting"
    with redirect_stderr(_Terminal()) as terminal, Progress("training", 60, "steps") as bar:
        bar.update(55, note)
        assert f", {note}]" in terminal.last_line


def test_duration_of_an_hour_or_more_shows_hours() -> None:
    assert progress._duration(59.6) == "1:00"
    assert progress._duration(3725) == "1:02:05"


def test_silent_progress_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("quiet", 10, show=False) as bar:
        bar.update(10, "note")
        bar.write("no")
    assert not capsys.readouterr().err
