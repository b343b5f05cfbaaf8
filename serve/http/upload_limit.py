"""Limit on the size of the page's upload folder, which Gradio empties after some minutes."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from serve.addresses import within_page
from serve.core.errors import BusyError
from serve.http.problem import refusal

_UPLOAD = "/gradio_api/upload"
_MAX_BYTES, _MAX_FILES = 512 * 2**20, 5000
_CHECK_SECONDS = 1.0
_RETRY_SECONDS = 60


class UploadLimitMiddleware:
    """ASGI middleware that refuses uploads while the upload folder is full.

    Args:
        app: The wrapped application.
        folder: The upload folder.
    """

    def __init__(self, app: ASGIApp, folder: Path) -> None:
        self._app = app
        self._folder = folder
        self._full = False
        self._checked_at = -_CHECK_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        app = self._app
        if scope["type"] == "http" and within_page(scope["path"]) == _UPLOAD:
            if time.monotonic() - self._checked_at >= _CHECK_SECONDS:
                self._checked_at = time.monotonic()
                self._full = await asyncio.to_thread(is_full, self._folder)
            if self._full:
                detail = "too many uploads in progress: try again in a few minutes"
                app = refusal(scope, BusyError(detail, retry_after=_RETRY_SECONDS))
        await app(scope, receive, send)


def is_full(folder: Path) -> bool:
    """Return whether an upload folder has reached its limit of bytes or files."""
    size = count = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.stat(os.path.join(path, name)).st_size
            except FileNotFoundError:
                continue  # deleted in the meantime
            count += 1
    return size >= _MAX_BYTES or count >= _MAX_FILES
