"""Progress of long work: a bar on a terminal, a plain line now and then elsewhere. Always on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Counts work done; use as a context manager.

    Args:
        what: the work, as a verb: "embedding".
        total: how many there will be; `None` where nobody knows.
        unit: what is counted, in the plural: "images".
        show: False keeps quiet.
    """

    def __init__(self, what: str, total: int | None, unit: str = "images", *, show: bool = True) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._bar = (
            tqdm(total=total, desc=what, unit=f" {unit}", dynamic_ncols=True)
            if show and sys.stderr.isatty()
            else None
        )
        self._lines = show and self._bar is None
        self._done, self._start = 0, time.monotonic()
        self._next_line = self._start + _SECONDS_BETWEEN_LINES

    def update(self, count: int = 1, note: str = "") -> None:
        """`count` more are done; `note` says how it goes."""
        self._done += count
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(count)
        elif self._lines and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            self._line(note)

    def _line(self, note: str) -> None:
        rate = self._done / max(time.monotonic() - self._start, 1e-9)
        of = f"/{self._total}" if self._total is not None else ""
        tail = f", {note}" if note else ""
        print(f"{self._what}: {self._done}{of} {self._unit}, {rate:.1f}/s{tail}", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._lines and self._done:
            self._line("")
