"""Change detection: the committed state of a gallery, and whether there is a newer one."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.storage import database
from retrieval.storage.records import ActiveIndex, GalleryState, Segment

SEGMENTS = "SELECT seg, file, n, sha256, bytes, rows_sha256 FROM segments ORDER BY seg"
_REMOVED = "SELECT id FROM items WHERE deleted_at IS NOT NULL AND seg IS NOT NULL ORDER BY id"
_INDEX = "SELECT dir, sha256, kind, n, card_sha256 FROM indexes"


class Watch:
    """Open connection to a gallery, on which a check for changes takes microseconds. Thread-safe.

    Args:
        folder: Gallery folder.

    Raises:
        LookalikeError: The gallery was deleted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._opened = self._inode()
        with database.convert_errors(folder):
            self._db = database.connect(folder)
        weakref.finalize(self, self._db.close)
        self._seen = (0, 0)

    def state(self) -> GalleryState:
        """Return the committed state, read in one transaction; `changed()` compares with it from now on."""
        with self._lock, database.convert_errors(self._folder):
            self._db.execute("BEGIN")
            try:
                segments = tuple(Segment(*row) for row in self._db.execute(SEGMENTS))
                removed = self._db.execute(_REMOVED).fetchall()
                index = self._db.execute(_INDEX).fetchone()
                self._seen = self._version()
            finally:
                self._db.execute("ROLLBACK")
        ids = np.array(removed, np.int64).reshape(-1)
        return GalleryState(segments, ids, ActiveIndex(*index) if index else None)

    def changed(self) -> bool:
        """Return whether anything was committed since `state()`, or the folder holds another gallery now."""
        with self._lock, database.convert_errors(self._folder):
            return self._version() != self._seen

    def replaced(self) -> bool:
        """Return whether the folder holds another gallery than when it was opened."""
        # While the connection is open, no other file can get its inode number.
        return self._inode() != self._opened

    def _version(self) -> tuple[int, int]:
        """Return a value that differs after every commit, and for another gallery in this folder."""
        return self._inode(), self._db.execute("PRAGMA data_version").fetchone()[0]

    def _inode(self) -> int:
        try:
            return (self._folder / "gallery.db").stat().st_ino
        except FileNotFoundError:
            # Without its path: a server shows this message to its visitors.
            raise LookalikeError(
                "the gallery was deleted: restore it, or stop the processes that use it"
            ) from None
