"""Isolated calls: a function runs in a process of its own, whose death leaves the caller alive.

The process is forked from a server that has imported the function's module but has never used CUDA: it starts
in milliseconds, and has a CUDA context and memory of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType, ModuleType
from typing import Any, TypeVar, cast

import torch

from retrieval.errors import LookalikeError

_T = TypeVar("_T")
_SLOW_IMPORTS = ("timm", "sklearn.linear_model")  # imported late, where they are needed
_COMPILER = "torch._dynamo"  # imported at the first step of every optimizer, for 1.4 seconds


class DeadProcessError(LookalikeError):
    """The process of an isolated call was killed or crashed."""


class _RemoteTraceback(Exception):  # noqa: N818 (a cause, never raised alone)
    """Cause of an exception that was raised in another process: the traceback there, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def run_isolated(function: Callable[..., _T], *arguments: Any) -> _T:
    """Call a function in a process of its own, and wait for it.

    The process has the environment, the working folder and torch's number of threads of this one, and ends
    with it. SIGINT and SIGTERM are passed on to it as SIGINT.

    Args:
        function: Function of a module; it, its arguments and its result are pickled.
        *arguments: Its arguments.

    Raises:
        DeadProcessError: The process was killed or crashed.
        KeyboardInterrupt: SIGINT or SIGTERM, once the process has ended.
        Exception: What the function raises, with the traceback of the process as its cause.
    """
    context = multiprocessing.get_context("forkserver")
    used = [name for name in _SLOW_IMPORTS if name in sys.modules]
    # Without effect once the server runs.
    context.set_forkserver_preload([function.__module__, _COMPILER, *used])
    reader, writer = context.Pipe(duplex=False)
    inherited = dict(os.environ), torch.get_num_threads()
    process = context.Process(target=_serve, args=(writer, *inherited, function, arguments))
    with reader, _passing_on_signals(process) as received:
        with writer, _main_module_hidden():
            process.start()
        wait([reader, process.sentinel])  # a worker process of this one may keep the pipe open
        outcome = _receive(reader)
        process.join()
    error = outcome.error if outcome else None
    if received:
        raise KeyboardInterrupt(*error.args if isinstance(error, KeyboardInterrupt) else ())
    if outcome is None:
        raise DeadProcessError(_cause_of_death(process.exitcode))
    if error is not None:
        raise error from _RemoteTraceback(outcome.trace)
    return cast(_T, outcome.result)


@dataclass(frozen=True)
class _Outcome:
    result: Any = None
    error: BaseException | None = None
    trace: str = ""


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Keep multiprocessing from running the main module again: nothing of it is needed in the process."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _passing_on_signals(process: BaseProcess) -> Iterator[list[int]]:
    """Pass SIGINT and SIGTERM on to a process outside the group of the terminal; yield those received."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)

    previous = {each: signal.signal(each, pass_on) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


def _receive(reader: Connection) -> _Outcome | None:
    try:
        return cast(_Outcome, reader.recv()) if reader.poll() else None
    except EOFError:
        return None


def _cause_of_death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = "; the memory of the machine may be exhausted" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{hint}"
    return f"its process exited with code {code}"


# ---- in the other process


def _serve(
    writer: Connection,
    environment: dict[str, str],
    threads: int,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    os.setsid()  # Ctrl-C in a terminal reaches the caller, which passes it on once
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(threads)
    try:
        outcome = _Outcome(function(*arguments))
    except BaseException as error:  # also KeyboardInterrupt
        outcome = _Outcome(error=_picklable(error), trace=traceback.format_exc())
    writer.send(outcome)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.killpg(0, signal.SIGKILL)  # this process and its workers


def _picklable(error: BaseException) -> BaseException:
    """Return an error, or one with its message if it cannot be pickled, as one with several arguments."""
    with suppress(Exception):
        if str(pickle.loads(pickle.dumps(error))) == str(error):
            return error
    known = isinstance(error, LookalikeError)
    return LookalikeError(str(error)) if known else RuntimeError(f"{type(error).__name__}: {error}")
