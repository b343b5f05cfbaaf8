"""Everything a request passes on its way to the application, in its order."""

from __future__ import annotations

import os
from pathlib import Path

from starlette.types import ASGIApp

from serve.access import Access
from serve.bodies import BodyLimit
from serve.buckets import Tallies
from serve.config import Settings
from serve.guard import Guard
from serve.limits import RateLimit, StreamLimit
from serve.origins import Origins
from serve.proxies import Proxies
from serve.signin import SignIn
from serve.telemetry import Telemetry
from serve.uploads import UploadLimit

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
