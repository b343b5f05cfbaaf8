"""Host and origin checks, and an allow-list of routes.

Starlette's `TrustedHostMiddleware` is no replacement: it answers in plain text, splits the Host header at the
first colon, which breaks IPv6 (`[::1]:7860`), and has neither an origin check nor a list of routes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.addresses import within_page
from serve.core.errors import ForbiddenError, NotFoundError, ServerError, WrongHostError
from serve.http.problem import refusal

# All routes of the page and the API, and those of Gradio that its clients need. It has many more: some run
# code, fetch URLs, read files or reveal details of the server, and a new version may add others.
_ROUTES = re.compile(
    r"""
    / | /healthz | /readyz | /metrics | /v1(/.*)?
    | /favicon\.ico | /page/[^/]+/[^/]+ | /parts/(report|about|statistics|device(/[^/]+)?)
    """,
    re.VERBOSE | re.DOTALL,
)
_GRADIO = re.compile(
    "/config|/gradio_api/(info|upload|queue/join|queue/data|heartbeat/[^/]*|cancel|reset|call/[a-z_]+(/[0-9a-f]+)?)"
)
_HOST = re.compile(r"(\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(:\d*)?", re.IGNORECASE)


class HostGuardMiddleware:
    """ASGI middleware that checks Host, route and Origin of a request.

    Args:
        app: The wrapped application.
        names: Allowed names in the Host header: `*` for any, `*.example.com` for all subdomains. A list
            protects a local server from DNS rebinding.
        origins: Allowed cross-origin sites such as `https://shop.example`.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str] = ("*",), origins: Collection[str] = ()) -> None:
        self._app = app
        self._names = names
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "websocket":
            return  # closes it: the server has no WebSocket routes
        app = self._app
        if scope["type"] == "http":
            error = self._check(scope)
            if error is not None:
                app = refusal(scope, error)
        await app(scope, receive, send)

    def _check(self, scope: Scope) -> ServerError | None:
        headers = Headers(scope=scope)
        if not self._is_allowed_host(headers.get("host", "")):
            return WrongHostError("unknown name in the Host header: allow it with --allow-host")
        path = scope["path"]
        if not (_ROUTES.fullmatch(within_page(path)) or _GRADIO.fullmatch(path)):
            return NotFoundError("no such path")
        if scope["method"] not in ("GET", "HEAD") and self._is_cross_origin(headers, scope["scheme"]):
            what = "allow the site with --allow-origin, or the proxy that adds TLS with --trusted-proxy"
            return ForbiddenError(f"cross-origin request refused: {what}")
        return None

    def _is_allowed_host(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        name = (found["v6"] or found["name"]).lower() if found else ""
        return any(
            pattern in ("*", name) or (pattern.startswith("*.") and name.endswith(pattern[1:]))
            for pattern in self._names
        )

    def _is_cross_origin(self, headers: Headers, scheme: str) -> bool:
        """Return whether a page of another site, which is not allowed, sent the request."""
        origin = headers.get("origin")
        if origin in self._origins:
            return False
        site = headers.get("sec-fetch-site")
        if site in ("cross-site", "same-site"):
            return True
        if origin is None:  # programs send neither
            return False
        # Browsers send Sec-Fetch-Site only to https and localhost, but Origin everywhere. Behind a proxy that
        # adds TLS and is not trusted, only the browser knows the scheme of the address.
        found = urlsplit(origin)
        if found.netloc.lower() != headers.get("host", "").lower():
            return True
        return site != "same-origin" and found.scheme != scheme
