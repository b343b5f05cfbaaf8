"""Recovery of a lost database: a new one from the segments and from what can still be read of the old one."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.files import has_sha256
from retrieval.storage import database, removals, schema, segments
from retrieval.storage.facts import intact_rows
from retrieval.storage.items import ItemWriter, metadata_columns, read_items
from retrieval.storage.manifest import Manifest, parse_manifest, write_manifest
from retrieval.storage.records import NO_FACTS, Segment, Value
from retrieval.storage.store import insert_segment

_AT_ONCE = 1024  # rows read at once
_FEWEST = 16  # rows that are given up together if they cannot be read
_FACTS = ", ".join(f"items.{name}" for name in schema.FACTS)
_INSERT = f"INSERT INTO items ({', '.join(schema.FACTS)}, vector, crc) VALUES ({', '.join('?' * 12)})"


@dataclass(frozen=True)
class Rebuilt:
    """Contents of a new database.

    Attributes:
        items: Number of items.
        complete: Items among them whose facts and metadata come from the old database.
        renamed: Items whose key another item has, and which were given another.
        nameless: Items whose facts are lost, and whose key is made of their id.
    """

    items: int
    complete: int
    renamed: int
    nameless: int


@dataclass(frozen=True)
class _OldItem:
    """An item of the old database, whose facts and metadata match their checksum."""

    facts: tuple[Any, ...]
    vector: object
    is_removed: bool
    crc: int
    metadata: dict[str, Value]


class Remains:
    """What can still be read of a damaged database. Use as a context manager.

    Attributes:
        columns: Names of its metadata columns.
        last_vector: Highest number of a vector that it knows, if it is older than the gallery or of another
            state: what was stored later counts more. `None` otherwise.

    Args:
        folder: Gallery folder.
        manifest: Manifest of the gallery; a database with the uuid of another one is left alone.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._db: sqlite3.Connection | None = None
        self.columns: list[str] = []
        self.last_vector: int | None = None
        if not (folder / "gallery.db").is_file():
            return
        db = database.connect(folder)
        db.text_factory = lambda data: data.decode("utf-8", "replace")
        try:
            self.columns = metadata_columns(db)
            self._db = db
        except sqlite3.DatabaseError:
            db.close()
            return
        uuid, revision, last = (self._fact(name) for name in ("gallery_uuid", "revision", "last_vector"))
        if isinstance(uuid, str) and uuid != manifest.uuid:
            db.close()
            self._db, self.columns = None, []
        elif isinstance(last, int) and (
            (revision if isinstance(revision, int) else 0) < manifest.revision
            or removals.last_entry(folder) > self._last_of("changes")
            or segments.marked_last(folder / "segments") > last
        ):
            self.last_vector = last
        found = segments.files_in(folder / "segments")
        ends = dict(self._segments())
        if ends.keys() - found and found - ends.keys():
            common = max((end for file, end in ends.items() if file in found), default=0)
            self.last_vector = min(common, common if self.last_vector is None else self.last_vector)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()

    def items(self, highest: int) -> Iterator[_OldItem]:
        """Yield the intact items with ids up to the highest one."""
        values = "".join(f", metadata.{schema.quoted(name)}" for name in self.columns)
        query = (
            f"SELECT {_FACTS}, items.vector, items.deleted_at, items.crc{values} "
            "FROM items LEFT JOIN metadata ON metadata.id = items.id WHERE items.id BETWEEN ? AND ?"
        )
        count = len(schema.FACTS)
        for row in self._in_ranges(query, max(highest, self._highest("items"))):
            facts, (vector, deleted_at, crc) = row[:count], row[count : count + 3]
            metadata = dict(zip(self.columns, row[count + 3 :], strict=True))
            if schema.item_crc(facts, metadata) == crc:
                known = {name: value for name, value in metadata.items() if value is not None}
                yield _OldItem(facts, vector, deleted_at is not None, crc, known)

    def dead(self) -> np.ndarray:
        """Return the numbers of the vectors that the old database lists as dead, int64 [n]."""
        query = "SELECT dead FROM changes WHERE dead IS NOT NULL AND n BETWEEN ? AND ?"
        rows = self._in_ranges(query, self._highest("changes"))
        return np.array([number for (number,) in rows if isinstance(number, int)], np.int64)

    def records(self, table: str) -> Iterator[tuple[Any, ...]]:
        """Yield the intact rows of a table of `schema.RECORDS`."""
        names = [name for name in _columns(self._db, table) if name != "crc"] if self._db else []
        if not names:
            return
        query = f"SELECT {', '.join(names)}, crc FROM {table} WHERE rowid BETWEEN ? AND ?"
        at = [names.index(name) for name in schema.RECORDS[table]]
        for row in self._in_ranges(query, self._highest(table)):
            if schema.row_crc(row[i] for i in at) == row[-1]:
                yield row

    def index(self, folder: Path) -> tuple[Any, ...] | None:
        """Return the record of the index if its files are those that the old database names."""
        query = "SELECT dir, sha256, kind, n, last, card_sha256 FROM indexes WHERE idx BETWEEN ? AND ?"
        for row in self._in_ranges(query, self._highest("indexes")):
            files = ((folder / "indexes" / str(row[0]) / name) for name in ("index.faiss", "card.json"))
            pairs = zip(files, (row[1], row[5]), strict=True)
            if all(has_sha256(file, digest) for file, digest in pairs):
                return row
        return None

    def _segments(self) -> list[tuple[str, int]]:
        """Return names and last numbers of the segments, if the list is intact."""
        with suppress(sqlite3.DatabaseError):
            if self._db is not None and database.sealed(self._db):
                return self._db.execute("SELECT file, last FROM segments").fetchall()
        return []

    def last_id(self) -> int:
        """Return the highest item id that was ever given, if it can be read; else 0."""
        return self._last_of("items")

    def _last_of(self, table: str) -> int:
        found = self._value(f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'")
        return found if isinstance(found, int) else 0

    def _fact(self, name: str) -> object:
        """Return a fact of the table `meta`; `None` if it is not there or damaged."""
        found = self._value(f"SELECT value FROM meta WHERE key = '{name}'")
        with suppress(ValueError, TypeError, RecursionError):
            return json.loads(found)  # type: ignore[arg-type]
        return None

    def _highest(self, table: str) -> int:
        found = self._value(f"SELECT max(rowid) FROM {table}")
        return found if isinstance(found, int) else 0

    def _value(self, query: str) -> object:
        with suppress(sqlite3.DatabaseError):
            row = self._db.execute(query).fetchone() if self._db else None
            return row[0] if row else None
        return None

    def _in_ranges(self, query: str, highest: int) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query for a range of ids; ranges that cannot be read are divided."""
        todo = [(low, min(low + _AT_ONCE, highest + 1)) for low in range(1, highest + 1, _AT_ONCE)][::-1]
        while todo and self._db:
            low, high = todo.pop()
            try:
                rows = self._db.execute(query, (low, high - 1)).fetchall()
            except sqlite3.DatabaseError:
                if high - low > _FEWEST:
                    middle = (low + high) // 2
                    todo += [(middle, high), (low, middle)]
                continue
            yield from rows


def old_manifest(folder: Path) -> Manifest | None:
    """Return the manifest in the old database; `None` if it is damaged, or none of its segments is there.

    The checksum of the small tables counts, so that a wrong dimension cannot make all vectors useless.
    """
    try:
        db = database.connect(folder)
        with closing(db):
            if not database.sealed(db):
                return None
            listed = {file for (file,) in db.execute("SELECT file FROM segments")}
            rows = db.execute("SELECT key, value FROM meta").fetchall()
        manifest = parse_manifest(folder, rows)
    except (sqlite3.DatabaseError, LookalikeError):
        return None
    return manifest if listed & segments.files_in(folder / "segments") else None


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    with suppress(sqlite3.DatabaseError):
        return [name for _, name, *_ in db.execute(f"PRAGMA table_info ({table})")]
    return []


def build_database(folder: Path, draft: Path, manifest: Manifest, listed: Sequence[Segment]) -> Rebuilt:
    """Build the new database of a gallery.

    Args:
        folder: Gallery folder, with the old database, if it exists.
        draft: Folder in which to build the new one.
        manifest: Manifest of the gallery.
        listed: Segments, oldest first, whose rows are all intact.
    """
    remains = Remains(folder, manifest)
    database.create(draft)
    with closing(remains), database.writing(draft) as db:
        write_manifest(db, manifest)
        for segment in listed:
            insert_segment(db, segment)
        return _Builder(db, folder, listed, remains).build()


class _Builder:
    """Fills the tables of a new database, in one transaction."""

    def __init__(
        self, db: sqlite3.Connection, folder: Path, listed: Sequence[Segment], remains: Remains
    ) -> None:
        self._db, self._folder, self._listed, self._remains = db, folder, listed, remains
        rows = [segments.rows(folder / "segments", segment)[:2] for segment in listed]
        everything = np.concatenate([np.empty((2, 0), np.int64), *rows], axis=1)
        self._numbers, self._items = everything
        self._dead = dead = np.concatenate([removals.dead_numbers(folder), remains.dead()])
        alive = np.flatnonzero(~np.isin(self._numbers, dead))
        alive = alive[np.argsort(self._items[alive], kind="stable")]
        newest = np.append(np.diff(self._items[alive]) > 0, True)[: len(alive)]
        # The items, ascending, and the rows of their vectors.
        self._rows = alive[newest]
        self._ids = self._items[self._rows]
        self._done = np.zeros(len(self._ids), bool)
        self._kept = np.ones(len(self._ids), bool)
        self._complete = self._waiting = self._renamed = self._nameless = 0

    def build(self) -> Rebuilt:
        highest = int(self._items.max(initial=0))
        self._db.execute("CREATE UNIQUE INDEX one_each ON items (key) WHERE deleted_at IS NULL")
        self._add_old_items(highest)
        database.continue_after(self._db, "changes", removals.last_entry(self._folder))
        self._log_amended()
        self._add_other_items()
        self._db.execute("DROP INDEX one_each")
        self._add_dead()
        for table in schema.RECORDS:
            for row in self._remains.records(table):
                self._db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        last = max(
            int(self._numbers.max(initial=0)),
            int(removals.dead_numbers(self._folder).max(initial=0)),
            segments.marked_last(self._folder / "segments"),
        )
        index = self._remains.index(self._folder)
        if index is not None:
            insert = "INSERT INTO indexes (dir, sha256, kind, n, last, card_sha256) VALUES (?, ?, ?, ?, ?, ?)"
            self._db.execute(insert, index)
            last = max(last, index[4])
        self._db.execute("INSERT OR REPLACE INTO meta VALUES ('last_vector', ?)", (json.dumps(last),))
        database.continue_after(self._db, "items", max(highest, self._remains.last_id()))
        count = int(self._kept.sum()) + self._waiting
        return Rebuilt(count, self._complete, self._renamed, self._nameless)

    def _add_old_items(self, highest: int) -> None:
        """Insert the items that are intact in the old database, with their metadata."""
        ItemWriter(self._db).add_columns(self._remains.columns)
        names = [f", {schema.quoted(name)}" for name in self._remains.columns]
        newest, dead = self._remains.last_vector, {*self._dead.tolist()}
        for old in self._remains.items(highest):
            at = int(np.searchsorted(self._ids, old.facts[0]))
            has_vector = at < len(self._ids) and self._ids[at] == old.facts[0]
            if newest is not None and (
                self._numbers[self._rows[at]] > newest if has_vector else self._is_gone(old.vector, dead)
            ):
                continue  # it was stored again, or removed, since
            if old.is_removed:
                if has_vector:
                    self._done[at], self._kept[at] = True, False
                continue
            if has_vector:
                self._rows[at] = self._row_of(old.vector, old.facts[0], self._rows[at])
            number = int(self._numbers[self._rows[at]]) if has_vector else None
            try:
                self._db.execute(_INSERT, (*old.facts, number, old.crc))
            except sqlite3.IntegrityError:  # a key that an intact item has, too
                continue
            if old.metadata:
                values = [old.metadata.get(name) for name in self._remains.columns]
                marks = ", ?" * len(values)
                insert = f"INSERT INTO metadata (id{''.join(names)}) VALUES (?{marks})"
                self._db.execute(insert, (old.facts[0], *values))
            self._complete += 1
            if has_vector:
                self._done[at] = True
            else:
                self._waiting += 1

    def _is_gone(self, number: object, dead: Collection[int]) -> bool:
        """Return whether a vector was removed: it is in the log, or a segment of such numbers lacks it."""
        within = (one.first <= number <= one.last for one in self._listed if isinstance(number, int))
        return number in dead or any(within)

    def _row_of(self, number: object, item: int, newest: int) -> int:
        """Return the row of a vector by its number if it is there and the item's; else the newest one."""
        if isinstance(number, int):
            row = int(np.searchsorted(self._numbers, number))
            if row < len(self._numbers) and (self._numbers[row], self._items[row]) == (number, item):
                return row
        return newest

    def _log_amended(self) -> None:
        """Log the old items whose facts are other ones than those in the segments."""
        start = 0
        for segment in self._listed:
            stop = start + segment.n
            mine = np.flatnonzero(self._done & self._kept & (self._rows >= start) & (self._rows < stop))
            found = intact_rows(segments.facts_file(self._folder / "segments" / segment.file), segment.n)
            for item in read_items(self._db, self._ids[mine].tolist()):
                row = found[int(self._rows[np.searchsorted(self._ids, item.id)]) - start]
                if row is None or [*row[1:-1]] != [*item[1 : len(row) - 1]] or row[-1] != item.metadata:
                    self._db.execute("INSERT INTO changes (item) VALUES (?)", (item.id,))
            start = stop

    def _add_other_items(self) -> None:
        """Insert the other items, with the facts from the segments."""
        start = 0
        for segment in self._listed:
            stop = start + segment.n
            mine = np.flatnonzero(~self._done & (self._rows >= start) & (self._rows < stop))
            if len(mine):
                self._add_from(segment, mine, (self._rows[mine] - start).tolist())
            start = stop

    def _add_from(self, segment: Segment, mine: np.ndarray, rows: Sequence[int]) -> None:
        found = intact_rows(segments.facts_file(self._folder / "segments" / segment.file), segment.n)
        writer = ItemWriter(self._db)
        for item, place, row in zip(self._ids[mine].tolist(), self._rows[mine].tolist(), rows, strict=True):
            _, *facts, metadata = found[row] or (0, *NO_FACTS, {})
            if not facts[0]:
                facts[0] = f"item-{item}"
                self._nameless += 1
            number, key = int(self._numbers[place]), facts[0]
            try:
                self._insert((item, *facts), number, metadata)
            except sqlite3.IntegrityError:  # another item has had the key since
                facts[0] = f"{key} (item {item})"
                self._insert((item, *facts), number, metadata)
                self._renamed += 1
            if metadata:
                writer.describe(item, metadata)

    def _insert(self, facts: tuple[Any, ...], number: int, metadata: Mapping[str, Value]) -> None:
        self._db.execute(_INSERT, (*facts, number, schema.item_crc(facts, metadata)))

    def _add_dead(self) -> None:
        """Log all vectors that are not those of an item."""
        dead = np.ones(len(self._numbers), bool)
        dead[self._rows[self._kept]] = False
        pairs = zip(self._items[dead].tolist(), self._numbers[dead].tolist(), strict=True)
        self._db.executemany("INSERT INTO changes (item, dead) VALUES (?, ?)", pairs)
