"""Work off the event loop: a few threads, a queue that has an end, and a time after which nobody waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from serve.core.errors import AbandonedError, BusyError, DeadlineExceededError
from serve.core.telemetry import Telemetry
from serve.core.waiting import for_one_who

T = TypeVar("T")
_RECENT = 0.1  # the weight of the last request in the mean time that one takes


@dataclass(frozen=True)
class Limits:
    """What a server takes on.

    Attributes:
        threads: requests that are worked on at a time; `None`: as many as there are cores, and more where
            pictures are gathered for a GPU.
        waiting: requests that may wait for a thread; further ones are refused.
        seconds: that a request may take, waiting included.
        share: of these that it may wait for a thread. One that would wait for longer, as long as requests
            take at the moment, is refused at once.
    """

    threads: int | None = None
    waiting: int = 64
    seconds: float = 30.0
    share: float = 1 / 3


@dataclass(eq=False)
class _Job:
    """Work that waits for a thread, and then has one.

    Attributes:
        awaited: whether anybody waits for its answer still.
    """

    work: Callable[[], Any]
    answer: Future[Any] = field(default_factory=Future)
    since: float = field(default_factory=time.perf_counter)
    awaited: bool = True

    def outcome(self) -> tuple[Any, BaseException | None]:
        """What the work returns, or raises."""
        try:
            with for_one_who(lambda: self.awaited):
                return self.work(), None
        except BaseException as error:
            return None, error


class Workers:
    """Threads for the work of requests.

    Args:
        threads: how many; see `Limits` for this and the rest.
    """

    def __init__(self, threads: int, limits: Limits, telemetry: Telemetry) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="request")
        self._threads, self._limits, self._telemetry = threads, limits, telemetry
        self._longest = limits.share * limits.seconds
        self._queue: deque[_Job] = deque()
        self._accepted = 0  # in the queue or in a thread
        self._each = 0.0  # seconds that a request has a thread, of late
        self._lock = threading.Lock()

    async def run(self, work: Callable[[], T], receive: Receive | None = None) -> T:
        """What `work` returns or raises. What nobody waits for any more is not begun; work that has begun
        goes on in its thread until it asks, as `serve.core.waiting.go_on` does.

        Args:
            receive: of a request whose body has been read; tells when its client goes away.

        Raises:
            BusyError: too many are waiting already, or for too long.
            DeadlineExceededError: it took too long.
            ClientDisconnect: the client went away, and the work was not begun or not ended.
        """
        job = _Job(work)
        with self._lock:
            self._accept()
            self._queue.append(job)
        self._pool.submit(self._next)
        leaving = asyncio.create_task(self._leave(job, receive)) if receive else None
        try:
            async with self.in_time():
                return await asyncio.wrap_future(job.answer)
        except AbandonedError:
            raise ClientDisconnect() from None
        finally:
            job.awaited = False
            self._withdraw(job)
            if leaving:
                leaving.cancel()

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """All in here, also several runs, is for one request and has its time; a `DeadlineExceededError`
        after that.
        """
        try:
            async with asyncio.timeout(self._limits.seconds) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceededError(
                f"not answered within {self._limits.seconds:g} s: try again later"
            ) from None

    def close(self) -> None:
        """Take no more work."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _accept(self) -> None:
        ahead = self._accepted - self._threads
        wait = (ahead + 1) * self._each / self._threads  # until one of those ahead gives up its thread
        if ahead >= self._limits.waiting or (ahead >= 0 and wait > self._longest):
            raise BusyError("too many requests are waiting: try again in a moment")
        self._accepted += 1
        (self._telemetry.running if ahead < 0 else self._telemetry.waiting).inc()

    def _release(self) -> None:
        self._accepted -= 1
        (self._telemetry.running if self._accepted < self._threads else self._telemetry.waiting).dec()

    def _next(self) -> None:
        """In a thread: do what has waited for longest."""
        with self._lock:
            if not self._queue:
                return  # it was withdrawn
            job = self._queue.popleft()
        if not job.answer.set_running_or_notify_cancel():
            with self._lock:
                self._release()
            return
        begun = time.perf_counter()
        self._telemetry.waited.observe(begun - job.since)
        result, error = job.outcome()
        with self._lock:
            self._each += _RECENT * (time.perf_counter() - begun - self._each)
            self._release()
        if error is None:
            job.answer.set_result(result)
        else:
            job.answer.set_exception(error)

    def _withdraw(self, job: _Job) -> bool:
        """Take work out of the queue, and what it holds out of memory -> whether it was still there."""
        with self._lock:
            if job not in self._queue:
                return False
            self._queue.remove(job)
            self._release()
        return True

    async def _leave(self, job: _Job, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        job.awaited = False
        if self._withdraw(job):
            job.answer.set_exception(ClientDisconnect())
