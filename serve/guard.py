"""The outermost layer: security headers on every answer, and doors of the web framework that stay shut."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# The page runs the framework's inline scripts and templates compiled in the browser; nothing comes from or
# goes to another site.
_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
# Routes of the framework that fetch for the caller, run code or tell about the server.
_SHUT = (
    "proxy=",
    "component_server",
    "vibe-",
    "undo-vibe",
    "profiling",
    "info",
    "openapi.json",
    "call/",
    "run/",
)


class Guard:
    """ASGI middleware that refuses what the page never asks for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        app = self._app
        if _shut(scope["path"]):
            app = PlainTextResponse("Not found", 404)
        elif scope["method"] not in ("GET", "HEAD") and _from_elsewhere(Headers(scope=scope)):
            app = PlainTextResponse("Requests from other sites are refused", 403)
        await app(scope, receive, send_guarded)


def _shut(path: str) -> bool:
    # A path is looked at as the framework will see it: decoded once, in any case, after doubled slashes.
    parts = "/".join(part for part in path.lower().split("/") if part)
    door = parts.removeprefix("gradio_api/")
    if door.startswith("file"):
        return "http:/" in door or "https:/" in door
    return door.startswith(_SHUT)


def _from_elsewhere(headers: Headers) -> bool:
    """Whether a browser says that another site's page sent this."""
    return headers.get("sec-fetch-site") in ("cross-site", "same-site")
