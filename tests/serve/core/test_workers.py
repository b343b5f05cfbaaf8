"""Thread pool: cancellation, deadlines and back-pressure."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from serve.core.errors import BusyError, DeadlineExceededError
from serve.core.telemetry import Telemetry
from serve.core.workers import Limits, Workers, raise_if_abandoned


class RequestBody:
    """Memory of a request."""


@contextmanager
def _workers(threads: int, limits: Limits) -> Iterator[tuple[Workers, Telemetry]]:
    telemetry = Telemetry()
    workers = Workers(threads, limits, telemetry)
    try:
        yield workers, telemetry
    finally:
        workers.close()


def _figures(telemetry: Telemetry) -> tuple[float | None, float | None]:
    """Return the gauges of queued and running requests."""
    value = telemetry.registry.get_sample_value
    return value("lookalike_queue_depth"), value("lookalike_workers_busy")


@pytest.mark.parametrize("end", ["disconnect", "deadline", "shutdown"])
def test_abandoned_work_leaves_queue_and_memory(end: str) -> None:
    go, left, ran = threading.Event(), asyncio.Event(), []
    limits = Limits(queued=1, seconds=0.2 if end == "deadline" else 60)

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    async def main(workers: Workers, telemetry: Telemetry) -> None:
        held = asyncio.create_task(workers.run(go.wait))
        await asyncio.sleep(0)
        image = RequestBody()
        kept = weakref.ref(image)
        waiting = asyncio.create_task(workers.run(lambda held=image: ran.append(held), receive))
        del image
        await asyncio.sleep(0)
        assert _figures(telemetry) == (1, 1)
        if end == "disconnect":
            left.set()
            with pytest.raises(ClientDisconnect):
                await waiting
        elif end == "deadline":
            with pytest.raises(DeadlineExceededError):
                await waiting
        else:
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        del waiting
        await asyncio.sleep(0)
        gc.collect()
        assert _figures(telemetry) == (0, 1)
        assert kept() is None  # although the only thread is still busy
        go.set()
        await asyncio.gather(held, return_exceptions=True)

    with _workers(1, limits) as (workers, telemetry):
        try:
            asyncio.run(main(workers, telemetry))
        finally:
            go.set()
        for _ in range(3000):  # until the thread notices
            if _figures(telemetry) == (0, 0):
                break
            time.sleep(0.01)
        assert _figures(telemetry) == (0, 0)
        assert not ran


def test_running_work_continues_after_a_disconnect() -> None:
    """Work that has started continues, and frees its thread at the end."""
    go, begun = threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        go.wait()
        return "done"

    async def receive() -> Message:
        await asyncio.to_thread(begun.wait)
        return {"type": "http.disconnect"}

    async def main(workers: Workers) -> None:
        running = asyncio.create_task(workers.run(work, receive))
        await asyncio.to_thread(begun.wait)
        await asyncio.sleep(0.05)
        assert not running.done()
        go.set()
        assert await running == "done"
        assert await workers.run(lambda: 1) == 1

    with _workers(1, Limits()) as (workers, telemetry):
        asyncio.run(main(workers))
        assert _figures(telemetry) == (0, 0)


@pytest.mark.parametrize("end", ["disconnect", "deadline", "shutdown"])
def test_abandoned_work_stops_at_the_next_check(end: str) -> None:
    begun, go, done = threading.Event(), threading.Event(), []

    def work() -> None:
        for step in range(100):
            raise_if_abandoned()
            done.append(step)
            begun.set()
            assert go.wait(30)

    async def receive() -> Message:
        if end == "disconnect":
            await asyncio.to_thread(begun.wait)
        else:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def main(workers: Workers) -> None:
        running = asyncio.create_task(workers.run(work, receive))
        await asyncio.to_thread(begun.wait)
        if end == "deadline":
            with pytest.raises(DeadlineExceededError):
                await running
        elif end == "shutdown":
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        else:
            await asyncio.sleep(0.05)
        go.set()
        if end == "disconnect":
            with pytest.raises(ClientDisconnect):
                await running
        await workers.run(raise_if_abandoned)  # the thread is free again

    with _workers(1, Limits(seconds=0.5 if end == "deadline" else 60)) as (workers, _):
        asyncio.run(main(workers))
    assert done == [0]
    raise_if_abandoned()  # does nothing outside of requests


def test_several_runs_share_one_deadline() -> None:
    async def main(workers: Workers) -> None:
        async def steps() -> None:
            async with workers.deadline():
                while True:
                    await workers.run(lambda: time.sleep(0.1))

        with pytest.raises(DeadlineExceededError, match=r"within 0\.5 s:"):
            await steps()

    with _workers(1, Limits(seconds=0.5)) as (workers, _):
        asyncio.run(main(workers))


def test_expected_wait_beyond_the_share_is_refused() -> None:
    """A full queue of 64 would exceed the deadline: each request would start shortly before it."""
    begun, answered, refused = [], [], []

    def work() -> None:
        begun.append(1)
        time.sleep(0.02)

    async def ask(workers: Workers) -> None:
        try:
            await workers.run(work)
            answered.append(1)
        except BusyError:
            refused.append(1)
        except DeadlineExceededError:
            pass

    async def main(workers: Workers) -> None:
        asked = []
        for _ in range(200):
            asked.append(asyncio.create_task(ask(workers)))
            await asyncio.sleep(0.01)
        await asyncio.gather(*asked)

    with _workers(1, Limits(queued=64, seconds=0.4)) as (workers, _):
        asyncio.run(main(workers))
    assert refused
    assert len(answered) > 0.7 * len(begun)


def test_errors_of_the_work_are_raised_in_run() -> None:
    def fail() -> None:
        raise ValueError("of the work")

    async def main(workers: Workers) -> None:
        found = await asyncio.gather(
            *(workers.run(work) for work in (fail, lambda: 1, fail)), return_exceptions=True
        )
        assert [type(one) for one in found] == [ValueError, int, ValueError]

    with _workers(2, Limits()) as (workers, telemetry):
        asyncio.run(main(workers))
        assert _figures(telemetry) == (0, 0)
