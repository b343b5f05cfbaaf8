"""Pictures inside tar files, read where they lie and never unpacked.

A picture in a tar file has a path like one in a folder: `shards/00.tar/a/x.jpg`.
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
_OPENED = 64  # tables of contents kept


@dataclass(frozen=True)
class Member:
    """A file in a tar file: its name, and where its bytes are."""

    name: str
    start: int
    size: int


def members(tar: Path) -> Iterator[Member]:
    """The regular files of a tar file, in its order; reads the headers alone.

    Raises:
        InputError: it is no tar file, or a compressed one. A damaged end is noticed after the last whole one.
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
    """Whether a member's name stays inside the tar file."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def stat(path: Path) -> tuple[int, int]:
    """Size of a picture in a tar file, and when the tar file was changed, in nanoseconds.

    Raises:
        OSError, InputError: there is none of this path.
    """
    _, member, mtime_ns = _find(path)
    return member.size, mtime_ns


def read_bytes(path: Path) -> bytes:
    """The bytes of a picture in a tar file; an `ImageError` where there is none of this path."""
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
    """Bytes out of the middle of a file; fewer than `size` where it ends before."""
    with tar.open("rb") as file:
        return os.pread(file.fileno(), size, start)


def _find(path: Path) -> tuple[Path, Member, int]:
    """The tar file that a path leads into, the file there, and when the tar file was changed."""
    tar = next((parent for parent in path.parents if parent.is_file()), None)
    if tar is None or tar.suffix.lower() != SUFFIX:
        raise ImageError(str(path), ImageError.MISSING, "there is no such file")
    status = tar.stat()
    member = _contents(tar, status.st_size, status.st_mtime_ns).get(path.relative_to(tar).as_posix())
    if member is None:
        raise ImageError(str(path), ImageError.MISSING, f"{tar.name} holds no such file")
    return tar, member, status.st_mtime_ns


@lru_cache(_OPENED)
def _contents(tar: Path, size: int, mtime_ns: int) -> dict[str, Member]:
    """Every file in a tar file of this size and time, by name; of a damaged one those before the damage."""
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
