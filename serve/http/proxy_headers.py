"""What a proxy says about its client is believed where the proxy is known, and taken away elsewhere."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from serve.http.clients import client_of

_CLAIMS = (b"x-forwarded-", b"forwarded")


class Proxies:
    """ASGI middleware: the client's address and scheme as a trusted proxy gives them.

    From anybody else, `Forwarded` and the `X-Forwarded-` headers are taken out of the request: the page's
    framework would build addresses from them.

    Args:
        app: what lies behind.
        trusted: addresses and networks of proxies, such as `127.0.0.1` and `10.0.0.0/8`.
    """

    def __init__(self, app: ASGIApp, trusted: Sequence[str]) -> None:
        self._app = app
        self._trusted = [ipaddress.ip_network(network) for network in trusted]
        self._believing = ProxyHeadersMiddleware(app, list(trusted))  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._trusts(client := client_of(scope)):
            known = {**scope, "client": (client, 0)}  # as the list of proxies has it
            await self._believing(known, receive, send)  # type: ignore[arg-type]
        else:
            plain = [pair for pair in scope["headers"] if not pair[0].startswith(_CLAIMS)]
            await self._app({**scope, "headers": plain}, receive, send)

    def _trusts(self, client: str) -> bool:
        try:
            address = ipaddress.ip_address(client)
        except ValueError:
            return False
        return any(address in network for network in self._trusted)
