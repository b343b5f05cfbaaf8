"""HEAD requests for every route with a GET handler."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.addresses import is_event_stream

_GRADIO = "/gradio_api/"  # has event streams, too, which a HEAD must not open


class HeadMiddleware:
    """ASGI middleware that answers HEAD with the headers of the GET response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        path = scope["path"] if is_head else ""
        if not is_head or path.startswith(_GRADIO) or is_event_stream(path):
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        scope["method"] = "GET"  # in place: the outer middleware reads the matched route from this scope
        try:
            await self._app(scope, receive, send_without_body)
        finally:
            scope["method"] = "HEAD"
