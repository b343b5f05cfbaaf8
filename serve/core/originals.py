"""Original image files of a gallery, read only if they are the files that were indexed.

A user with write access to an indexed folder could later put links there, to files that only the server may
read. So a file is read without following links; a file behind a link, in a tar archive or in remote storage
is read only if it has the checksum that was indexed; so is any on Windows, where links cannot be excluded.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

from retrieval.errors import ImageError
from retrieval.galleries.searchable import SearchableGallery
from retrieval.images.boxes import split
from retrieval.images.load import content_sha256, read_bytes
from retrieval.images.location import locate
from retrieval.system import NO_WAITING
from serve.core.errors import UnknownItemError

_CAN = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")  # not on Windows
_FILE = os.O_RDONLY | NO_WAITING | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_BELOW = _FOLDER | getattr(os, "O_NOFOLLOW", 0)


@dataclass(frozen=True)
class Original:
    """The file of an item.

    Attributes:
        root: The indexed folder.
        path: Path of the file relative to it; empty if the item has no file.
        content_sha256: Checksum of the indexed bytes; empty if unknown.
        is_whole: The whole picture is meant, also if the item is a part of it.
    """

    root: str
    path: str
    content_sha256: str
    is_whole: bool = False

    @property
    def box(self) -> str:
        """Fragment of the part that is meant; see `Location.box`."""
        return "" if self.is_whole else split(self.path)[1]

    def read(self) -> bytes:
        """Return the bytes of the file.

        Raises:
            ImageError: The file cannot be read or is not the one that was indexed.
        """
        if not self.path:
            raise ImageError("item", ImageError.MISSING, "it has no file")
        where = locate(os.path.join(self.root, self.path))
        if where.kind == "file" and _CAN:
            with suppress(OSError):  # a link on the path, or no file
                return _read(_open_without_links(self.root, split(self.path)[0]), self.path)
        data = read_bytes(where)
        if content_sha256(data, where.box) != self.content_sha256:
            raise ImageError(str(where), ImageError.MISSING, "it is not the file that was indexed")
        return data


def find_original(gallery: SearchableGallery, item: int) -> Original:
    """Return the file of an item; raise an `UnknownItemError` if there is none."""
    stored = next(iter(gallery.stored_items([item])), None)
    if stored is None:
        raise UnknownItemError(f"the gallery has no item {item}: search again")
    root = gallery.paths.of(stored).removesuffix(stored.path)
    return Original(root, stored.path, stored.content_sha256)


def _open_without_links(root: str, path: str) -> int:
    """Open a file below a folder without following links, including ones created in the meantime."""
    *folders, name = PurePosixPath(path).parts
    parent = os.open(root, _FOLDER)
    try:
        for folder in folders:
            child = os.open(folder, _BELOW, dir_fd=parent)
            os.close(parent)
            parent = child
        return os.open(name, _FILE, dir_fd=parent)
    finally:
        os.close(parent)


def _read(descriptor: int, name: str) -> bytes:
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ImageError(name, ImageError.NOT_AN_IMAGE, "it is not a regular file")
        return read_bytes(f"/dev/fd/{descriptor}")
    finally:
        os.close(descriptor)
