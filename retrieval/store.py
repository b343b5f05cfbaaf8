"""What a gallery keeps on disk: one SQLite file as the only commit point, and immutable vector segments.

    gallery.db              every fact; a row here is what makes a file count
    LOCK                    held by the one writer
    segments/<uuid>.npy     float32 [n, D], unit rows, written once
    indexes/<uuid>/         index.faiss and card.json
    model/                  model.onnx and probes.npy
    reports/<time>/         report.json and report.html

Files are written under a temporary name, flushed to the disk and renamed before the transaction that
names them, so a crash at any instant leaves the state before or after a commit. A file that no row names
is a leftover; the next writer deletes it.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import socket
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.locking import locked

FORMAT_VERSION = 1

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE segments (seg INTEGER PRIMARY KEY, file TEXT NOT NULL UNIQUE, n INTEGER NOT NULL,
    sha256 TEXT NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE items (id INTEGER PRIMARY KEY AUTOINCREMENT, root TEXT NOT NULL, path TEXT NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, content_sha256 TEXT NOT NULL,
    width INTEGER NOT NULL, height INTEGER NOT NULL, label TEXT,
    seg INTEGER NOT NULL REFERENCES segments, row INTEGER NOT NULL,
    deleted_at TEXT, meta TEXT NOT NULL DEFAULT '{}');
CREATE UNIQUE INDEX live_path ON items (root, path) WHERE deleted_at IS NULL;
CREATE TABLE bad (root TEXT NOT NULL, path TEXT NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, attempts INTEGER NOT NULL, last_seen TEXT NOT NULL,
    PRIMARY KEY (root, path));
CREATE TABLE indexes (idx INTEGER PRIMARY KEY, dir TEXT NOT NULL UNIQUE, sha256 TEXT NOT NULL,
    kind TEXT NOT NULL, covers_upto_seg INTEGER NOT NULL, n INTEGER NOT NULL, active INTEGER NOT NULL);
CREATE TABLE runs (run INTEGER PRIMARY KEY, command TEXT NOT NULL, started TEXT NOT NULL, ended TEXT,
    counts TEXT NOT NULL DEFAULT '{}', versions TEXT NOT NULL);
"""


@dataclass(frozen=True)
class FileStamp:
    """An image file as the scan saw it: where it is, and what tells whether it changed."""

    root: str
    path: str
    size: int
    mtime_ns: int
    label: str | None = None

    @property
    def full(self) -> Path:
        return Path(self.root, self.path)

    @property
    def key(self) -> tuple[str, str]:
        return self.root, self.path


@dataclass(frozen=True)
class NewItem:
    """A picture that was embedded, about to be committed."""

    stamp: FileStamp
    content_sha256: str
    width: int
    height: int
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BadFile:
    """A file that could not be used, with the reason."""

    stamp: FileStamp
    reason: str
    detail: str


class Store:
    """The folder of one gallery. Reading is open to all; writing needs `writing()`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "gallery.db").is_file():
            raise InputError(
                f"{folder}: not a gallery; `lookalike index build {folder} IMAGES --model M` makes one"
            )
        self.meta = {key: json.loads(value) for key, value in self.rows("SELECT key, value FROM meta")}
        if self.meta["format_version"] > FORMAT_VERSION:
            raise InputError(
                f"{folder}: made by a newer lookalike (format {self.meta['format_version']}); update"
            )

    @classmethod
    def create(cls, folder: Path, meta: Mapping[str, Any], model: Path, probes: np.ndarray) -> Store:
        """Make an empty gallery; it appears under its name complete or not at all."""
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder}: exists already and is not an empty folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
        try:
            for name in ("segments", "indexes", "model", "reports"):
                (draft / name).mkdir(parents=True)
            shutil.copyfile(model, draft / "model" / "model.onnx")
            np.save(draft / "model" / "probes.npy", probes)
            with sqlite3.connect(draft / "gallery.db") as db:
                db.executescript(_SCHEMA)
                facts = {"format_version": FORMAT_VERSION, "gallery_uuid": str(uuid.uuid4()), **meta}
                db.executemany(
                    "INSERT INTO meta VALUES (?, ?)", [(k, json.dumps(v)) for k, v in facts.items()]
                )
            db.close()
            draft.rename(folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        _sync_folder(folder.parent)
        return cls(folder)

    # ---- reading

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """The rows of one query."""
        with _connect(self.folder) as db:
            return db.execute(query, values).fetchall()

    def state(self) -> tuple[list[Any], list[Any], list[Any]]:
        """One committed state: segments (seg, file, n), live items (id, seg, row) and the active index
        (dir, sha256, covers_upto_seg, n), all seen at the same instant."""
        with _connect(self.folder) as db:
            db.execute("BEGIN")
            segments = db.execute(_SEGMENTS).fetchall()
            items = db.execute("SELECT id, seg, row FROM items WHERE deleted_at IS NULL").fetchall()
            index = db.execute(
                "SELECT dir, sha256, covers_upto_seg, n FROM indexes WHERE active = 1"
            ).fetchall()
            return segments, items, index

    def segments(self) -> list[tuple[int, str, int]]:
        """(number, file name, rows) of every committed segment, oldest first."""
        return self.rows(_SEGMENTS)

    def vectors(self, file: str) -> np.ndarray:
        """One segment, memory-mapped: float32 [n, D]."""
        return np.load(self.folder / "segments" / file, mmap_mode="r", allow_pickle=False)

    def stamps(self) -> dict[tuple[str, str], tuple[int, int]]:
        """(root, path) -> (size, mtime_ns) of every live item: what an unchanged file is recognised by."""
        query = "SELECT root, path, size, mtime_ns FROM items WHERE deleted_at IS NULL"
        return {(root, path): (size, mtime) for root, path, size, mtime in self.rows(query)}

    def bad_files(self) -> list[BadFile]:
        """Every file that could not be used when it was last tried."""
        query = "SELECT root, path, size, mtime_ns, reason, detail FROM bad ORDER BY root, path"
        return [
            BadFile(FileStamp(r, p, size, m), reason, detail)
            for r, p, size, m, reason, detail in self.rows(query)
        ]

    # ---- writing

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the writer's lock; clears what an interrupted writer left behind.

        Raises:
            LookalikeError: another process is writing; its number and machine are named.
        """

        def refuse(lock: IO[str]) -> NoReturn:
            lock.seek(0)
            holder = lock.read().strip() or "an unknown process"
            raise LookalikeError(
                f"{self.folder}: being written by {holder}; try again when it is done"
            ) from None

        with locked(self.folder / "LOCK", refuse) as lock:
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {socket.gethostname()} since {now()}")
            lock.flush()
            self._clear_leftovers()
            try:
                yield
            finally:
                lock.truncate(0)

    def commit(self, vectors: np.ndarray, items: Sequence[NewItem], bad: Iterable[BadFile]) -> None:
        """Add items with their vectors, float32 [n, D], and bad files, in one step.

        An item takes the place of a live one with the same path; a path found bad loses its item, for its
        picture is no longer what was embedded.
        """
        segment = self._write_segment(vectors) if len(items) else None
        when = now()
        with _connect(self.folder) as db:
            if segment is not None:
                insert = "INSERT INTO segments (file, n, sha256, bytes) VALUES (?, ?, ?, ?)"
                seg = db.execute(insert, segment).lastrowid
                keys = [item.stamp.key for item in items]
                db.executemany(_DELETE_ITEM, [(when, *key) for key in keys])
                db.executemany("DELETE FROM bad WHERE root = ? AND path = ?", keys)
                db.executemany(_INSERT_ITEM, [_item_row(item, seg, row) for row, item in enumerate(items)])
            for file in bad:
                db.execute(_DELETE_ITEM, (when, *file.stamp.key))
                s = file.stamp
                db.execute(_INSERT_BAD, (s.root, s.path, file.reason, file.detail, s.size, s.mtime_ns, when))

    def activate_index(self, folder: str, sha256: str, kind: str, covers_upto_seg: int, n: int) -> None:
        """Make a finished index the one in use; the one before it stays on disk for its readers."""
        values = (folder, sha256, kind, covers_upto_seg, n)
        with _connect(self.folder) as db:
            db.execute("DELETE FROM indexes WHERE active = 0")
            db.execute("UPDATE indexes SET active = 0")
            db.execute(_INSERT_INDEX, values)

    def record_run(
        self, command: str, started: str, counts: Mapping[str, int], versions: Mapping[str, str]
    ) -> None:
        """Note what was done to this gallery, when and with what."""
        with _connect(self.folder) as db:
            insert = "INSERT INTO runs (command, started, ended, counts, versions) VALUES (?, ?, ?, ?, ?)"
            db.execute(insert, (command, started, now(), json.dumps(counts), json.dumps(versions)))

    def _write_segment(self, vectors: np.ndarray) -> tuple[str, int, str, int]:
        path = self.folder / "segments" / f"{uuid.uuid4().hex}.npy"
        with replacing(path) as draft, draft.open("wb") as file:
            np.save(file, vectors.astype(np.float32, copy=False), allow_pickle=False)
        return path.name, len(vectors), sha256_of(path), path.stat().st_size

    def _clear_leftovers(self) -> None:
        named = {file for _, file, _ in self.segments()} | {
            row[0] for row in self.rows("SELECT dir FROM indexes")
        }
        for entry in [*(self.folder / "segments").iterdir(), *(self.folder / "indexes").iterdir()]:
            if entry.name not in named:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


_SEGMENTS = "SELECT seg, file, n FROM segments ORDER BY seg"
_INSERT_INDEX = (
    "INSERT INTO indexes (dir, sha256, kind, covers_upto_seg, n, active) VALUES (?, ?, ?, ?, ?, 1)"
)
_DELETE_ITEM = "UPDATE items SET deleted_at = ? WHERE root = ? AND path = ? AND deleted_at IS NULL"
_INSERT_ITEM = (
    "INSERT INTO items (root, path, size, mtime_ns, content_sha256, width, height, label, seg, row, meta) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_BAD = (
    "INSERT INTO bad VALUES (?, ?, ?, ?, ?, ?, 1, ?) ON CONFLICT (root, path) DO UPDATE SET "
    "reason = excluded.reason, detail = excluded.detail, size = excluded.size, mtime_ns = excluded.mtime_ns, "
    "attempts = attempts + 1, last_seen = excluded.last_seen"
)


def _item_row(item: NewItem, seg: int | None, row: int) -> tuple[Any, ...]:
    s, meta = item.stamp, json.dumps(dict(item.metadata))
    what = (item.content_sha256, item.width, item.height, s.label)
    return (s.root, s.path, s.size, s.mtime_ns, *what, seg, row, meta)


@contextmanager
def _connect(folder: Path) -> Iterator[sqlite3.Connection]:
    """One connection for one transaction: committed at the end, rolled back on an error."""
    db = sqlite3.connect(folder / "gallery.db", timeout=30)
    try:
        db.execute("PRAGMA synchronous = FULL")
        with db:
            yield db
    except sqlite3.DatabaseError as error:
        raise LookalikeError(f"{folder}: the gallery's database failed ({error})") from error
    finally:
        db.close()


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
    _sync_folder(path.parent)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def now() -> str:
    """This instant, ISO 8601, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
