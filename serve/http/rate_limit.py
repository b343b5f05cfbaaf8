"""Limits on how often one client may ask, and on how many event streams are open."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from serve.addresses import within_page
from serve.http.buckets import Buckets
from serve.http.clients import client_of
from serve.http.refusals import refusal

_FREE = ("/healthz", "/assets/", "/static/")  # answered from a file, if that
_STREAMS = ("/gradio_api/queue/data", "/gradio_api/heartbeat/")
_MOST_STREAMS, _MOST_STREAMS_OF_ONE = 256, 64
_BURST_SECONDS = 10  # a page of a hundred thumbnails comes at once


class RateLimit:
    """ASGI middleware: so many requests a second and client, ten times as many at once.

    Args:
        app: what lies behind.
        rate: requests a second.
        file: what several processes count in together.
    """

    def __init__(self, app: ASGIApp, rate: float, file: Path | None = None) -> None:
        self._app = app
        self._buckets = Buckets(rate, max(1, _BURST_SECONDS * rate), file=file)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        app = self._app
        if scope["type"] == "http" and not within_page(scope["path"]).startswith(_FREE):
            wait = self._buckets.take(client_of(scope))
            if wait:
                again = {"Retry-After": str(wait)}
                app = refusal(scope, "too-many-requests", "too many requests; wait a little", again)
        await app(scope, receive, send)


class StreamLimit:
    """ASGI middleware: so many event streams at a time, for a page keeps some open as long as it is shown."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or not within_page(scope["path"]).startswith(_STREAMS):
            await self._app(scope, receive, send)
            return
        client = client_of(scope)
        if self._open.total() >= _MOST_STREAMS or self._open[client] >= _MOST_STREAMS_OF_ONE:
            detail = "too many pages are open; close some"
            await refusal(scope, "busy", detail, {"Retry-After": "5"})(scope, receive, send)
            return
        self._open[client] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]
