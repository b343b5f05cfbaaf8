"""Segments: immutable files of vectors, each with a file of item ids and row checksums."""

from __future__ import annotations

import uuid
import zlib
from pathlib import Path

import numpy as np

from retrieval.files import atomic_write, sha256_of
from retrieval.storage.records import Segment


class DamagedError(Exception):
    """A file of a segment is missing or damaged; the message is its path."""


def write(folder: Path, vectors: np.ndarray, ids: np.ndarray) -> Segment:
    """Write vectors, float32 [n, D], of items, int64 [n] ascending; return a segment without a number yet."""
    vectors = np.ascontiguousarray(vectors, np.float32)
    path = folder / f"{uuid.uuid4().hex}.npy"
    _save(path, vectors)
    rows_sha256 = write_rows(path, vectors, ids)
    return Segment(0, path.name, len(vectors), sha256_of(path), path.stat().st_size, rows_sha256)


def write_rows(path: Path, vectors: np.ndarray, ids: np.ndarray) -> str:
    """Write the file of rows for the vectors, float32 [n, D], of items, int64 [n]; return its SHA-256."""
    rows = np.stack([ids.astype(np.int64), row_checksums(vectors).astype(np.int64)], 1)  # [n, 2]
    target = path.with_name(f"{path.stem}.rows.npy")
    _save(target, rows)
    return sha256_of(target)


def vectors(folder: Path, segment: Segment, dim: int) -> np.ndarray:
    """Return the vectors of a segment, memory-mapped and unchecked: float32 [n, dim].

    Raises:
        DamagedError: The file is missing or has another shape.
    """
    found = _load(folder / segment.file, mapped=True)
    if found.dtype != np.float32 or found.shape != (segment.n, dim):
        raise DamagedError(folder / segment.file)
    return found


def rows(folder: Path, segment: Segment) -> tuple[np.ndarray, np.ndarray]:
    """Return the item ids, int64 [n], and the CRC-32 of each row's bytes, uint32 [n].

    Raises:
        DamagedError: The file is missing or damaged.
    """
    path = folder / segment.rows_file
    if not path.is_file() or sha256_of(path) != segment.rows_sha256:
        raise DamagedError(path)
    both = _load(path)  # [n, 2]
    return both[:, 0].copy(), both[:, 1].astype(np.uint32)


def row_checksums(vectors: np.ndarray) -> np.ndarray:
    """Return the CRC-32 of the bytes of each row of float32 [n, D]: uint32 [n]."""
    return np.fromiter((zlib.crc32(row) for row in np.ascontiguousarray(vectors)), np.uint32, len(vectors))


def _save(path: Path, array: np.ndarray) -> None:
    with atomic_write(path) as draft, draft.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def _load(path: Path, *, mapped: bool = False) -> np.ndarray:
    try:
        loaded: np.ndarray = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DamagedError(path) from error
    return loaded
