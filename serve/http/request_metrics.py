"""Request metrics: count and response time per route."""

from __future__ import annotations

import time
from http import HTTPMethod

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.addresses import API, is_event_stream
from serve.core.telemetry import Telemetry

_METHODS = frozenset(HTTPMethod)
_PAGE = "page"  # label of all routes of Gradio


class RequestMetricsMiddleware:
    """ASGI middleware that counts requests and measures their response times."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app, self._telemetry = app, telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, start = 0, time.perf_counter()

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_record)
        finally:
            route = _route(scope)
            # Clients may send any method; each label value would be kept forever.
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._telemetry.requests.labels(method, route, str(status or "none")).inc()
            if route != _PAGE and not is_event_stream(scope["path"]):  # some of its streams stay open
                self._telemetry.request_seconds.labels(route).observe(time.perf_counter() - start)


def _route(scope: Scope) -> str:
    """Return the path template of the matched route, of which there are few."""
    path = getattr(scope.get("route"), "path_format", None)
    prefix = scope.get("root_path", "")
    if prefix.startswith(API):
        return f"{prefix}{path or '/*'}"
    return path if path and not prefix and not path.startswith("/gradio_api") and path != "/" else _PAGE
