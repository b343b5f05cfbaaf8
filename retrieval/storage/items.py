"""Items and their metadata: reading, and writing within a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from retrieval.errors import InputError, LookalikeError
from retrieval.storage import schema
from retrieval.storage.records import BadFile, Change, NewItem, StoredItem, Value

# A metadata column may have the name of a column of `items`: all columns are qualified.
_SELECT = (
    f"SELECT {', '.join(f'items.{name}' for name in schema.FACTS)}, items.crc, metadata.* "
    "FROM items JOIN metadata ON metadata.id = items.id"
)
_DELETE_AT_PATH = f"UPDATE items SET deleted_at = ? WHERE root = ? AND path = ? AND {schema.LIVE}"
_INSERT_ITEM = f"INSERT INTO items ({', '.join(schema.FACTS)}, seg, row, crc) VALUES ({', '.join('?' * 13)})"
_INSERT_BAD = (
    "INSERT INTO bad VALUES (?, ?, ?, ?, ?, ?, 1, ?) ON CONFLICT (root, path) DO UPDATE SET "
    "reason = excluded.reason, detail = excluded.detail, size = excluded.size, mtime_ns = excluded.mtime_ns, "
    "attempts = attempts + 1, last_seen = excluded.last_seen"
)


def read_items(db: sqlite3.Connection, ids: Sequence[int]) -> Iterator[StoredItem]:
    """Yield items by id, removed ones among them; unknown ids are left out.

    Raises:
        LookalikeError: The facts of an item are damaged.
    """
    known = metadata_columns(db)
    for start in range(0, len(ids), schema.AT_ONCE):
        chunk = ids[start : start + schema.AT_ONCE]
        for row in db.execute(f"{_SELECT} WHERE items.id IN ({', '.join('?' * len(chunk))})", chunk):
            yield _stored(row, known)


def metadata_columns(db: sqlite3.Connection) -> list[str]:
    """Return the names of the metadata columns, oldest first."""
    return [name for _, name, *_ in db.execute("PRAGMA table_info (metadata)")][1:]


def _stored(row: Sequence[Any], names: Sequence[str]) -> StoredItem:
    count = len(schema.FACTS)
    facts, crc, values = row[:count], row[count], row[count + 2 :]
    metadata = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    if schema.item_crc(facts, metadata) != crc:
        what = f"item {row[0]}: its facts in the gallery's database are damaged"
        raise LookalikeError(f"{what}; remove it with `lookalike index verify GALLERY --repair`")
    return StoredItem(**dict(zip(schema.FACTS, facts, strict=True)), metadata=metadata)


class ItemWriter:
    """Writes to items and their metadata, inside one transaction.

    Args:
        db: Connection with an open transaction.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._known = metadata_columns(db)
        self._names: dict[str, str] = {}

    def add_columns(self, names: Iterable[str]) -> None:
        """Add the metadata columns that are missing."""
        self._names = schema.match_columns(names, self._known)
        for column in dict.fromkeys(self._names.values()):
            if column not in self._known:
                self._db.execute(f"ALTER TABLE metadata ADD COLUMN {schema.quoted(column)}")
                self._known.append(column)

    def replace(self, number: int, item: NewItem, place: tuple[int, int], when: str) -> None:
        """Insert an item in place of the live one with its key, whose other metadata it inherits."""
        s, key = item.stamp, self._key(item)
        given = self._checked(item.metadata)
        old = self._db.execute(f"SELECT id FROM items WHERE key = ? AND {schema.LIVE}", (key,)).fetchone()
        if old:
            given = {**self._metadata(old[0]), **given}
            self._db.execute("UPDATE items SET deleted_at = ? WHERE id = ?", (when, *old))
        what = (item.content_sha256, item.width, item.height, s.label)
        self._insert((number, key, s.root, s.path, s.size, s.mtime_ns, *what), given, place)
        self._db.execute("DELETE FROM bad WHERE root = ? AND path = ?", s.key)

    def put_bad(self, file: BadFile, when: str) -> None:
        """Record an unusable file, and remove its items."""
        s = file.stamp
        self._db.execute(_DELETE_AT_PATH, (when, *s.key))
        self._db.execute(_INSERT_BAD, (s.root, s.path, file.reason, file.detail, s.size, s.mtime_ns, when))

    def remove(self, number: int, when: str) -> None:
        """Remove a live item; its vector stays in its segment until the next compaction."""
        query = f"UPDATE items SET deleted_at = ? WHERE id = ? AND {schema.LIVE}"
        if self._db.execute(query, (when, number)).rowcount == 0:
            raise InputError(f"no item {number}; nothing was removed")

    def amend(self, change: Change) -> None:
        """Change facts about a live item."""
        query = f"SELECT {', '.join(schema.FACTS)} FROM items WHERE id = ? AND {schema.LIVE}"
        row = self._db.execute(query, (change.id,)).fetchone()
        if row is None:
            raise InputError(f"no item {change.id}")
        facts = dict(zip(schema.FACTS, row, strict=True))
        if change.stamp is not None:
            facts |= vars(change.stamp)
        if change.key is not None:
            facts["key"] = schema.check_key(change.key)
        given = {**self._metadata(change.id), **self._checked(change.metadata)}
        crc = schema.item_crc([facts[name] for name in schema.FACTS], given)
        assignments = ", ".join(f"{name} = ?" for name in schema.FACTS)
        try:
            self._db.execute(
                f"UPDATE items SET {assignments}, crc = ? WHERE id = ?",
                (*(facts[name] for name in schema.FACTS), crc, change.id),
            )
        except sqlite3.IntegrityError as error:
            raise InputError(f"item {change.id}: another item has the key {change.key!r}") from error
        self._write_metadata(change.id, given)

    def _insert(self, facts: Sequence[Any], metadata: Mapping[str, Value], place: tuple[int, int]) -> None:
        crc = schema.item_crc(facts, metadata)
        self._db.execute(_INSERT_ITEM, (*facts, *place, crc))
        self._write_metadata(facts[0], metadata)

    def _key(self, item: NewItem) -> str:
        if item.key is not None:
            return schema.check_key(item.key)
        root, path = item.stamp.key
        if not path:
            raise InputError("an item without a file needs a key")
        at_path = f"SELECT key FROM items WHERE root = ? AND path = ? AND {schema.LIVE} ORDER BY id LIMIT 1"
        if kept := self._db.execute(at_path, (root, path)).fetchone():
            return str(kept[0])
        taken = self._db.execute(f"SELECT 1 FROM items WHERE key = ? AND {schema.LIVE}", (path,)).fetchone()
        return item.stamp.full.as_posix() if taken else path

    def _checked(self, metadata: Mapping[str, Value]) -> dict[str, Value]:
        return {self._names[name]: schema.check_value(name, value) for name, value in metadata.items()}

    def _metadata(self, number: int) -> dict[str, Value]:
        row = self._db.execute("SELECT * FROM metadata WHERE id = ?", (number,)).fetchone()
        return dict(zip(self._known, row[1:], strict=True)) if row else {}

    def _write_metadata(self, number: int, values: Mapping[str, Value]) -> None:
        columns = "".join(f", {schema.quoted(name)}" for name in values)
        marks = ", ?" * len(values)
        insert = f"INSERT OR REPLACE INTO metadata (id{columns}) VALUES (?{marks})"
        self._db.execute(insert, (number, *values.values()))
