"""What a visitor sees until the scripts of the page are there, and others of a link to it."""

from __future__ import annotations

import gzip
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.page.assets import page_options, render

_HEAD, _BODY = (re.compile(rb"<%s[^>]*>" % name) for name in (b"head", b"body"))
_PREVIEW = re.compile(rb"""<meta\s+(property="og:|name="twitter:)[^>]*>\s*""")  # Gradio's, of itself
_QUERY_ITEM = re.compile(r"(?:^|&)like=(\d+)(?=[&@]|$)")


class FirstPaint:
    """ASGI middleware that puts the outline of the page into its HTML document, and compresses it.

    Gradio's document is empty until its scripts have been loaded: seconds on a slow line. `modules/header.js`
    removes the outline. The document also gets what is shown of a link to it elsewhere, in place of Gradio's
    own: the name of the gallery and the image that is searched with, if it is one of the gallery.

    Args:
        app: Gradio's application.
        name: Name of the gallery.
        address: Path of its API.
    """

    def __init__(self, app: ASGIApp, name: str, address: str) -> None:
        self._app, self._name, self._address = app, name, address
        self._outline = render("first_paint", name=name, options=page_options()).encode()

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
                body = _PREVIEW.sub(b"", b"".join(parts))
                body = _behind(_HEAD, self._preview(Request(scope)), body)
                body = _behind(_BODY, self._outline, body)
                headers = MutableHeaders(raw=start["headers"])
                if "gzip" in Headers(scope=scope).get("accept-encoding", ""):
                    body = gzip.compress(body, 6)
                    headers["content-encoding"] = "gzip"
                headers.add_vary_header("Accept-Encoding")
                headers["content-length"] = str(len(body))
                await send(start)
                await send({"type": "http.response.body", "body": body})

        return await self._app(scope, receive, add)

    def _preview(self, request: Request) -> bytes:
        item = _QUERY_ITEM.search(request.url.query)
        path = f"{self._address}/images/{item[1]}/thumbnail" if item else None
        image = path and request.url.replace(path=path, query="", fragment="")
        return render("preview", name=self._name, url=request.url, image=image).encode()


def _behind(tag: re.Pattern[bytes], content: bytes, document: bytes) -> bytes:
    return tag.sub(lambda found: found[0] + content, document, count=1)


def _is_document(start: Message) -> bool:
    headers = MutableHeaders(raw=start["headers"])
    return headers.get("content-type", "").startswith("text/html") and "content-encoding" not in headers
