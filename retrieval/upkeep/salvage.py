"""Salvage: a new database for a gallery whose database is lost, from its segments."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.files import has_sha256, link_or_copy, sha256_of
from retrieval.images import boxes
from retrieval.images.load import DECODE_POLICY
from retrieval.machine.devices import Device
from retrieval.model.embedder import Embedder
from retrieval.model.runtime import Runtime
from retrieval.progress import Progress
from retrieval.search.detector import NAME as DETECTOR
from retrieval.storage import recovery, segments
from retrieval.storage.facts import Row, columns, encoded, intact_rows
from retrieval.storage.identity import model_file, probes_file
from retrieval.storage.manifest import COPY, Manifest, read_copy, write_copy
from retrieval.storage.records import NO_FACTS, PICTURE, Segment
from retrieval.storage.schema import FACTS
from retrieval.storage.segments import ITEM, NUMBER
from retrieval.storage.store import Store, hold_lock
from retrieval.system import fsync_folder
from retrieval.upkeep.damage import matching, quarantine

_PATH = FACTS.index("path")
_DRAFT = "indexes/salvage"  # where the next writer deletes it if this process is killed


@dataclass(frozen=True)
class Salvage:
    """What was saved of a gallery whose database was lost.

    Attributes:
        items: Items in the new database.
        complete: Items among them whose facts and metadata come from the old database; the others have those
            of the time at which their segment was written.
        lost: Vectors that are damaged.
        renamed: Items whose key another item has had since, and which got another one.
        nameless: Items whose facts are lost, and whose key is made of their id.
        kept_manifest: Whether the facts about the gallery as a whole were kept, not made from its model and
            its images.
        quarantined: Whether there was an old file, which is in quarantine.
    """

    items: int
    complete: int
    lost: int
    renamed: int
    nameless: int
    kept_manifest: bool
    quarantined: bool


@dataclass(frozen=True, eq=False)
class _Part:
    """A file of vectors, as found in the folder of segments.

    Attributes:
        file: Its name.
        count: Rows that it should have.
        rows: Vector numbers, ascending, and item ids of the good rows, int64 [2, m].
        at: Places of the good rows in the file, int64 [m].
    """

    file: str
    count: int
    rows: np.ndarray
    at: np.ndarray

    @property
    def is_whole(self) -> bool:
        """Whether all of its rows are good, and ascend by number as they are."""
        return np.array_equal(self.at, np.arange(self.count))


def salvage(folder: Path, *, show_progress: bool = False) -> Salvage:
    """Build a new database; the old one moves to the gallery's `quarantine`.

    Vectors, ids, facts and metadata come from the segments; of several vectors of an item, the newest
    counts. Removals come from the log beside the database. As far as the old database can still be read,
    intact items keep their present facts and metadata, and the lists of runs and unusable files are kept. The
    new database replaces the old one in one step; an interrupted salvage can be repeated.

    Without a copy of the manifest, that of the old database counts if it can be read and the files are its
    own. Without either, items that are parts of pictures show that the gallery divides these; the columns
    of products and variants and the kind of index are lost then.

    Args:
        folder: Gallery folder.
        show_progress: Report progress on stderr.

    Raises:
        InputError: The gallery has neither a copy of the manifest nor a model file.
        LockedError: Another process is writing.
    """
    with hold_lock(folder):
        copy = _kept_manifest(folder)
        manifest = copy or _manifest_of_model(folder)
        for name in ("segments", "indexes", "model", "reports"):
            (folder / name).mkdir(exist_ok=True)
        parts = _read_parts(folder, manifest, show_progress)
        if copy is None and _is_divided(folder, parts):
            detector = folder / DETECTOR
            found = sha256_of(detector) if detector.is_file() else None
            manifest = replace(manifest, objects=True, detector=found, product=PICTURE)
        listed = [_settle(folder, manifest, group) for group in _overlapping(parts)]
        draft = folder / _DRAFT
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        rebuilt = recovery.build_database(folder, draft, manifest, listed)
        damaged = [name for part in parts if not part.is_whole for name in segments.files_of(part.file)]
        quarantine(folder, (folder / "segments" / name for name in damaged))
        quarantined = _replace_database(folder, draft)
        if (folder / COPY).is_dir():
            quarantine(folder, [folder / COPY])
        write_copy(folder, manifest)
        _keep_uploads(folder)
    lost = sum(part.count - len(part.at) for part in parts)
    counts = rebuilt.items, rebuilt.complete, lost, rebuilt.renamed, rebuilt.nameless
    return Salvage(*counts, kept_manifest=copy is not None, quarantined=quarantined)


def _kept_manifest(folder: Path) -> Manifest | None:
    """Return the manifest as its copy has it, or else the old database; `None` if both are lost."""
    for read in (read_copy, recovery.old_manifest):
        found = read(folder)
        if found is not None and not _is_of_another_model(folder, found):
            return found
    return None


def _is_of_another_model(folder: Path, manifest: Manifest) -> bool:
    """Return whether the gallery's model file is intact, and another one than that of a manifest."""
    model = model_file(folder)
    if not manifest.has_model or not model.is_file() or has_sha256(model, manifest.fingerprint):
        return False
    with suppress(LookalikeError):
        Embedder.open(model, Runtime(Device("cpu")))
        return True
    return False


def _manifest_of_model(folder: Path) -> Manifest:
    """Return a manifest made from the gallery's model file."""
    model, probes = model_file(folder), probes_file(folder)
    if not model.is_file():
        what = f"{folder}: gallery.db, gallery.json and the model file are lost or damaged"
        raise InputError(f"{what}; put the model file back, or gallery.json from a copy")
    embedder = Embedder(model, device="cpu")  # only its metadata is used
    types = {segments.dtype_of(path) for path in sorted((folder / "segments").glob("*.npy"))} - {
        None,
        "int64",
    }
    return Manifest(
        embedder.fingerprint,
        embedder.dim,
        decode_policy=DECODE_POLICY,
        probes_sha256=sha256_of(probes) if probes.is_file() else None,
        dtype=min(types, default="float32", key=str) or "float32",
    )


def _is_divided(folder: Path, parts: Sequence[_Part]) -> bool:
    """Return whether there are parts of pictures, as of a gallery that divides these."""
    rows = (row for part in parts for row in _facts(folder, part))
    return any(row[-1].get(PICTURE) and boxes.split(row[_PATH])[1] for row in rows)


# ---- segments


def _read_parts(folder: Path, manifest: Manifest, show_progress: bool) -> list[_Part]:
    """Read the rows of all files of vectors, and check them."""
    files = [folder / "segments" / name for name in sorted(segments.files_in(folder / "segments"))]
    parts = []
    with Progress("salvaging", len(files), "files", show=show_progress) as progress:
        for file in files:
            count = segments.raw_count(file, manifest.dim, manifest.dtype)
            rows = segments.raw_rows(file, count)
            good = matching(segments.raw_vectors(file, count, manifest.dim, manifest.dtype), rows)
            at = np.flatnonzero(good)
            at = at[np.argsort(rows[NUMBER, at], kind="stable")]
            parts.append(_Part(file.name, count, rows[:2, at], at))
            progress.update()
    return parts


def _overlapping(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Yield the parts with good rows in groups whose vector numbers overlap, ascending.

    They overlap after a merge or a compaction that was interrupted before the old files were deleted.
    """
    group, last = list[_Part](), -1
    for part in sorted((part for part in parts if len(part.at)), key=lambda part: int(part.rows[NUMBER, 0])):
        if group and part.rows[NUMBER, 0] > last:
            yield group
            group = []
        group.append(part)
        last = max(last, int(part.rows[NUMBER, -1]))
    if group:
        yield group


def _settle(folder: Path, manifest: Manifest, group: Sequence[_Part]) -> Segment:
    """Return one segment with all good rows of a group: one of the group if possible, else a new one."""
    numbers, first = np.unique(np.concatenate([part.rows[NUMBER] for part in group]), return_index=True)
    for part in group:
        if part.is_whole and len(part.at) == len(numbers):
            rows = segments.raw_rows(folder / "segments" / part.file, part.count)
            mark = segments.mark_of(rows)
            return Segment(0, part.file, part.count, int(numbers[0]), int(numbers[-1]), mark)
    vectors, facts = [], []
    for part in group:
        file = folder / "segments" / part.file
        vectors.append(segments.raw_vectors(file, part.count, manifest.dim, manifest.dtype)[part.at])
        facts += _facts(folder, part)
    rows = np.concatenate([part.rows for part in group], axis=1)[:, first]
    texts = encoded(rows[ITEM].tolist(), *columns([facts[row] for row in first.tolist()]))
    blocks = [np.concatenate(vectors)[first]]
    return segments.write(folder / "segments", blocks, rows, texts, manifest.dim, manifest.dtype)


def _facts(folder: Path, part: _Part) -> list[Row]:
    """Return the facts about the items of the good rows of a part; empty ones where they are lost."""
    found = intact_rows(segments.facts_file(folder / "segments" / part.file), part.count)
    return [found[place] or (0, *NO_FACTS, {}) for place in part.at.tolist()]


# ---- files


def _replace_database(folder: Path, draft: Path) -> bool:
    """Put the new database in place of the old one, if any, which moves to quarantine.

    Return whether there was one.
    """
    kept = folder / "quarantine"
    kept.mkdir(exist_ok=True)
    name = f"gallery-{uuid.uuid4().hex}.db"
    journal = folder / "gallery.db-journal"  # of the old database: it must not be applied to the new one
    if journal.exists():
        journal.rename(kept / f"{name}-journal")
    old = folder / "gallery.db"
    there = old.exists()
    if old.is_dir():
        old.rename(kept / name)
    elif there:
        link_or_copy(old, kept / name)
    (draft / "gallery.db").replace(folder / "gallery.db")
    fsync_folder(folder)
    shutil.rmtree(draft)
    return there


def _keep_uploads(folder: Path) -> None:
    """Move the uploaded files that no item has to quarantine, before the next writer deletes them."""
    store = Store(folder)
    if store.uploads.is_dir():
        known = store.uploaded_files()
        quarantine(folder, [file for file in store.uploads.iterdir() if file.name not in known])
