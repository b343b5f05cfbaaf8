"""Limits on what is sent to the server: bytes of a request, of all together, and the time they take."""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.http.refusals import refusal

_GONE: Message = {"type": "http.disconnect"}


class BodyLimit:
    """ASGI middleware: bodies of a largest size, sent without dawdling, and not too many at a time.

    Bytes are counted as they come, whatever was declared. A body that is a little too large is read to its
    end, since a client that is still sending sees a broken connection and not the answer.

    Args:
        app: what lies behind.
        largest: bytes of one body.
        together: bytes of all bodies that are being worked on at a time.
        patience: seconds that a client may leave us waiting at most.
        slowest: every so many bytes win it back one of these: it may be as slow on the average, and what it
            sent faster before gives it no right to a longer rest.
    """

    def __init__(
        self, app: ASGIApp, largest: int, together: int, patience: float = 10.0, slowest: int = 50_000
    ) -> None:
        self._app = app
        self._largest = largest
        self._together = together
        self._patience = patience
        self._slowest = slowest
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        if "content-length" not in headers and "transfer-encoding" not in headers:
            await self._app(scope, receive, send)
            return
        body = _Body(receive, self._patience, self._slowest)
        exchange = _Exchange(scope, body, send)
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._largest:
            # One who asks before sending has sent nothing yet.
            await self._too_large(exchange, int(declared) <= 2 * self._largest and "expect" not in headers)
            return
        held = 0

        async def limited() -> Message:
            nonlocal held
            if exchange.refused:
                return _GONE
            before = body.size
            try:
                message = await body.read()
            except TimeoutError:
                await exchange.refuse("too-slow", "the request took too long to arrive")
                return _GONE
            held += body.size - before
            self._held += body.size - before
            if body.size > self._largest:
                await self._too_large(exchange, True)
                return _GONE
            if self._held > self._together:
                await exchange.refuse("busy", "too much is being sent at the moment; try again")
                return _GONE
            return message

        try:
            await self._app(scope, limited, exchange.send)
        except Exception:
            if not exchange.refused:  # else it is about the request that ended under its hands
                raise
        finally:
            self._held -= held

    async def _too_large(self, exchange: _Exchange, drain: bool) -> None:
        if drain:
            await exchange.body.drain(2 * self._largest)
        most = f"{self._largest / 2**20:g} MB"
        await exchange.refuse("too-large", f"the request is larger than {most}")


class _Body:
    """The body of one request on its way in.

    Attributes:
        size: bytes that have come.
    """

    def __init__(self, receive: Receive, patience: float, slowest: int) -> None:
        self.size = 0
        self._receive = receive
        self._patience = patience
        self._slowest = slowest
        self._left = patience
        self._complete = False

    async def read(self) -> Message:
        """The next part; a `TimeoutError` once the client has left us waiting for too long."""
        if self._complete:
            return await self._receive()  # waits for the client to go away, for as long as that takes
        start = time.monotonic()
        async with asyncio.timeout(self._left):
            message = await self._receive()
        size = len(message.get("body", b""))
        self._left -= time.monotonic() - start
        self._left = min(self._patience, self._left + size / self._slowest)
        self.size += size
        self._complete = not message.get("more_body", False)
        return message

    async def drain(self, most: int) -> None:
        """Read on to the end, if it comes soon, and keep nothing."""
        try:
            while not self._complete and self.size <= most:
                await self.read()
        except TimeoutError:
            return


class _Exchange:
    """A request and its answer: ours once it is refused, else the application's.

    Attributes:
        refused: whether the answer is ours; what the application sends is dropped from then on.
    """

    def __init__(self, scope: Scope, body: _Body, send: Send) -> None:
        self.body = body
        self.refused = False
        self._scope = scope
        self._send = send
        self._started = False

    async def send(self, message: Message) -> None:
        """Pass on what the application answers."""
        if not self.refused:
            self._started = True
            await self._send(message)

    async def refuse(self, code: str, detail: str) -> None:
        """Answer in place of the application, unless it has begun to."""
        self.refused = True
        if self._started:
            return
        response = refusal(self._scope, code, detail, {"Connection": "close"})
        await response(self._scope, self.body.read, self._send)
