"""What the page's visitors have uploaded stays within bounds until it is deleted, minutes later."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from serve.addresses import within_page
from serve.http.refusals import refusal

_UPLOAD = "/gradio_api/upload"
_MOST_BYTES, _MOST_FILES = 512 * 2**20, 5000
_LOOK_AGAIN_SECONDS = 1.0


class UploadLimit:
    """ASGI middleware that takes no further upload while the folder of uploads is full.

    Args:
        app: what lies behind.
        folder: where the uploads are.
    """

    def __init__(self, app: ASGIApp, folder: Path) -> None:
        self._app = app
        self._folder = folder
        self._full = False
        self._looked = -_LOOK_AGAIN_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        app = self._app
        if scope["type"] == "http" and within_page(scope["path"]) == _UPLOAD:
            if time.monotonic() - self._looked >= _LOOK_AGAIN_SECONDS:
                self._looked = time.monotonic()
                self._full = await asyncio.to_thread(is_full, self._folder)
            if self._full:
                detail = "too many pictures are being looked at; try again in a few minutes"
                app = refusal(scope, "busy", detail, {"Retry-After": "60"})
        await app(scope, receive, send)


def is_full(folder: Path) -> bool:
    """Whether a folder of uploads holds as much as it may."""
    size = count = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.stat(os.path.join(path, name)).st_size
            except FileNotFoundError:
                continue  # deleted meanwhile
            count += 1
    return size >= _MOST_BYTES or count >= _MOST_FILES
