"""Isolated calls: results, errors, deaths, interruption, and the end of the caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest
import torch

from retrieval.errors import ImageError, InputError, LookalikeError
from tests.conftest import wait_until
from train.experiments.isolation import DeadProcessError, run_isolated


def describe(number: int) -> dict[str, object]:
    return {
        "number": number,
        "process": os.getpid(),
        "variable": os.environ.get("LOOKALIKE_TEST"),
        "folder": os.getcwd(),
        "threads": torch.get_num_threads(),
    }


def fail(kind: str) -> None:
    if kind == "input":
        raise InputError("epochs: odd")
    if kind == "image":  # takes three arguments, so that it cannot be pickled as it is
        raise ImageError("a.png", "damaged", "cut off")
    raise KeyError(kind)


def end(how: str) -> None:
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(60)


def wait_for_interrupt(folder: Path) -> None:
    try:
        (folder / "begun").touch()
        time.sleep(60)
    except KeyboardInterrupt:
        (folder / "saved").touch()
        raise


def test_call_has_the_environment_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_isolated(describe, 0)  # the server is older than the changes
    monkeypatch.setenv("LOOKALIKE_TEST", "here")
    monkeypatch.chdir(tmp_path)
    first, second = run_isolated(describe, 1), run_isolated(describe, 2)
    assert len({first.pop("process"), second.pop("process"), os.getpid()}) == 3
    common = {"variable": "here", "folder": str(tmp_path), "threads": torch.get_num_threads()}
    assert (first, second) == ({"number": 1, **common}, {"number": 2, **common})


@pytest.mark.parametrize(
    ("kind", "expected", "message"),
    [
        ("input", InputError, "epochs: odd"),
        ("image", LookalikeError, "cut"),
        ("other", KeyError, "other"),
    ],
)
def test_error_has_the_traceback_of_the_process(kind: str, expected: type[Exception], message: str) -> None:
    with pytest.raises(expected, match=message) as found:
        run_isolated(fail, kind)
    assert "in fail" in "".join(traceback.format_exception(found.value))


@pytest.mark.parametrize(
    ("how", "message"),
    [("SIGKILL", "SIGKILL; the memory"), ("SIGABRT", "SIGABRT$"), ("exit", "exited with code 7")],
)
def test_death_is_an_error_of_the_caller(how: str, message: str) -> None:
    with pytest.raises(DeadProcessError, match=message):
        run_isolated(end, how)
    assert run_isolated(abs, -3) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_lets_the_call_save_its_work(tmp_path: Path, number: signal.Signals) -> None:
    def send() -> None:
        wait_until((tmp_path / "begun").exists)
        os.kill(os.getpid(), number)

    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        run_isolated(wait_for_interrupt, tmp_path)
    sender.join()
    assert (tmp_path / "saved").exists()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers


# Its import, which the server does first, takes as long as a file is there.
_SLOW = """
import os, pathlib, time
here = pathlib.Path(__file__).parent
(here / f"importing-{os.getpid()}").touch()
while (here / "hold").exists():
    time.sleep(0.01)
def work():
    (here / "working").touch()
    time.sleep(60)
"""
_CALLER = """
import importlib.util, sys
from train.experiments.isolation import run_isolated
sys.modules["slow"] = slow = importlib.util.module_from_spec(importlib.util.find_spec("slow"))
slow.work = work = lambda: None
work.__module__, work.__qualname__ = "slow", "work"
try:
    run_isolated(work)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_while_the_server_starts(tmp_path: Path) -> None:
    """It reaches the whole group of the terminal: the server lives on, and the call is interrupted."""
    (tmp_path / "slow.py").write_text(_SLOW)
    (tmp_path / "hold").touch()
    caller = subprocess.Popen(
        [sys.executable, "-c", _CALLER],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: any(tmp_path.glob("importing-*")))
    os.killpg(caller.pid, signal.SIGINT)
    (tmp_path / "hold").unlink()
    out, err = caller.communicate(timeout=50)
    assert (out, err) == ("interrupted\n", "")
