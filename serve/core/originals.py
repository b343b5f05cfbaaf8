"""The files of a gallery's items, which are shown as long as they are what was indexed.

Who may write into a folder of pictures could put links there once it is indexed, to files that only the
server may read. So a picture is read where it lies in its folder itself; what links lead to, and what lies in
a tar file, is read as long as it holds the very bytes that were indexed.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from retrieval.errors import ImageError
from retrieval.gallery import Gallery
from retrieval.images.load import read_bytes

_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # else a pipe would be waited for
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class Original:
    """The file of an item.

    Attributes:
        root: the folder that was indexed.
        path: of the file, seen from there; empty where there is none.
        content_sha256: of its bytes when it was indexed; empty where that is not known.
    """

    root: str
    path: str
    content_sha256: str

    def read(self) -> bytes:
        """The bytes of the file; an `ImageError` where it cannot be read or is not what was indexed."""
        if not self.path:
            raise ImageError("item", ImageError.MISSING, "it has no file")
        try:
            descriptor = _open_plainly(self.root, self.path)
        except OSError:  # a link is on the way, a tar file, or nothing at all
            return self._read_anywhere()
        return _read(descriptor, self.path)

    def _read_anywhere(self) -> bytes:
        path = os.path.join(self.root, self.path)
        try:
            descriptor = os.open(path, _FILE)
        except OSError:  # inside a tar file, or it says what is wrong
            data = read_bytes(Path(path))
        else:
            data = _read(descriptor, path)
        if hashlib.sha256(data).hexdigest() != self.content_sha256:
            raise ImageError(path, ImageError.MISSING, "it is not the file that was indexed")
        return data


def original(gallery: Gallery, number: int) -> Original:
    """The file of an item that the gallery has, or had."""
    (item,) = gallery.store.items([number])
    root = gallery.paths.of(item).removesuffix(item.path)
    return Original(root, item.path, item.content_sha256)


def _open_plainly(root: str, path: str) -> int:
    """Open a file below a folder without following any link, not even one that comes between two steps."""
    *folders, name = PurePosixPath(path).parts
    at = os.open(root, _FOLDER)
    try:
        for folder in folders:
            below = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        return os.open(name, _FILE | os.O_NOFOLLOW, dir_fd=at)
    finally:
        os.close(at)


def _read(descriptor: int, name: str) -> bytes:
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ImageError(name, ImageError.NOT_AN_IMAGE, "it is no plain file")
        return read_bytes(Path(f"/dev/fd/{descriptor}"))
    finally:
        os.close(descriptor)
