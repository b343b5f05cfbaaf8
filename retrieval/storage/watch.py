"""The state last committed to a gallery, and whether there is a newer one."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.storage import database
from retrieval.storage.records import ActiveIndex, Segment, State

SEGMENTS = "SELECT seg, file, n, sha256, bytes, rows_sha256 FROM segments ORDER BY seg"
_REMOVED = "SELECT id FROM items WHERE deleted_at IS NOT NULL AND seg IS NOT NULL ORDER BY id"
_INDEX = "SELECT dir, sha256, kind, n, card_sha256 FROM indexes"


class Watch:
    """One connection that stays open, which costs a few microseconds to ask; threads may share it.

    Raises:
        LookalikeError: the gallery is gone from the disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._opened = self._inode()
        with database.told(folder):
            self._db = database.connect(folder)
        weakref.finalize(self, self._db.close)
        self._seen = (0, 0)

    def state(self) -> State:
        """The state last committed, all of it seen at the same instant; `changed()` counts from here."""
        with self._lock, database.told(self._folder):
            self._db.execute("BEGIN")
            try:
                segments = tuple(Segment(*row) for row in self._db.execute(SEGMENTS))
                removed = self._db.execute(_REMOVED).fetchall()
                index = self._db.execute(_INDEX).fetchone()
                self._seen = self._version()
            finally:
                self._db.execute("ROLLBACK")
        ids = np.array(removed, np.int64).reshape(-1)
        return State(segments, ids, ActiveIndex(*index) if index else None)

    def changed(self) -> bool:
        """Whether anything was committed since `state()`, or another gallery took this one's place."""
        with self._lock, database.told(self._folder):
            return self._version() != self._seen

    def replaced(self) -> bool:
        """Whether another gallery lies in this one's place since it was opened."""
        # As long as the connection is open, no other file can be given its number.
        return self._inode() != self._opened

    def _version(self) -> tuple[int, int]:
        """Differs after every commit, and where another gallery lies in this place."""
        return self._inode(), self._db.execute("PRAGMA data_version").fetchone()[0]

    def _inode(self) -> int:
        try:
            return (self._folder / "gallery.db").stat().st_ino
        except FileNotFoundError:
            # Without its path: the page of a server shows this to whoever searches there.
            raise LookalikeError(
                "the gallery is gone from the disk: restore it, or stop what uses it"
            ) from None
