"""Remote storage: listing and reading below s3://, gs://, https:// and every other protocol of fsspec."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple
from zlib import crc32

from retrieval.errors import InputError, LookalikeError
from retrieval.machine.extras import needs

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs"}  # of the protocols that an extra has
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")


class RemoteFile(NamedTuple):
    """A listed file: its name below the listed folder, size in bytes and modification time in nanoseconds."""

    name: str
    size: int
    mtime_ns: int


def read(url: str, most: int) -> bytes:
    """Return the bytes of a file, at most `most` and one more.

    Raises:
        OSError: It cannot be read.
    """
    with _os_errors(), _file_system(url).open(url, "rb") as file:
        data: bytes = file.read(most + 1)
    return data


def stat(url: str) -> tuple[int, int]:
    """Return size in bytes and modification time in nanoseconds of a file.

    Storage without times gets the checksum of the entity tag in place of the time: it differs after a change.

    Raises:
        OSError: It does not exist or cannot be read.
    """
    with _os_errors():
        return _stamp(_file_system(url).info(url))


def list_files(url: str) -> Iterator[RemoteFile]:
    """Yield the files in a folder and the folders below it, in alphabetical order of each folder; hidden ones
    are left out. A URL of a file yields the file, with an empty name.

    Raises:
        InputError: The folder does not exist or cannot be listed, or the protocol is unknown.
    """
    try:
        system = _file_system(url)
        system.invalidate_cache()
        with _os_errors():
            if system.isfile(url):
                yield RemoteFile("", *stat(url))
                return
            top = system._strip_protocol(url).rstrip("/")
            for folder, _, files in system.walk(url, detail=True, on_error="raise"):
                below = f"{folder[len(top) :].strip('/')}/".removeprefix("/")
                for name, info in sorted(files.items()):
                    if not any(part.startswith(".") for part in f"{below}{name}".split("/")):
                        yield RemoteFile(below + name, *_stamp(info))
    except FileNotFoundError as error:
        raise InputError(f"{url}: there is no such file, folder or bucket") from error
    except OSError as error:
        raise InputError(f"{url}: {error}; check the address and the credentials") from error


def _file_system(url: str) -> Any:
    """Return the file system of a URL; fsspec keeps one for each protocol and its options."""
    protocol = url.partition("://")[0]
    try:
        import fsspec  # only for remote images
    except ModuleNotFoundError as error:
        raise InputError(f"{url}: {needs('fsspec')}") from error
    try:
        return fsspec.core.url_to_fs(url)[0]
    except ImportError as error:
        hint = needs(_PACKAGES[protocol]) if protocol in _PACKAGES else f"{protocol}:// needs more: {error}"
        raise InputError(f"{url}: {hint}") from error
    except ValueError as error:
        raise InputError(
            f"{url}: {error}; use s3://, gs://, https:// or another protocol of fsspec"
        ) from error


@contextmanager
def _os_errors() -> Iterator[None]:
    """Turn the errors of storage libraries, which share no class, into an `OSError` with the usual number."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
    except (OSError, LookalikeError):
        raise
    except Exception as error:
        raise OSError(f"cannot be read ({type(error).__name__}: {error})") from error


def _stamp(info: dict[str, Any]) -> tuple[int, int]:
    time = next((info[name] for name in _TIMES if info.get(name) is not None), None)
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    if isinstance(time, datetime):
        time = time.timestamp()
    if time is None:
        tag = info.get("ETag") or info.get("etag") or ""
        return int(info.get("size") or 0), crc32(str(tag).encode())
    return int(info.get("size") or 0), int(time * 1e9)
