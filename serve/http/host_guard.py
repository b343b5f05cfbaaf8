"""Doors that stay shut: what the page never asks the web framework for, and what other sites ask."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.addresses import within_page
from serve.http.refusals import refusal

# All that the page and the API consist of. The framework has many more routes: some run code, fetch what the
# caller names or tell about the server, and a new version may bring others.
_OPEN = re.compile(
    r"""
    / | /healthz | /readyz | /metrics | /v1(/.*)?
    | /favicon\.ico | /robots\.txt | /theme\.css | /config/?
    | /(assets|static)/.*
    | /gradio_api/(
        upload | upload_progress | queue/join | queue/data | cancel | reset/? | heartbeat/[^/]*
        | app_id | file=/.*
      )
    """,
    re.VERBOSE | re.DOTALL,
)
_HOST = re.compile(r"(\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(:\d*)?", re.IGNORECASE)


class Guard:
    """ASGI middleware that answers what the page and the API consist of, and to its own pages.

    Args:
        app: what it guards.
        names: what a request may call the server, `*` for anything, `*.example.com` for all below a name. A
            list keeps other sites from reaching a local server under a name of theirs (DNS rebinding).
        origins: other sites whose pages may send requests, such as `https://shop.example`.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str] = ("*",), origins: Collection[str] = ()) -> None:
        self._app = app
        self._names = names
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        app = self._app
        if scope["type"] == "websocket":
            return  # closed: nothing here uses them
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if not self._is_ours(headers.get("host", "")):
                app = refusal(
                    scope, "wrong-host", "this server goes by another name; --allow-host gives it one"
                )
            elif not _OPEN.fullmatch(within_page(scope["path"])):
                app = refusal(scope, "not-found", "there is nothing here")
            elif scope["method"] not in ("GET", "HEAD") and self._from_elsewhere(headers):
                app = refusal(scope, "forbidden", "requests from other sites are refused")
        await app(scope, receive, send)

    def _is_ours(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        name = (found["v6"] or found["name"]).lower() if found else ""
        return any(
            pattern in ("*", name) or (pattern.startswith("*.") and name.endswith(pattern[1:]))
            for pattern in self._names
        )

    def _from_elsewhere(self, headers: Headers) -> bool:
        """Whether a browser says that another site's page sent this; programs say nothing."""
        origin = headers.get("origin")
        if origin in self._origins:
            return False
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return True
        # Browsers send the former to https and to their own machine only, and the origin everywhere.
        return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
