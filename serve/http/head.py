"""HEAD wherever GET is: the same answer without its body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.addresses import within_page

_FRAMEWORK = "/gradio_api/"  # has streams that would be begun for nobody


class Heads:
    """ASGI middleware that has a GET answered in place of a HEAD."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        if not is_head or within_page(scope["path"]).startswith(_FRAMEWORK):
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        scope["method"] = "GET"  # in place: the layers around read here which address it was
        try:
            await self._app(scope, receive, send_head)
        finally:
            scope["method"] = "HEAD"
