"""The middleware stack of the server."""

from __future__ import annotations

from starlette.types import ASGIApp

from serve.config import Settings
from serve.core.telemetry import Telemetry
from serve.http.access_log import AccessLogMiddleware
from serve.http.auth import AuthMiddleware
from serve.http.body_limit import BodyLimitMiddleware, FramingMiddleware
from serve.http.connections import ConnectionLimitMiddleware
from serve.http.cors import ApiCORSMiddleware
from serve.http.host_guard import HostGuardMiddleware
from serve.http.proxy_headers import TrustedProxyMiddleware
from serve.http.rate_limit import (
    RateLimitMiddleware,
    SharedLimits,
    ShareLimitMiddleware,
    StreamLimitMiddleware,
)

_CONCURRENT_BODIES = 8  # of the largest size


def protect(
    app: ASGIApp, settings: Settings, telemetry: Telemetry, shared: SharedLimits | None = None
) -> ASGIApp:
    """Wrap the application in all middleware; outermost are the checks that cost least.

    Args:
        app: The application.
        settings: Settings of the server.
        telemetry: Counts refused requests.
        shared: Files of the rate limits if several processes share them.
    """
    shared = shared or SharedLimits()
    max_body = settings.max_body * 2**20
    app = BodyLimitMiddleware(app, max_body, _CONCURRENT_BODIES * max_body)
    app = StreamLimitMiddleware(app)
    if settings.permissions.sharing:
        app = ShareLimitMiddleware(app, shared.shares)
    if settings.credentials:
        app = AuthMiddleware(app, settings.credentials, shared.sign_ins)
    if settings.rate:
        app = RateLimitMiddleware(app, settings.rate, shared.requests)
    app = HostGuardMiddleware(app, settings.names, settings.origins)
    if settings.origins:  # outside of sign-in: browsers send preflights without credentials
        app = ApiCORSMiddleware(app, settings.origins, settings.permissions)
    app = ConnectionLimitMiddleware(app, settings.connections)
    return TrustedProxyMiddleware(AccessLogMiddleware(FramingMiddleware(app), telemetry), settings.proxies)
