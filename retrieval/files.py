"""Crash-safe files: atomic writes, lock files, checksums, tables."""

from __future__ import annotations

import csv
import datetime
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO

from retrieval.errors import InputError
from retrieval.system import fsync_folder, lock, try_lock

# What NumPy raises for a file of an array that is damaged, or crafted to be.
ARRAY_ERRORS = (OSError, ValueError, EOFError, OverflowError, TokenError, MemoryError, RecursionError)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path; if the block succeeds, flush that file to disk and rename it to `path`.

    Errors of the file system name `path`.
    """
    draft = path.with_name(f"{path.name}.tmp-{uuid.uuid4().hex}")
    try:
        yield draft
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        # A full disk has an errno and no name; other libraries raise an OSError with neither.
        if isinstance(error, OSError) and error.errno and str(error.filename or draft) == str(draft):
            error.filename = str(path)
            del error.filename2  # None would be printed as a second name
        raise
    fsync_folder(path.parent)


def file_version(path: str | Path) -> tuple[int, int, int] | None:
    """Return numbers that change when a file is replaced or appended to; `None` if there is no file."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


@contextmanager
def file_lock(file: Path, on_busy: Callable[[IO[str]], object]) -> Iterator[IO[str]]:
    """Hold an exclusive lock on a file between processes; the system releases it when the holder exits.

    The file is created if necessary and never deleted, so that all waiting processes lock the same one.

    Args:
        file: Lock file.
        on_busy: Called with the open file if another process holds the lock. It may raise an error to give
            up; otherwise this function waits for the lock.

    Yields:
        The open file, in which the holder may leave information for others.
    """
    with file.open("a+", errors="replace") as opened:
        if not try_lock(opened):
            on_busy(opened)
            lock(opened)
        yield opened


def is_open(path: Path, file: IO[str]) -> bool:
    """Return whether an open file is the one at a path now."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def link_or_copy(source: Path, target: Path) -> bool:
    """Hard-link an immutable file, or copy it where there are no hard links; return whether it is a link.

    A target that exists is kept.
    """
    try:
        target.hardlink_to(source)
    except FileExistsError:
        pass
    except FileNotFoundError:
        raise
    except OSError:
        with atomic_write(target) as draft:
            shutil.copy2(source, draft)
        return False
    return True


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as a hexadecimal string."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def has_sha256(path: Path, sha256: str | None) -> bool:
    """Return whether there is a file at a path, with this SHA-256."""
    return path.is_file() and sha256_of(path) == sha256


def check_folder(folder: Path) -> None:
    """Check before long work that files can be written into a folder, which need not exist yet.

    Raises:
        InputError: They cannot.
    """
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise InputError(f"{nearest}: it is a file, not a folder; choose another name")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{nearest}: no files can be written there; choose another place")


def check_free(folder: Path) -> None:
    """Raise an `InputError` unless a folder can be created, or is empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: it exists and is not an empty folder; choose another name")


def write_texts(folder: Path, contents: Mapping[str, str]) -> None:
    """Write text files, by name, into a folder; each write is atomic."""
    for name, content in contents.items():
        with atomic_write(folder / name) as draft:
            draft.write_text(content)


def write_csv(file: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV table for users, in place of any earlier one.

    Raises:
        InputError: The file cannot be written.
    """
    try:
        with (
            atomic_write(file) as draft,
            draft.open("w", encoding="utf-8", errors="surrogateescape", newline="") as stream,
        ):
            table = csv.writer(stream, lineterminator="\n")
            table.writerow(columns)
            table.writerows(rows)
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror}); choose another file") from error


def user_cache(name: str) -> Path:
    """Return the folder of a cache of this user: below $XDG_CACHE_HOME, or else ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lookalike" / name


def user_data(name: str) -> Path:
    """Return a folder for data of this user: below $XDG_DATA_HOME, or else ~/.local/share."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "lookalike" / name


def folder_size(folder: Path) -> int:
    """Return the total size of all files below a folder, in bytes."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def now() -> str:
    """Return the current time as ISO 8601 in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
