"""Thread pool with a bounded queue, a deadline and cancellation."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from serve.core.errors import AbandonedError, BusyError, DeadlineExceededError
from serve.core.telemetry import Telemetry

T = TypeVar("T")
_LATEST_WEIGHT = 0.1  # of the latest request in the moving average of the service time
_is_awaited: ContextVar[Callable[[], bool]] = ContextVar("is_awaited", default=lambda: True)


@dataclass(frozen=True)
class Limits:
    """Limits on concurrent requests.

    Attributes:
        threads: Requests in progress; None for one per core, and more if a GPU embeds images in batches.
        queued: Requests waiting for a thread; further ones are refused.
        seconds: Deadline of a request, including the wait.
        queue_share: Share of the deadline that a request may wait for a thread. A request whose expected wait
            is longer is refused at once.
    """

    threads: int | None = None
    queued: int = 64
    seconds: float = 30.0
    queue_share: float = 1 / 3


@contextmanager
def abandonable(is_awaited: Callable[[], bool]) -> Iterator[None]:
    """Let `raise_if_abandoned` stop the work in this block, in this thread.

    Args:
        is_awaited: Whether the result is still needed.
    """
    token = _is_awaited.set(is_awaited)
    try:
        yield
    finally:
        _is_awaited.reset(token)


def raise_if_abandoned() -> None:
    """Stop long work whose result is no longer needed; call it between two steps.

    Work that is not tied to a request is never cancelled.

    Raises:
        AbandonedError: The result is no longer needed.
    """
    if not _is_awaited.get()():
        raise AbandonedError("the client has disconnected or the deadline has passed")


@dataclass(eq=False)
class _Job:
    """Work in the queue or in a thread.

    Attributes:
        is_awaited: Whether the result is still needed.
        context: Context of the request, to which its cost is added.
    """

    work: Callable[[], Any]
    result: Future[Any] = field(default_factory=Future)
    queued_at: float = field(default_factory=time.perf_counter)
    is_awaited: bool = True
    context: Context = field(default_factory=copy_context)

    def run(self) -> tuple[Any, BaseException | None]:
        """Return the result of the work, or None and the error that it raised."""
        try:
            return self.context.run(self._work), None
        except BaseException as error:
            return None, error

    def _work(self) -> Any:
        with abandonable(lambda: self.is_awaited):
            return self.work()


class Workers:
    """Thread pool for the work of requests.

    Args:
        threads: Number of threads.
        limits: Limits on queue and deadline.
        telemetry: Records queue length and waiting times.
    """

    def __init__(self, threads: int, limits: Limits, telemetry: Telemetry) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="request")
        self._threads, self._limits, self._telemetry = threads, limits, telemetry
        self._max_wait = limits.queue_share * limits.seconds
        self._queue: deque[_Job] = deque()
        self._accepted = 0  # in the queue or in a thread
        self._service_seconds = 0.0  # moving average of the time in a thread
        self._lock = threading.Lock()

    async def run(self, work: Callable[[], T], receive: Receive | None = None) -> T:
        """Run work in a thread and return its result.

        Work that is no longer needed is not started; work that has started runs until it calls
        `raise_if_abandoned`.

        Args:
            work: Function to call.
            receive: ASGI receive function of a request whose body has been read; signals the disconnect.

        Raises:
            BusyError: The queue is full, or the expected wait is too long.
            DeadlineExceededError: The deadline has passed.
            ClientDisconnect: The client has disconnected before the work was complete.
        """
        job = _Job(work)
        with self._lock:
            self._accept()
            self._queue.append(job)
        self._pool.submit(self._run_next)
        watch = asyncio.create_task(self._cancel_on_disconnect(job, receive)) if receive else None
        try:
            async with self.deadline():
                return await asyncio.wrap_future(job.result)
        except AbandonedError:
            raise ClientDisconnect() from None
        finally:
            job.is_awaited = False
            self._dequeue(job)
            if watch:
                watch.cancel()

    @asynccontextmanager
    async def deadline(self) -> AsyncIterator[None]:
        """Limit a block, which may `run` several times, to the time of one request.

        Raises:
            DeadlineExceededError: The deadline has passed.
        """
        try:
            async with asyncio.timeout(self._limits.seconds) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"not answered within {self._limits.seconds:g} s: try again later"
            raise DeadlineExceededError(message) from None

    def close(self) -> None:
        """Accept no more work."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _accept(self) -> None:
        ahead = self._accepted - self._threads
        wait = (ahead + 1) * self._service_seconds / self._threads  # until a thread is free
        if ahead >= self._limits.queued or (ahead >= 0 and wait > self._max_wait):
            raise BusyError("too many requests are waiting: try again in a moment")
        self._accepted += 1
        (self._telemetry.workers_busy if ahead < 0 else self._telemetry.queue_depth).inc()

    def _release(self) -> None:
        self._accepted -= 1
        is_idle = self._accepted < self._threads
        (self._telemetry.workers_busy if is_idle else self._telemetry.queue_depth).dec()

    def _run_next(self) -> None:
        """Run the oldest job of the queue, in a thread."""
        with self._lock:
            if not self._queue:
                return  # the job was dequeued
            job = self._queue.popleft()
        if not job.result.set_running_or_notify_cancel():
            with self._lock:
                self._release()
            return
        start = time.perf_counter()
        self._telemetry.queue_seconds.observe(start - job.queued_at)
        result, error = job.run()
        with self._lock:
            self._service_seconds += _LATEST_WEIGHT * (time.perf_counter() - start - self._service_seconds)
            self._release()
        if error is None:
            job.result.set_result(result)
        else:
            job.result.set_exception(error)

    def _dequeue(self, job: _Job) -> bool:
        """Remove a job from the queue, which frees its memory. Return whether it was there."""
        with self._lock:
            if job not in self._queue:
                return False
            self._queue.remove(job)
            self._release()
        return True

    async def _cancel_on_disconnect(self, job: _Job, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        job.is_awaited = False
        if self._dequeue(job):
            job.result.set_exception(ClientDisconnect())
