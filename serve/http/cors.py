"""Other sites whose pages may ask the API: what their visitors' browsers are told (CORS)."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.core.permissions import Permissions
from serve.http.refusals import refusal

_DETAIL = "a page of this site may not send this method with these headers; --allow-origin lists the sites"


class Origins(CORSMiddleware):
    """ASGI middleware that says whether another site's page may send a request, and lets it read the answer.

    Args:
        app: what lies behind.
        origins: the sites, such as `https://shop.example`.
        permissions: what visitors may do, from there too.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str], permissions: Permissions) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=["GET", "POST", *(["DELETE"] if permissions.changes else [])],
            allow_headers=["Authorization", "X-Request-Id"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or the question that a browser asks before it."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        asked = {"origin", "access-control-request-method"} <= {*headers} and scope["method"] == "OPTIONS"
        if asked and self.preflight_response(headers).status_code != 200:
            vary = {"Vary": self.preflight_headers["Vary"]}
            await refusal(scope, "forbidden", _DETAIL, vary)(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)
