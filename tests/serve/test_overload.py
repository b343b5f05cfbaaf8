"""Overload: at twice its capacity a server keeps its throughput, refuses the rest at once, and recovers.

The capacity of a machine varies. So all figures are compared with those of the same server in the same run,
with tolerance.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import statistics
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks._arrivals import Answer, arriving, ask, get, in_turn, post
from retrieval.machine.resources import cores
from serve.core.workers import Limits
from tests.conftest import draw
from tests.serve.processes import memory, processes
from tests.serve.serving import SERVE, Server, serving

_TICKS = os.sysconf("SC_CLK_TCK")
pytestmark = pytest.mark.slow
STEADY, OVERLOAD = 1.5, 3.5  # seconds
DEADLINE = 4  # seconds; short, so that any machine is soon overloaded


@dataclass(frozen=True)
class Seen:
    """Observations of a server during a load test.

    Attributes:
        answers: Responses to searches.
        processor: CPU seconds of the server.
        health: Responses of `/healthz` at the same time.
        memory: Resident bytes in the middle and at the end.
    """

    answers: Sequence[Answer]
    processor: float
    health: Sequence[Answer] = ()
    memory: tuple[int, int] = (0, 0)

    def took(self, status: int = 200) -> list[float]:
        return sorted(one.seconds for one in self.answers if one.status == status)

    @property
    def each(self) -> float:
        """CPU seconds per response, which are more reliable than wall time on a shared machine."""
        return self.processor / len(self.took())


@pytest.fixture
def requests_of(tmp_path: Path) -> list[bytes]:
    """Requests with images that are slow to decode and small to send."""
    images = []
    for seed in range(4):
        buffer = io.BytesIO()
        draw(seed, size=(900, 700), hue=seed).save(buffer, "PNG")
        images.append(buffer.getvalue())
    return images


def _processor(server: Server) -> float:
    """Return the CPU seconds of the server's processes."""
    stats = [(process / "stat").read_text().rpartition(")")[2].split() for process in processes(server)]
    return sum(int(user) + int(system) for *_, user, system in (stat[:13] for stat in stats)) / _TICKS


def _threads(server: Server) -> int:
    return sum(len(list((process / "task").iterdir())) for process in processes(server))


def _listen(server: Server) -> list[str]:
    """Collect the server's stderr in a list."""
    output = list[str]()
    assert server.process.stderr is not None
    threading.Thread(target=output.extend, args=[server.process.stderr], daemon=True).start()
    return output


def _figure(text: bytes, name: str) -> float:
    found = re.search(rb"^%s (\S+)$" % re.escape(name.encode()), text, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def _steady(server: Server, requests: Sequence[bytes]) -> Seen:
    before = _processor(server)
    answers = await in_turn(server.url, requests, 4, STEADY)
    return Seen(answers, _processor(server) - before)


async def _overloaded(server: Server, requests: Sequence[bytes], rate: float) -> Seen:
    async def watch() -> tuple[int, int]:
        await asyncio.sleep(OVERLOAD / 2)
        middle = memory(server)
        await asyncio.sleep(OVERLOAD / 2)
        return middle, memory(server)

    before = _processor(server)
    answers, health, held = await asyncio.gather(
        arriving(server.url, requests, rate, OVERLOAD),
        arriving(server.url, [get(server.url, "/healthz")], 10, OVERLOAD),
        watch(),
    )
    return Seen(answers, _processor(server) - before, health, held)


async def _quiet(server: Server) -> None:
    """Wait until the queue is empty."""
    for _ in range(100):
        figures = (await ask(server.url, get(server.url, "/metrics"))).text
        busy = [_figure(figures, f"lookalike_{name}") for name in ("queue_depth", "workers_busy")]
        if busy == [0, 0]:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("something is still waiting ten seconds after the last answer")


@pytest.mark.parametrize("workers", [1, 2])
def test_server_survives_twice_its_capacity(
    shop_gallery: Path, requests_of: list[bytes], tmp_path: Path, workers: int
) -> None:
    command = [*SERVE, str(shop_gallery), "--no-page", "--workers", str(workers), "--deadline", str(DEADLINE)]
    with serving(command, tmp_path / "scratch") as server:
        output = _listen(server)
        requests = [post(server.url, "/v1/search?k=3", one, "image/png") for one in requests_of]

        async def story() -> tuple[Seen, int, Seen, Seen]:
            await in_turn(server.url, requests, 4, 0.5)  # warm-up
            for _ in range(3):  # the machine may have become faster in the meantime
                before, threads = await _steady(server, requests), _threads(server)
                seen = await _overloaded(server, requests, 2 * len(before.answers) / STEADY)
                await _quiet(server)
                if seen.took(503):
                    break
            return before, threads, seen, await _steady(server, requests)

        before, threads, seen, after = asyncio.run(story())
        assert _threads(server) <= threads + 2 * workers  # of Starlette, and of asyncio
        if workers == 1:
            figures = asyncio.run(ask(server.url, get(server.url, "/metrics"))).text
            refused = len(seen.took(503))
            assert _figure(figures, 'lookalike_problems_total{code="busy"}') == refused
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(30) == 0
    assert not any("Traceback" in line for line in output)

    assert {one.status for one in (*before.answers, *after.answers)} == {200}
    assert {one.status for one in seen.answers} == {200, 503}  # no other error, no lost request
    for one in seen.answers:
        if one.status == 503:
            assert b'"code":"busy"' in one.text
            assert re.search(rb"\r\nretry-after: [1-9]", one.text)
    # Most of the work is for answered requests, and none is left at the end.
    assert seen.each < 2 * before.each
    assert after.each < 1.5 * before.each
    # Accepted requests wait within their share of the deadline; the others are refused at once.
    done = len(seen.took()) / (OVERLOAD + seen.took()[-1])
    assert statistics.median(seen.took()) < 2 * workers * (Limits().queued + cores()) / done
    assert statistics.median(seen.took(503)) < statistics.median(seen.took())
    assert {one.status for one in seen.health} == {200}
    assert statistics.median(one.seconds for one in seen.health) < statistics.median(seen.took()) / 2
    assert seen.memory[1] < 1.3 * seen.memory[0]
