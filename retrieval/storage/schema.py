"""Database schema of a gallery: tables, names of metadata columns, checksum of an item."""

from __future__ import annotations

import json
import math
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, Literal, cast

from retrieval.errors import InputError
from retrieval.images.boxes import MARK
from retrieval.storage.records import Value

FORMAT_VERSION = 3
LIVE = "items.deleted_at IS NULL"  # not removed
# The same for queries that an index answers without the rows of the items. {} is the name of the schema.
KEPT = "items.id NOT IN (SELECT removed.id FROM {}.items AS removed WHERE removed.deleted_at IS NOT NULL)"
SEARCHABLE = f"{LIVE} AND items.vector IS NOT NULL"  # and with a vector

# An item keeps its id as long as it has its key. `vector` is the number of its vector in segments and index;
# NULL for an item that waits to be embedded again. `changes` logs, since the last compaction, the items whose
# facts changed and the numbers of vectors that are dead: those of removed and replaced items.
TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE segments (seg INTEGER PRIMARY KEY AUTOINCREMENT, file TEXT NOT NULL UNIQUE, n INTEGER NOT NULL,
    first INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE TABLE items (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, root TEXT NOT NULL,
    path TEXT NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, content_sha256 TEXT NOT NULL,
    width INTEGER NOT NULL, height INTEGER NOT NULL, label TEXT,
    vector INTEGER, deleted_at TEXT, crc INTEGER NOT NULL);
CREATE TABLE changes (n INTEGER PRIMARY KEY AUTOINCREMENT, item INTEGER NOT NULL, dead INTEGER);
CREATE TABLE metadata (id INTEGER PRIMARY KEY REFERENCES items);
CREATE TABLE bad (root TEXT NOT NULL, path TEXT NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, attempts INTEGER NOT NULL, last_seen TEXT NOT NULL,
    crc INTEGER NOT NULL, PRIMARY KEY (root, path));
CREATE TABLE indexes (idx INTEGER PRIMARY KEY, dir TEXT NOT NULL UNIQUE, sha256 TEXT NOT NULL,
    kind TEXT NOT NULL, n INTEGER NOT NULL, last INTEGER NOT NULL, card_sha256 TEXT NOT NULL);
CREATE TABLE runs (run INTEGER PRIMARY KEY, command TEXT NOT NULL, started TEXT NOT NULL, ended TEXT,
    counts TEXT NOT NULL DEFAULT '{}', versions TEXT NOT NULL, crc INTEGER NOT NULL);
"""
# Indexes of SQLite on `items`. They hold live and removed items alike: removing one changes its row only, and
# adds it to the last of them. That no two live items have a key in common is checked by `items`.
INDEXES = {
    "item_key": "(key)",
    "item_path": "(root, path) WHERE path != ''",
    "item_content": "(content_sha256) WHERE content_sha256 != ''",
    "removed_item": "(deleted_at) WHERE deleted_at IS NOT NULL",
}
# Indexes of galleries of earlier versions: the next writer replaces them.
_FORMER = ("live_key", "live_path", "removed_key", "removed_path", "live_content")
_SORTED_KIB = 2000  # of the rows that are sorted at a time

# Facts that an item's checksum covers, in this order; its vector is checked against the segments instead.
FACTS = ("id", "key", "root", "path", "size", "mtime_ns", "content_sha256", "width", "height", "label")
# Columns that the checksums of the rows of these tables cover, in this order.
RECORDS = {
    "runs": ("command", "started", "ended", "counts", "versions"),
    "bad": ("root", "path", "reason", "detail", "size", "mtime_ns", "last_seen"),
}
# Columns of items that a condition may name, and the type of their values.
ColumnType = Literal["text", "number"]
BUILT_IN: Mapping[str, ColumnType] = {
    "id": "number",
    "key": "text",
    "label": "text",
    "path": "text",
    "width": "number",
    "height": "number",
}
RESERVED = frozenset({*BUILT_IN, "score"})  # names that metadata columns cannot have
FIELD_SEPARATOR = "\x1f"  # between the values that a checksum covers
_TEXT = FIELD_SEPARATOR.join("%s" for _ in FACTS)
_JSON: Mapping[type, Callable[[Any], str]] = {str: encode_basestring_ascii, int: repr, float: repr}
LISTED = "(SELECT value FROM json_each(?))"  # the values of a JSON array, bound as one parameter
# Items of a picture, itself and its parts; for `of_picture`.
OF_PICTURE = (
    "items.root = :root AND items.path != '' AND (items.path = :path OR items.path >= :first "
    "AND items.path < :end)"
)
# Path of the picture that an item is, or is a part of.
PICTURE_PATH = (
    f"CASE instr(path, '{MARK}') WHEN 0 THEN path ELSE substr(path, 1, instr(path, '{MARK}') - 1) END"
)
# The items of files, given as a JSON array of pairs of root and path, which is bound as one parameter.
AT_PLACES = (
    "(SELECT json_extract(value, '$[0]') AS root, json_extract(value, '$[1]') AS path FROM json_each(?)) "
    "AS places CROSS JOIN items ON items.root = places.root AND items.path = places.path AND items.path != ''"
)
AT_ONCE = 500  # parameters of one statement, below SQLite's limit
_MOST_COLUMNS = 500
_INTEGERS = range(-(2**63), 2**63)


def of_picture(root: str, path: str) -> dict[str, str]:
    """Return the parameters of `OF_PICTURE`."""
    after = path + MARK[:-1] + ">"  # the letter after "="
    return {"root": root, "path": path, "first": path + MARK, "end": after}


def create_indexes(db: sqlite3.Connection) -> None:
    """Create the indexes on `items` in place of any others, inside a transaction."""
    drop_indexes(db)
    for name, columns in INDEXES.items():
        create_index(db, name, f"items {columns}")


def create_index(db: sqlite3.Connection, name: str, columns: str) -> None:
    """Create an index on columns, such as "items (label)", inside a transaction.

    SQLite sorts all rows in parts of the size of its cache, and small ones, which stay in the cache of the
    processor, in half the time. Until the commit nothing is written for lack of memory: readers would wait.
    """
    ((size,),) = db.execute("PRAGMA cache_size")
    db.execute("PRAGMA cache_spill = OFF")
    db.execute(f"PRAGMA cache_size = -{_SORTED_KIB}")
    db.execute(f"CREATE INDEX {name} ON {columns}")
    db.execute(f"PRAGMA cache_size = {size}")
    db.execute("PRAGMA cache_spill = ON")


def has_indexes(db: sqlite3.Connection) -> bool:
    """Return whether `items` has all of its indexes."""
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE tbl_name = 'items'")}
    return names >= INDEXES.keys()


def drop_indexes(db: sqlite3.Connection) -> None:
    """Drop the indexes on `items`, inside a transaction."""
    for name in (*INDEXES, *_FORMER):
        db.execute(f"DROP INDEX IF EXISTS {name}")


def quoted(name: str) -> str:
    """Return a column name quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def item_crc(facts: tuple[Any, ...], metadata: Mapping[str, Value] | None = None) -> int:
    """Return the CRC-32 of an item's facts, in the order of `FACTS`, and of its metadata."""
    given = metadata or {}
    return ItemChecksum([*given]).of(facts, [*given.values()])


class ItemChecksum:
    """Checksum of items with the same metadata columns: that of many takes half as long as `item_crc`.

    Args:
        names: Names of the columns.
    """

    def __init__(self, names: Iterable[str]) -> None:
        places = sorted((name, place) for place, name in enumerate(names))
        self._cells = [(f"[{encode_basestring_ascii(name)}, ", place) for name, place in places]

    def of(self, facts: tuple[Any, ...], values: Sequence[Value]) -> int:
        """Return the CRC-32 of an item's facts, in the order of `FACTS`, and of its metadata as JSON."""
        text = _TEXT % facts
        given = [
            f"{start}{_JSON.get(type(value), json.dumps)(value)}]"
            for start, place in self._cells
            if (value := values[place]) is not None
        ]
        if given:
            text = f"{text}{FIELD_SEPARATOR}[{', '.join(given)}]"
        return zlib.crc32(text.encode("utf-8", "backslashreplace"))


def row_crc(values: Iterable[Any]) -> int:
    """Return the CRC-32 of the values of a row."""
    return zlib.crc32(FIELD_SEPARATOR.join(map(str, values)).encode("utf-8", "backslashreplace"))


def match_columns(names: Iterable[str], known: Sequence[str]) -> dict[str, str]:
    """Return the column of each given name: a known one if they differ only in case, else the name itself.

    Raises:
        InputError: An invalid or reserved name, or too many columns.
    """
    columns = {_fold(name): name for name in known}
    chosen = {}
    for name in names:
        if not name.strip() or not name.isprintable() or len(name) > 100:
            raise InputError(f"metadata column {name[:100]!r}: a name is 1 to 100 printable characters")
        if _fold(name) in RESERVED:
            raise InputError(f"metadata column {name!r}: the name is reserved; rename the column")
        chosen[name] = columns.setdefault(_fold(name), name)
    if len(columns) > _MOST_COLUMNS:
        raise InputError(f"{len(columns)} metadata columns; a gallery takes at most {_MOST_COLUMNS}")
    return chosen


def check_key(key: str) -> str:
    """Return the key of an item unchanged.

    Raises:
        InputError: It cannot be a key.
    """
    if not key or not _is_text(key):
        raise InputError(f"key {key[:60]!r}: a key is a text of at least one character")
    return key


def check_value(column: str, value: object) -> Value:
    """Return a metadata value as stored: text, a 64-bit integer, a finite number or `None`.

    Raises:
        InputError: Any other value.
    """
    if isinstance(value, bool):
        return int(value)
    if value is None or (isinstance(value, str) and _is_text(value)):
        return value
    if isinstance(value, int) and value in _INTEGERS:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    what = f"{type(value).__name__} {value!r}"[:60]
    raise InputError(
        f"metadata column {column!r}: {what} is not text, a whole number of 64 bits or a finite number"
    )


def check_values(column: str, values: Sequence[object]) -> Sequence[Value]:
    """Return the values of a metadata column as `check_value` does, quickly if they are valid already.

    Raises:
        InputError: A value that cannot be stored.
    """
    types = {*map(type, values)} - {type(None)}
    given: list[Any] = [value for value in values if value is not None]
    if (
        not given
        or (types == {str} and _are_texts(given))
        or (types == {int} and min(given) in _INTEGERS and max(given) in _INTEGERS)
        or (types == {float} and all(map(math.isfinite, given)))
    ):
        return cast("Sequence[Value]", values)
    return [check_value(column, value) for value in values]


def check_types(
    rows: Iterable[tuple[object, Mapping[str, Value]]], existing: Mapping[str, ColumnType]
) -> dict[str, ColumnType]:
    """Check that all values of a column are numbers or all are text.

    Args:
        rows: For each row its position in error messages and its values.
        existing: Types of the columns that the gallery has, "number" or "text", by name.

    Returns:
        The type of every column.

    Raises:
        InputError: A column contains both.
    """
    types, first = dict(existing), dict.fromkeys(existing, "the gallery")
    for place, values in rows:
        for name, value in values.items():
            if value is None:
                continue
            kind: ColumnType = "text" if isinstance(value, str) else "number"
            if types.setdefault(name, kind) != kind:
                what = f"column {name!r} is {kind} here ({value!r}), but {types[name]} in {first[name]}"
                raise InputError(f"{place}: {what}; use one type or two columns")
            first.setdefault(name, str(place))
    return types


def _are_texts(values: Iterable[str]) -> bool:
    try:
        "".join(values).encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_text(value: str) -> bool:
    return re.search("[\ud800-\udfff]", value) is None


def _fold(name: str) -> str:
    """Return a column name as SQLite compares it."""
    return re.sub("[A-Z]", lambda letter: letter[0].lower(), name)
