"""Forwarding: one of several processes answers some requests for all, on a socket in a private folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx
import uvicorn
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_NAME = "socket"
_IDLE = 8  # connections that are kept
_OF_CONNECTION = (b"connection", b"keep-alive", b"transfer-encoding", b"upgrade")


class Forwarder:
    """ASGI application that sends requests to the process that listens in a folder, and returns its answers.

    Args:
        folder: Private folder, see `listening`.
        otherwise: Answers requests while no process listens.
    """

    def __init__(self, folder: Path, otherwise: ASGIApp) -> None:
        self._otherwise = otherwise
        self._descriptor = os.open(folder, os.O_RDONLY)
        self._transport = httpx.AsyncHTTPTransport(
            uds=_address(folder, self._descriptor), limits=httpx.Limits(max_keepalive_connections=_IDLE)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, whose size is limited already."""
        request = Request(scope, receive)
        headers = [pair for pair in request.headers.raw if pair[0] not in _OF_CONNECTION]
        # The scheme that trusted proxies gave to this process.
        headers = [pair for pair in headers if pair[0] != b"x-forwarded-proto"]
        headers.append((b"x-forwarded-proto", request.url.scheme.encode()))
        path = scope.get("raw_path") or scope["path"].encode()
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        url = httpx.URL("http://localhost", raw_path=path + query)
        body = await request.body()
        forwarded = httpx.Request(request.method, url, headers=headers, content=body or None)
        try:
            answer = await self._transport.handle_async_request(forwarded)
        except httpx.TransportError:
            await self._otherwise(scope, receive, send)
            return
        response = StreamingResponse(_parts(answer), answer.status_code)
        response.raw_headers = [pair for pair in answer.headers.raw if pair[0].lower() not in _OF_CONNECTION]
        try:
            await response(scope, receive, send)
        finally:
            await answer.aclose()

    async def close(self) -> None:
        """End all answers, also event streams."""
        await self._transport.aclose()

    def __del__(self) -> None:
        os.close(self._descriptor)


async def _parts(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the bytes of an answer as they come, until the other process ends."""
    with suppress(httpx.TransportError):
        async for part in answer.aiter_raw():
            yield part


@asynccontextmanager
async def listening(app: ASGIApp, folder: Path) -> AsyncIterator[None]:
    """Answer the requests that other processes forward, in this event loop.

    Args:
        app: Answers the requests, which the middleware of the other processes has let through.
        folder: Private folder of the socket.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        config = uvicorn.Config(
            app,
            uds=_address(folder, descriptor),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            forwarded_allow_ips="*",
            timeout_graceful_shutdown=1,
        )
        server = _Inner(config)
        running = asyncio.create_task(server.serve())
        try:
            yield
        finally:
            server.should_exit = True
            await running
    finally:
        os.close(descriptor)


class _Inner(uvicorn.Server):
    """A server beside another one, which handles the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


def _address(folder: Path, descriptor: int) -> str:
    """Return the path of the socket in an open folder; the paths of sockets have some 100 bytes at most."""
    short = Path(f"/proc/self/fd/{descriptor}")
    return str((short if short.exists() else folder) / _NAME)
