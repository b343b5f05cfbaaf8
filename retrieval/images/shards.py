"""Tar shards: images read directly from tar files, without unpacking."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from retrieval.errors import ImageError, InputError
from retrieval.system import read_at

SUFFIX = ".tar"
_CACHED = 64  # cached tables of contents


@dataclass(frozen=True)
class Member:
    """A file in a tar file.

    Attributes:
        name: Name in the tar file.
        start: Offset of its bytes.
        size: Size in bytes.
    """

    name: str
    start: int
    size: int


def members(tar: Path) -> Iterator[Member]:
    """Yield the regular files of a tar file, in order. Only headers are read.

    Raises:
        InputError: It is not a tar file or is compressed; or, after the last intact member, it is damaged.
    """
    try:
        with tarfile.open(tar, "r:") as archive:
            for member in archive:
                if member.isreg() and not member.issparse():
                    yield Member(member.name.removeprefix("./"), member.offset_data, member.size)
    except tarfile.TarError as error:
        hint = "tar files must not be compressed" if _is_compressed(tar) else str(error)
        raise InputError(f"{tar}: cannot be read as a tar file ({hint})") from error
    except OSError as error:
        raise InputError(f"{tar}: cannot be read ({error.strerror or error})") from error


def is_within(name: str) -> bool:
    """Return whether a member name is a relative path without `..`."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def stat(tar: str, name: str) -> tuple[int, int]:
    """Return the size of an image in a tar file, and the modification time of the tar file in nanoseconds.

    Raises:
        OSError, InputError: There is no such member.
    """
    status = os.stat(tar)
    return _find(tar, name, status).size, status.st_mtime_ns


def read_image(tar: str, name: str) -> bytes:
    """Read an image in a tar file; raise an `ImageError` if there is no such member."""
    try:
        with open(tar, "rb") as file:
            member = _find(tar, name, os.fstat(file.fileno()))
            return read_at(file, member.size, member.start)
    except ImageError:
        raise
    except InputError as error:
        raise ImageError(f"{tar}/{name}", ImageError.DAMAGED, str(error)) from error
    except OSError as error:
        raise ImageError(f"{tar}/{name}", ImageError.MISSING, f"it cannot be read ({error})") from error


def read_member(tar: Path, start: int, size: int) -> bytes:
    """Read `size` bytes from an offset of a file; fewer at its end."""
    with tar.open("rb") as file:
        return read_at(file, size, start)


def _find(tar: str, name: str, status: os.stat_result) -> Member:
    """Return a member of a tar file, of which the state is given."""
    member = _contents(tar, status.st_size, status.st_mtime_ns).get(name)
    if member is None:
        what = f"{os.path.basename(tar)} contains no such file"
        raise ImageError(f"{tar}/{name}", ImageError.MISSING, what)
    return member


@lru_cache(_CACHED)
def _contents(tar: str, size: int, mtime_ns: int) -> dict[str, Member]:
    """Return the members by name, up to any damage. Size and time only make the cache key change."""
    found: dict[str, Member] = {}
    try:
        for member in members(Path(tar)):
            found[member.name] = member
    except InputError:
        if not found:
            raise
    return found


def _is_compressed(tar: Path) -> bool:
    with tar.open("rb") as file:
        return file.read(4).startswith((b"\x1f\x8b", b"BZh", b"\xfd7zX", b"\x28\xb5\x2f\xfd"))
