"""Files that outlive a crash: written aside, flushed to the disk and renamed."""

from __future__ import annotations

import datetime
import hashlib
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that takes `path`'s place, flushed to the disk, when the block ends well."""
    draft = path.with_name(f"{path.name}.tmp-{uuid.uuid4().hex}")
    try:
        yield draft
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_texts(folder: Path, contents: Mapping[str, str]) -> None:
    """Write files by name into a folder, each in one step."""
    for name, content in contents.items():
        with replacing(folder / name) as draft:
            draft.write_text(content)


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder and below."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def now() -> str:
    """This instant, ISO 8601, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def sync_folder(folder: Path) -> None:
    """Flush the names of a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
