"""Progress of long work: a bar on a terminal, a plain line now and then elsewhere. Always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_WORTH_A_LINE = 1.0  # what is over sooner need not be told at its end


@dataclass(frozen=True)
class Stage:
    """How far work has come; the attributes are those of `Progress`."""

    what: str
    done: int
    total: int | None
    unit: str


_listener: ContextVar[Callable[[Stage], None] | None] = ContextVar("listener", default=None)


@contextmanager
def progress_listener(listener: Callable[[Stage], None]) -> Iterator[None]:
    """Tell all progress of this thread to a function as well, also what is not shown.

    It is called when work begins and between its blocks; what it raises ends the work there.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class Progress:
    """Counts work done; use as a context manager.

    Args:
        what: the work, as a verb: "embedding".
        total: how many there will be; `None` where nobody knows.
        unit: what is counted, in the plural: "images".
        begun: how many were done before: they say nothing about how fast it goes.
        show: False keeps quiet.
    """

    def __init__(
        self, what: str, total: int | None, unit: str = "images", *, begun: int = 0, show: bool = True
    ) -> None:
        self._what, self._total, self._unit, self._begun, self._show = what, total, unit, begun, show
        self._note = ""
        self._bar = (
            tqdm(total=total, desc=what, unit=f" {unit}", initial=begun, dynamic_ncols=True)
            if show and sys.stderr.isatty()
            else None
        )
        self._lines = show and self._bar is None
        self._done, self._start = begun, time.monotonic()
        self._next_line = self._start + _SECONDS_BETWEEN_LINES
        self._tell()

    def update(self, count: int = 1, note: str | None = None) -> None:
        """`count` more are done; `note` says how it goes, from now on."""
        self._done += count
        if note is not None:
            self._note = note
        if self._bar is not None:
            self._bar.set_postfix_str(self._note, refresh=False)
            self._bar.update(count)
        elif self._lines and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            self._line()
        self._tell()

    def write(self, message: str) -> None:
        """Tell something apart from the count."""
        if self._show:
            tqdm.write(message, file=sys.stderr)

    def _tell(self) -> None:
        listener = _listener.get()
        if listener is not None:
            listener(Stage(self._what, self._done, self._total, self._unit))

    def _line(self) -> None:
        rate = (self._done - self._begun) / max(time.monotonic() - self._start, 1e-9)
        of = f"/{self._total}" if self._total is not None else ""
        left = f", {_time((self._total - self._done) / rate)} left" if self._total and rate else ""
        tail = f", {self._note}" if self._note else ""
        line = f"{self._what}: {self._done}{of} {self._unit}, {rate:.1f}/s{left}{tail}"
        print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._lines and time.monotonic() - self._start >= _SECONDS_WORTH_A_LINE:
            self._line()


def _time(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
