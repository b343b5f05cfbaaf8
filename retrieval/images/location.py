"""Locations of images: files, URLs of remote storage, members of tar shards, and parts of any of these.

Users write and read URLs. Inside a gallery, s3://shop/a/x.jpg is the absolute path /s3:/shop/a/x.jpg, so that
roots, labels and comparisons of paths are those of local files. A member of a tar file has the path of a file
in a folder: shards/00.tar/a/x.jpg; a part of a picture has a fragment: see `retrieval.images.boxes`. What a
text stands for is decided here, and nowhere else.
"""

from __future__ import annotations

import errno
import os
import re
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

from retrieval.errors import InputError
from retrieval.images import boxes, remote, shards

_URL = re.compile(r"/?([a-z][a-z0-9+-]+):/(.+)", re.DOTALL)  # in a normal path: `Path` merges slashes
_LOCAL = {"file", "local"}
_TAR = re.compile(rf"(?<=[^/]){re.escape(shards.SUFFIX)}(?=/)", re.IGNORECASE)
_IN_TAR = f"{shards.SUFFIX}/"  # in lower case, in the path of a member
ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}  # there is no such file


class Location(NamedTuple):
    """Place of an image, or of a folder or glob pattern of images. A named tuple, since a run makes many.

    Attributes:
        kind: "file", also for folders and patterns; "url"; or "member" of a tar file.
        root: Protocol of a URL; path of the tar file of a member; empty for a file.
        name: Path of the file; URL without its protocol; name in the tar file.
        box: Fragment of a part of the picture; empty for the whole.
    """

    kind: Literal["file", "url", "member"]
    root: str
    name: str
    box: str = ""

    @classmethod
    def parse(cls, source: str | os.PathLike[str] | Location) -> Location:
        """Return the location of a path or URL, as users write it or as it is stored, by its text alone.

        A member of a tar file is a file here; `locate` tells them apart.
        """
        if isinstance(source, Location):
            return source
        text, box = os.fspath(source), ""
        if boxes.MARK in text:
            text, box = boxes.split(text)
        if "//" in text or "/." in text or text[:1] == "." or text[-1:] == "/":
            text = str(PurePosixPath(text))
        if ":/" in text:
            match = _URL.fullmatch(text)
            if match is not None and match[1] not in _LOCAL:
                return cls("url", match[1], match[2], box)
        return cls("file", "", text, box)

    def __str__(self) -> str:
        """Text as users see it."""
        return f"{self.root}://{self.name}{self.box}" if self.kind == "url" else self.path

    @property
    def path(self) -> str:
        """Path that stands for it in a gallery."""
        if self.kind == "url":
            return f"/{self.root}:/{self.name}{self.box}"
        return f"{self.root}/{self.name}{self.box}" if self.root else self.name + self.box

    @property
    def whole(self) -> Location:
        """The picture that it is a part of, or itself."""
        return self._replace(box="") if self.box else self

    def stat(self) -> tuple[int, int]:
        """Return size in bytes and modification time in nanoseconds; that of its tar file for a member.

        Raises:
            OSError, ValueError, InputError: It does not exist or cannot be read.
        """
        if self.kind == "url":
            return remote.stat(str(self.whole))
        if self.kind == "member":
            return shards.stat(self.root, self.name)
        status = os.stat(self.name)
        return status.st_size, status.st_mtime_ns

    def stamp(self) -> tuple[int, int] | None:
        """Return the result of `stat`.

        Returns:
            `None` if there is no such file; zeros if that cannot be found out at present, for lack of
            permission or because of an error of the disk or the network.
        """
        try:
            return self.stat()
        except (ValueError, InputError):
            return None
        except OSError as error:
            return None if error.errno in ABSENT else (0, 0)

    def exists(self) -> bool:
        """Return whether there is such a file; True if that cannot be found out."""
        return self.stamp() is not None


def shown(path: str) -> str:
    """Return a stored path as users see it: that of a URL as the URL."""
    return str(Location.parse(path)) if ":/" in path else path  # most are not parsed


def locate(source: str | os.PathLike[str] | Location) -> Location:
    """Return the location of an image, by its text and by which folder of its path is a tar file."""
    where = Location.parse(source)
    return _local(where.name, where.box) if where.kind == "file" else where


def locate_item(home: str, root: str, path: str) -> Location:
    """Return the location of the file of an item. Its root is parsed once for many items.

    Args:
        home: Gallery folder.
        root: Root as it is stored.
        path: Path below the root as it is stored.
    """
    folder = _folder(home, root)
    path, box = boxes.split(path) if boxes.MARK in path else (path, "")
    name = folder.name + path
    if folder.kind == "url":
        return Location("url", folder.root, name, box)
    return _local(name, box) if folder.name != "/" else locate(name + box)  # /s3:/shop/a.jpg may be below "/"


@lru_cache(1024)
def _folder(home: str, root: str) -> Location:
    """Return the location of a root; its name ends with a slash."""
    inside = Location.parse(os.path.join(home, root, "_"))
    return inside._replace(name=inside.name[:-1])


def _local(path: str, box: str = "") -> Location:
    """Return the location of a path that is no URL."""
    if _IN_TAR in path.lower():
        for found in _TAR.finditer(path):
            tar = path[: found.end()]
            if os.path.isfile(tar):
                return Location("member", tar, path[found.end() + 1 :], box)
    return Location("file", "", path, box)
