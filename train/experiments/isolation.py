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
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from types import FrameType, ModuleType
from typing import Any, TypeVar

import torch

from retrieval.errors import LookalikeError

_T = TypeVar("_T")
_SLOW_IMPORTS = ("timm", "sklearn.linear_model")  # imported late, where they are needed
_OURS = "lookalike.__main__"  # finds our packages where others have their names
_COMPILER = "torch._dynamo"  # imported at the first step of every optimizer, for 1.4 seconds


class DeadProcessError(LookalikeError):
    """The process of an isolated call was killed or crashed."""


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
    has_server = "forkserver" in multiprocessing.get_all_start_methods()  # not on Windows
    context = multiprocessing.get_context("forkserver" if has_server else "spawn")
    if has_server:
        used = [name for name in _SLOW_IMPORTS if name in sys.modules]
        # Without effect once the server runs.
        context.set_forkserver_preload([_OURS, function.__module__, _COMPILER, *used])
    pool = ProcessPoolExecutor(1, context, _prepare, (dict(os.environ), torch.get_num_threads()))
    with _passing_on_signals(pool) as received, pool:
        with _main_module_hidden():
            if has_server:
                _start_server()
            future = pool.submit(_call, function, *arguments)
        (process,) = pool._processes.values()
        if received and not any(received) and process.pid is not None:  # the process was not there yet
            os.kill(process.pid, signal.SIGINT)
        error = future.exception()
    if received:
        raise KeyboardInterrupt(*error.args if isinstance(error, KeyboardInterrupt) else ())
    if isinstance(error, BrokenProcessPool):
        raise DeadProcessError(_cause_of_death(process.exitcode))
    return future.result()


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Keep multiprocessing from running the main module again: nothing of it is needed in the process."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _start_server() -> None:
    """Start the server with SIGINT blocked: Ctrl-C in a terminal would end it in its seconds of imports."""
    from multiprocessing import forkserver  # not on Windows

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _passing_on_signals(pool: ProcessPoolExecutor) -> Iterator[list[bool]]:
    """Pass SIGINT and SIGTERM on to the process, whose group is another.

    Yields:
        A list that gets, for each signal received, whether there was a process to pass it on to.
    """
    received: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(bool(pool._processes))
        for process in pool._processes or ():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGINT)

    previous = {each: signal.signal(each, pass_on) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


def _cause_of_death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = "; the memory of the machine may be exhausted" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{hint}"
    return f"its process exited with code {code}"


# ---- in the other process


def _prepare(environment: dict[str, str], threads: int) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C in a terminal reaches the caller, which passes it on once
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(threads)


def _call(function: Callable[..., _T], *arguments: Any) -> _T:
    try:
        if hasattr(signal, "pthread_sigmask"):  # the server has it blocked
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return function(*arguments)
    except BaseException as error:  # also KeyboardInterrupt
        known = _picklable(error)
        if known is error:
            raise
        raise known from error


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)  # this process and its workers
    os._exit(1)


def _picklable(error: BaseException) -> BaseException:
    """Return an error, or one with its message if it cannot be pickled, as one with several arguments."""
    with suppress(Exception):
        if str(pickle.loads(pickle.dumps(error))) == str(error):
            return error
    known = isinstance(error, LookalikeError)
    return LookalikeError(str(error)) if known else RuntimeError(f"{type(error).__name__}: {error}")
