"""SQLite file of a gallery: connections, atomic transactions, and a checksum over the small tables."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retrieval.errors import LookalikeError
from retrieval.storage import functions

_SCHEMA = "SELECT name, sql FROM sqlite_master ORDER BY name"
_SEALED = ("meta", "segments", "indexes", "bad", "runs", "sqlite_sequence")


@contextmanager
def reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection that reads one committed state."""
    with convert_errors(folder):
        db = connect(folder)
        try:
            db.execute("BEGIN")
            yield db
        finally:
            db.close()


@contextmanager
def writing(folder: Path) -> Iterator[sqlite3.Connection]:
    """Run one transaction: committed and flushed to disk at the end, or rolled back."""
    with convert_errors(folder):
        db = connect(folder)
        try:
            # EXTRA: the commit is on disk before anything relies on it, such as the removal of old files.
            db.execute("PRAGMA synchronous = EXTRA")
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("INSERT OR REPLACE INTO meta VALUES ('seal', ?)", (json.dumps(seal(db)),))
            db.execute("COMMIT")
        finally:
            db.close()


def connect(folder: Path) -> sqlite3.Connection:
    """Open the database, read-only if it cannot be written; it is never created."""
    file = folder / "gallery.db"
    # A reader with write permission also rolls back the transaction of a killed writer.
    mode = "rw" if os.access(file, os.W_OK) and os.access(folder, os.W_OK) else "ro"
    uri = f"{file.absolute().as_uri()}?mode={mode}"
    db = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False)
    functions.register(db)
    return db


def seal(db: sqlite3.Connection) -> str:
    """Return the SHA-256 over the small tables and the schema; it shows damage that SQLite misses."""
    digest = hashlib.sha256()
    queries = [_SCHEMA, *(f"SELECT * FROM {table} ORDER BY 1, 2" for table in _SEALED)]
    for query in queries:
        for row in db.execute(query):
            if row[0] != "seal":
                digest.update(repr(row).encode())
    return digest.hexdigest()


def sealed(db: sqlite3.Connection) -> bool:
    """Return whether the small tables match the checksum of the last transaction."""
    found = db.execute("SELECT value FROM meta WHERE key = 'seal'").fetchone()
    return found is not None and found[0] == json.dumps(seal(db))


@contextmanager
def convert_errors(folder: Path) -> Iterator[None]:
    """Convert errors of SQLite into `LookalikeError`."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise LookalikeError(f"{folder}: the gallery's database failed ({error})") from error
