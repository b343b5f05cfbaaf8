"""CORS: cross-origin requests of the sites in --allow-origin."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.core.errors import ForbiddenError
from serve.core.permissions import Permissions
from serve.http.problem import refusal

# What OpenAI's clients send besides, to /v1/embeddings.
_STAINLESS = (
    *("Lang", "Package-Version", "OS", "Arch", "Runtime", "Runtime-Version", "Retry-Count"),
    *("Timeout", "Read-Timeout", "Async", "Helper-Method"),
)
_OPENAI = ("OpenAI-Organization", "OpenAI-Project", "OpenAI-Beta", "Idempotency-Key", "User-Agent")
_OPENAI_HEADERS = (*(f"X-Stainless-{name}" for name in _STAINLESS), *_OPENAI)
_DETAIL = "the site, method or headers are not allowed: allow the site with --allow-origin"


class ApiCORSMiddleware(CORSMiddleware):
    """Starlette's CORS middleware with the methods of the API; refused preflights get a problem document.

    Args:
        app: The wrapped application.
        origins: Allowed origins such as `https://shop.example`.
        permissions: Permissions of visitors, which decide whether DELETE and PATCH are allowed.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str], permissions: Permissions) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=["GET", "POST", *(["DELETE", "PATCH"] if permissions.changes else [])],
            allow_headers=["Authorization", "X-Request-Id", "If-Match", "If-None-Match", *_OPENAI_HEADERS],
            expose_headers=["X-Request-Id", "Retry-After", "Location", "X-Should-Retry", "ETag"],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or preflight."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        is_preflight = {"origin", "access-control-request-method"} <= {*headers}
        is_preflight = is_preflight and scope["method"] == "OPTIONS"
        if is_preflight and self.preflight_response(headers).status_code != 200:
            error = ForbiddenError(_DETAIL, headers={"Vary": self.preflight_headers["Vary"]})
            await refusal(scope, error)(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)
