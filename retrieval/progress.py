"""Progress on stderr: a progress bar on a terminal, plain lines otherwise.

Work of less than a second leaves no trace: a bar is erased at its end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from retrieval.text import print_notice, printable

if TYPE_CHECKING:
    from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 10.0
_MIN_SECONDS_TO_STAY = 1.0
_BAR_WITH_NOTE = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"  # no rate


@dataclass(frozen=True)
class Stage:
    """Snapshot of the progress of one piece of work.

    Attributes:
        what: The work, as a verb: "embedding".
        done: Units done.
        total: Units in all; `None` if unknown.
        unit: Unit in the plural: "images".
    """

    what: str
    done: int
    total: int | None
    unit: str


_listener: ContextVar[Callable[[Stage], None] | None] = ContextVar("listener", default=None)


@contextmanager
def progress_listener(listener: Callable[[Stage], None]) -> Iterator[None]:
    """Call a function with all progress of this thread, also that of silent `Progress` objects.

    The function is called when work begins and between its batches. An error that it raises ends the work.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class Progress:
    """Progress of one piece of work; use as a context manager.

    Args:
        what: The work, as a verb: "embedding".
        total: Units in all; `None` if unknown.
        unit: Unit in the plural: "images".
        begun: Units done by an earlier run; they do not count towards the rate.
        show: Print progress; listeners are called in any case.
    """

    def __init__(
        self, what: str, total: int | None, unit: str = "images", *, begun: int = 0, show: bool = True
    ) -> None:
        self._what, self._total, self._unit, self._begun, self._show = what, total, unit, begun, show
        self._note = ""
        self._bar = self._open_bar() if show and sys.stderr.isatty() else None
        self._lines = show and self._bar is None
        self._done, self._start = begun, time.monotonic()
        self._next_line = self._start + _SECONDS_BETWEEN_LINES
        self._notify()

    def update(self, count: int = 1, note: str | None = None) -> None:
        """Add `count` to the units done; `note` is shown beside them from now on."""
        self._done += count
        if note is not None:
            self._note = printable(note)
        if self._bar is not None:
            if self._note and self._total:
                self._bar.bar_format = _BAR_WITH_NOTE
            self._bar.set_postfix_str(self._note, refresh=False)
            self._bar.update(count)
        elif self._lines and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            self._print_line()
        self._notify()

    def write(self, message: str) -> None:
        """Print a message without disturbing the progress bar."""
        if self._show:
            (print if self._bar is None else self._bar.write)(printable(message), file=sys.stderr)

    def _open_bar(self) -> tqdm[NoReturn]:
        from tqdm import tqdm  # galleries are opened without it

        unit = f" {self._unit}"
        return tqdm(total=self._total, desc=self._what, unit=unit, initial=self._begun, dynamic_ncols=True)

    def _notify(self) -> None:
        listener = _listener.get()
        if listener is not None:
            listener(Stage(self._what, self._done, self._total, self._unit))

    def _print_line(self) -> None:
        rate = (self._done - self._begun) / max(time.monotonic() - self._start, 1e-9)
        of = f"/{self._total}" if self._total is not None else ""
        left = f", {_duration((self._total - self._done) / rate)} left" if self._total and rate else ""
        tail = f", {self._note}" if self._note else ""
        print_notice(f"{self._what}: {self._done}{of} {self._unit}, {rate:.1f}/s{left}{tail}")

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stays = time.monotonic() - self._start >= _MIN_SECONDS_TO_STAY
        if self._bar is not None:
            self._bar.leave = stays
            self._bar.close()
        elif self._lines and stays:
            self._print_line()


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
