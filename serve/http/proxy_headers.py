"""Client addresses, and the `Forwarded` and `X-Forwarded-` headers of trusted proxies."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

_FORWARDED = (b"x-forwarded-", b"forwarded")


class TrustedProxyMiddleware:
    """ASGI middleware that takes the client's address and scheme from the headers of trusted proxies.

    The headers of other clients are removed, since Gradio would build URLs from them.

    Args:
        app: The wrapped application.
        trusted: Addresses and networks of proxies, such as `127.0.0.1` and `10.0.0.0/8`.
    """

    def __init__(self, app: ASGIApp, trusted: Sequence[str]) -> None:
        self._app = app
        self._trusted = [ipaddress.ip_network(network) for network in trusted]
        self._with_headers = ProxyHeadersMiddleware(app, list(trusted))  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._is_trusted(client := client_address(scope)):
            normalized = {**scope, "client": (client, 0)}  # uvicorn compares the text of addresses
            await self._with_headers(normalized, receive, send)  # type: ignore[arg-type]
        else:
            headers = [pair for pair in scope["headers"] if not pair[0].startswith(_FORWARDED)]
            await self._app({**scope, "headers": headers}, receive, send)

    def _is_trusted(self, client: str) -> bool:
        try:
            address = ipaddress.ip_address(client)
        except ValueError:
            return False
        return any(address in network for network in self._trusted)


def client_address(scope: Scope) -> str:
    """Return the address of the client; IPv4 in the same form on IPv4 and dual-stack sockets."""
    client = scope.get("client")
    return unmap_ipv4(str(client[0])) if client else ""


@lru_cache(1024)
def unmap_ipv4(address: str) -> str:
    """Return `192.0.2.1` for `::ffff:192.0.2.1`, any other text unchanged."""
    try:
        mapped = getattr(ipaddress.ip_address(address), "ipv4_mapped", None)
    except ValueError:
        return address
    return str(mapped or address)
