"""Items and their metadata: reading, and writing within a transaction."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.images import boxes
from retrieval.storage import bulk, database, schema
from retrieval.storage.records import (
    MISSING,
    NO_FACTS,
    UPLOADS,
    BadFile,
    Change,
    Facts,
    MetadataColumns,
    NewItem,
    StoredItem,
    Value,
)

# A metadata column may have the name of a column of `items`: all columns are qualified.
_SELECT = (
    f"SELECT {', '.join(f'items.{name}' for name in schema.FACTS)}, items.vector, items.crc, metadata.* "
    "FROM items LEFT JOIN metadata ON metadata.id = items.id "
    f"WHERE items.id IN {schema.LISTED} ORDER BY items.id"
)
_VECTOR, _METADATA = len(schema.FACTS), len(schema.FACTS) + 3  # positions in its rows
_PART = 256  # rows fetched at a time: tuples of many rows keep the garbage collector busy
_LOG = "INSERT INTO changes (item, dead)"
_DEAD = f"{_LOG} SELECT id, vector FROM items WHERE vector IS NOT NULL"
_AT_PATH = f"root = ? AND path = ? AND path != '' AND {schema.LIVE}"
_KEYS_AT_PATHS = (
    f"SELECT items.root, items.path, items.key FROM {schema.AT_PLACES} WHERE {schema.LIVE} "
    "ORDER BY items.id DESC"
)
_REPLACE = "ON CONFLICT (id) DO UPDATE SET deleted_at = NULL, " + ", ".join(
    f"{name} = excluded.{name}" for name in (*schema.FACTS[1:], "vector", "crc")
)
_INSERT_BAD = (
    "INSERT INTO bad VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?) ON CONFLICT (root, path) DO UPDATE SET "
    "reason = excluded.reason, detail = excluded.detail, size = excluded.size, mtime_ns = excluded.mtime_ns, "
    "attempts = attempts + 1, last_seen = excluded.last_seen, crc = excluded.crc"
)


def read_items(db: sqlite3.Connection, ids: Sequence[int]) -> Iterator[StoredItem]:
    """Yield items by ascending id, removed ones among them; unknown ids are left out.

    Raises:
        LookalikeError: The facts of an item are damaged.
    """
    found = db.execute(_SELECT, (json.dumps(list(ids)),))
    names = _metadata_names(found)
    checksum = schema.ItemChecksum(names)
    for row in found:
        facts, (vector, crc, _), values = row[:_VECTOR], row[_VECTOR:_METADATA], row[_METADATA:]
        if checksum.of(facts, values) != crc:
            raise _damaged(row[0])
        metadata = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        yield StoredItem._make((*facts, vector, metadata))


def read_columns(db: sqlite3.Connection, ids: Sequence[int]) -> tuple[list[int], Facts, bulk.Columns]:
    """Return ids, facts and metadata of items as columns, by ascending id; unknown ids are left out.

    Raises:
        LookalikeError: The facts of an item are damaged.
    """
    known, facts, metadata, damaged = _read_columns(db, ids)
    if damaged:
        raise _damaged(damaged[0])
    return known, facts, metadata


def _read_columns(
    db: sqlite3.Connection, ids: Sequence[int]
) -> tuple[list[int], Facts, bulk.Columns, list[int]]:
    """Return the same columns, and the ids of the items whose facts are damaged."""
    found = db.execute(_SELECT, (json.dumps(list(ids)),))
    columns: list[list[Any]] = [[] for _ in found.description]
    while part := found.fetchmany(_PART):
        for column, values in zip(columns, zip(*part, strict=True), strict=True):
            column += values
    (known, *facts), crcs = columns[:_VECTOR], columns[_VECTOR + 1]
    metadata = dict(zip(_metadata_names(found), columns[_METADATA:], strict=True))
    damaged: list[int] = []
    if known:
        computed = bulk.item_crcs(known, facts, bulk.metadata_texts(metadata, len(known)))
        if computed != crcs:
            damaged = [item for item, a, b in zip(known, computed, crcs, strict=True) if a != b]
    return known, Facts(*facts), metadata, damaged


def _metadata_names(found: sqlite3.Cursor) -> list[str]:
    """Return the names of the metadata columns of a result of `_SELECT`."""
    return [name for name, *_ in found.description[_METADATA:]]


def _damaged(item: int) -> LookalikeError:
    what = f"item {item}: its facts in the gallery's database are damaged"
    return LookalikeError(f"{what}; remove it with `lookalike index verify GALLERY --repair`")


def read_facts(db: sqlite3.Connection, ids: np.ndarray) -> tuple[Facts, bulk.Columns]:
    """Return facts and metadata of items, int64 [n], as columns of n values for the file of a segment.

    Of an item that is unknown or damaged, they are `NO_FACTS`.
    """
    known, facts, metadata, damaged = _read_columns(db, np.unique(ids).tolist())
    places = {item: place for place, item in enumerate(known)}
    for item in damaged:
        del places[item]
    at = [places.get(item, -1) for item in ids.tolist()]

    def chosen(values: Sequence[Any], nothing: Value) -> list[Any]:
        return [nothing if place < 0 else values[place] for place in at]

    found = Facts(*map(chosen, facts.columns, NO_FACTS))
    return found, {name: chosen(values, None) for name, values in metadata.items()}


def removed_uploads(db: sqlite3.Connection, ids: Collection[int]) -> list[str]:
    """Return the names of the uploaded files of removed items that no live item has, in whole or in part."""
    query = f"SELECT path FROM items WHERE id IN {schema.LISTED} AND root = ?"
    gone = {boxes.split(path)[0] for (path,) in db.execute(query, (json.dumps(list(ids)), UPLOADS))}
    live = f"SELECT 1 FROM items WHERE {schema.OF_PICTURE} AND {schema.LIVE}"
    values = {name: schema.of_picture(UPLOADS, name) for name in gone if name}
    return [name for name, value in values.items() if db.execute(live, value).fetchone() is None]


def metadata_columns(db: sqlite3.Connection) -> list[str]:
    """Return the names of the metadata columns, oldest first."""
    return [name for _, name, *_ in db.execute("PRAGMA table_info (metadata)")][1:]


@dataclass(frozen=True)
class Identities:
    """Ids of items that are about to be written.

    Attributes:
        ids: Item ids, int64 [n].
        known: Ids that have a row, of a live or a removed item; it is replaced, and keeps its metadata.
        replaced: Number of live items among them.
    """

    ids: np.ndarray
    known: frozenset[int]
    replaced: int


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

    # ---- new and replaced items

    def keys_of(self, items: Sequence[NewItem]) -> list[str]:
        """Return the key of each item: the given one, that of the item at its path, or its path."""
        keys: list[str] = []
        taken = {item.key for item in items if item.key is not None}
        live, at_path = self._live_keys([item.stamp.key for item in items if item.key is None])
        for item in items:
            if item.key is not None:
                key = schema.check_key(item.key)
            else:
                root, path = item.stamp.key
                key = at_path.get((root, path), "")
                if not key or key in taken:
                    key = item.stamp.full.as_posix() if path in taken or path in live else path
            keys.append(key)
            taken.add(key)
        return keys

    def identify(self, keys: Sequence[str], *, new: bool = False) -> Identities:
        """Return the ids of items by key: that of the live item, of the last removed one, or a new one.

        Args:
            keys: Keys of the items.
            new: No item has one of the keys, which is not looked up.

        Raises:
            InputError: A key occurs twice.
        """
        if len(set(keys)) < len(keys):
            (twice, _), *_ = Counter(keys).most_common(1)
            raise InputError(f"key {twice[:60]!r}: two items cannot have the same key")
        removed, live = ({}, {}) if new else self._ids(keys)
        known = removed | live
        first = database.last_given(self._db, "items") + 1
        if not known:
            return Identities(np.arange(first, first + len(keys)), frozenset(), 0)
        fresh = iter(range(first, first + len(keys)))
        ids = (known.get(key) or next(fresh) for key in keys)
        return Identities(np.fromiter(ids, np.int64, len(keys)), frozenset(known.values()), len(live))

    def _ids(self, keys: Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
        """Return the ids of the last removed items that have some keys, and those of the live ones."""
        removed, live = dict[str, int](), dict[str, int]()
        if self._exists("SELECT 1 FROM items WHERE key BETWEEN ? AND ?", (min(keys), max(keys))):
            query = f"SELECT key, id, {schema.LIVE} FROM items WHERE key IN {schema.LISTED} ORDER BY id"
            for key, number, is_live in self._db.execute(query, (json.dumps(keys),)):
                (live if is_live else removed)[key] = number
        return removed, live

    def put(self, facts: Facts, who: Identities, numbers: np.ndarray, columns: bulk.Columns) -> None:
        """Insert items, or put them in place of the items with their ids.

        Args:
            facts: Facts about the items.
            who: Ids of the items.
            numbers: Numbers of their vectors, int64 [n].
            columns: All their metadata; see `inherited`.
        """
        if who.known:
            self._db.execute(
                f"{_DEAD} AND {schema.LIVE} AND id IN {schema.LISTED}", (json.dumps([*who.known]),)
            )
        ids, known = who.ids.tolist(), who.known
        texts = bulk.metadata_texts(columns, len(ids))
        rows = {"id": ids, **vars(facts), "vector": numbers.tolist()}
        rows["crc"] = bulk.item_crcs(ids, facts.columns, texts)
        bulk.insert_rows(self._db, "INSERT INTO items", rows, then=_REPLACE if who.known else "")
        if columns:
            which = [text or number in known for number, text in zip(ids, texts, strict=True)]
            into = "INSERT OR REPLACE INTO metadata" if known else "INSERT INTO metadata"
            bulk.insert_rows(self._db, into, {"id": ids, **columns}, which=None if all(which) else which)
        if self._exists("SELECT 1 FROM bad"):
            files = ((root, path) for root, path in zip(facts.root, facts.path, strict=True) if path)
            self._db.executemany("DELETE FROM bad WHERE root = ? AND path = ?", files)

    def inherited(self, who: Identities, metadata: MetadataColumns) -> bulk.Columns:
        """Return all metadata of items: the given values, else those of the items that they replace.

        Args:
            who: Ids of the items.
            metadata: Values by column, with `MISSING` for an item that keeps the value it has.

        Raises:
            InputError: A value that cannot be stored.
        """
        ids, known = who.ids.tolist(), self._rows_of_metadata(who.known)
        columns: dict[str, Sequence[Value]] = {}
        for name, values in metadata.items():
            kept = (known.get(number, {}).get(self._names[name]) for number in ids)
            full = (
                [old if new is MISSING else new for old, new in zip(kept, values, strict=True)]
                if known or MISSING in values
                else values
            )
            columns[self._names[name]] = schema.check_values(name, full)
        for name in self._known if known else ():
            if name not in columns:
                columns[name] = [known.get(number, {}).get(name) for number in ids]
        return columns

    def describe(self, number: int, metadata: Mapping[str, Value]) -> None:
        """Write the metadata of an item that has none.

        Raises:
            InputError: A column or a value that cannot be stored.
        """
        self.add_columns(metadata)
        self._write_metadata(number, self._checked(metadata))

    # ---- other changes

    def put_bad(self, file: BadFile, when: str) -> None:
        """Record an unusable file, and remove its items."""
        s = file.stamp
        self._db.execute(f"{_DEAD} AND {_AT_PATH}", s.key)
        self._db.execute(f"UPDATE items SET deleted_at = ? WHERE {_AT_PATH}", (when, *s.key))
        facts = (s.root, s.path, file.reason, file.detail, s.size, s.mtime_ns)
        self._db.execute(_INSERT_BAD, (*facts, when, schema.row_crc((*facts, when))))

    def remove(self, ids: Collection[int], when: str) -> None:
        """Remove live items; their vectors stay in the segments until the next compaction."""
        which = json.dumps(list(ids))
        live = f"{schema.LIVE} AND id IN {schema.LISTED}"
        unknown = f"NOT EXISTS (SELECT 1 FROM items WHERE items.id = given.value AND {schema.LIVE})"
        first = f"SELECT min(value) FROM json_each(?) AS given WHERE {unknown}"
        ((missing,),) = self._db.execute(first, (which,))
        if missing is not None:
            raise InputError(f"no item {missing}; nothing was removed")
        self._db.execute(f"{_DEAD} AND {live}", (which,))
        self._db.execute(f"UPDATE items SET deleted_at = ? WHERE {live}", (when, which))

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
            other = f"SELECT 1 FROM items WHERE key = ? AND {schema.LIVE} AND id != ?"
            if self._exists(other, (change.key, change.id)):
                raise InputError(f"item {change.id}: another item has the key {change.key!r}")
        given = {**self._metadata(change.id), **self._checked(change.metadata)}
        crc = schema.item_crc(tuple(facts[name] for name in schema.FACTS), given)
        assignments = ", ".join(f"{name} = ?" for name in schema.FACTS)
        self._db.execute(
            f"UPDATE items SET {assignments}, crc = ? WHERE id = ?",
            (*(facts[name] for name in schema.FACTS), crc, change.id),
        )
        if given:
            self._write_metadata(change.id, given)
        self._db.execute(f"{_LOG} VALUES (?, NULL)", (change.id,))

    # ---- parts

    def _exists(self, query: str, values: Sequence[str | int] = ()) -> bool:
        return self._db.execute(f"{query} LIMIT 1", values).fetchone() is not None

    def _live_keys(self, places: list[tuple[str, str]]) -> tuple[set[str], dict[tuple[str, str], str]]:
        """Return the paths that are keys of live items, and the key of the oldest live item at each place."""
        if not all(path for _, path in places):
            raise InputError("an item without a file needs a key")
        if not places or not self._exists(f"SELECT 1 FROM items WHERE {schema.LIVE}"):
            return set(), {}
        rows = self._db.execute(_KEYS_AT_PATHS, (json.dumps(places),))
        at_path = {(root, path): key for root, path, key in rows}
        return {*self._ids([path for _, path in places])[1]}, at_path

    def _checked(self, metadata: Mapping[str, Value]) -> dict[str, Value]:
        return {self._names[name]: schema.check_value(name, value) for name, value in metadata.items()}

    def _rows_of_metadata(self, ids: Collection[int]) -> dict[int, dict[str, Value]]:
        """Return the metadata of the items that have any, by id."""
        if not ids:
            return {}
        rows = self._db.execute(f"SELECT * FROM metadata WHERE id IN {schema.LISTED}", (json.dumps([*ids]),))
        return {number: dict(zip(self._known, values, strict=True)) for number, *values in rows}

    def _metadata(self, number: int) -> dict[str, Value]:
        row = self._db.execute("SELECT * FROM metadata WHERE id = ?", (number,)).fetchone()
        return dict(zip(self._known, row[1:], strict=True)) if row else {}

    def _write_metadata(self, number: int, given: Mapping[str, Value]) -> None:
        """Write all metadata of an item."""
        marks = ", ".join("?" * (1 + len(self._known)))
        row = (number, *(given.get(name) for name in self._known))
        self._db.execute(f"INSERT OR REPLACE INTO metadata VALUES ({marks})", row)
