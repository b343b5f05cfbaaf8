"""Original image files of a gallery, read only if they are the files that were indexed.

A user with write access to an indexed folder could later put links there, to files that only the server may
read. So a file is read without following links; a file behind a link or in a tar archive is read only if it
has the checksum that was indexed.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from retrieval.errors import ImageError
from retrieval.galleries.searchable import SearchableGallery
from retrieval.images.load import read_bytes
from serve.core.errors import UnknownItemError

_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # without O_NONBLOCK, opening a FIFO would block
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class Original:
    """The file of an item.

    Attributes:
        root: The indexed folder.
        path: Path of the file relative to it; empty if the item has no file.
        content_sha256: Checksum of the indexed bytes; empty if unknown.
    """

    root: str
    path: str
    content_sha256: str

    def read(self) -> bytes:
        """Return the bytes of the file.

        Raises:
            ImageError: The file cannot be read or is not the one that was indexed.
        """
        if not self.path:
            raise ImageError("item", ImageError.MISSING, "it has no file")
        try:
            descriptor = _open_without_links(self.root, self.path)
        except OSError:  # a link on the path, a tar archive, or no file
            return self._read_checked()
        return _read(descriptor, self.path)

    def _read_checked(self) -> bytes:
        """Read the file through links and archives and compare its checksum."""
        path = os.path.join(self.root, self.path)
        try:
            descriptor = os.open(path, _FILE)
        except OSError:  # in a tar archive; otherwise `read_bytes` raises the error
            data = read_bytes(Path(path))
        else:
            data = _read(descriptor, path)
        if hashlib.sha256(data).hexdigest() != self.content_sha256:
            raise ImageError(path, ImageError.MISSING, "it is not the file that was indexed")
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
            child = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
            os.close(parent)
            parent = child
        return os.open(name, _FILE | os.O_NOFOLLOW, dir_fd=parent)
    finally:
        os.close(parent)


def _read(descriptor: int, name: str) -> bytes:
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ImageError(name, ImageError.NOT_AN_IMAGE, "it is not a regular file")
        return read_bytes(Path(f"/dev/fd/{descriptor}"))
    finally:
        os.close(descriptor)
