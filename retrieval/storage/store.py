"""Crash-safe store of a gallery: one SQLite file as the only commit point, immutable vector segments.

    gallery.db                  all facts; a file counts only if a row here names it
    gallery.json                copy of the manifest, used only if gallery.db is lost
    removals.log                dead vectors, used only if gallery.db is lost
    decisions.jsonl             decisions made by hand; see `decisions`
    LOCK                        writer's lock file
    segments/<uuid>.npy         vectors [n, D], with .rows.npy and .facts; see `segments`
    segments/last               highest vector number, by which an older gallery.db is known
    indexes/<uuid>/             index.faiss and card.json
    indexes/parts/              parts of an index on disk that is not finished
    model/                      model.onnx (.zip, .json) and probes.npy; empty for an external embedding
    reports/<time>/             report.json and report.html
    calibration.json            how probable hits are, if that was learned; bound to the model
    detector.onnx               finds the parts of pictures that are items, if a detector does
    pictures/<sha256>.<suffix>  uploaded image files, if any

Files are written under a temporary name, flushed to disk and renamed before the transaction that names
them, so a crash at any instant leaves the state before or after a commit. A file that no row names is a
leftover, which the next writer deletes; `indexes/parts` is kept until the next index build or compaction.
Readers that have opened a file can still read it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from retrieval.errors import InputError, LockedError, LookalikeError
from retrieval.files import check_free, file_lock, is_open, now
from retrieval.images import boxes
from retrieval.machine.installation import versions
from retrieval.storage import database, removals, schema, segments
from retrieval.storage.facts import DamagedError, encoded
from retrieval.storage.identity import keep_model
from retrieval.storage.items import ItemWriter, metadata_columns, read_columns, read_items, removed_uploads
from retrieval.storage.manifest import (
    COPY,
    Manifest,
    is_outdated,
    parse_manifest,
    read_copy,
    write_copy,
    write_manifest,
)
from retrieval.storage.records import (
    MISSING,
    UPLOAD_NAME,
    UPLOADS,
    ActiveIndex,
    BadFile,
    Change,
    Facts,
    FileStamp,
    GalleryState,
    IndexSpec,
    MetadataColumns,
    NewItem,
    Segment,
    StoredItem,
    Value,
)
from retrieval.storage.segments import OpenSegment
from retrieval.storage.watch import SEGMENTS, Watch, inode_of
from retrieval.system import fsync_folder

# Errors of a full or broken disk; numpy gives no number for a partial write.
_FULL = {None, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
_LIBRARIES = ("lookalike", "onnxruntime", "pillow", "numpy")
# Names of the files that may be deleted in the folder of uploads, where users may put files as well.
_UPLOAD = re.compile(rf"{UPLOAD_NAME.pattern}(\.tmp-[0-9a-f]{{32}})?")


class Store:
    """Store of one gallery. Any process may read; writing needs the lock that `writing()` takes.

    Args:
        folder: Gallery folder.

    Raises:
        InputError: The folder is not a gallery, or a gallery of another format.
        LookalikeError: The database is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "gallery.db").is_file():
            if (folder / "segments").is_dir():
                what = f"{folder}: gallery.db is missing"
                raise LookalikeError(f"{what}; run `lookalike index verify {folder} --repair`")
            raise InputError(
                f"{folder}: not a gallery; create one with `lookalike index build {folder} IMAGES`"
            )
        # Taken before the manifest is read: another gallery may get its name before the state is.
        self._inode = inode_of(folder)
        self._reader = database.Reader(folder)
        self.manifest = self._read_manifest()
        self._held = self._filling = False
        self._watch: Watch | None = None
        self._opened: dict[tuple[str, int], OpenSegment] = {}

    @classmethod
    def create(
        cls, folder: Path, manifest: Manifest, model: Path | None = None, probes: np.ndarray | None = None
    ) -> Store:
        """Create an empty gallery; it appears under its name complete or not at all.

        Args:
            folder: Gallery folder, which must be empty or not exist.
            manifest: Facts about the gallery.
            model: Model file, which is copied; `None` for vectors of an external embedding.
            probes: Vectors of the probe images, float32 [n, D], if there is a model.

        Raises:
            InputError: The folder cannot be used.
        """
        with new_folder(folder) as draft:
            _make_folders(draft)
            if model is not None and probes is not None:
                manifest = replace(manifest, probes_sha256=keep_model(draft, model, probes))
            database.create(draft)
            with database.writing(draft) as db:
                write_manifest(db, manifest)
            write_copy(draft, manifest)
        return cls(folder)

    @property
    def uploads(self) -> Path:
        """Folder of the uploaded image files, which may not exist."""
        return self.folder.resolve() / UPLOADS

    @property
    def index_parts(self) -> Path:
        """Folder of the parts of an unfinished index, which may not exist; the next build continues there."""
        return self.folder / "indexes" / "parts"

    # ---- reading

    def _read_manifest(self) -> Manifest:
        return parse_manifest(self.folder, self.select("SELECT key, value FROM meta WHERE key != 'seal'"))

    def select(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of one query; for the modules of `retrieval.storage` only."""
        return self._reader.select(query, values)

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """Read one committed state of the database; for the modules of `retrieval.storage` only."""
        return self._reader.reading()

    def select_numbers(self, query: str, values: Sequence[Any] = ()) -> np.ndarray:
        """Return the whole numbers of a query for one column named `n`, int64; fast for millions of rows."""
        # One text instead of a Python object for each row.
        ((found,),) = self.select(f"SELECT group_concat(n) FROM ({query})", values)
        return np.fromstring(found, np.int64, sep=",") if found else np.empty(0, np.int64)

    def state(self) -> GalleryState:
        """Return the committed state, read in one transaction; `changed()` compares with it from now on."""
        if self._watch is None:
            self._watch = Watch(self.folder, self._inode)
        return self._watch.state()

    def changed(self) -> bool:
        """Return whether anything was committed since `state()`, or the folder holds another gallery now.

        Raises:
            LookalikeError: The gallery was deleted.
        """
        return self._watch is None or self._watch.changed()

    def replaced(self) -> bool:
        """Return whether the folder holds another gallery than when it was opened."""
        # While a connection is open, no other file can get its inode number.
        return inode_of(self.folder) != self._inode

    def segments(self) -> list[Segment]:
        """Return all committed segments, oldest first."""
        return [Segment(*row) for row in self.select(SEGMENTS)]

    def open_segments(self, listed: Iterable[Segment]) -> list[OpenSegment]:
        """Return the files of segments, memory-mapped. Those that are open since the last call stay open.

        Raises:
            LookalikeError: A file is missing or damaged.
        """
        opened: dict[tuple[str, int], OpenSegment] = {}
        for segment in listed:
            with self._repairable():  # a repair writes a file under its old name
                key = segment.file, segments.inode(self.folder / "segments", segment)
            known = self._opened.get(key)
            opened[key] = known or OpenSegment(
                self.segment_vectors(segment),
                self.segment_rows(segment),
                segments.open_facts(self.folder / "segments", segment),
            )
        self._opened = opened
        return list(opened.values())

    def segment_vectors(self, segment: Segment) -> np.ndarray:
        """Return the vectors of a segment, memory-mapped: [n, D] as stored. Rows are checked when used.

        Raises:
            LookalikeError: The file is missing or has another shape.
        """
        with self._repairable():
            dim, dtype = self.manifest.dim, self.manifest.dtype
            return segments.vectors(self.folder / "segments", segment, dim, dtype)

    def segment_rows(self, segment: Segment) -> np.ndarray:
        """Return vector numbers, item ids and checksums of a segment, memory-mapped: int64 [3, n].

        Raises:
            LookalikeError: The file is missing or damaged.
        """
        with self._repairable():
            return segments.rows(self.folder / "segments", segment)

    def items(self, ids: Sequence[int]) -> list[StoredItem]:
        """Return items by id, removed ones among them; unknown ids are left out.

        Raises:
            LookalikeError: The facts of an item are damaged.
        """
        with self._reader.connection() as db:
            return list(read_items(db, ids))

    def item_columns(self, ids: Sequence[int]) -> tuple[list[int], Facts, Mapping[str, Sequence[Value]]]:
        """Return ids, facts and metadata of items as columns, by ascending id, as `items` does for each.

        Raises:
            LookalikeError: The facts of an item are damaged.
        """
        with self._reader.connection() as db:
            return read_columns(db, ids)

    def columns(self) -> list[str]:
        """Return the names of the metadata columns, oldest first."""
        with self.reading() as db:
            return metadata_columns(db)

    def misfit(self) -> str:
        """Return why the database is not that of the other files; empty if it is, as far as they tell.

        It is that of another gallery if the copy of the manifest says so, and none of its segments is there
        but others are. It is older than the gallery, as one from a backup, if the copy is of a later
        revision, the log beside it has removals that it does not know, or later vectors were committed. It
        is of another state if its list of segments is intact, some of them are missing, and there are
        others. No killed process leaves that.
        """
        copy, found = read_copy(self.folder), segments.files_in(self.folder / "segments")
        mine = {segment.file for segment in self.segments()}
        if copy is not None and copy.uuid != self.manifest.uuid:
            if found and not mine & found:
                return "of another gallery"
            copy = None  # that of another gallery
        with self.reading() as db:
            is_older = (
                (copy is not None and copy.revision > self.manifest.revision)
                or removals.last_entry(self.folder) > database.last_given(db, "changes")
                or segments.marked_last(self.folder / "segments") > last_number(db)
            )
            is_other = bool(mine - found and found - mine) and database.sealed(db)
        if is_older:
            return "older than the gallery"
        return "of another state of the gallery" if is_other else ""

    def bad_files(self) -> list[BadFile]:
        """Return the files that could not be used when they were last tried."""
        query = "SELECT root, path, size, mtime_ns, reason, detail FROM bad ORDER BY root, path"
        return [
            BadFile(FileStamp(r, p, size, m), reason, detail)
            for r, p, size, m, reason, detail in self.select(query)
        ]

    # ---- writing

    @contextmanager
    def writing(self, *, repairing: bool = False) -> Iterator[None]:
        """Hold the writer's lock; what an interrupted writer has left is deleted or finished first.

        Args:
            repairing: Continue if the database is damaged.

        Raises:
            LockedError: Another process is writing; the message has its process id and machine.
            LookalikeError: The folder cannot be written, or the database is damaged.
        """
        try:
            with ExitStack() as stack:
                with self._convert_errors():
                    lock = stack.enter_context(hold_lock(self.folder))
                    _make_folders(self.folder)
                    lock.seek(0)
                    interrupted = lock.read() != ""  # the last writer
                    lock.truncate(0)
                    lock.write(f"process {os.getpid()} on {socket.gethostname()} since {now()}")
                    lock.flush()
                    if not repairing:
                        self._check_seal()
                        self.manifest = self._read_manifest()
                        self._check_fit()
                        self._complete_indexes()
                        if is_outdated(self.folder, self.manifest):
                            write_copy(self.folder, self.manifest)
                        self.mark_last()
                    self.clear_leftovers(uploads=interrupted)
                self._held = True
                try:
                    yield
                    if is_open(self.folder / "LOCK", lock):  # not after a rebuild has swapped the folders
                        self.log_removals()
                    lock.truncate(0)
                finally:
                    self._held = False
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise self._unwritable(error) from error

    def commit(self, vectors: np.ndarray, items: Sequence[NewItem], bad: Iterable[BadFile] = ()) -> None:
        """Add items with their vectors, and unusable files, in one transaction.

        An item replaces the live one with the same key, and keeps its id and its other metadata; so does an
        item whose key was removed and not compacted away. The items of an unusable file are removed, since
        the file is no longer the image that was embedded.

        Args:
            vectors: float32 [n, D], unit length.
            items: Items of the vectors.
            bad: Unusable files.

        Raises:
            InputError: A metadata column or value that cannot be stored; nothing is changed.
        """
        when = now()
        with self.transaction() as db:
            writer = ItemWriter(db)
            if len(items):
                facts = Facts(*zip(*map(_facts, writer.keys_of(items), items), strict=True))
                names = dict.fromkeys(name for item in items for name in item.metadata)
                metadata = {name: [item.metadata.get(name, MISSING) for item in items] for name in names}
                self._append(db, writer, vectors, facts, metadata)
            for file in bad:
                writer.put_bad(file, when)
        self.mark_last()

    def append(self, vectors: np.ndarray, facts: Facts, metadata: MetadataColumns | None = None) -> int:
        """Add many items with their vectors in one transaction, as `commit` does, without an object for each.

        Args:
            vectors: float32 [n, D], unit length.
            facts: Facts about the items.
            metadata: Values by column.

        Returns:
            Number of items that replaced one with the same key.

        Raises:
            InputError: Keys, a metadata column or a value that cannot be stored; nothing is changed.
        """
        with self.transaction() as db:
            replaced = self._append(db, ItemWriter(db), vectors, facts, metadata or {})
        self.mark_last()
        return replaced

    def _append(
        self,
        db: sqlite3.Connection,
        writer: ItemWriter,
        vectors: np.ndarray,
        facts: Facts,
        metadata: MetadataColumns,
    ) -> int:
        writer.add_columns(metadata)
        who = writer.identify(facts.key, new=self._filling)
        first = last_number(db) + 1
        numbers = np.arange(first, first + len(facts))
        columns = writer.inherited(who, metadata)
        manifest, rows = self.manifest, np.stack([numbers, who.ids])
        folder, texts = self.folder / "segments", encoded(who.ids.tolist(), facts, columns)
        segment = segments.write(folder, [vectors], rows, texts, manifest.dim, manifest.dtype)
        insert_segment(db, segment)
        writer.put(facts, who, numbers, columns)
        return who.replaced

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Append many items, whose keys must all differ, to a gallery that never had one, in less time.

        The indexes on the items are created at the end: sorting all keys takes less time than inserting them
        one by one. Meanwhile readers find keys and paths by reading all rows. After a kill, the next writer
        creates the indexes.
        """
        with self.transaction() as db:
            if database.last_given(db, "items"):
                raise LookalikeError(f"{self.folder}: not a new gallery, which alone can be filled")
            schema.drop_indexes(db)
        self._filling = True
        try:
            yield
        finally:
            self._filling = False
            self._complete_indexes()

    def is_new(self) -> bool:
        """Return whether there never was an item."""
        with self.reading() as db:
            return database.last_given(db, "items") == 0

    def amend(self, changes: Sequence[Change]) -> None:
        """Change facts about live items, whose vectors stay, in one transaction.

        Raises:
            InputError: An unknown item, a key that another item has, or a column or value that cannot be
                stored; nothing is changed.
        """
        with self.transaction() as db:
            writer = ItemWriter(db)
            writer.add_columns(name for change in changes for name in change.metadata)
            for change in changes:
                writer.amend(change)

    def forget_bad_files(self, keys: Iterable[tuple[str, str]]) -> None:
        """Delete files, by root and path, from the list of unusable ones."""
        with self.transaction() as db:
            db.executemany("DELETE FROM bad WHERE root = ? AND path = ?", keys)

    def remove(self, ids: Iterable[int]) -> int:
        """Remove items in one transaction, and return their number. Rows stay until the next compaction.

        Their uploaded files are deleted afterwards.

        Raises:
            InputError: An unknown item; nothing is changed.
        """
        unique = set(ids)
        with self.transaction() as db:
            ItemWriter(db).remove(unique, now())
            uploaded = removed_uploads(db, unique) if self.uploads.is_dir() else ()
        for name in uploaded:
            (self.uploads / name).unlink(missing_ok=True)
        return len(unique)

    def use_index(self, index: ActiveIndex | None, spec: IndexSpec) -> None:
        """Put a finished index to use, or none; the previous one becomes a leftover.

        Args:
            index: Record of the index; `None` for exact search.
            spec: Specification it was built from, the default for the next one.
        """
        manifest = self._revised(replace(self.manifest, index_spec=spec))
        with self.transaction() as db:
            db.execute("DELETE FROM indexes")
            if index is not None:
                insert = (
                    "INSERT INTO indexes (dir, sha256, kind, n, last, card_sha256) VALUES (?, ?, ?, ?, ?, ?)"
                )
                db.execute(insert, tuple(vars(index).values()))
            write_manifest(db, manifest, self.manifest)
        self._use_manifest(manifest)

    def clear_index_parts(self) -> None:
        """Delete the parts of an unfinished index."""
        shutil.rmtree(self.index_parts, ignore_errors=True)

    def reread_manifest(self) -> None:
        """Read the manifest again, which another process may have changed."""
        self.manifest = self._read_manifest()

    def update_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest."""
        manifest = self._revised(manifest)
        with self.transaction() as db:
            write_manifest(db, manifest, self.manifest)
        self._use_manifest(manifest)

    def _revised(self, manifest: Manifest) -> Manifest:
        """Return a manifest with the next revision if it differs from the present one."""
        before = self.manifest.revision
        manifest = replace(manifest, revision=before)
        return manifest if manifest == self.manifest else replace(manifest, revision=before + 1)

    def _use_manifest(self, manifest: Manifest) -> None:
        if manifest != self.manifest:
            write_copy(self.folder, manifest)
        self.manifest = manifest

    def record_run(self, command: str, started: str, counts: Mapping[str, int]) -> None:
        """Record a change of the gallery in its history: command, times, counts and library versions."""
        with self.transaction() as db:
            insert = (
                "INSERT INTO runs (command, started, ended, counts, versions, crc) VALUES (?, ?, ?, ?, ?, ?)"
            )
            run = (command, started, now(), json.dumps(counts), json.dumps(versions(_LIBRARIES)))
            db.execute(insert, (*run, schema.row_crc(run)))

    def mark_last(self) -> None:
        """Note beside the segments the highest vector number that was committed, if it is not noted yet."""
        with self.reading() as db:
            last = last_number(db)
        if segments.marked_last(self.folder / "segments") < last:
            segments.mark_last(self.folder / "segments", last)

    def log_removals(self) -> None:
        """Append the vectors that have died to the log beside the database. Call it inside `writing()`."""
        after = (removals.last_entry(self.folder),)
        query = "SELECT {} AS n FROM changes WHERE changes.n > ? AND dead IS NOT NULL ORDER BY changes.n"
        columns = [self.select_numbers(query.format(name), after) for name in ("changes.n", "dead")]
        removals.append(self.folder, np.column_stack(columns))

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction of the database, inside `writing()`."""
        if not self._held:
            raise LookalikeError(f"{self.folder}: written without the writer's lock; use `store.writing()`")
        with database.writing(self.folder) as db:
            yield db

    # ---- errors and leftovers

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> LookalikeError:
        what = f"cannot be written ({error.strerror or error})"
        return LookalikeError(f"{self.folder}: {what}; committed data is safe")

    @contextmanager
    def _repairable(self) -> Iterator[None]:
        try:
            yield
        except DamagedError as error:
            hint = f"repair it with `lookalike index verify {self.folder} --repair`"
            raise LookalikeError(f"{error}: missing or damaged; {hint}") from error

    def _check_seal(self) -> None:
        with self.reading() as db:  # the next commit would seal the damage in
            if not database.sealed(db):
                what = f"{self.folder}: the gallery's database is damaged"
                raise LookalikeError(f"{what}; run `lookalike index verify {self.folder}`")

    def _check_fit(self) -> None:
        if what := self.misfit():  # files that the database does not name are no leftovers
            hint = f"run `lookalike index verify {self.folder} --repair`"
            raise LookalikeError(f"{self.folder}: gallery.db is {what}; {hint}")

    def _complete_indexes(self) -> None:
        """Create the indexes on the items if they are those of an earlier version, or a fill was killed."""
        with self.reading() as db:
            complete = schema.has_indexes(db)
        if not complete:
            with database.writing(self.folder) as db:
                schema.create_indexes(db)

    def clear_leftovers(self, *, uploads: bool = True) -> None:
        """Delete the files that no row names. Call it inside `writing()`.

        Args:
            uploads: Also delete uploaded files, all of which are listed for this.
        """
        for entry in self.leftovers(uploads=uploads):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def uploaded_files(self) -> set[str]:
        """Return the names of the uploaded files that live items have."""
        query = "SELECT path FROM items WHERE root = ? AND path != '' AND deleted_at IS NULL"
        return {boxes.split(path)[0] for (path,) in self.select(query, (UPLOADS,))}

    def leftovers(self, *, uploads: bool = True) -> list[Path]:
        """Return files and folders that no row names: of a running writer, or of one that was killed."""
        named = {segments.LAST, *(row[0] for row in self.select("SELECT dir FROM indexes"))}
        for (file,) in self.select("SELECT file FROM segments"):
            named.update(segments.files_of(file))
        left = [
            entry
            for part in ("segments", "indexes")
            for entry in sorted((self.folder / part).glob("*"))
            if entry.name not in named and entry != self.index_parts
        ]
        left += [*sorted(self.folder.glob(f"{COPY}.tmp-*")), *sorted(self.folder.glob("model/*.tmp-*"))]
        if uploads and self.uploads.is_dir():
            uploaded = self.uploaded_files()
            files = (entry for entry in sorted(self.uploads.iterdir()) if _UPLOAD.fullmatch(entry.name))
            left += [entry for entry in files if entry.name not in uploaded]
        return left


def _make_folders(folder: Path) -> None:
    """Make the folders of a gallery, some of which may have been lost with all that was in them."""
    for name in ("segments", "indexes", "model", "reports"):
        (folder / name).mkdir(exist_ok=True)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield the draft of a gallery's folder, which gets its name if the block succeeds.

    The drafts of this gallery that killed processes have left are deleted.

    Args:
        folder: Gallery folder, which must be empty or not exist.

    Raises:
        InputError: The folder cannot be used.
    """
    check_free(folder)
    if not folder.name:
        raise InputError(f"{folder}: not a folder of its own; name one for the gallery")
    folder.parent.mkdir(parents=True, exist_ok=True)
    clear_drafts(folder)
    draft = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        draft.mkdir()
        with hold_lock(draft):
            yield draft
            draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    fsync_folder(folder.parent)


def clear_drafts(folder: Path) -> None:
    """Delete what killed processes have left of the creation of a gallery in this folder."""
    name = re.compile(rf"\.{re.escape(folder.name)}\.[0-9a-f]{{32}}")
    delete_abandoned(path for path in folder.parent.iterdir() if name.fullmatch(path.name))


def delete_abandoned(drafts: Iterable[Path]) -> None:
    """Delete unfinished galleries whose lock nobody holds: those of killed processes."""
    for draft in drafts:
        if (draft / "LOCK").is_file():
            with suppress(LockedError), hold_lock(draft):
                shutil.rmtree(draft)


def hold_lock(folder: Path) -> AbstractContextManager[IO[str]]:
    """Hold the writer's lock of a gallery.

    Args:
        folder: Gallery folder.

    Raises:
        LockedError: Another process is writing; the message has its process id and machine.
    """

    def refuse(lock: IO[str]) -> NoReturn:
        lock.seek(0)
        holder = lock.read().strip() or "an unknown process"
        raise LockedError(f"{folder}: being written by {holder}; try again when it is done") from None

    return file_lock(folder / "LOCK", refuse)


def last_number(db: sqlite3.Connection) -> int:
    """Return the highest vector number that was ever given; 0 before the first."""
    found = db.execute("SELECT value FROM meta WHERE key = 'last_vector'").fetchone()
    return database.whole_number(found[0]) if found else 0


def insert_segment(db: sqlite3.Connection, segment: Segment, number: int | None = None) -> int:
    """Insert the row of a segment, under the next number unless one is given, and return its number."""
    insert = "INSERT INTO segments (seg, file, n, first, last) VALUES (?, ?, ?, ?, ?)"
    given = db.execute(insert, (number, segment.file, segment.n, segment.first, segment.last)).lastrowid
    highest = json.dumps(max(last_number(db), segment.last))
    db.execute("INSERT OR REPLACE INTO meta VALUES ('last_vector', ?)", (highest,))
    if segment.mark is not None:
        mark = f"rows {segment.file}", json.dumps(segment.mark)
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", mark)
    assert given is not None
    return given


def _facts(key: str, item: NewItem) -> tuple[Any, ...]:
    s = item.stamp
    what = (item.content_sha256, item.width, item.height, s.label)
    return key, s.root, s.path, s.size, s.mtime_ns, *what
