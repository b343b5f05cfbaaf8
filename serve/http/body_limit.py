"""Body limits: where a body ends, size of one request, size of all requests together, and transfer rate."""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.core.errors import BusyError, MalformedBodyError, ServerError, SlowRequestError, TooLargeError
from serve.http.problem import refusal

_DISCONNECT: Message = {"type": "http.disconnect"}
_CLOSE = {"Connection": "close"}


class FramingMiddleware:
    """ASGI middleware that refuses bodies with two ends, one by their length and one by their chunks.

    A proxy that reads the other one takes the rest of the body for the request of somebody else (request
    smuggling, RFC 9112, section 6.1). So the connection is closed, too.

    Args:
        app: The wrapped application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        app = self._app
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        if "content-length" in headers and "transfer-encoding" in headers:
            error = MalformedBodyError("send Content-Length or Transfer-Encoding, not both", headers=_CLOSE)
            app = refusal(scope, error)
        await app(scope, receive, send)


class BodyLimitMiddleware:
    """ASGI middleware that limits the size and the transfer time of request bodies.

    Bytes are counted as they arrive, independent of the Content-Length. A body that is slightly too large is
    read to its end, since a client that is still sending sees a broken connection instead of the response.

    Args:
        app: The wrapped application.
        max_size: Bytes of one body.
        max_total: Bytes of all bodies in progress.
        max_stall: Seconds that a client may keep the server waiting.
        min_rate: Bytes that restore one second of `max_stall`, so the lowest average transfer rate. The
            budget never exceeds `max_stall`: a fast start does not allow a longer pause later.
    """

    def __init__(
        self, app: ASGIApp, max_size: int, max_total: int, max_stall: float = 10.0, min_rate: int = 50_000
    ) -> None:
        self._app = app
        self._max_size = max_size
        self._max_total = max_total
        self._max_stall = max_stall
        self._min_rate = min_rate
        self._total = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        if "content-length" not in headers and "transfer-encoding" not in headers:
            await self._app(scope, receive, send)
            return
        body = _Body(receive, self._max_stall, self._min_rate)
        exchange = _Exchange(scope, body, send)
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_size:
            # A client with "Expect: 100-continue" has not sent the body yet.
            await self._too_large(exchange, int(declared) <= 2 * self._max_size and "expect" not in headers)
            return
        held = 0

        async def receive_limited() -> Message:
            nonlocal held
            if exchange.refused:
                return _DISCONNECT
            before = body.size
            try:
                message = await body.read()
            except TimeoutError:
                await exchange.refuse(SlowRequestError("the request took too long to arrive", headers=_CLOSE))
                return _DISCONNECT
            held += body.size - before
            self._total += body.size - before
            if body.size > self._max_size:
                await self._too_large(exchange, True)
                return _DISCONNECT
            if self._total > self._max_total:
                await exchange.refuse(
                    BusyError("too many uploads in progress: try again in a moment", headers=_CLOSE)
                )
                return _DISCONNECT
            return message

        try:
            await self._app(scope, receive_limited, exchange.send)
        except Exception:
            if not exchange.refused:  # else the application failed because its request was cut off
                raise
        finally:
            self._total -= held

    async def _too_large(self, exchange: _Exchange, drain: bool) -> None:
        if drain:
            await exchange.body.drain(2 * self._max_size)
        limit = f"{self._max_size / 2**20:g} MB"
        await exchange.refuse(TooLargeError(f"the request is larger than {limit}", headers=_CLOSE))


class _Body:
    """Body of one request, read with a limit on the time that the client keeps the server waiting.

    Attributes:
        size: Bytes received.
    """

    def __init__(self, receive: Receive, max_stall: float, min_rate: int) -> None:
        self.size = 0
        self._receive = receive
        self._max_stall = max_stall
        self._min_rate = min_rate
        self._budget = max_stall
        self._complete = False

    async def read(self) -> Message:
        """Return the next message; raise a `TimeoutError` if the client is too slow."""
        if self._complete:
            return await self._receive()  # waits for the disconnect, without a limit
        start = time.monotonic()
        async with asyncio.timeout(self._budget):
            message = await self._receive()
        size = len(message.get("body", b""))
        self._budget -= time.monotonic() - start
        self._budget = min(self._max_stall, self._budget + size / self._min_rate)
        self.size += size
        self._complete = not message.get("more_body", False)
        return message

    async def drain(self, max_size: int) -> None:
        """Read and discard the rest, up to a total size or until the client is too slow."""
        try:
            while not self._complete and self.size <= max_size:
                await self.read()
        except TimeoutError:
            return


class _Exchange:
    """A request and its response, which comes from the application unless the request is refused.

    Attributes:
        refused: Whether the request was refused; the application's messages are dropped from then on.
    """

    def __init__(self, scope: Scope, body: _Body, send: Send) -> None:
        self.body = body
        self.refused = False
        self._scope = scope
        self._send = send
        self._started = False

    async def send(self, message: Message) -> None:
        """Pass on a message of the application."""
        if not self.refused:
            self._started = True
            await self._send(message)

    async def refuse(self, error: ServerError) -> None:
        """Respond with an error, unless the application has started its response."""
        self.refused = True
        if not self._started:
            await refusal(self._scope, error)(self._scope, self.body.read, self._send)
