"""Cache file: written once, under a lock, and then memory-mapped by every process that reads it.

A file is named by the fingerprint of its inputs and gets this name only once it is complete (atomic rename).
Other files in the folder belong to other runs and are left alone. Deleting a file costs only the time to
compute it again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.files import atomic_write, file_lock
from retrieval.images.load import DECODE_POLICY
from retrieval.text import print_notice

_T = TypeVar("_T")
_FORMAT = 1


def cache_file(
    file: Path,
    read: Callable[[IO[bytes]], _T | None],
    write: Callable[[IO[bytes]], object],
    *,
    show_progress: bool = False,
) -> _T:
    """Open a cache file, or write it if it is missing or incomplete.

    If several processes need the same file, one writes it and the others wait for its lock.

    Args:
        file: Cache file.
        read: Opens its content; `None` if it is incomplete, as after a power failure.
        write: Writes its content.
        show_progress: Report on stderr that another process is waited for.

    Raises:
        LookalikeError: The folder cannot be written, or its disk is full.
    """
    folder = file.parent

    def waiting(_: object) -> None:
        if show_progress:
            print_notice(f"{folder}: waiting for another process that fills this cache")

    with explain_write_errors(folder):
        found = _open(file, read)
        if found is not None:
            return found
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / "LOCK", waiting):
            found = _open(file, read)
            if found is None:
                for leftover in folder.glob("*.tmp-*"):  # of a killed process: we hold the lock
                    leftover.unlink()
                with atomic_write(file) as draft, draft.open("wb") as target:
                    write(target)
                found = _open(file, read)
    assert found is not None, f"{file} was written but is incomplete"
    return found


def write_facts(file: IO[bytes], facts: object) -> None:
    """End a cache file with JSON values and, as 8 little-endian bytes, their length."""
    encoded = json.dumps(facts).encode()
    file.write(encoded + len(encoded).to_bytes(8, "little"))


def map_with_facts(file: IO[bytes]) -> tuple[np.ndarray, Any] | None:
    """Map a cache file; return its bytes before the facts, uint8, and the facts.

    Returns `None` for a file that is incomplete, as after a power failure.
    """
    if os.fstat(file.fileno()).st_size < 8:
        return None
    # "c": torch requires writable memory; a private mapping never writes back.
    mapped = np.asarray(np.memmap(file, np.uint8, "c"))
    end = len(mapped) - 8
    begin = end - int.from_bytes(mapped[end:].tobytes(), "little")
    if begin < 0:
        return None
    try:
        return mapped[:begin], json.loads(mapped[begin:end].tobytes())
    except ValueError:
        return None


def _open(file: Path, read: Callable[[IO[bytes]], _T | None]) -> _T | None:
    try:
        with file.open("rb") as opened:
            return read(opened)
    except FileNotFoundError:
        return None


def fingerprint(paths: Sequence[Path], inputs: Sequence[object]) -> str:
    """Return a cache key of 32 hexadecimal digits.

    It covers the path, size and modification time of every file, the decoder's version, and other inputs.

    Args:
        paths: Image files.
        inputs: Everything else that the content depends on, as JSON values.
    """
    digest = hashlib.sha256(json.dumps([_FORMAT, DECODE_POLICY, *inputs]).encode())
    for path in paths:
        try:
            status = os.stat(path)
            stamp = f"{status.st_size} {status.st_mtime_ns}"
        except (OSError, ValueError):
            stamp = "unreadable"
        digest.update(b"\0" + os.fsencode(os.path.abspath(path)) + b"\0" + stamp.encode())
    return digest.hexdigest()[:32]


@contextmanager
def explain_write_errors(folder: Path) -> Iterator[None]:
    """Turn an error of writing into a message with a remedy."""
    try:
        yield
    except OSError as error:
        detail = f"the cache cannot be written there ({error.strerror})"
        raise LookalikeError(
            f"{folder}: {detail}; free disk space, or set loader.cache to a folder on another disk"
        ) from error
