"""Requests that come when they come: a server's visitors do not wait for each other's answers.

Clients that send the next request once they have an answer slow down with the server, and so never ask for
more than it can give. Here requests are sent on a clock, at random moments of a mean rate, on a connection
each, and their time counts from the moment when they were due.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

_PATIENCE = 60.0  # seconds; whoever has no answer by then counts as one that was lost


@dataclass(frozen=True)
class Answer:
    """What came of a request.

    Attributes:
        status: 0 where none came: refused, broken off or not in time.
        seconds: from when it was due to its last byte.
        text: the whole answer, with its head.
    """

    status: int
    seconds: float
    text: bytes


def post(url: str, path: str, body: bytes, media_type: str) -> bytes:
    """A request as it is sent, on a connection that ends with its answer."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nConnection: close\r\n"
        f"Content-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def get(url: str, path: str) -> bytes:
    """As `post`, without a body."""
    return f"GET {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nConnection: close\r\n\r\n".encode()


async def ask(url: str, request: bytes, due: float | None = None) -> Answer:
    """Send a request now, `due` being when it should have been sent."""
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
    """Requests in turn, so many a second on average, whatever has been answered."""
    chance, asked = random.Random(0), []
    start = time.perf_counter()
    due = 0.0
    while (due := due + chance.expovariate(rate)) < seconds:
        await asyncio.sleep(start + due - time.perf_counter())
        asked.append(asyncio.create_task(ask(url, requests[len(asked) % len(requests)], start + due)))
    return [await one for one in asked]


async def in_turn(url: str, requests: Sequence[bytes], clients: int, seconds: float) -> list[Answer]:
    """As many clients, each of which sends its next request once it has an answer."""
    until, found = time.perf_counter() + seconds, list[Answer]()

    async def client() -> None:
        while time.perf_counter() < until:
            found.append(await ask(url, requests[len(found) % len(requests)]))

    await asyncio.gather(*(client() for _ in range(clients)))
    return found
