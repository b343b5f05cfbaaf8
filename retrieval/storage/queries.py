"""Read queries over the items of a gallery.

A live item was not removed. A searchable item is live and has a vector; the other live ones wait to be
embedded again, since their vector was lost to damage.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrieval.storage.condition_sql import SQL, filter_sql, resolve_stored, tables_of, unindexed
from retrieval.storage.conditions import (
    Column,
    Condition,
    Filter,
    FilterTest,
    find_column,
    item_columns,
)
from retrieval.storage.schema import AT_ONCE, KEPT, LISTED, LIVE, OF_PICTURE, SEARCHABLE, of_picture, quoted
from retrieval.storage.store import Store

_KEPT = KEPT.format("main")
_SORTED = 10_000  # ids up to which sorting is fast
_AT_ONCE = 1 << 23  # ids whose rows are read at once, so that the memory is bounded
# Searchable items with their metadata, read in the order of their ids.
BOTH = f"FROM {unindexed('items LEFT JOIN metadata USING (id)')} WHERE {SEARCHABLE}"


@dataclass(frozen=True)
class ItemCounts:
    """Numbers of items.

    Attributes:
        live: Items that were not removed.
        waiting: Live items without a vector, which wait to be embedded again.
    """

    live: int
    waiting: int


# ---- conditions and columns


def resolved(store: Store, condition: Condition) -> Filter:
    """Return the filter of a condition on the columns of a gallery.

    Raises:
        InputError: The gallery has no such column, or it holds no values of the type.
    """

    def holds(column: Column, test: str) -> bool:
        tables = tables_of(test, for_missing_values=False)
        return bool(store.select(f"SELECT EXISTS (SELECT 1 FROM {tables} WHERE {test})")[0][0])

    return resolve_stored(condition, item_columns(store.columns()), holds)


def compiled(store: Store, condition: Condition | None) -> SQL:
    """Return the SQL of a condition on the columns of a gallery, which is true for all items without one.

    Raises:
        InputError: The gallery has no such column, or it holds no values of the type.
    """
    if condition is None:
        return "1", ()
    return filter_sql(resolved(store, condition), item_columns(store.columns()))


def ids_matching(store: Store, condition: Condition, among: np.ndarray | None = None) -> np.ndarray:
    """Return the ids of the items that fulfil a condition, removed ones among them, ascending: int64 [n].

    Args:
        store: Gallery store.
        condition: Condition.
        among: Ids of the items in question, int64 [m]; `None` for all.

    Raises:
        InputError: The gallery has no such column, or it holds no values of the type.
    """
    wanted = resolved(store, condition)
    sql, values = filter_sql(wanted, item_columns(store.columns()))
    tables = tables_of(sql, for_missing_values=wanted.holds(lambda column: None))
    # One test reads a lookup index; several would read a row for each entry of one of them.
    alone = isinstance(wanted, FilterTest) and " " not in tables
    tables = tables if alone else unindexed(tables)
    query = f"SELECT id AS n FROM {tables} WHERE ({sql})"
    if among is not None:
        return store.select_numbers(f"{query} AND id IN {LISTED}", (*values, _json(among)))
    # In one query without subqueries, SQLite would read all rows.
    (ends,) = store.select("SELECT (SELECT min(id) FROM items), (SELECT max(id) FROM items)")
    starts = range(ends[0] or 0, (ends[1] or 0) + 1, _AT_ONCE)
    between = f"{'+' * alone}id >= ? AND {'+' * alone}id < ?"  # the plus keeps SQLite from reading by id
    found = [
        _ascending(store.select_numbers(f"{query} AND {between}", (*values, start, start + _AT_ONCE)), start)
        for start in starts
    ]
    return np.concatenate(found)


def _ascending(ids: np.ndarray, start: int) -> np.ndarray:
    """Return different ids from `start` on in ascending order; many in a tenth of the time of sorting."""
    if len(ids) < _SORTED:
        return np.sort(ids)
    there = np.zeros(int(ids.max()) - start + 1, bool)
    there[ids - start] = True
    return np.flatnonzero(there) + start


def column_values(
    store: Store, column: str, among: np.ndarray | None = None
) -> tuple[np.ndarray, list[object]]:
    """Return ids, int64 [n], and values of the items with a value in a column, removed ones among them.

    Args:
        store: Gallery store.
        column: Column name.
        among: Ids of the items in question, int64 [m]; `None` for all.

    Raises:
        InputError: The gallery has no such column.
    """
    sql = find_column(column, item_columns(store.columns())).sql
    tables = tables_of(sql, for_missing_values=False)
    # One text instead of a Python object for each row. SQLite would write numbers with 15 digits.
    exact = f"CASE typeof({sql}) WHEN 'real' THEN json(printf('%!.17g', {sql})) ELSE {sql} END"
    query = f"SELECT group_concat(id), json_group_array({exact}) FROM {tables} WHERE {sql} IS NOT NULL"
    if among is not None:
        ((ids, values),) = store.select(f"{query} AND id IN {LISTED}", (_json(among),))
    else:
        ((ids, values),) = store.select(query)
    return np.fromstring(ids or "", np.int64, sep=","), json.loads(values)


def changed_items(store: Store, after: int, last: int) -> np.ndarray | None:
    """Return the items in the log of changes behind entry `after` up to entry `last`, int64 [n].

    Returns `None` if entries are no longer there.
    """
    between = "FROM changes WHERE n > ? AND n <= ?"
    with store.reading() as db:
        ((count,),) = db.execute(f"SELECT count(*) {between}", (after, last))
        if count < last - after:
            return None
        ((items,),) = db.execute(f"SELECT group_concat(item) {between}", (after, last))
    return np.unique(np.fromstring(items or "", np.int64, sep=","))


def _json(ids: np.ndarray) -> str:
    return f"[{','.join(map(str, ids.tolist()))}]"


# ---- counts


def label_counts(store: Store) -> list[tuple[str | None, int]]:
    """Return each label with its searchable items, most frequent first; `None` or "" stands for no label."""
    return store.select(
        f"SELECT label, count(*) AS n FROM items NOT INDEXED WHERE {SEARCHABLE} "
        "GROUP BY label ORDER BY n DESC, label"
    )


def value_counts(store: Store, column: str) -> list[tuple[str | int | float, int]]:
    """Return each value of a metadata column with the number of searchable items that have it."""
    name = f"metadata.{quoted(column)}"
    return store.select(f"SELECT {name}, count(*) {BOTH} AND {name} IS NOT NULL GROUP BY 1")


def image_sizes(store: Store) -> np.ndarray:
    """Return width and height of the searchable items whose image size is known: int64 [n, 2]."""
    rows = store.select(f"SELECT width, height FROM items WHERE {SEARCHABLE} AND width > 0 AND height > 0")
    return np.array(rows, np.int64).reshape(-1, 2)


def state_digest(store: Store) -> str:
    """Return a short text that changes with the searchable items, their facts or the model."""
    query = f"SELECT count(*), coalesce(sum(crc), 0) FROM items WHERE {SEARCHABLE}"
    ((count, checksums),) = store.select(query)
    uuid, fingerprint = store.manifest.uuid[:8], store.manifest.fingerprint[:12]
    return f"{uuid}-{fingerprint}-{count}-{checksums:x}"


def count_items(store: Store) -> ItemCounts:
    """Return the number of live items, and of those that wait to be embedded again."""
    query = f"SELECT count(*), coalesce(sum(vector IS NULL), 0) FROM items WHERE {LIVE}"
    return ItemCounts(*store.select(query)[0])


def count_bridged(store: Store) -> int:
    """Return the number of live items whose vector a map made from one of the model before."""
    last = store.manifest.bridged
    if last is None:
        return 0
    return int(store.select(f"SELECT count(*) FROM items WHERE {LIVE} AND vector <= ?", (last,))[0][0])


def bridged_ids(store: Store, after: int, count: int) -> np.ndarray:
    """Return the ids of the next such items behind an id, ascending: int64 [n], n <= count."""
    query = f"SELECT id AS n FROM items WHERE {LIVE} AND vector <= ? AND id > ? ORDER BY id LIMIT ?"
    return store.select_numbers(query, (store.manifest.bridged or 0, after, count))


def still_bridged(store: Store, ids: Sequence[int]) -> set[int]:
    """Return those of some items that are live and whose vector is such a one."""
    query = f"SELECT id AS n FROM items WHERE id IN {LISTED} AND {LIVE} AND vector <= ?"
    return {*store.select_numbers(query, (json.dumps(list(ids)), store.manifest.bridged or 0)).tolist()}


def count_bad_files(store: Store) -> int:
    """Return the number of files that could not be used when they were last tried."""
    return int(store.select("SELECT count(*) FROM bad")[0][0])


def last_runs(store: Store, count: int) -> list[dict[str, Any]]:
    """Return the last changes of a gallery, newest first: command, started, ended, counts and versions."""
    query = "SELECT command, started, ended, counts, versions FROM runs ORDER BY run DESC LIMIT ?"
    return [
        {
            "command": command,
            "started": started,
            "ended": ended,
            "counts": json.loads(counts),
            "versions": json.loads(versions),
        }
        for command, started, ended, counts, versions in store.select(query, (count,))
    ]


# ---- ids, keys and files


def live_ids(store: Store, condition: Condition | None = None) -> list[int]:
    """Return the ids of the live items, ascending.

    Args:
        store: Gallery store.
        condition: Condition that the items fulfil; `None` for all items.

    Raises:
        InputError: The gallery has no such column, or it holds no values of the type.
    """
    sql, values = compiled(store, condition)
    tables = "items" if condition is None else unindexed("items LEFT JOIN metadata USING (id)")
    query = f"SELECT id AS n FROM {tables} WHERE {LIVE} AND ({sql}) ORDER BY id"
    return [int(item) for item in store.select_numbers(query, values)]


def labelled_ids(store: Store) -> np.ndarray:
    """Return the ids of the items that have a label, removed ones among them: int64 [n]."""
    return store.select_numbers("SELECT id AS n FROM items WHERE coalesce(label, '') != ''")


def labelled_items(store: Store) -> list[tuple[int, str]]:
    """Return id and label of each searchable item that has a label, by ascending id."""
    query = f"SELECT id, label FROM items WHERE {SEARCHABLE} AND coalesce(label, '') != '' ORDER BY id"
    return store.select(query)


def ids_by_key(store: Store, keys: Sequence[str]) -> dict[str, int]:
    """Return the id of the live item of each key; keys without one are left out."""
    found: dict[str, int] = {}
    for start in range(0, len(keys), AT_ONCE):
        chunk = keys[start : start + AT_ONCE]
        marks = ", ".join("?" * len(chunk))
        found |= store.select(f"SELECT key, id FROM items WHERE {LIVE} AND key IN ({marks})", chunk)
    return found


def files_by_root(store: Store) -> dict[str, int]:
    """Return the number of live items with a file by the root of their paths, roots in alphabetical order."""
    query = f"SELECT root, count(*) FROM items WHERE {_KEPT} AND path != '' GROUP BY root ORDER BY root"
    return dict(store.select(query))


def ids_of_file(store: Store, root: str, path: str) -> list[int]:
    """Return the ids of the searchable items of a file, oldest first."""
    query = f"SELECT id FROM items WHERE {SEARCHABLE} AND root = ? AND path = ? ORDER BY id"
    return [item for (item,) in store.select(query, (root, path))]


def parts_at(store: Store, places: Sequence[tuple[str, str]]) -> list[int]:
    """Return the ids of the live items that are parts of the pictures of some files, by root and path."""
    query = f"SELECT id FROM items WHERE {OF_PICTURE} AND path != :path AND {LIVE}"
    with store.reading() as db:
        return [part for place in places for (part,) in db.execute(query, of_picture(*place))]


# ---- contents


def items_by_content(store: Store, digests: Sequence[str]) -> dict[str, int]:
    """Return the oldest searchable item of each SHA-256; digests without one are left out."""
    marks = ", ".join("?" * len(digests))
    query = (
        f"SELECT content_sha256, min(id) FROM items WHERE {SEARCHABLE} "
        f"AND content_sha256 != '' AND content_sha256 IN ({marks}) GROUP BY content_sha256"
    )
    return dict(store.select(query, digests))


def repeated_contents(store: Store) -> list[tuple[str, int]]:
    """Return (SHA-256, id) of the live items whose file's bytes several items share, in this order."""
    return store.select(
        f"SELECT content_sha256, id FROM items WHERE {LIVE} AND content_sha256 IN "
        f"(SELECT content_sha256 FROM items WHERE {_KEPT} AND content_sha256 != '' "
        "GROUP BY content_sha256 HAVING count(*) > 1) ORDER BY content_sha256, id"
    )


def repeated_keys(store: Store) -> list[int]:
    """Return the ids of live items whose key a newer live item has as well: there are none."""
    query = (
        f"SELECT id AS n FROM items WHERE {LIVE} AND key IN (SELECT key FROM items WHERE {_KEPT} "
        "GROUP BY key HAVING count(*) > 1) AND EXISTS (SELECT 1 FROM items AS newer "
        "WHERE newer.key = items.key AND newer.id > items.id AND newer.deleted_at IS NULL)"
    )
    return [int(item) for item in store.select_numbers(query)]


def last_key(store: Store, low: str, high: str) -> str | None:
    """Return the highest key of a live item from `low` to `high`, of the same length, that ends in digits.

    Args:
        store: Gallery store.
        low, high: Keys of one length, equal but for the digits at their ends.
    """
    start = next((i for i, (a, b) in enumerate(zip(low, high, strict=True)) if a != b), len(low))
    query = (
        f"SELECT key FROM items WHERE {LIVE} AND key BETWEEN ? AND ? AND length(key) = ? "
        "AND substr(key, ?) NOT GLOB '*[^0-9]*' ORDER BY key DESC LIMIT 1"
    )
    found = store.select(query, (low, high, len(low), start + 1))
    return found[0][0] if found else None


def ids_between_keys(store: Store, low: str, high: str) -> list[tuple[str, int]]:
    """Return (key, id) of the live items with keys from `low` to `high`, of the same length as these."""
    query = f"SELECT key, id FROM items WHERE {LIVE} AND key BETWEEN ? AND ? AND length(key) = ? ORDER BY key"
    return store.select(query, (low, high, len(low)))


# ---- metadata columns


def column_kinds(store: Store, columns: Iterable[str]) -> dict[str, str]:
    """Return the type of each metadata column, "text" or "number", by its first value; no empty columns."""
    kinds = {}
    for column in columns:
        name = quoted(column)
        found = store.select(f"SELECT typeof({name}) FROM metadata WHERE {name} IS NOT NULL LIMIT 1")
        if found:
            kinds[column] = "text" if found[0][0] == "text" else "number"
    return kinds


def column_type(store: Store, column: str) -> str | None:
    """Return the type of all values of a metadata column: "text", "number" or "integer"; `None` if empty."""
    query = f"SELECT DISTINCT typeof({quoted(column)}) FROM metadata"
    found = {kind for (kind,) in store.select(query)} - {"null"}
    if not found:
        return None
    return "text" if "text" in found else "number" if "real" in found else "integer"


def holds_text(store: Store, column: str) -> bool | None:
    """Return whether the values of a metadata column are text rather than numbers; `None` if it is empty.

    All values of a column are of one of the two, so that one value is read.
    """
    name = quoted(column)
    found = store.select(f"SELECT typeof({name}) FROM metadata WHERE {name} IS NOT NULL LIMIT 1")
    return found[0][0] == "text" if found else None
