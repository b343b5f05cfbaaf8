"""Damage of segments: what is intact, and its repair."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.storage import facts, maintenance, segments
from retrieval.storage.facts import DamagedError
from retrieval.storage.records import Segment
from retrieval.storage.segments import CHECKSUM, ITEM, NUMBER
from retrieval.storage.store import Store

_BLOCK = 4096  # rows checked at once
_COMPARED = 64  # rows of a file of facts
_MAX_LENGTH_ERROR = 1e-2  # of a unit vector, also as float16


@dataclass(frozen=True, eq=False)
class SegmentRows:
    """Rows of a segment as far as they can be known.

    Attributes:
        rows: Vector numbers, ascending, and item ids, int64 [2, m]; m is less than n if it is not known whose
            vectors were lost.
        at: Place of their vectors in the file, int64 [m].
        good: bool [m], True for intact vectors.
        damaged: Suffixes of the damaged files: ".npy", ".rows.npy", ".facts".
        is_foreign: Vectors and rows are intact, and those of another segment.
        has_foreign_facts: The file of facts is intact, and that of another segment.
    """

    rows: np.ndarray
    at: np.ndarray
    good: np.ndarray
    damaged: frozenset[str]
    is_foreign: bool = False
    has_foreign_facts: bool = False


def read_segment(store: Store, segment: Segment) -> SegmentRows:
    """Check all rows of a segment against their checksums, and the file of facts against its own."""
    folder, damaged = store.folder / "segments", set[str]()
    has_foreign_facts = False
    try:
        segments.check_facts(folder, segment)
        has_foreign_facts = _are_facts_foreign(store, segment)
    except DamagedError:
        damaged.add(".facts")
    if has_foreign_facts:
        damaged.add(".facts")
    try:
        vectors = store.segment_vectors(segment)
    except LookalikeError:
        damaged.add(".npy")
    try:
        rows = store.segment_rows(segment)
    except LookalikeError:
        damaged.add(".rows.npy")
    if not damaged & {".npy", ".rows.npy"} and matching(vectors, rows).all() and _ascend(rows[NUMBER]):
        everything = np.arange(segment.n)
        good = np.ones(segment.n, bool)
        return SegmentRows(
            rows[:2], everything, good, frozenset(damaged), has_foreign_facts=has_foreign_facts
        )
    return replace(_read_damaged(store, segment, damaged), has_foreign_facts=has_foreign_facts)


def _are_facts_foreign(store: Store, segment: Segment) -> bool:
    """Return whether an intact file of facts is of other images than the segment.

    Some rows are compared with the database, of items whose facts are as they were written.
    """
    listed = maintenance.unchanged_rows(store, segment)
    file = segments.open_facts(store.folder / "segments", segment)
    if not len(listed) or file is None:
        return False
    some = listed[np.unique(np.linspace(0, len(listed) - 1, _COMPARED).astype(np.int64))]
    try:
        numbers = store.segment_rows(segment)[NUMBER]
        items = store.items(some[:, 1].tolist())
    except LookalikeError:  # which is reported as such
        return False
    at = np.minimum(np.searchsorted(numbers, some[:, 0]), segment.n - 1)
    some, at = some[numbers[at] == some[:, 0]], at[numbers[at] == some[:, 0]]
    known = {item.id: (item.id, item.key, item.content_sha256) for item in items}
    rows = facts.parse(file.texts(at.tolist()))
    others = [row for row in rows if row is None or facts.identity(row) != known.get(row[0])]
    return len(others) > len(rows) / 2  # a few may be damaged in the database


def _read_damaged(store: Store, segment: Segment, damaged: set[str]) -> SegmentRows:
    """Find the intact rows of a damaged segment, with the help of what the database lists of them.

    A row is intact if its vector matches its checksum under the number and item of the file, or of the
    database. A vector whose checksum is gone, because the file of rows is missing or too short, is kept if
    its length is one: nothing else is known about it.
    """
    path, manifest = store.folder / "segments" / segment.file, store.manifest
    vectors = segments.raw_vectors(path, segment.n, manifest.dim, manifest.dtype)
    given = segments.raw_rows(path, segment.n)
    good = matching(vectors, given)
    rows = given[:2].copy()
    listed = maintenance.listed_rows(store, segment)
    is_foreign = _is_foreign(path, segment, manifest.dim, manifest.dtype)
    if is_foreign:
        good[:] = False
        rows = rows if listed is None else listed
    elif listed is not None:
        rows = np.where(good, rows, listed)
        lengths = np.linalg.norm(vectors.astype(np.float32), axis=1)
        unchecked = (given[CHECKSUM] < 0) & (np.abs(lengths - 1) < _MAX_LENGTH_ERROR)
        good |= matching(vectors, np.vstack([rows, given[CHECKSUM:]])) | unchecked
        made = np.vstack([rows, segments.checksums(vectors, rows)])
        if good.all() and segment.mark not in (None, segments.mark_of(made)):
            good &= ~unchecked  # whole vectors, but others than were committed
        if (given[:2] != rows).any() or (given[CHECKSUM] < 0).any():
            damaged.add(".rows.npy")
    known = np.ones(segment.n, bool) if listed is not None else good
    if not (good.all() and known.all()):  # a vector or its checksum is wrong: which of them cannot be known
        damaged |= {".npy", ".rows.npy"}
    at = np.flatnonzero(known)
    at = at[np.argsort(rows[NUMBER, at], kind="stable")]
    return SegmentRows(rows[:, at], at, good[at], frozenset(damaged), is_foreign)


def _is_foreign(path: Path, segment: Segment, dim: int, dtype: str) -> bool:
    """Return whether intact files of vectors and rows are at a path, of other rows than the segment's.

    Some of them may have numbers of the segment as well: their vectors are other ones.
    """
    count = segments.raw_count(path, dim, dtype)
    rows = segments.raw_rows(path, count)
    if not count or not matching(segments.raw_vectors(path, count, dim, dtype), rows).all():
        return False
    is_other = (count, *rows[NUMBER, [0, -1]].tolist()) != (segment.n, segment.first, segment.last)
    return is_other or segment.mark not in (None, segments.mark_of(rows))


def matching(vectors: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return which vectors [n, D] match their rows, int64 [3, n]: bool [n]."""
    good = np.empty(len(vectors), bool)
    for start in range(0, len(vectors), _BLOCK):
        some = slice(start, start + _BLOCK)
        good[some] = segments.checksums(vectors[some], rows[:, some]) == rows[CHECKSUM, some]
    return good


def repair_segment(store: Store, segment: Segment, found: SegmentRows) -> None:
    """Write the damaged files of a segment again; if vectors are lost, only the good ones into a new segment.

    The old files of vectors and rows then move to quarantine, and the items of lost vectors wait to be
    embedded again.
    """
    folder, manifest = store.folder / "segments", store.manifest
    path, kept = folder / segment.file, found.rows[:, found.good]
    if ".npy" in found.damaged:
        new = None
        if kept.shape[1]:
            raw = segments.raw_vectors(path, segment.n, manifest.dim, manifest.dtype)
            texts = maintenance.facts_of(store, kept[ITEM])
            blocks = [raw[found.at[found.good]]]
            new = segments.write(folder, blocks, kept, texts, manifest.dim, manifest.dtype)
        maintenance.salvage_segment(store, segment, new, kept[NUMBER])
        quarantine(store.folder, (folder / name for name in segments.files_of(segment.file)))
        return
    if ".rows.npy" in found.damaged:
        vectors = store.segment_vectors(segment)
        checksums = segments.checksums(vectors, kept)
        segments.write_rows(path, np.vstack([kept, checksums]))
    facts.write(segments.facts_file(path), kept.shape[1], maintenance.facts_of(store, kept[ITEM]))


def quarantine(folder: Path, files: Iterable[Path], *, copies: Iterable[Path] = ()) -> None:
    """Move files into the folder `quarantine` of a gallery; files that are missing are left out.

    Args:
        folder: Gallery folder.
        files: Files that move; one of the same name that is there already stays.
        copies: Files that are copied.
    """
    target = folder / "quarantine"
    target.mkdir(exist_ok=True)
    for file in files:
        if file.exists():
            file.rename(_free(target / file.name))
    for file in copies:
        shutil.copyfile(file, _free(target / file.name))


def _free(path: Path) -> Path:
    return path.with_name(f"{path.stem}-{uuid.uuid4().hex}{path.suffix}") if path.exists() else path


def _ascend(numbers: np.ndarray) -> bool:
    return bool((np.diff(numbers) > 0).all())
