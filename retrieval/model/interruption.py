"""Interruption of ONNX Runtime: Ctrl-C and SIGTERM end a command whose model computes for long, or for ever.

Python handles signals in the main thread, between two of its instructions, so not while a model runs there.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    import onnxruntime as ort

_P = ParamSpec("_P")
_T = TypeVar("_T")
_PATIENCE = 1.0  # seconds that a run gets to end; it looks between two operators whether it should


class _Thread(threading.local):
    options: ort.RunOptions | None = None


_thread = _Thread()


def run_options() -> ort.RunOptions:
    """Return options by which another thread can end a run: by `options.terminate = True`."""
    import onnxruntime as ort

    options = ort.RunOptions()
    options.log_severity_level = 4
    return options


def use_options(options: ort.RunOptions | None) -> None:
    """Let `run` use these options in this thread."""
    _thread.options = options


def run(session: Any, outputs: list[str], feeds: dict[str, Any]) -> list[Any]:
    """Run a session, with the options of this thread, and return the outputs."""
    found: list[Any] = session.run(outputs, feeds, _thread.options)
    return found


def interruptible(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function that uses ONNX Runtime: the exception of a signal's handler ends it.

    In the main thread, the function runs in another one, which costs 0.1 ms, and the main thread waits for
    it. Upon an exception there, such as KeyboardInterrupt, its runs are ended. What cannot be ended, such as
    an operator that takes very long, ends with the process.
    """

    @functools.wraps(function)
    def wrapped(*args: _P.args, **options: _P.kwargs) -> _T:
        if threading.current_thread() is not threading.main_thread():
            return function(*args, **options)
        stop, result = run_options(), Future[_T]()

        def work() -> None:
            use_options(stop)
            try:
                result.set_result(function(*args, **options))
            except BaseException as error:
                result.set_exception(error)

        thread = threading.Thread(target=work, name="inference", daemon=True)
        thread.start()
        try:
            found = result.result()
        except BaseException:
            stop.terminate = True
            thread.join(_PATIENCE)
            raise
        thread.join()
        return found

    return wrapped
