"""Work off the event loop: a few threads, a queue that has an end, and a time after which nobody waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from serve.errors import BusyError, LateError
from serve.telemetry import Telemetry

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What a server takes on.

    Attributes:
        threads: requests that are worked on at a time; `None`: as many as there are cores, and more where
            pictures are gathered for a GPU.
        waiting: requests that may wait for a thread; further ones are refused.
        seconds: that a request may take, waiting included.
    """

    threads: int | None = None
    waiting: int = 64
    seconds: float = 30.0


class Workers:
    """Threads for the work of requests.

    Args:
        threads: how many; see `Limits` for this and the rest.
    """

    def __init__(self, threads: int, limits: Limits, telemetry: Telemetry) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="request")
        self._most, self._seconds = threads + limits.waiting, limits.seconds
        self._accepted, self._lock = 0, threading.Lock()
        self._telemetry = telemetry
        telemetry.waiting.set_function(lambda: max(0, self._accepted - threads))
        telemetry.running.set_function(lambda: min(self._accepted, threads))

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises.

        Raises:
            BusyError: too many are waiting already.
            LateError: it took too long. Work that had begun goes on in its thread: nothing can stop it.
        """
        with self._lock:
            if self._accepted >= self._most:
                raise BusyError("too many requests are waiting: try again in a moment")
            self._accepted += 1
        future = self._pool.submit(work)
        future.add_done_callback(self._finished)
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise LateError(f"not answered within {self._seconds:g} s: try again later") from None

    def close(self) -> None:
        """Take no more work."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _finished(self, _: Future[T]) -> None:
        with self._lock:
            self._accepted -= 1
