"""Query pictures that visitors have shared: a bounded folder, whose files expire.

The processes of a server share the folder. A picture is stored as encoded here, from its pixels alone, and is
named by the SHA-256 of these bytes; its file's modification time is the time at which it was last shared.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from serve.core.errors import UnknownPictureError
from serve.core.thumbnails import Thumbnail, query_picture

KEPT, MAX_BYTES = 1000, 200 * 2**20
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class SharedPicture:
    """A picture that was shared.

    Attributes:
        id: Its id.
        expires: Time from which on it cannot be read, in seconds since 1970.
    """

    id: str
    expires: float


class SharedPictures:
    """The shared pictures of a server. Beyond 1,000 pictures or 200 MB, the oldest go first.

    Args:
        folder: Private folder, created if missing.
        seconds: How long a picture is kept after it was last shared.
        clock: Time in seconds since 1970.
    """

    def __init__(self, folder: Path, seconds: float, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._seconds = seconds
        self._clock = clock

    def share(self, image: Image.Image) -> SharedPicture:
        """Store an RGB image at up to 1,024 pixels a side; the time of a stored one starts again."""
        data = query_picture(image).data
        found = SharedPicture(hashlib.sha256(data).hexdigest()[:32], self._clock() + self._seconds)
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder / f"{found.id}.{secrets.token_hex(4)}"
        new.write_bytes(data)
        os.utime(new, (self._clock(), self._clock()))
        new.replace(self._folder / found.id)
        self.forget()
        return found

    def read(self, id: str) -> Thumbnail:
        """Return a picture; raise an `UnknownPictureError` if it is not shared, or not any more."""
        file = self._folder / id
        if _ID.fullmatch(id):
            with suppress(FileNotFoundError):
                if file.stat().st_mtime + self._seconds > self._clock():
                    return Thumbnail(file.read_bytes(), "image/webp")
        raise UnknownPictureError("this picture is not shared, or not any more: ask for a new link")

    def forget(self) -> None:
        """Delete the pictures that have expired, and the oldest beyond the limits."""
        files = []
        for file in self._folder.glob("*"):
            with suppress(FileNotFoundError):  # another process has deleted it
                status = file.stat()
                files.append((status.st_mtime, status.st_size, file))
        count = size = 0
        for changed, bytes_, file in sorted(files, reverse=True):
            count, size = count + 1, size + bytes_
            if changed + self._seconds <= self._clock() or count > KEPT or size > MAX_BYTES:
                file.unlink(missing_ok=True)
