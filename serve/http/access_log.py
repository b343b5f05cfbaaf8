"""Access log, request ids and security headers."""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.core.errors import InternalError
from serve.core.telemetry import Telemetry
from serve.http.problem import CLIENT_CLOSED_REQUEST, refusal
from serve.http.proxy_headers import client_address

# Scripts are files of the server; nothing is loaded from or sent to other sites.
_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self'",
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
# A worker of the page that runs a model compiles WebAssembly; the page itself does not.
_WASM_HEADERS = {
    "Content-Security-Policy": _POLICY.replace("script-src 'self'", "script-src 'self' 'wasm-unsafe-eval'")
}
# Visitors of the page may take a photo to search with.
_PAGE_HEADERS = {"Permissions-Policy": "camera=(self), microphone=(), geolocation=()"}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")
_LINE = "%(client)s %(user)s %(method)s %(path)s %(status)d %(ms).1f ms %(bytes)d bytes %(request_id)s"
_FAILED = "internal error: the server's log has the details under this request id"
_log = logging.getLogger("lookalike.serve")


class AccessLogMiddleware:
    """Outermost middleware: request id, security headers, access log, response to unhandled exceptions.

    `scope["state"]["request_id"]` is the client's `X-Request-Id` if that is a UUID, else a new one. The log
    has the path without the query string, which may be private.

    Args:
        app: The wrapped application.
        telemetry: Counts the refusals of all middleware, which never reach the application.
    """

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _UUID.fullmatch(given) else str(uuid.uuid4())
        scope.setdefault("state", {})["request_id"] = request_id
        start = time.perf_counter()
        status = sent = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                is_page = headers.get("content-type", "").startswith("text/html")
                own = _PAGE_HEADERS if is_page else {}
                if scope["state"].get("compiles_wasm"):
                    own = _WASM_HEADERS
                for name, value in (HEADERS | own).items():
                    headers[name] = value
                headers["X-Request-Id"] = request_id
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            # A stream that Gradio ends with an HTTP status has not failed, but can no longer send that
            # status.
            failed = not isinstance(error.__cause__, HTTPException)
            extra = {"fields": {"request_id": request_id}}
            _log.error("request %s failed", request_id, exc_info=failed, extra=extra)
            if not status:
                await refusal(scope, InternalError(_FAILED))(scope, receive, send_with_headers)
        finally:
            if "refused" in scope["state"]:
                self._telemetry.problems.labels(scope["state"]["refused"]).inc()
            fields = {
                "client": client_address(scope),
                "user": scope["state"].get("user", "-"),
                "method": scope["method"],
                "path": scope.get("raw_path", b"").decode("ascii", "replace"),  # encoded: stays on one line
                "status": status or CLIENT_CLOSED_REQUEST,
                "ms": round(1000 * (time.perf_counter() - start), 1),
                "bytes": sent,
                "request_id": request_id,
            }
            _log.info(_LINE, fields, extra={"fields": fields})
