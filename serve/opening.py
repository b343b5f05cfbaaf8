"""Open what a server is to serve."""

from __future__ import annotations

from serve.addresses import API, api_of
from serve.config import Settings
from serve.core.service import SearchService
from serve.core.telemetry import Telemetry


def open_all(settings: Settings) -> list[SearchService]:
    """The galleries of a server in their order; they share what counts them.

    Raises:
        InputError: a folder is no gallery.
        LookalikeError: a gallery's model is damaged or does not match its vectors.
    """
    telemetry = Telemetry()
    return [
        SearchService(
            folder,
            name=name,
            address=api_of(name) if number else API,
            permissions=settings.permissions,
            telemetry=telemetry,
        )
        for number, (name, folder) in enumerate(settings.galleries.items())
    ]
