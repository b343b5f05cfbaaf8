"""Comparison of files with the items of a gallery, in a temporary database on disk.

The files of a run may be many millions, so they are never in memory together: they are written to a private
SQLite database (below $SQLITE_TMPDIR, $TMPDIR or /var/tmp; removed with the process) and joined with the
gallery's items by root and path. Only files that need work are kept there. Each statement reads the gallery
for a limited number of rows, so that no read transaction stays open. Of a gallery in a database, the items
are copied there; see `retrieval.storage.mirror`.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from retrieval.errors import ImageError, LookalikeError
from retrieval.images import boxes
from retrieval.storage import database
from retrieval.storage.records import UPLOADS, BadFile, FileStamp, Value
from retrieval.storage.schema import (
    AT_PLACES,
    KEPT,
    LISTED,
    LIVE,
    OF_PICTURE,
    PICTURE_PATH,
    SEARCHABLE,
    of_picture,
)
from retrieval.storage.store import Store, last_number

_PAGE = 1000  # rows read at a time
_RANGE = 100_000  # items compared by one statement
_CACHE_KIB = 16 * 1024
_KEPT = KEPT.format("gallery")

# What a file needs.
_TODO, _CHECK, _DESCRIBED, _KNOWN_BAD, _UNUSABLE, _MOVED, _CANDIDATE, _DONE = range(1, 9)

_NO_METADATA: Mapping[str, Value] = {}


class ImageFile(NamedTuple):
    """An image file with the metadata given by the user.

    Attributes:
        root: Folder that the path is relative to.
        path: Path below the root, with "/" as the separator.
        size: Size in bytes.
        mtime_ns: Modification time in nanoseconds.
        label: Label, if any.
        id: Key given by the user; `None` for the path.
        metadata: Values by column.
        has_own_label: The label was given by the user, and is not just the name of the folder.
    """

    root: str
    path: str
    size: int
    mtime_ns: int
    label: str | None = None
    id: str | None = None
    metadata: Mapping[str, Value] = _NO_METADATA
    has_own_label: bool = False

    @property
    def full(self) -> Path:
        """Path of the file, root included."""
        return Path(self.root, self.path)

    @property
    def stamp(self) -> FileStamp:
        """The file without its metadata."""
        return FileStamp(*self[:5])


class ExistingItem(NamedTuple):
    """The live item of an image file when the run was planned.

    Attributes:
        id: Item id.
        key: Item key.
        label: Label, if any.
    """

    id: int
    key: str
    label: str | None


class ItemPlace(NamedTuple):
    """A live item with the place of its file.

    Attributes:
        id: Item id.
        key: Item key.
        root: Folder that the path is relative to.
        path: Path below the root.
        label: Label, if any.
        width, height: Image size in pixels.
    """

    id: int
    key: str
    root: str
    path: str
    label: str | None
    width: int
    height: int


class PictureItem(NamedTuple):
    """A live item of a picture: of itself, or of a part of it.

    Attributes:
        id: Item id.
        box: Fragment of the part; empty for the picture itself.
        version: Size in bytes and modification time of the file when it was embedded.
    """

    id: int
    box: str
    version: tuple[int, int]


class PictureParts(NamedTuple):
    """A picture of which parts are items.

    Attributes:
        root: Folder that the path is relative to.
        path: Path below the root.
        size: Size of the file in bytes, when the first part was embedded.
        content: `content_sha256` of the first part.
        boxes: Fragments of the parts; an empty one behind them if the picture is an item itself.
    """

    root: str
    path: str
    size: int
    content: str
    boxes: list[str]


_SETTINGS = f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -{_CACHE_KIB};"
_TABLES = """
CREATE TABLE chunk (n INTEGER PRIMARY KEY, root TEXT, path TEXT, size INTEGER, mtime_ns INTEGER, label TEXT,
    key TEXT, metadata TEXT, own_label INTEGER, reason TEXT, detail TEXT);
CREATE TABLE verdicts (n INTEGER PRIMARY KEY, state INTEGER, item INTEGER, item_key TEXT, item_label TEXT);
CREATE TABLE files (n INTEGER PRIMARY KEY, root TEXT, path TEXT, size INTEGER, mtime_ns INTEGER, label TEXT,
    key TEXT, metadata TEXT, own_label INTEGER, reason TEXT, detail TEXT,
    state INTEGER, item INTEGER, item_key TEXT, item_label TEXT);
CREATE TABLE listed (path TEXT PRIMARY KEY, n INTEGER) WITHOUT ROWID;
CREATE TABLE added (content TEXT);
CREATE TABLE gone (item INTEGER PRIMARY KEY, key TEXT, root TEXT, path TEXT, label TEXT, width INTEGER,
    height INTEGER, size INTEGER, content TEXT, n INTEGER UNIQUE);
CREATE INDEX gone_content ON gone (content);
CREATE INDEX gone_size ON gone (size);
"""
_FULL = "rtrim(root, '/') || '/' || path"
_NOTHING_GIVEN = (None, _NO_METADATA, False)  # key, metadata and label of a file, by the user
# Items without a vector have no size that a file has.
_ITEMS_BETWEEN = (
    "SELECT path, id, CASE WHEN vector IS NULL THEN -1 ELSE size END, mtime_ns FROM gallery.items AS items "
    f"WHERE root = ? AND path BETWEEN ? AND ? AND {LIVE} AND path != '' LIMIT ?"
)
_UNREACHABLE = ", ".join(f"'{reason}'" for reason in ImageError.UNREACHABLE)
# Several items may have the same file: the one with the given key, or else the newest, counts.
_COMPARE = f"""
INSERT INTO verdicts SELECT n, CASE
    WHEN chunk.reason IS NOT NULL THEN {_UNUSABLE}
    WHEN ({SEARCHABLE}) AND coalesce(chunk.key = items.key, 1)
        AND items.size = chunk.size AND items.mtime_ns = chunk.mtime_ns
        THEN CASE WHEN :checksum THEN {_CHECK}
                  WHEN chunk.own_label OR chunk.metadata IS NOT NULL THEN {_DESCRIBED} END
    WHEN NOT :retry AND bad.size = chunk.size AND bad.mtime_ns = chunk.mtime_ns
        AND bad.reason NOT IN ({_UNREACHABLE}) THEN {_KNOWN_BAD}
    ELSE {_TODO} END, items.id, items.key, items.label
FROM chunk
LEFT JOIN gallery.items AS items ON items.root = chunk.root AND items.path = chunk.path AND {LIVE}
    AND items.path != ''
LEFT JOIN gallery.bad AS bad ON bad.root = chunk.root AND bad.path = chunk.path
WHERE true ORDER BY n, items.key IS chunk.key, items.id
ON CONFLICT (n) DO UPDATE SET state = excluded.state, item = excluded.item, item_key = excluded.item_key,
    item_label = excluded.item_label
"""
_FILE = "root, path, size, mtime_ns, label, key, metadata, own_label"
_FILE_COLUMNS = ", ".join(f"files.{name}" for name in _FILE.split(", "))


class ItemTable(ABC):
    """Items that files are compared with: the schema `gallery` of a private temporary database.

    Attributes:
        folder: Gallery folder.
        uploads: Folder of the uploaded image files.
        db: Connection to the database; the schema has the tables `items` and `bad`.

    Args:
        folder: Gallery folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.uploads = folder, folder.resolve() / UPLOADS
        self.db = sqlite3.connect("", uri=True, isolation_level=None, check_same_thread=False)
        self.run_script(_SETTINGS)

    def close(self) -> None:
        """Delete the temporary database."""
        self.db.close()

    @abstractmethod
    def look_up(self, files: Sequence[ImageFile | BadFile]) -> None:
        """Prepare for the comparison of some files."""

    @abstractmethod
    def known(self, digest: str) -> list[ItemPlace]:
        """Return the items with a vector whose file has a SHA-256, oldest first. Thread-safe."""

    def roots(self) -> list[str]:
        """Return the roots of the live items' files, by looking up one item of each root."""
        step = f"SELECT min(root) FROM gallery.items AS items WHERE {_KEPT} AND path != ''"
        query = (
            f"WITH RECURSIVE found (root) AS ({step} UNION ALL SELECT ({step} AND root > found.root) FROM "
            "found WHERE found.root IS NOT NULL) SELECT root FROM found WHERE root IS NOT NULL"
        )
        return [root for (root,) in self.select(query)]

    def item_files(self, after: int) -> list[tuple[int, str, str]]:
        """Return id, root and path of the next live items that have a file, by id; none at the end.

        Args:
            after: Id below the first one.
        """
        some = f"ORDER BY id LIMIT {10 * _PAGE}"
        chosen = f"{LIVE} AND path != '' AND id > ? {some}"
        return self.select(f"SELECT id, root, path FROM gallery.items AS items WHERE {chosen}", (after,))

    def parts(self) -> list[PictureParts]:
        """Return the pictures of which parts are live items."""
        mark = f"instr(items.path, '{boxes.MARK}')"
        picture = f"substr(items.path, 1, {mark} - 1)"
        query = (
            "SELECT root, path, size, content_sha256, EXISTS (SELECT 1 FROM gallery.items AS whole "
            f"WHERE whole.root = items.root AND whole.path = {picture} AND whole.path != '' "
            "AND whole.deleted_at IS NULL) FROM gallery.items AS items "
            f"WHERE {LIVE} AND {mark} > 1 ORDER BY id"
        )
        found: dict[tuple[str, str], PictureParts] = {}
        for root, path, size, content, has_whole in self.select(query):
            place, box = boxes.split(path)
            if box and (root, place) not in found:
                found[root, place] = PictureParts(root, place, size, content, [""] if has_whole else [])
            if box:
                found[root, place].boxes.insert(len(found[root, place].boxes) - has_whole, box)
        return [*found.values()]

    def has_namesake(self, image: ImageFile) -> bool:
        """Return whether another folder has a picture of the same relative path."""
        self.look_up([image])
        others = (root for root in ItemTable.roots(self) if root != image.root)
        return any(self.of_picture(root, image.path) for root in others)

    def of_picture(self, root: str, path: str) -> list[PictureItem]:
        """Return the live items of a picture, itself and its parts, by id."""
        query = f"SELECT id, path, size, mtime_ns FROM gallery.items AS items WHERE {OF_PICTURE} AND {LIVE}"
        rows = self.select(f"{query} ORDER BY id", of_picture(root, path))
        return [PictureItem(item, at[len(path) :], (size, time)) for item, at, size, time in rows]

    def select(self, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
        """Run a statement on either database and return its rows, all at once."""
        with self.errors():
            return self.db.execute(statement, values).fetchall()

    def run_script(self, statements: str) -> None:
        """Run statements without values."""
        with self.errors():
            self.db.executescript(statements)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert errors of either database; only the temporary one is written."""
        try:
            with database.convert_errors(self.folder):
                yield
        except LookalikeError as error:
            code = getattr(error.__cause__, "sqlite_errorcode", None)
            if code == sqlite3.SQLITE_FULL:
                raise LookalikeError(
                    "temporary database of the files: the disk is full; free some space, or name another "
                    "folder in the environment variable SQLITE_TMPDIR"
                ) from error
            raise


class StoreTable(ItemTable):
    """The items of a gallery in files, as they are in its database.

    Args:
        store: Store of the gallery.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store.folder)
        database.attach(self.db, store.folder, "gallery")
        self.run_script(f"PRAGMA gallery.cache_size = -{_CACHE_KIB}; PRAGMA busy_timeout = 30000")
        self._store = store
        self._oldest = (store.manifest.bridged or 0) + 1
        with store.reading() as db:
            self._newest = last_number(db)

    def look_up(self, files: Sequence[ImageFile | BadFile]) -> None:
        """Do nothing: all items are there."""

    def known(self, digest: str) -> list[ItemPlace]:
        """Return the items with these bytes, without vectors newer than this object; see `ItemTable`.

        Vectors that a map made are not copied: the copies would count as vectors of the model.
        """
        if not self._newest:
            return []
        query = (
            "SELECT id, key, root, path, label, width, height FROM items "
            f"WHERE content_sha256 = ? AND content_sha256 != '' AND {SEARCHABLE} AND vector BETWEEN ? AND ? "
            "ORDER BY id"
        )
        return [ItemPlace(*row) for row in self._store.select(query, (digest, self._oldest, self._newest))]


class Comparison:
    """Files and the items of a gallery that they are compared with.

    Attributes:
        table: The items.
        metadata_names: Names of all metadata columns of the files.
        below: Number of items compared by `find_gone`.

    Args:
        table: Items that the files are compared with; one comparison of each table.
        retry: Retry files that were unusable before, although they have not changed.
        checksum: Unchanged sizes and times do not count as unchanged: see `to_check`.
        distinct: Of several entries for the same file only the first one counts.
    """

    def __init__(
        self, table: ItemTable, *, retry: bool = False, checksum: bool = False, distinct: bool = False
    ) -> None:
        self.table, self._distinct = table, distinct
        self._options = {"retry": retry, "checksum": checksum}
        self.metadata_names: set[str] = set()
        self.below = 0
        self._unchanged = self._last = 0
        self._seen: list[np.ndarray] = []  # items of the files
        self._db, self._select, self._errors = table.db, table.select, table.errors
        table.run_script(_TABLES)

    # ---- files

    def add(self, files: Sequence[ImageFile | BadFile]) -> None:
        """Add files, or files that are known to be unusable without reading them."""
        self.table.look_up(files)
        rest = self._without_unchanged(files)
        if not rest:
            return
        self._fill(rest)
        insert = (
            "INSERT INTO files SELECT chunk.*, state, item, item_key, item_label FROM verdicts "
            "JOIN chunk USING (n) WHERE state IS NOT NULL"
        )
        seen = self._select("SELECT item FROM verdicts WHERE item IS NOT NULL")
        self._select(insert)
        ((unchanged,),) = self._select("SELECT count(*) FROM verdicts WHERE state IS NULL")
        self._note_seen([item for (item,) in seen])
        self._unchanged += unchanged

    def _without_unchanged(self, files: Sequence[ImageFile | BadFile]) -> Sequence[ImageFile | BadFile]:
        """Return the files without the unchanged ones, which are counted, if most of them are.

        Of files in one root about which the user says nothing, as those of a folder, size and time are
        compared in memory with those of the items between the first and the last path. `_COMPARE` decides
        about all others.
        """
        if self._distinct or self._options["checksum"] or {*map(type, files)} != {ImageFile}:
            return files
        images = cast("Sequence[ImageFile]", files)
        roots, paths = {*map(itemgetter(0), images)}, [*map(itemgetter(1), images)]
        if len(roots) > 1 or self._uploads_below(root := next(iter(roots))) is not None:
            return files
        most = len(paths) + _PAGE
        rows = self._select(_ITEMS_BETWEEN, (root, min(paths), max(paths), most))
        if len(rows) == most:  # items of other folders are in between
            return files
        # Of several items of a file, the newest counts.
        rows.sort(key=itemgetter(1))
        items = {path: (number, size, time) for path, number, size, time in rows}
        rest, seen = list[ImageFile | BadFile](), list[int]()
        for image in images:
            found = items.get(image[1])
            if found is None or found[1:] != image[2:4] or image[5:] != _NOTHING_GIVEN:
                rest.append(image)
            else:
                seen.append(found[0])
        self._note_seen(seen)
        self._unchanged += len(seen)
        self._last += len(seen)
        return rest

    def _note_seen(self, items: Sequence[int]) -> None:
        self._seen.append(np.array(items, np.int64))

    def add_candidates(self, files: Sequence[ImageFile | BadFile]) -> None:
        """Add files that count only as new places of moved files."""
        self.table.look_up(files)
        self._fill(files)
        self._select(
            f"INSERT INTO files SELECT chunk.*, {_CANDIDATE}, NULL, NULL, NULL FROM verdicts "
            f"JOIN chunk USING (n) WHERE state = {_TODO} AND item IS NULL"
        )

    def _fill(self, files: Sequence[ImageFile | BadFile]) -> None:
        prefixes: dict[str, str | None] = {}  # of the paths of uploads below a root
        rows = []
        for n, file in enumerate(files, self._last + 1):
            if isinstance(file, BadFile):
                s = file.stamp
                rows.append((n, *vars(s).values(), None, None, 0, file.reason, file.detail))
                continue
            root, path, size, mtime_ns, label, key, metadata, own = file
            values = None
            if metadata:
                values = json.dumps(dict(metadata))
                self.metadata_names.update(metadata)
            if root not in prefixes:
                prefixes[root] = self._uploads_below(root)
            if (prefix := prefixes[root]) is not None and path.startswith(prefix):
                root, path = UPLOADS, path[len(prefix) :]
            rows.append((n, root, path, size, mtime_ns, label, key, values, own, None, None))
        self._last += len(rows)
        with self._errors():
            self._write_chunk(rows)
        self._select(_COMPARE, self._options)

    def _write_chunk(self, rows: Sequence[Sequence[object]]) -> None:
        db = self._db
        db.execute("BEGIN")
        db.execute("DELETE FROM chunk")
        db.execute("DELETE FROM verdicts")
        db.executemany(f"INSERT INTO chunk VALUES ({', '.join('?' * 11)})", rows)
        if self._distinct:
            db.execute(
                f"INSERT OR IGNORE INTO listed SELECT {_FULL}, n FROM chunk WHERE reason IS NULL ORDER BY n"
            )
            repeated = (
                f"SELECT listed.n FROM listed WHERE listed.path = {_FULL.replace('path', 'chunk.path')}"
            )
            db.execute(f"DELETE FROM chunk WHERE reason IS NULL AND n != ({repeated})")
        db.execute("COMMIT")

    def _uploads_below(self, root: str) -> str | None:
        """Return the beginning of the paths of uploads below a root; `None` if they are not there."""
        uploads = self.table.uploads
        if not uploads.is_relative_to(root):
            return None
        return f"{uploads.relative_to(root).as_posix()}/" if str(uploads) != root else ""

    def _count(self, condition: str) -> int:
        return int(self._select(f"SELECT count(*) FROM files WHERE {condition}")[0][0])

    @property
    def unchanged(self) -> int:
        """Number of files that need no work, except perhaps a new label or new metadata."""
        return self._unchanged + self._count(f"state = {_DESCRIBED}")

    @property
    def file_count(self) -> int:
        """Number of entries that were added, candidates among them."""
        return self._last

    @property
    def todo_count(self) -> int:
        """Number of files to read, and to embed unless the gallery has embedded the same bytes."""
        return self._count(f"state = {_TODO}")

    @property
    def changed_count(self) -> int:
        """Number of files to read that have an item."""
        return self._count(f"state = {_TODO} AND item IS NOT NULL")

    def todo(self) -> Iterator[tuple[ImageFile, ExistingItem | None]]:
        """Yield the files to read with the item that each one has, in order."""
        for row in self._pages(f"{_FILE}, item, item_key, item_label", f"state = {_TODO}"):
            yield _image(row), None if row[8] is None else ExistingItem(*row[8:])

    def unusable(self) -> Iterator[tuple[BadFile, bool]]:
        """Yield the files that are unusable without reading them, and whether each has an item."""
        columns = "root, path, size, mtime_ns, label, reason, detail, item IS NOT NULL"
        for row in self._pages(columns, f"state = {_UNUSABLE}"):
            yield BadFile(FileStamp(*row[:5]), row[5], row[6]), bool(row[7])

    def known_bad(self) -> Iterator[BadFile]:
        """Yield the unusable files that have not changed since an earlier run."""
        query = (
            "SELECT files.n, bad.root, bad.path, bad.size, bad.mtime_ns, bad.reason, bad.detail FROM files "
            f"JOIN gallery.bad AS bad ON bad.root = files.root AND bad.path = files.path "
            f"WHERE state = {_KNOWN_BAD} AND files.n > ? ORDER BY files.n LIMIT {_PAGE}"
        )
        for row in self._paged(query):
            yield BadFile(FileStamp(*row[:4]), row[4], row[5])

    def described(self) -> Iterator[tuple[ImageFile, int]]:
        """Yield the unchanged files with a label or metadata given by the user, and the id of their item."""
        for row in self._pages(f"{_FILE}, item", f"state = {_DESCRIBED}"):
            yield _image(row), row[8]

    def metadata(self) -> Iterator[tuple[Path, Mapping[str, Value]]]:
        """Yield the path of each file with metadata, and the metadata."""
        for row in self._pages(_FILE, "metadata IS NOT NULL"):
            image = _image(row)
            yield image.full, image.metadata

    def repeated_key(self) -> str | None:
        """Return a key that the user gave to two files; `None` if there is none."""
        query = "SELECT key FROM files WHERE key IS NOT NULL GROUP BY key HAVING count(*) > 1 LIMIT 1"
        return next((key for (key,) in self._select(query)), None)

    def renamed(self) -> list[int]:
        """Return the ids of items whose file has an item with another key since, as given by the user."""
        query = (
            "SELECT files.item FROM files JOIN gallery.items AS items ON items.id = files.item "
            f"WHERE state = {_TODO} AND files.key != item_key AND {LIVE} AND items.key = item_key "
            "AND items.root = files.root AND items.path = files.path AND EXISTS (SELECT 1 "
            "FROM gallery.items AS new WHERE new.root = files.root AND new.path = files.path "
            "AND new.path != '' AND new.deleted_at IS NULL AND new.key = files.key)"
        )
        return [item for (item,) in self._select(query)]

    # ---- contents

    @property
    def check_count(self) -> int:
        """Number of files of `to_check`."""
        return self._count(f"state = {_CHECK}")

    def to_check(self) -> Iterator[tuple[int, ImageFile, str]]:
        """Yield number, file and recorded SHA-256 of each file with the size and time of its item."""
        query = (
            f"SELECT n, {_FILE_COLUMNS}, n, items.content_sha256 FROM files "
            "JOIN gallery.items AS items ON items.id = files.item "
            f"WHERE state = {_CHECK} AND n > ? ORDER BY n LIMIT {_PAGE}"
        )
        for row in self._paged(query):
            yield row[8], _image(row), row[9]

    def settle(self, verdicts: Iterable[tuple[int, bool]]) -> None:
        """Take the results of `to_check`: number of the file, and whether its bytes are the same."""
        state = (
            f"CASE WHEN NOT :same THEN {_TODO} WHEN own_label OR metadata IS NOT NULL THEN {_DESCRIBED} "
            f"ELSE {_DONE} END"
        )
        rows = [{"n": n, "same": same} for n, same in verdicts]
        with self._errors():
            self._db.execute("BEGIN")
            self._db.executemany(f"UPDATE files SET state = {state} WHERE n = :n", rows)
            done = self._db.execute(f"DELETE FROM files WHERE state = {_DONE}").rowcount
            self._db.execute("COMMIT")
        self._unchanged += done

    def note_added(self, contents: Sequence[str]) -> None:
        """Record the SHA-256 of files that were added to the gallery."""
        with self._errors():
            self._db.executemany("INSERT INTO added VALUES (?)", ((content,) for content in contents))

    def duplicates(self) -> list[list[str]]:
        """Return the keys of items with the same bytes, in groups that have at least one added item."""
        same = f"items.content_sha256 = fresh.content AND items.content_sha256 != '' AND {LIVE}"
        query = (
            "SELECT content, key FROM (SELECT DISTINCT content FROM added ORDER BY content) AS fresh "
            f"JOIN gallery.items AS items ON {same} WHERE EXISTS (SELECT 1 FROM gallery.items AS items "
            f"WHERE {same} LIMIT 1 OFFSET 1) ORDER BY content, items.id"
        )
        groups = [[key for _, key in rows] for _, rows in groupby(self._select(query), itemgetter(0))]
        return sorted(groups)

    # ---- items whose file is gone

    @property
    def gone_count(self) -> int:
        """Number of items whose file is gone, without those that moved."""
        return int(self._select("SELECT count(*) FROM gone WHERE n IS NULL")[0][0])

    @property
    def gone_pictures(self) -> int:
        """Number of the files of these items: a picture and its parts have one."""
        files = f"SELECT DISTINCT root, {PICTURE_PATH} FROM gone WHERE n IS NULL"
        return int(self._select(f"SELECT count(*) FROM ({files})")[0][0])

    def unseen(self, root: str, low: str, high: str | None) -> Iterator[list[tuple[int, str]]]:
        """Yield id and path of the items for which no file was added, some at a time.

        Args:
            root: Root of the items.
            low: First path.
            high: Path after the last one; `None` for no limit.
        """
        chosen = f"FROM gallery.items AS items WHERE root = :root AND {_KEPT} AND path != '' AND path >= :low"
        before = "AND (:high IS NULL OR path < :high)"
        bound = f"SELECT path {chosen} {before} ORDER BY path LIMIT 1 OFFSET {_RANGE}"
        start: str | None = low
        seen = np.unique(np.concatenate([np.empty(0, np.int64), *self._seen]))
        self._seen = [seen]
        while start is not None:
            values = {"root": root, "low": start, "high": high}
            end = next((path for (path,) in self._select(bound, values)), None)
            values["high"] = high if end is None else end
            # One text instead of a Python object for each row.
            ((text,),) = self._select(f"SELECT group_concat(id) {chosen} {before}", values)
            ids = np.fromstring(text or "", np.int64, sep=",")
            places = np.searchsorted(seen, ids)
            unseen = ids[np.append(seen, -1)[places] != ids]
            listed = f"SELECT id, path FROM gallery.items AS items WHERE id IN {LISTED}"
            found = self._select(listed, (json.dumps(unseen.tolist()),))
            self.below += len(ids)
            yield found
            start = end

    def add_gone(self, items: Sequence[int]) -> None:
        """Record items as gone."""
        with self._errors():
            self._db.executemany(
                "INSERT OR IGNORE INTO gone SELECT id, key, root, path, label, width, height, size, "
                f"CASE WHEN {SEARCHABLE} THEN content_sha256 ELSE '' END, NULL "
                "FROM gallery.items AS items WHERE id = ?",
                [(item,) for item in items],
            )

    def candidates(self) -> Iterator[tuple[int, ImageFile]]:
        """Yield number and file of each new file that has the size of a gone one."""
        new = f"(state = {_CANDIDATE} OR state = {_TODO} AND item IS NULL)"
        size = "size IN (SELECT size FROM gone WHERE content != '' AND n IS NULL)"
        for row in self._pages(f"{_FILE}, n", f"{new} AND {size}"):
            yield row[8], _image(row)

    def match(self, number: int, content: str) -> bool:
        """Make a new file the new place of a gone item with the same bytes, if there is one.

        Args:
            number: Number of the file.
            content: SHA-256 of its bytes.
        """
        query = (
            "SELECT item FROM gone WHERE content = ? AND n IS NULL AND coalesce((SELECT files.key FROM files "
            "WHERE files.n = ?) = gone.key, 1) ORDER BY item LIMIT 1"
        )
        found = self._select(query, (content, number))
        if not found:
            return False
        self._select("UPDATE gone SET n = ? WHERE item = ?", (number, *found[0]))
        self._select(f"UPDATE files SET state = {_MOVED} WHERE n = ?", (number,))
        return True

    def moved(self) -> Iterator[tuple[ImageFile, ItemPlace]]:
        """Yield the new places that `match` found, each with its item at the old place."""
        query = (
            f"SELECT n, {_FILE_COLUMNS}, gone.item, gone.key, gone.root, gone.path, gone.label, "
            f"width, height FROM files JOIN gone USING (n) WHERE n > ? ORDER BY n LIMIT {_PAGE}"
        )
        for row in self._paged(query):
            yield _image(row), ItemPlace(*row[8:])

    @property
    def moved_count(self) -> int:
        """Number of items that `match` found a new place for."""
        return self._count(f"state = {_MOVED}")

    def gone_paths(self) -> list[str]:
        """Return the full paths of the gone items, sorted."""
        rows = self._select("SELECT root, path FROM gone WHERE n IS NULL")
        return sorted(str(Path(root, path)) for root, path in rows)

    def gone_example(self) -> str:
        """Return the path of one of the gone items."""
        query = "SELECT root, path FROM gone WHERE n IS NULL ORDER BY root, path LIMIT 1"
        return str(Path(*self._select(query)[0]))

    def gone_roots(self) -> list[str]:
        """Return the roots of the gone items."""
        return [
            root for (root,) in self._select("SELECT DISTINCT root FROM gone WHERE n IS NULL ORDER BY root")
        ]

    def gone_items(self) -> Iterator[list[int]]:
        """Yield the ids of the gone items that still are at their old place, some at a time."""
        query = (
            "SELECT gone.item, items.id FROM gone LEFT JOIN gallery.items AS items ON items.id = gone.item "
            f"AND {LIVE} AND items.root = gone.root AND items.path = gone.path "
            f"WHERE gone.n IS NULL AND gone.item > ? ORDER BY gone.item LIMIT {_RANGE}"
        )
        for rows in self._parts(query):
            yield [item for _, item in rows if item is not None]

    # ---- pages

    def _pages(self, columns: str, condition: str) -> Iterator[tuple[Any, ...]]:
        return self._paged(
            f"SELECT n, {columns} FROM files WHERE ({condition}) AND n > ? ORDER BY n LIMIT {_PAGE}"
        )

    def _paged(self, query: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query without their first column, the number by which they ascend."""
        for rows in self._parts(query):
            for row in rows:
                yield row[1:]

    def _parts(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a query a part at a time, by the number in their first column."""
        last = 0
        while True:
            rows = self._select(query, (last,))
            if not rows:
                return
            last = rows[-1][0]
            yield rows


def _image(row: Sequence[Any]) -> ImageFile:
    """Return the file of a row that begins with the columns `_FILE`."""
    root, path, size, mtime_ns, label, key, metadata, own = row[:8]
    values = _NO_METADATA if metadata is None else json.loads(metadata)
    return ImageFile(root, path, size, mtime_ns, label, key, values, bool(own))


def former_items(
    db: sqlite3.Connection, places: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], ExistingItem]:
    """Return the items of files, by root and path, that were removed last and whose key is free.

    Args:
        db: Connection to the gallery's database.
        places: Root and path of each file.
    """
    removed = "items.deleted_at IS NOT NULL"
    if not db.execute(f"SELECT 1 FROM items WHERE {removed} LIMIT 1").fetchone():
        return {}
    query = (
        f"SELECT items.root, items.path, items.id, items.key, items.label FROM {AT_PLACES} WHERE {removed} "
        "AND NOT EXISTS (SELECT 1 FROM items AS live WHERE live.key = items.key AND live.deleted_at IS NULL) "
        "ORDER BY items.deleted_at, items.id"
    )
    found = db.execute(query, (json.dumps(places),))
    return {(root, path): ExistingItem(*item) for root, path, *item in found}
