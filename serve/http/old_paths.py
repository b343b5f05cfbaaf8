"""Old paths of the API, which are answered for good: items were images."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

_OLD, _NEW = "/images", "/items"


def old_path(path: str) -> str | None:
    """Return the old path of a route below the root of the API; None if it has none."""
    return _OLD + path.removeprefix(_NEW) if path == _NEW or path.startswith(f"{_NEW}/") else None


class OldPathsMiddleware:
    """ASGI middleware inside of an API that answers old paths as the new ones."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        old = scope.get("root_path", "") + _OLD
        if scope["type"] == "http" and (scope["path"] == old or scope["path"].startswith(f"{old}/")):
            scope["path"] = scope["root_path"] + _NEW + scope["path"].removeprefix(old)
        await self._app(scope, receive, send)
