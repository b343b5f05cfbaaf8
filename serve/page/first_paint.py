"""What a visitor sees until the scripts of the page are there."""

from __future__ import annotations

import gzip
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.page.assets import render

_BODY = re.compile(rb"<body[^>]*>")


class FirstPaint:
    """ASGI middleware that puts the outline of the page into its HTML document, and compresses it.

    Gradio's document is empty until its scripts have been loaded: seconds on a slow line. `modules/header.js`
    removes the outline.

    Args:
        app: Gradio's application.
        name: Name of the gallery.
    """

    def __init__(self, app: ASGIApp, name: str) -> None:
        self._app = app
        self._outline = render("first_paint", name=name).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start: Message | None = None
        parts: list[bytes] = []

        async def add(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _is_document(message):
                start = message
            elif start is None:
                await send(message)
            else:
                parts.append(message.get("body", b""))
                if message.get("more_body"):
                    return
                body = _BODY.sub(lambda found: found[0] + self._outline, b"".join(parts), count=1)
                headers = MutableHeaders(raw=start["headers"])
                if "gzip" in Headers(scope=scope).get("accept-encoding", ""):
                    body = gzip.compress(body, 6)
                    headers["content-encoding"] = "gzip"
                headers.add_vary_header("Accept-Encoding")
                headers["content-length"] = str(len(body))
                await send(start)
                await send({"type": "http.response.body", "body": body})

        return await self._app(scope, receive, add)


def _is_document(start: Message) -> bool:
    headers = MutableHeaders(raw=start["headers"])
    return headers.get("content-type", "").startswith("text/html") and "content-encoding" not in headers
