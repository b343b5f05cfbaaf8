"""The door: nobody gets in without credentials, and nobody guesses them fast."""

from __future__ import annotations

from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.http.buckets import Buckets
from serve.http.clients import client_of
from serve.http.credentials import Credentials
from serve.http.refusals import refusal

# Wrong tries of one client: ten at once, then one in six seconds.
_TRIES, _TRIES_PER_SECOND = 10, 1 / 6


class SignIn:
    """ASGI middleware that lets nobody in without credentials; /healthz alone is open.

    `scope["state"]["user"]` says who it was. Somebody who guesses is made to wait, whatever comes next.

    Args:
        app: what lies behind.
        credentials: who may come in.
        file: what several processes count wrong tries in together.
    """

    def __init__(self, app: ASGIApp, credentials: Credentials, file: Path | None = None) -> None:
        self._app = app
        self._credentials = credentials
        self._failures = Buckets(_TRIES_PER_SECOND, _TRIES, file=file)
        schemes = ['Basic realm="Lookalike", charset="UTF-8"'] if credentials.pair else []
        if credentials.tokens:
            schemes.append('Bearer realm="Lookalike"')
        self._challenge = {"WWW-Authenticate": ", ".join(schemes)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        app = self._app
        if scope["type"] == "http" and scope["path"] != "/healthz":
            app = self._door(scope)
        await app(scope, receive, send)

    def _door(self, scope: Scope) -> ASGIApp:
        client = client_of(scope)
        authorization = Headers(scope=scope).get("authorization")
        if authorization is None:
            return refusal(scope, "sign-in", "sign in to use this server", self._challenge)
        wait = self._failures.missing(client)
        if wait:
            again = {"Retry-After": str(wait)}
            return refusal(scope, "too-many-tries", "too many wrong tries to sign in", again)
        user = self._credentials.who(authorization)
        if user is None:
            self._failures.take(client)
            return refusal(scope, "sign-in", "these credentials are not right", self._challenge)
        scope.setdefault("state", {})["user"] = user
        return self._app
