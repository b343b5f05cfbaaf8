"""Segments: immutable files of vectors, each with a file of rows and a file of facts about their items.

    <uuid>.npy          vectors [n, D], float32 or float16, unit length
    <uuid>.rows.npy     int64 [3, n]: vector numbers (ascending), item ids, checksums of the rows
    <uuid>.facts        facts about the items; see `facts`
    last                highest vector number that was committed

A row is checked when it is used: its checksum covers the bytes of its vector, its number and its item id.
Whether the rows are the segment's is checked when it is opened: the database has a mark of some of them.
"""

from __future__ import annotations

import threading
import uuid
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from retrieval.files import ARRAY_ERRORS, atomic_write, link_or_copy, write_texts
from retrieval.storage import facts
from retrieval.storage.facts import DamagedError, FactsFile
from retrieval.storage.records import Segment

NUMBER, ITEM, CHECKSUM = range(3)  # lines of the file of rows
LAST = "last"  # file of the highest vector number
HEADER = 128  # bytes before the first vector
_MARKED = 64  # rows in the mark of a segment
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_loading = threading.Lock()


class OpenSegment(NamedTuple):
    """The files of a segment, memory-mapped.

    Attributes:
        vectors: Vectors [n, D] as stored.
        rows: Vector numbers, item ids and checksums, int64 [3, n].
        facts: Facts about the items; `None` if only the database has them.
    """

    vectors: np.ndarray
    rows: np.ndarray
    facts: FactsFile | None


def write(
    folder: Path,
    blocks: Iterable[np.ndarray],
    rows: np.ndarray,
    texts: Iterable[Sequence[bytes]],
    dim: int,
    dtype: str = "float32",
) -> Segment:
    """Write a segment, and return its record without a segment number yet.

    Args:
        folder: Folder of the segments.
        blocks: Vectors [b, D] in order, n in all; one block is in memory at a time.
        rows: Vector number, ascending, and item id of each vector, int64 [2, n].
        texts: Facts about the items, as `facts.encoded` yields them.
        dim: Dimension D.
        dtype: "float32" or "float16".
    """
    path, count = folder / f"{uuid.uuid4().hex}.npy", rows.shape[1]
    full = np.empty((3, count), np.int64)
    full[:CHECKSUM] = rows
    with atomic_write(path) as draft, draft.open("wb") as file:
        header = {"descr": np.dtype(dtype).newbyteorder("<").str, "fortran_order": False}
        np.lib.format.write_array_header_1_0(file, {**header, "shape": (count, dim)})
        start = 0
        for block in blocks:
            stored = np.ascontiguousarray(block, dtype)
            stop = start + len(stored)
            full[CHECKSUM, start:stop] = checksums(stored, rows[:, start:stop])
            file.write(stored.data)
            start = stop
    assert start == count, (start, count)
    write_rows(path, full)
    facts.write(facts_file(path), count, texts)
    return Segment(0, path.name, count, int(rows[NUMBER, 0]), int(rows[NUMBER, -1]), mark_of(full))


def mark_of(rows: np.ndarray) -> int:
    """Return the CRC-32 of rows from all over a segment, int64 [3, n]: another segment has another one."""
    some = np.linspace(0, rows.shape[1] - 1, min(rows.shape[1], _MARKED)).astype(int)
    return zlib.crc32(rows[:, some].astype("<i8").tobytes())


def mark_last(folder: Path, number: int) -> None:
    """Note the highest vector number that was committed, so that an older database is known as such."""
    write_texts(folder, {LAST: f"{number}\n"})


def marked_last(folder: Path) -> int:
    """Return the highest vector number that was committed, as far as it was noted; else 0."""
    with suppress(OSError, ValueError):
        return int((folder / LAST).read_text())
    return 0


def write_rows(path: Path, rows: np.ndarray) -> None:
    """Write the file of rows, int64 [3, n], of the segment at `path`."""
    with atomic_write(rows_file(path)) as draft, draft.open("wb") as file:
        np.save(file, rows, allow_pickle=False)


def with_facts(folder: Path, segment: Segment, texts: Iterable[Sequence[bytes]]) -> Segment:
    """Return a copy of a segment with other facts, which shares the files of its vectors and rows.

    A file of facts is never replaced while readers may take it for that of an earlier state.
    """
    old, new = folder / segment.file, folder / f"{uuid.uuid4().hex}.npy"
    link_or_copy(old, new)
    link_or_copy(rows_file(old), rows_file(new))
    facts.write(facts_file(new), segment.n, texts)
    return replace(segment, seg=0, file=new.name)


def rows_file(path: Path) -> Path:
    """Return the path of the file of rows of a segment."""
    return path.with_name(f"{path.stem}.rows.npy")


def facts_file(path: Path) -> Path:
    """Return the path of the file of facts of a segment."""
    return path.with_suffix(".facts")


def files_in(folder: Path) -> set[str]:
    """Return the names of all files of vectors in the folder of segments."""
    return {file.name for file in folder.glob("*.npy") if not file.name.endswith(".rows.npy")}


def files_of(name: str) -> tuple[str, str, str, str]:
    """Return the names that the files of a segment may have, by the name of its vectors."""
    path = Path(name)
    return path.name, rows_file(path).name, facts_file(path).name, path.with_suffix(facts.EARLIER).name


def vectors(folder: Path, segment: Segment, dim: int, dtype: str) -> np.ndarray:
    """Return the vectors of a segment, memory-mapped and unchecked: [n, dim].

    Raises:
        DamagedError: The file is missing or has another shape or type.
    """
    return _mapped(folder / segment.file, (segment.n, dim), dtype)


def rows(folder: Path, segment: Segment) -> np.ndarray:
    """Return numbers, item ids and checksums of the rows, memory-mapped: int64 [3, n].

    Raises:
        DamagedError: The file is missing, or its shape, ends or mark are not those of the segment.
    """
    path = rows_file(folder / segment.file)
    found = _mapped(path, (3, segment.n), "int64")
    is_other = (found[NUMBER, 0], found[NUMBER, -1]) != (segment.first, segment.last)
    if is_other or segment.mark not in (None, mark_of(found)):
        raise DamagedError(path)
    return found


def inode(folder: Path, segment: Segment) -> int:
    """Return the inode number of the file of rows, which no other file gets while it is open.

    Raises:
        DamagedError: The file is missing.
    """
    path = rows_file(folder / segment.file)
    try:
        return path.stat().st_ino
    except OSError as error:
        raise DamagedError(path) from error


def open_facts(folder: Path, segment: Segment) -> FactsFile | None:
    """Return the facts about the items of a segment; `None` if the file is missing or damaged.

    The database has all of them as well.
    """
    try:
        return FactsFile(facts_file(folder / segment.file), segment.n)
    except DamagedError:
        return None


def check_facts(folder: Path, segment: Segment) -> None:
    """Raise a `DamagedError` if the file of facts of a segment is missing or damaged."""
    facts.check(facts_file(folder / segment.file), segment.n)


def raw_vectors(path: Path, count: int, dim: int, dtype: str) -> np.ndarray:
    """Return what a file holds of its vectors, whatever its header: [count, dim], the rest zeros."""
    return _raw(path, dtype, count * dim).reshape(count, dim)


def raw_rows(path: Path, count: int) -> np.ndarray:
    """Return what the file of rows of a segment holds, whatever its header: int64 [3, count], the rest -1."""
    return _raw(rows_file(path), "<i8", 3 * count, -1).reshape(3, count)


def raw_count(path: Path, dim: int, dtype: str) -> int:
    """Return the number of rows of a segment by the size of its file of rows, or else of vectors."""
    for file, size in ((rows_file(path), 24), (path, dim * np.dtype(dtype).itemsize)):
        if file.is_file():
            return max(0, file.stat().st_size - HEADER) // size
    return 0


def dtype_of(path: Path) -> str | None:
    """Return the type of the numbers in a file; `None` if its header is damaged."""
    try:
        return str(_load(path).dtype)
    except ARRAY_ERRORS:
        return None


def _raw(path: Path, dtype: str, count: int, missing: int = 0) -> np.ndarray:
    found = np.full(count, missing, dtype)
    if path.is_file():
        values = np.fromfile(path, dtype, count, offset=HEADER)
        found[: len(values)] = values
    return found


def checksums(vectors: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the checksum of each row: CRC-32 of its bytes, seeded with its number and its item id.

    Args:
        vectors: Vectors as stored, [n, D].
        rows: Vector numbers and item ids, int64 [2 or more, n].

    Returns:
        int64 [n].
    """
    mixed = rows[NUMBER].astype(np.uint64) * _PRIME ^ rows[ITEM].astype(np.uint64)
    mixed *= _PRIME
    seeds = (mixed >> np.uint64(32)).tolist()
    stored = np.ascontiguousarray(vectors)
    return np.fromiter(map(zlib.crc32, stored, seeds), np.int64, len(stored))


def _load(path: Path) -> np.ndarray:
    """Map a file; by one thread at a time, as CPython 3.11 may fail to parse headers in two (gh-106905)."""
    with _loading, np.errstate(over="ignore"):  # of the size that a damaged header claims
        mapped: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped


def _mapped(path: Path, shape: tuple[int, int], dtype: str) -> np.ndarray:
    try:
        found = _load(path)
    except ARRAY_ERRORS as error:
        raise DamagedError(path) from error
    if found.dtype != np.dtype(dtype) or found.shape != shape:
        raise DamagedError(path)
    return np.asarray(found)  # a plain view: np.memmap is slow to index
