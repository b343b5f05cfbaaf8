"""The SQLite file of a gallery: transactions that either happen or do not, and a seal on the small tables."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retrieval.errors import LookalikeError

_SCHEMA = "SELECT name, sql FROM sqlite_master ORDER BY name"
_SEALED = ("meta", "segments", "indexes", "bad", "runs", "sqlite_sequence")


@contextmanager
def reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """A connection that sees one committed state."""
    with told(folder):
        db = connect(folder)
        try:
            db.execute("BEGIN")
            yield db
        finally:
            db.close()


@contextmanager
def writing(folder: Path) -> Iterator[sqlite3.Connection]:
    """One transaction: committed and on the disk at the end, or never begun."""
    with told(folder):
        db = connect(folder)
        try:
            # EXTRA: the commit is on the disk before anything relies on it, such as the removal of old files.
            db.execute("PRAGMA synchronous = EXTRA")
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("INSERT OR REPLACE INTO meta VALUES ('seal', ?)", (json.dumps(seal(db)),))
            db.execute("COMMIT")
        finally:
            db.close()


def connect(folder: Path) -> sqlite3.Connection:
    """Open the database, read-only where it cannot be written; never makes one."""
    file = folder / "gallery.db"
    # A reader who may write also undoes what a killed writer left half done.
    mode = "rw" if os.access(file, os.W_OK) and os.access(folder, os.W_OK) else "ro"
    uri = f"{file.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False)


def seal(db: sqlite3.Connection) -> str:
    """SHA-256 over the small tables and the layout of all: shows damage that SQLite does not notice."""
    digest = hashlib.sha256()
    queries = [_SCHEMA, *(f"SELECT * FROM {table} ORDER BY 1, 2" for table in _SEALED)]
    for query in queries:
        for row in db.execute(query):
            if row[0] != "seal":
                digest.update(repr(row).encode())
    return digest.hexdigest()


def sealed(db: sqlite3.Connection) -> bool:
    """Whether the small tables are as the last transaction left them."""
    found = db.execute("SELECT value FROM meta WHERE key = 'seal'").fetchone()
    return found is not None and found[0] == json.dumps(seal(db))


@contextmanager
def told(folder: Path) -> Iterator[None]:
    """Turn a failure of SQLite into one of ours."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise LookalikeError(f"{folder}: the gallery's database failed ({error})") from error
