"""Everything a request passes on its way to the application, in its order."""

from __future__ import annotations

import os
from pathlib import Path

from starlette.types import ASGIApp

from serve.config import Settings
from serve.core.telemetry import Telemetry
from serve.http.access_log import Access
from serve.http.auth import SignIn
from serve.http.body_limit import BodyLimit
from serve.http.buckets import Tallies
from serve.http.cors import Origins
from serve.http.host_guard import Guard
from serve.http.proxy_headers import Proxies
from serve.http.rate_limit import RateLimit, StreamLimit
from serve.http.upload_limit import UploadLimit

_BODIES_AT_A_TIME = 8  # of the largest size


def protect(
    app: ASGIApp, settings: Settings, telemetry: Telemetry, tallies: Tallies | None = None
) -> ASGIApp:
    """The application behind all that may refuse a request; what is cheapest to refuse comes first."""
    tallies = tallies or Tallies()
    largest = settings.max_body * 2**20
    app = BodyLimit(app, largest, _BODIES_AT_A_TIME * largest)
    if settings.page:
        app = StreamLimit(UploadLimit(app, Path(os.environ["GRADIO_TEMP_DIR"])))
    if settings.credentials:
        app = SignIn(app, settings.credentials, tallies.tries)
    if settings.rate:
        app = RateLimit(app, settings.rate, tallies.requests)
    app = Guard(app, settings.names, settings.origins)
    if settings.origins:  # outside sign-in: a browser asks without credentials whether it may send some
        app = Origins(app, settings.origins, settings.permissions)
    return Proxies(Access(app, telemetry), settings.proxies)
