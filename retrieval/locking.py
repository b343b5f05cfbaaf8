"""One process at a time. A lock goes with its holder, however that ends."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def locked(file: Path, busy: Callable[[IO[str]], object]) -> Iterator[IO[str]]:
    """Hold the lock of a file, which is made if need be and stays: whoever waits for it holds the same one.

    Args:
        busy: called with the open file where another process holds the lock. It may raise, to give up;
            otherwise this waits.

    Returns:
        The open file, for what others should know about the holder.
    """
    with file.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy(lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
