"""Change detection: the committed state of a gallery, and whether there is a newer one."""

from __future__ import annotations

import os
import threading
import time
import weakref
from pathlib import Path
from typing import NamedTuple

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.storage import database
from retrieval.storage.records import ActiveIndex, GalleryState, Segment

# The mark of a segment is in the table `meta`, whose rows earlier versions leave alone.
SEGMENTS = (
    "SELECT seg, file, n, first, last, CAST(meta.value AS INTEGER) FROM segments "
    "LEFT JOIN meta ON meta.key = 'rows ' || file ORDER BY seg"
)
_INDEX = "SELECT dir, sha256, kind, n, last, card_sha256 FROM indexes"
# One text instead of a Python object for each of many numbers.
_CHANGES = (
    "SELECT group_concat(dead), group_concat(CASE WHEN dead IS NULL THEN item END) FROM changes WHERE n > ?"
)


_TICK = 1_000_000_000  # nanoseconds, more than between two times of any file system


class _Status(NamedTuple):
    """Status of the database file."""

    inode: int
    size: int
    modified: int
    changed: int


def inode_of(folder: Path) -> int:
    """Return the inode number of the database of a gallery.

    Raises:
        LookalikeError: The gallery was deleted.
    """
    return _status(str(folder / "gallery.db")).inode


def _status(name: str) -> _Status:
    try:
        found = os.stat(name)
        return _Status(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    except FileNotFoundError:
        # Without its path: a server shows this message to its visitors.
        raise LookalikeError(
            "the gallery was deleted: restore it, or stop the processes that use it"
        ) from None


class Watch:
    """Open connection to a gallery, on which a check for changes takes microseconds. Thread-safe.

    Args:
        folder: Gallery folder.
        inode: Inode number of the database when the gallery was opened, as by `inode_of`; by default the
            present one.

    Raises:
        LookalikeError: The gallery was deleted.
    """

    def __init__(self, folder: Path, inode: int | None = None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._name = str(folder / "gallery.db")
        self._quiet: _Status | None = None  # of the state that was seen
        self._opened = self._inode() if inode is None else inode
        with database.convert_errors(folder):
            self._db = database.connect(folder)
        weakref.finalize(self, self._db.close)
        self._seen = (0, 0)
        self._oldest: int | None = None  # entry of the log
        self._dead = self._amended = np.empty(0, np.int64)
        self._log = 0

    def state(self) -> GalleryState:
        """Return the committed state, read in one transaction; `changed()` compares with it from now on."""
        with self._lock, database.convert_errors(self._folder):
            if self._db.in_transaction:  # its end failed, as on an error of the disk
                self._db.execute("ROLLBACK")
            self._db.execute("BEGIN")
            try:
                segments = tuple(Segment(*row) for row in self._db.execute(SEGMENTS))
                index = self._db.execute(_INDEX).fetchone()
                self._read_log()
                self._seen, self._quiet = self._version(), None
            finally:
                self._db.execute("ROLLBACK")
            active = ActiveIndex(*index) if index else None
            return GalleryState(segments, self._dead, active, self._log, self._amended)

    def _read_log(self) -> None:
        """Read the changes that are new since the last time; all of them after a compaction."""
        (oldest,) = self._db.execute("SELECT min(n) FROM changes").fetchone()
        if oldest is None or oldest != self._oldest:
            self._oldest, self._log = oldest, 0
            self._dead = self._amended = self._dead[:0]
        dead, amended = self._db.execute(_CHANGES, (self._log,)).fetchone()
        self._dead, self._amended = _longer(self._dead, dead), _longer(self._amended, amended)
        self._log = database.last_given(self._db, "changes")

    def changed(self) -> bool:
        """Return whether anything was committed since `state()`, or the folder holds another gallery now."""
        status = self._status()
        if status == self._quiet:
            return False
        with self._lock, database.convert_errors(self._folder):
            changed = self._version() != self._seen or status.inode != self._opened
            # Whatever is written from now on gives the file another time than one that is a second ago.
            if not changed and abs(time.time_ns() - status.modified) > _TICK:
                self._quiet = status
            return changed

    def _version(self) -> tuple[int, int]:
        """Return a value that differs after every commit, and for another gallery in this folder."""
        return self._inode(), self._db.execute("PRAGMA data_version").fetchone()[0]

    def _inode(self) -> int:
        return self._status().inode

    def _status(self) -> _Status:
        """Return what differs after a commit, and a little later than the one before, without a query."""
        return _status(self._name)


def _longer(numbers: np.ndarray, more: str | None) -> np.ndarray:
    """Return numbers, int64 [n], followed by those of a text."""
    return np.concatenate([numbers, np.fromstring(more, np.int64, sep=",")]) if more else numbers
