"""Facts about items of a gallery in a database, copied beside the files that they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Lock

from retrieval.storage.planning import ImageFile, ItemPlace, ItemTable
from retrieval.storage.records import BadFile, StoredItem

_TABLES = """
ATTACH '' AS gallery;
PRAGMA gallery.journal_mode = OFF; PRAGMA gallery.synchronous = OFF;
CREATE TABLE gallery.items (id INTEGER PRIMARY KEY, key TEXT, root TEXT, path TEXT, size INTEGER,
    mtime_ns INTEGER, content_sha256 TEXT, width INTEGER, height INTEGER, label TEXT, vector INTEGER,
    deleted_at TEXT);
CREATE INDEX gallery.item_path ON items (root, path);
CREATE INDEX gallery.item_content ON items (content_sha256);
CREATE INDEX gallery.removed_item ON items (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE TABLE gallery.bad (root TEXT, path TEXT, reason TEXT, detail TEXT, size INTEGER, mtime_ns INTEGER);
"""
_INSERT = "INTO gallery.items VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)"


class Mirror(ItemTable):
    """Copies of items. Unlike a gallery in files, the database does not record unusable files.

    Attributes:
        closed: Whether it was closed.

    Args:
        folder: Gallery folder.
        find: Function that returns the items that have some keys; `None` if all items are put here.
    """

    def __init__(self, folder: Path, find: Callable[[Sequence[str]], list[StoredItem]] | None = None) -> None:
        super().__init__(folder)
        self._find, self._lock, self.closed = find, Lock(), False
        self.run_script(_TABLES)

    def close(self) -> None:
        """Delete the temporary database."""
        self.closed = True
        super().close()

    def look_up(self, files: Sequence[ImageFile | BadFile]) -> None:
        """Copy the items that the files may have, by the given key, the path or the whole path."""
        if self._find is None:
            return
        keys: set[str] = set()
        for file in files:
            if isinstance(file, ImageFile):
                keys |= {file.path, file.full.as_posix()} if file.id is None else {file.id}
        if keys:
            self._insert("OR IGNORE", self._find(sorted(keys)), True)

    def put(self, items: Iterable[StoredItem], *, embedded: bool = True) -> None:
        """Copy items; those whose vector is damaged count as not embedded."""
        self._insert("OR REPLACE", items, embedded)

    def _insert(self, how: str, items: Iterable[StoredItem], embedded: bool) -> None:
        rows = ((*item[:10], 1 if embedded else None) for item in items)
        with self._lock, self.errors():
            self.db.execute("BEGIN")
            self.db.executemany(f"INSERT {how} {_INSERT}", rows)
            self.db.execute("COMMIT")

    def remove(self, ids: Iterable[int]) -> None:
        """Forget items."""
        with self._lock, self.errors():
            self.db.executemany("DELETE FROM gallery.items WHERE id = ?", ((number,) for number in ids))

    def known(self, digest: str) -> list[ItemPlace]:
        """Return the copied items with these bytes; see `ItemTable`."""
        query = (
            "SELECT id, key, root, path, label, width, height FROM gallery.items "
            "WHERE content_sha256 = ? AND content_sha256 != '' AND vector IS NOT NULL ORDER BY id"
        )
        with self._lock:
            return [ItemPlace(*row) for row in self.select(query, (digest,))]

    def ids_at(self, root: str, path: str) -> list[int]:
        """Return the ids of the copied items of a file."""
        query = "SELECT id FROM gallery.items WHERE root = ? AND path = ?"
        with self._lock:
            return [number for (number,) in self.select(query, (root, path))]

    def roots(self) -> list[str]:
        """Return the roots of the items; none if they are copied only when their files are compared."""
        return super().roots() if self._find is None else []
