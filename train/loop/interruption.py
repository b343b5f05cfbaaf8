"""Graceful interruption of training: SIGINT and SIGTERM stop the run after the current step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, after a checkpoint was saved; the message says how to continue."""


class Interruption:
    """Context manager that records the first SIGINT or SIGTERM; the second one raises KeyboardInterrupt.

    Outside the main thread, where no signal handler can be installed, it does nothing.

    Attributes:
        requested: True once a signal has arrived.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._previous = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
