"""The log of decisions with collections of thousands of images, whose lines are long, and dying writers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retrieval.storage.decisions import FILE, DecisionLog

MANY = 10_000
# Saves collections of one number each, the number of its turn, until it is killed.
_SAVE = f"""
import sys
from pathlib import Path
from retrieval.storage.decisions import DecisionLog
log, turn = DecisionLog(Path(sys.argv[1])), int(sys.argv[2])
while True:
    log.save_view("chosen", f"?turn={{turn}}", range(turn * 10**6, turn * 10**6 + {MANY}))
    print(turn, flush=True)
    turn += 1
"""


def numbers(folder: Path) -> list[int]:
    """Numbers of the complete lines."""
    *lines, _ = (folder / FILE).read_bytes().split(b"\n")
    return [json.loads(line)["n"] for line in lines]


def test_collections_are_kept_with_their_items(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path)
    log.save_view("first", "?tab=gallery", [7, 3, 7])
    log.save_view("many", "?a", range(1, MANY + 1))
    log.save_view("plain", "?b")
    log.save_view("first", "?tab=gallery", range(5, 3 * MANY, 3))
    found = {view.name: view for view in DecisionLog(tmp_path).views()}
    assert found["first"].items == tuple(range(5, 3 * MANY, 3))
    assert found["many"].items == tuple(range(1, MANY + 1))
    assert found["plain"].items == ()
    log.save_view("many", None)
    assert [view.name for view in log.views()] == ["first", "plain"]
    assert numbers(tmp_path) == [1, 2, 3, 4, 5]
    assert log.read() == []


@pytest.mark.parametrize("before", [0, 1, 2])
def test_line_that_is_torn_anywhere_does_not_count(tmp_path: Path, before: int) -> None:
    """Also where nothing of the line before it is among the bytes that are read first."""
    log = DecisionLog(tmp_path)
    for turn in range(before):
        log.save_view("old", f"?{turn}", range(1, MANY))
    whole = (tmp_path / FILE).read_bytes() if before else b""
    log.save_view("new", "?new", range(1, 2 * MANY))
    last = (tmp_path / FILE).read_bytes()[len(whole) :]
    assert len(last) > 100_000
    for kept in (0, 1, 9, 60_000, 1 << 16, (1 << 16) + 1, len(last) - 1):
        (tmp_path / FILE).write_bytes(whole + last[:kept])
        assert [view.name for view in log.views()] == ["old"] * bool(before)
        log.save_view("next", "?next", [4])
        assert {view.name: len(view.items) for view in log.views()} == {
            **({"old": MANY - 1} if before else {}),
            "next": 1,
        }
        assert numbers(tmp_path) == [*range(1, before + 2)]


def test_killed_writers_leave_whole_collections(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    turn = 1
    for round_ in range(8):
        words = [sys.executable, "-c", _SAVE, str(tmp_path), str(turn)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        said = int(process.stdout.readline())
        time.sleep(0.013 * round_)
        os.kill(process.pid, signal.SIGKILL)
        said = max([said, *map(int, process.stdout.read().split())])
        process.wait()
        (view,) = DecisionLog(tmp_path).views()
        kept = int(view.address.removeprefix("?turn="))
        assert kept in (said, said + 1), "what was acknowledged is there"
        assert view.items == tuple(range(kept * 10**6, kept * 10**6 + MANY))
        assert numbers(tmp_path) == [*range(1, len(numbers(tmp_path)) + 1)]
        turn = kept + 1
