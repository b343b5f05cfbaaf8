"""h11 protocol with timeouts of headers and of clients that do not read, and limits on connections."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from serve.http.connections import Connections

HEADER_SECONDS = 10.0
RESERVE_SECONDS = 2.0  # time of the headers on a connection beyond the limits
READ_SECONDS = 60.0  # in which a client has to take some of the bytes that wait for it
GRACE_SECONDS = 1.0  # time of the headers on a new connection once the server shuts down


class Protocol(H11Protocol):
    """One connection. uvicorn limits the idle time between requests only, not that of headers and answers.

    Args:
        limits: Open connections of this process.
        uvicorn: Arguments of uvicorn's protocol.
    """

    _deadline: asyncio.TimerHandle | None = None
    _grace: asyncio.TimerHandle | None = None
    _reader: asyncio.TimerHandle | None = None

    def __init__(self, *, limits: Connections, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._limits = limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, beyond the limits only for health checks and refusals."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # any byte that waits for the client is known to `pause_writing`
        exceeded = self._limits.add(transport, self.client[0] if self.client else "")
        self.app_state = {**self.app_state, **exceeded}
        seconds = RESERVE_SECONDS if exceeded else HEADER_SECONDS
        self._deadline = self.loop.call_later(seconds, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Receive headers or body; `BodyLimitMiddleware` limits the time of the body."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel()
            if self._grace is not None:
                super().shutdown()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        """Wait for the client to read, but not forever: the connection and the answer are held meanwhile."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """Go on: the client has read everything that waited."""
        super().resume_writing()
        self._forget_reader()

    def _await_reader(self) -> None:
        waiting = self.transport.get_write_buffer_size()

        def check() -> None:
            if self.transport.get_write_buffer_size() < waiting:
                self._await_reader()
            else:
                self.transport.abort()

        self._reader = self.loop.call_later(READ_SECONDS, check)

    def _forget_reader(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def shutdown(self) -> None:
        """Close the connection after its request; uvicorn would cut off a client that has only connected."""
        if self.cycle is None:
            self._grace = self.loop.call_later(GRACE_SECONDS, super().shutdown)
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeouts of a closed connection."""
        self._cancel()
        self._forget_reader()
        if self._grace is not None:
            self._grace.cancel()
        self._limits.remove(self.transport)
        super().connection_lost(exc)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
