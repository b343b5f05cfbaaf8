"""Rate limiter: token bucket per client, shared by all processes; limit on open event streams.

The pixels that a request makes the server decode are charged after it, since its body tells them: a small
file can be a large image.

Libraries such as slowapi need a Redis server to hold one limit over several processes; a mapped file does
not.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import mmap
import secrets
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from serve.addresses import is_event_stream
from serve.core.cost import measured_cost
from serve.core.errors import BusyError, RateLimitError
from serve.http.problem import refusal
from serve.http.proxy_headers import client_address, unmap_ipv4

_UNLIMITED = ("/healthz", "/page/")  # constants and static files
PIXELS_PER_TOKEN = 1_000_000  # to decode a megapixel takes about as long as to answer a search
_BURST_SECONDS = 10  # the thumbnails of a page, a hundred, are requested at once
# Shared pictures of one client: two full queries at once, then one in fifteen seconds.
_SHARES, _SHARES_PER_SECOND = 32, 1 / 15
_STREAMS = ("/gradio_api/queue/data", "/gradio_api/heartbeat/")
_MAX_STREAMS, _MAX_STREAMS_PER_CLIENT = 256, 64
_STREAM_RETRY_SECONDS = 5
# Layout of the buckets: the key of the hash, then rows of slots. A client's hash determines its row.
_KEY_SIZE = 16  # bytes; random, so that clients cannot choose addresses that share a row
_SLOT = struct.Struct("=8sdd")  # hash of the client, tokens, time of the last access
_ROWS, _SLOTS_PER_ROW = 64, 64
_ROW_SIZE = _SLOTS_PER_ROW * _SLOT.size
_EMPTY = bytes(8)


class RateLimitMiddleware:
    """ASGI middleware that limits the requests of each client, and the megapixels that they decode.

    Args:
        app: The wrapped application.
        rate: Requests per second and client; bursts of ten times as many are allowed.
        file: Shared file in which several processes count together, see `TokenBuckets`.
    """

    def __init__(self, app: ASGIApp, rate: float, file: Path | None = None) -> None:
        self._app = app
        self._buckets = TokenBuckets(rate, max(1, _BURST_SECONDS * rate), file=file)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        app = self._app
        if scope["type"] == "http" and not scope["path"].startswith(_UNLIMITED):
            wait = self._buckets.take(client_address(scope))
            if wait:
                app = refusal(scope, RateLimitError("too many requests: try again later", retry_after=wait))
        with measured_cost() as cost:
            try:
                await app(scope, receive, send)
            finally:
                if more := cost.pixels // PIXELS_PER_TOKEN:
                    self._buckets.charge(client_address(scope), more)


class ShareLimitMiddleware:
    """ASGI middleware that limits the pictures that each client shares: they take the place of others.

    Args:
        app: The wrapped application.
        file: Shared file in which several processes count together, see `TokenBuckets`.
    """

    def __init__(self, app: ASGIApp, file: Path | None = None) -> None:
        self._app = app
        self._buckets = TokenBuckets(_SHARES_PER_SECOND, _SHARES, file=file)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        app = self._app
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"].endswith("/pictures"):
            wait = self._buckets.take(client_address(scope))
            if wait:
                error = RateLimitError("too many shared pictures: try again later", retry_after=wait)
                app = refusal(scope, error)
        await app(scope, receive, send)


class StreamLimitMiddleware:
    """ASGI middleware that limits open event streams: of changes, and of Gradio's clients."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or not _is_stream(scope["path"]):
            await self._app(scope, receive, send)
            return
        client = client_address(scope)
        if self._open.total() >= _MAX_STREAMS or self._open[client] >= _MAX_STREAMS_PER_CLIENT:
            error = BusyError("too many open streams: close some", retry_after=_STREAM_RETRY_SECONDS)
            await refusal(scope, error)(scope, receive, send)
            return
        with counted(self._open, client):
            await self._app(scope, receive, send)


def _is_stream(path: str) -> bool:
    return path.startswith(_STREAMS) or is_event_stream(path)


@contextmanager
def counted(active: Counter[str], client: str) -> Iterator[None]:
    """Count a client as active meanwhile; clients without anything active leave the counter."""
    active[client] += 1
    try:
        yield
    finally:
        active[client] -= 1
        if not active[client]:
            del active[client]


class TokenBuckets:
    """A token bucket for every client, in memory of constant size.

    Holds about the 4096 most recent clients; a client that was evicted starts with a full bucket. The
    addresses of an IPv6 /64 network count as one client, since one customer usually has all of them.

    Several processes may share a file. They do not lock it: two that read a bucket at the same instant may
    both take its last token.

    Args:
        rate: Tokens per second.
        burst: Capacity of a bucket.
        clock: Monotonic time in seconds, the same in all processes.
        file: File created by `SharedLimits.create`; None uses the memory of this process.
    """

    def __init__(
        self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic, file: Path | None = None
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._memory = memoryview(bytearray(_empty_buckets()) if file is None else _map_file(file))
        self._key = bytes(self._memory[:_KEY_SIZE])

    def take(self, client: str) -> int:
        """Take a token. Return 0, or the whole seconds until there is one."""
        level, write = self._open(client)
        is_enough = level >= 1
        write(level - is_enough)
        return 0 if is_enough else math.ceil((1 - level) / self._rate)

    def charge(self, client: str, tokens: int) -> None:
        """Take tokens that were used already; a bucket owes at most as many as it can hold."""
        level, write = self._open(client)
        write(max(-self._burst, level - tokens))

    def _open(self, client: str) -> tuple[float, Callable[[float], None]]:
        """Return the level of a client's bucket, and a function that sets it."""
        owner = hashlib.blake2b(client_network(client).encode(), digest_size=8, key=self._key).digest()
        row = _KEY_SIZE + owner[0] % _ROWS * _ROW_SIZE
        slots = list(_SLOT.iter_unpack(self._memory[row : row + _ROW_SIZE]))
        now = self._clock()
        slot = next((number for number, (other, _, _) in enumerate(slots) if other == owner), None)
        if slot is None:  # take an empty slot, or evict the least recently used
            slot = min(
                range(_SLOTS_PER_ROW), key=lambda number: (slots[number][0] != _EMPTY, slots[number][2])
            )
            level = self._burst
        else:
            _, level, last_access = slots[slot]
            level = min(self._burst, level + self._rate * (now - last_access))
        start = row + slot * _SLOT.size

        def write(level: float) -> None:
            self._memory[start : start + _SLOT.size] = _SLOT.pack(owner, level, now)

        return level, write

    def __len__(self) -> int:
        """Return the number of clients with a bucket."""
        return sum(owner != _EMPTY for owner, _, _ in _SLOT.iter_unpack(self._memory[_KEY_SIZE:]))


@dataclass(frozen=True)
class SharedLimits:
    """Files in which the processes of a server count together; a single process needs none.

    Attributes:
        requests: Buckets of requests per client.
        sign_ins: Buckets of wrong credentials per client.
        shares: Buckets of shared pictures per client.
    """

    requests: Path | None = None
    sign_ins: Path | None = None
    shares: Path | None = None

    @classmethod
    def create(cls, folder: Path) -> SharedLimits:
        """Create the files in a private folder."""
        files = [folder / name for name in ("requests", "sign-ins", "shares")]
        for file in files:
            file.write_bytes(_empty_buckets())
        return cls(*files)


def _empty_buckets() -> bytes:
    return secrets.token_bytes(_KEY_SIZE) + bytes(_ROWS * _ROW_SIZE)


def _map_file(file: Path) -> mmap.mmap:
    with open(file, "r+b") as opened:
        return mmap.mmap(opened.fileno(), 0)


@lru_cache(1024)
def client_network(client: str) -> str:
    """Return the address or IPv6 network that a client is counted by."""
    try:
        address = ipaddress.ip_address(unmap_ipv4(client).partition("%")[0])
    except ValueError:
        return client[:64]
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
