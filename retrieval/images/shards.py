"""Tar shards: images read directly from tar files, without unpacking.

The path of an image in a tar file looks like a path in a folder: `shards/00.tar/a/x.jpg`.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from retrieval.errors import ImageError, InputError

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


def stat(path: Path) -> tuple[int, int]:
    """Return the size of an image in a tar file, and the modification time of the tar file in nanoseconds.

    Raises:
        OSError, InputError: There is no such member.
    """
    _, member, mtime_ns = _find(path)
    return member.size, mtime_ns


def read_image(path: Path) -> bytes:
    """Read an image in a tar file; raise an `ImageError` if there is no such member."""
    try:
        tar, member, _ = _find(path)
        return read_member(tar, member.start, member.size)
    except ImageError:
        raise
    except InputError as error:
        raise ImageError(str(path), ImageError.DAMAGED, str(error)) from error
    except OSError as error:
        raise ImageError(str(path), ImageError.MISSING, f"it cannot be read ({error})") from error


def read_member(tar: Path, start: int, size: int) -> bytes:
    """Read `size` bytes from an offset of a file; fewer at its end."""
    with tar.open("rb") as file:
        return os.pread(file.fileno(), size, start)


def _find(path: Path) -> tuple[Path, Member, int]:
    """Return the tar file in a path, the member and the modification time of the tar file in nanoseconds."""
    tar = next((parent for parent in path.parents if parent.is_file()), None)
    if tar is None or tar.suffix.lower() != SUFFIX:
        raise ImageError(str(path), ImageError.MISSING, "there is no such file")
    status = tar.stat()
    member = _contents(tar, status.st_size, status.st_mtime_ns).get(path.relative_to(tar).as_posix())
    if member is None:
        raise ImageError(str(path), ImageError.MISSING, f"{tar.name} contains no such file")
    return tar, member, status.st_mtime_ns


@lru_cache(_CACHED)
def _contents(tar: Path, size: int, mtime_ns: int) -> dict[str, Member]:
    """Return the members by name, up to any damage. Size and time only make the cache key change."""
    found: dict[str, Member] = {}
    try:
        for member in members(tar):
            found[member.name] = member
    except InputError:
        if not found:
            raise
    return found


def _is_compressed(tar: Path) -> bool:
    with tar.open("rb") as file:
        return file.read(4).startswith((b"\x1f\x8b", b"BZh", b"\xfd7zX", b"\x28\xb5\x2f\xfd"))
