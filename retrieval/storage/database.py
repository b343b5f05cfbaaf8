"""SQLite file of a gallery: connections, atomic transactions, and a checksum over the small tables.

The checksum covers the tables whose size does not grow with the items or with the number of runs; the rows of
the others have checksums of their own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from retrieval.errors import LockedError, LookalikeError
from retrieval.storage import functions, schema

_SCHEMA = "SELECT name, sql FROM sqlite_master ORDER BY name"
_SEALED = ("meta", "segments", "indexes", "sqlite_sequence")
# Pages of a transaction that stay in memory: if they did not fit, readers would have to wait until its end.
_CACHE_KIB = 512 * 1024
_IDLE = 8  # open connections that a reader keeps
_PATIENCE = 30  # seconds for another process to unlock the database
_READER_CACHE = "PRAGMA cache_size = -16384"  # in kB: the facts about 50,000 items


class Reader:
    """Thread-safe pool of open connections for reading.

    Args:
        folder: Gallery folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._idle: list[tuple[int, sqlite3.Connection]] = []
        weakref.finalize(self, _close, self._idle)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Read one committed state, in a transaction that ends with the block."""
        with self.connection() as db:
            db.execute("BEGIN")
            yield db
            db.execute("ROLLBACK")

    def select(self, query: str, values: Sequence[Any]) -> list[Any]:
        """Return the rows of one query."""
        with self.connection() as db:
            return db.execute(query, values).fetchall()

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection, for one query, which needs no transaction around it."""
        kept = self._take()
        try:
            db = kept[1] if kept else connect(self._folder)
            try:
                if not kept:
                    db.execute(_READER_CACHE)
                yield db
            except BaseException:
                db.close()
                raise
        except sqlite3.DatabaseError as error:
            raise _failed(self._folder, error) from error
        # One that was opened without permission to write cannot roll back the transaction of a killed writer.
        if kept or (len(self._idle) < _IDLE and is_writable(self._folder)):
            self._idle.append(kept or (os.getpid(), db))
        else:
            db.close()

    def _take(self) -> tuple[int, sqlite3.Connection] | None:
        """Return an idle connection of this process; a connection does not survive a fork."""
        process = os.getpid()
        while self._idle:
            kept = self._idle.pop()
            if kept[0] == process:
                return kept
        return None


def _close(idle: list[tuple[int, sqlite3.Connection]]) -> None:
    for process, db in idle:
        if process == os.getpid():
            db.close()


@contextmanager
def writing(folder: Path) -> Iterator[sqlite3.Connection]:
    """Run one transaction: committed and flushed to disk at the end, or rolled back."""
    with convert_errors(folder):
        db = connect(folder)
        try:
            # EXTRA: the commit is on disk before anything relies on it, such as the removal of old files.
            db.execute("PRAGMA synchronous = EXTRA")
            db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("INSERT OR REPLACE INTO meta VALUES ('seal', ?)", (json.dumps(seal(db)),))
            db.execute("COMMIT")
        finally:
            db.close()


def create(folder: Path) -> None:
    """Create an empty database."""
    (folder / "gallery.db").touch()
    with closing(connect(folder)) as db:
        db.executescript(schema.TABLES)
        schema.create_indexes(db)


def connect(folder: Path) -> sqlite3.Connection:
    """Open the database, read-only if it cannot be written; it is never created."""
    db = sqlite3.connect(
        _uri(folder), uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
    )
    functions.register(db)
    return db


def attach(db: sqlite3.Connection, folder: Path, name: str) -> None:
    """Attach the database for reading, as schema `name`, to a connection that was opened with `uri=True`."""
    with convert_errors(folder):
        db.execute("ATTACH ? AS ?", (_uri(folder), name))


def _uri(folder: Path) -> str:
    # A reader with write permission also rolls back the transaction of a killed writer.
    mode = "rw" if is_writable(folder) else "ro"
    return f"{(folder / 'gallery.db').absolute().as_uri()}?mode={mode}"


def is_writable(folder: Path) -> bool:
    """Return whether this process may write to the database."""
    return os.access(folder / "gallery.db", os.W_OK) and os.access(folder, os.W_OK)


def last_given(db: sqlite3.Connection, table: str) -> int:
    """Return the highest number that a row of a table ever had; 0 before the first."""
    found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
    return whole_number(found[0]) if found else 0


def whole_number(value: Any) -> int:
    """Return a number of the small tables.

    Raises:
        LookalikeError: It is none, though the checksum is right: the file is from somebody else.
    """
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        what = f"the gallery's database is damaged ({value!r:.40} is no number)"
        raise LookalikeError(f"{what}; restore it from a copy") from error


def continue_after(db: sqlite3.Connection, table: str, last: int) -> None:
    """Number the next row of a table after the last one that it ever had."""
    db.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
    db.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (table, last))


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


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Return whether an error shows a damaged file, rather than a busy or unreadable one."""
    damage = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    code: int | None = getattr(error, "sqlite_errorcode", None)
    # Missing tables, as in an empty file, and broken text have only a message.
    is_damage = re.match("no such (table|column)|Could not decode", str(error)) is not None
    return is_damage or (code is not None and code & 0xFF in damage)


@contextmanager
def convert_errors(folder: Path) -> Iterator[None]:
    """Convert errors of SQLite into `LookalikeError`."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise _failed(folder, error) from error


def _failed(folder: Path, error: sqlite3.DatabaseError) -> LookalikeError:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF == sqlite3.SQLITE_BUSY:
        what = f"another process has kept the gallery's database locked for {_PATIENCE} seconds"
        return LockedError(f"{folder}: {what}; let it go on or end it, then try again")
    hint = f"; run `lookalike index verify {folder} --repair`" if is_damage(error) else ""
    return LookalikeError(f"{folder}: the gallery's database failed ({error}){hint}")
