"""The outermost layer: every answer has security headers and a number, and leaves one line in the log."""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.core.telemetry import Telemetry
from serve.http.clients import client_of
from serve.http.refusals import refusal

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
# A visitor of the page may take a picture to search with.
_OF_PAGE = {"Permissions-Policy": "camera=(self), microphone=(), geolocation=()"}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")
_LINE = "%(client)s %(user)s %(method)s %(path)s %(status)d %(ms).1f ms %(bytes)d bytes %(request_id)s"
_log = logging.getLogger("lookalike.serve")


class Access:
    """ASGI middleware that numbers requests, logs them and answers where everything else has failed.

    `scope["state"]["request_id"]` is the number: the client's own `X-Request-Id` where it is a UUID.
    The log has the path and never the query string: what people look for is their own business.

    Args:
        app: what lies behind.
        telemetry: counts the refusals of all layers, which never reach the application.
    """

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _UUID.fullmatch(given) else str(uuid.uuid4())
        scope.setdefault("state", {})["request_id"] = request_id
        start = time.perf_counter()
        status = sent = 0

        async def send_marked(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                is_page = headers.get("content-type", "").startswith("text/html")
                for name, value in (HEADERS | (_OF_PAGE if is_page else {})).items():
                    headers[name] = value
                headers["X-Request-Id"] = request_id
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, send_marked)
        except Exception as error:
            # A stream that the framework ends with a status has not failed, though it cannot say so any more.
            failed = not isinstance(error.__cause__, HTTPException)
            fields = {"request_id": request_id}
            _log.error("request %s failed", request_id, exc_info=failed, extra={"fields": fields})
            if not status:
                detail = "something went wrong here; the server's log has the details under this number"
                await refusal(scope, "internal-error", detail)(scope, receive, send_marked)
        finally:
            if "refused" in scope["state"]:
                self._telemetry.problems.labels(scope["state"]["refused"]).inc()
            facts = {
                "client": client_of(scope),
                "user": scope["state"].get("user", "-"),
                "method": scope["method"],
                "path": scope.get("raw_path", b"").decode("ascii", "replace"),  # as sent: one line, no tricks
                "status": status or 499,  # as others count clients that went away
                "ms": round(1000 * (time.perf_counter() - start), 1),
                "bytes": sent,
                "request_id": request_id,
            }
            _log.info(_LINE, facts, extra={"fields": facts})
