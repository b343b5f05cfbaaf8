"""Log of dead vectors beside the database, so that a lost database is rebuilt without removed items.

    removals.log   int64 [m, 3]: entry of the table `changes`, number of the dead vector, CRC-32 of both

Entries are appended when a writer is done, after its commits. An entry that is missing, because the writer
was killed, is appended by the next one; a superfluous one is harmless, since no vector number is used twice.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np

from retrieval.system import fsync_folder

FILE = "removals.log"
_RECORD = 24  # bytes


def last_entry(folder: Path) -> int:
    """Return the number of the newest entry; 0 if there is none."""
    path = folder / FILE
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        count = os.fstat(file.fileno()).st_size // _RECORD
        file.seek(max(0, count - 1) * _RECORD)
        newest = _intact(file.read(_RECORD))
    found = newest if len(newest) or not count else _intact(path.read_bytes())
    return int(found[-1, 0]) if len(found) else 0


def dead_numbers(folder: Path) -> np.ndarray:
    """Return the logged numbers of dead vectors, int64 [m], ascending; damaged entries are left out."""
    path = folder / FILE
    return np.unique(_intact(path.read_bytes())[:, 1] if path.is_file() else np.empty(0, np.int64))


def append(folder: Path, entries: np.ndarray) -> None:
    """Append entries, int64 [m, 2]: number of the entry, number of the dead vector; flush them to disk."""
    if not len(entries):
        return
    path = folder / FILE
    is_new = not path.exists()
    records = np.column_stack([entries, _checksums(entries)])
    with path.open("ab") as file:
        torn = file.tell() % _RECORD  # by a writer that was killed
        file.truncate(file.tell() - torn)
        file.write(records.astype("<i8").tobytes())
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        fsync_folder(folder)


def clear(folder: Path) -> None:
    """Delete the log: all dead vectors are gone from the segments."""
    (folder / FILE).unlink(missing_ok=True)


def _intact(data: bytes) -> np.ndarray:
    records = np.frombuffer(data, "<i8", len(data) // _RECORD * 3).reshape(-1, 3)
    intact: np.ndarray = records[records[:, 2] == _checksums(records[:, :2])]
    return intact


def _checksums(entries: np.ndarray) -> np.ndarray:
    whole = np.ascontiguousarray(entries, "<i8")
    return np.fromiter(map(zlib.crc32, whole), np.int64, len(whole))
