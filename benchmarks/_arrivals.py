"""Open-loop load generator: requests arrive at random times, independent of the responses.

Closed-loop clients, which send the next request after a response, slow down with the server and never
overload it. Here requests are sent at random times with a given mean rate, each on its own connection, and
their latency counts from the scheduled time.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

_PATIENCE = 60.0  # seconds until a request without a response counts as lost


@dataclass(frozen=True)
class Answer:
    """Result of a request.

    Attributes:
        status: HTTP status; 0 without a response: refused, aborted or timed out.
        seconds: Time from the scheduled start to the last byte.
        text: Whole response, with its headers.
    """

    status: int
    seconds: float
    text: bytes


def post(url: str, path: str, body: bytes, media_type: str) -> bytes:
    """Return the bytes of a POST request whose connection closes after the response."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nConnection: close\r\n"
        f"Content-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def get(url: str, path: str) -> bytes:
    """Return the bytes of a GET request."""
    return f"GET {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nConnection: close\r\n\r\n".encode()


async def ask(url: str, request: bytes, due: float | None = None) -> Answer:
    """Send a request now; `due` is its scheduled time."""
    begun = time.perf_counter() if due is None else due
    where = urlsplit(url)
    text = b""
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_connection(where.hostname, where.port)
            try:
                writer.write(request)
                text = await reader.read(-1)
            finally:
                writer.close()
    except OSError:  # a TimeoutError is one
        pass
    complete = b"\r\n\r\n" in text
    return Answer(int(text.split(b" ", 2)[1]) if complete else 0, time.perf_counter() - begun, text)


async def arriving(url: str, requests: Sequence[bytes], rate: float, seconds: float) -> list[Answer]:
    """Send requests at a mean rate per second, independent of the responses."""
    chance, tasks = random.Random(0), []
    start = time.perf_counter()
    due = 0.0
    while (due := due + chance.expovariate(rate)) < seconds:
        await asyncio.sleep(start + due - time.perf_counter())
        tasks.append(asyncio.create_task(ask(url, requests[len(tasks) % len(requests)], start + due)))
    return [await task for task in tasks]


async def in_turn(url: str, requests: Sequence[bytes], clients: int, seconds: float) -> list[Answer]:
    """Run closed-loop clients: each sends its next request after a response."""
    until, found = time.perf_counter() + seconds, list[Answer]()

    async def client() -> None:
        while time.perf_counter() < until:
            found.append(await ask(url, requests[len(found) % len(requests)]))

    await asyncio.gather(*(client() for _ in range(clients)))
    return found
