"""Stopping a run without losing what it has learnt."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or a polite end (SIGTERM), after everything has been kept; its text says how to go on."""


class Interruption:
    """Notes the first SIGINT or SIGTERM instead of breaking off where it happens; the second one does.

    A context manager. Outside the main thread, where signals cannot be caught, it notes nothing.
    """

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)}
        else:
            self._before = {}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
