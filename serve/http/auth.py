"""Sign-in: HTTP Basic and Bearer authentication, with a rate limit on wrong credentials."""

from __future__ import annotations

from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.config import Credentials
from serve.core.errors import ServerError, SignInError, SignInRateLimitError
from serve.http.problem import refusal
from serve.http.proxy_headers import client_address
from serve.http.rate_limit import TokenBuckets

# Wrong credentials of one client: ten at once, then one in six seconds.
_ATTEMPTS, _ATTEMPTS_PER_SECOND = 10, 1 / 6


class AuthMiddleware:
    """ASGI middleware that requires credentials for everything but /healthz.

    Stores the name of the user in `scope["state"]["user"]`. A client that has sent too many wrong credentials
    gets 429 for further wrong ones. Right credentials are never refused: other clients may share the address.

    Args:
        app: The wrapped application.
        credentials: The accepted credentials.
        file: Shared file in which several processes count wrong credentials, see `TokenBuckets`.
    """

    def __init__(self, app: ASGIApp, credentials: Credentials, file: Path | None = None) -> None:
        self._app = app
        self._credentials = credentials
        self._failures = TokenBuckets(_ATTEMPTS_PER_SECOND, _ATTEMPTS, file=file)
        schemes = ['Basic realm="Lookalike", charset="UTF-8"'] if credentials.pair else []
        if credentials.tokens:
            schemes.append('Bearer realm="Lookalike"')
        self._challenge = {"WWW-Authenticate": ", ".join(schemes)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        app = self._app
        if scope["type"] == "http" and scope["path"] != "/healthz":
            error = self._check(scope)
            if error is not None:
                app = refusal(scope, error)
        await app(scope, receive, send)

    def _check(self, scope: Scope) -> ServerError | None:
        client = client_address(scope)
        authorization = Headers(scope=scope).get("authorization")
        if authorization is None:
            return SignInError("sign in to use this server", headers=self._challenge)
        user = self._credentials.authenticate(authorization)
        if user is None:
            wait = self._failures.take(client)
            if wait:
                return SignInRateLimitError("too many failed sign-ins: try again later", retry_after=wait)
            return SignInError("wrong credentials", headers=self._challenge)
        scope.setdefault("state", {})["user"] = user
        return None
