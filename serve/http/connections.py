"""Limits on open connections: of all clients, of one client, and a reserve for health checks."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.core.errors import BusyError, RateLimitError, ServerError
from serve.http.problem import refusal
from serve.http.proxy_headers import client_address, unmap_ipv4
from serve.http.rate_limit import client_network, counted

MAX_CONNECTIONS = 512  # below the 1024 files that a process may have open by default
RESERVED = 64  # connections beyond the limits, which get a refusal or the response to a health check
_HEALTH = "/healthz"
_CLOSE = {"Connection": "close"}
_CROWDED, _FULL = "crowded", "full"  # why a connection is in the reserve
_STATE = "connection_limit"
_RETRY_SECONDS = 5


class _Connection(Protocol):
    def abort(self) -> None: ...


@dataclass
class Connections:
    """Open connections of one process.

    A proxy has the connections of many clients, so those of trusted proxies count only towards all;
    `ConnectionLimitMiddleware` limits the clients behind them.

    Args:
        per_client: Most connections of one client; 0 for no limit.
        proxies: Addresses and networks of trusted proxies.
    """

    per_client: int = 0
    proxies: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._trusted = [ipaddress.ip_network(network) for network in self.proxies]
        self._counted = dict[_Connection, str | None]()
        self._of_client = Counter[str]()
        self._reserve = dict[_Connection, str | None]()  # oldest first

    def add(self, connection: _Connection, address: str) -> dict[str, str]:
        """Count a new connection. Return the state that its requests need if it exceeds a limit.

        If the reserve is full, the oldest connection of the client with the most in it is aborted.
        """
        client = self._client(address)
        is_crowded = bool(self.per_client and client and self._of_client[client] >= self.per_client)
        if is_crowded or len(self._counted) >= MAX_CONNECTIONS:
            if len(self._reserve) >= RESERVED:
                [(largest, _)] = Counter(self._reserve.values()).most_common(1)
                oldest = next(one for one, owner in self._reserve.items() if owner == largest)
                del self._reserve[oldest]
                oldest.abort()
            self._reserve[connection] = client
            return {_STATE: _CROWDED if is_crowded else _FULL}
        self._counted[connection] = client
        if client:
            self._of_client[client] += 1
        return {}

    def remove(self, connection: _Connection) -> None:
        """Forget a closed connection."""
        self._reserve.pop(connection, None)
        client = self._counted.pop(connection, None)
        if client:
            self._of_client[client] -= 1
            if not self._of_client[client]:
                del self._of_client[client]

    def _client(self, address: str) -> str | None:
        """Return the client that an address is counted as; None for a trusted proxy."""
        try:
            parsed = ipaddress.ip_address(unmap_ipv4(address))
        except ValueError:
            return address or None
        return None if any(parsed in network for network in self._trusted) else client_network(address)


class ConnectionLimitMiddleware:
    """ASGI middleware that refuses the requests of connections beyond the limits, except health checks.

    It also limits the concurrent requests of one client, which are its connections to a proxy.

    Args:
        app: The wrapped application.
        per_client: Most concurrent requests of one client; 0 for no limit.
    """

    def __init__(self, app: ASGIApp, per_client: int) -> None:
        self._app = app
        self._per_client = per_client
        self._active = Counter[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        reason = scope.get("state", {}).pop(_STATE, None)

        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_CLOSE)
            await send(message)

        if scope["path"] == _HEALTH:
            await self._app(scope, receive, send_and_close if reason else send)
            return
        client = client_network(client_address(scope))
        if reason is None and self._per_client and self._active[client] >= self._per_client:
            reason = _CROWDED
        if reason is not None:
            await refusal(scope, _error(reason))(scope, receive, send_and_close)
            return
        with counted(self._active, client):
            await self._app(scope, receive, send)


def _error(reason: str) -> ServerError:
    if reason == _CROWDED:
        return RateLimitError("too many connections: close some", retry_after=_RETRY_SECONDS)
    return BusyError("the server has too many connections: try again later", retry_after=_RETRY_SECONDS)
