"""Read queries over the items of a gallery.

A live item was not removed. A searchable item is live and has a vector; the other live ones wait to be
embedded again, since their vector was lost to damage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.storage.conditions import (
    Condition,
    ConditionValue,
    column_expressions,
    compile_condition,
    resolve_column,
    tables_of,
)
from retrieval.storage.schema import AT_ONCE, LIVE, SEARCHABLE, quoted
from retrieval.storage.store import Store

_BOTH = f"FROM items JOIN metadata USING (id) WHERE {SEARCHABLE}"


@dataclass(frozen=True)
class ItemPage:
    """One page of the searchable items that fulfil a condition.

    Attributes:
        ids: Item ids on this page, ascending.
        number: Page number, from 0.
        total: Items on all pages.
    """

    ids: list[int]
    number: int
    total: int


# ---- conditions and columns


def ids_matching(store: Store, condition: Condition) -> np.ndarray:
    """Return the ids of the items that fulfil a condition, removed ones among them: int64 [n].

    Raises:
        InputError: The gallery has no such column.
    """
    sql, values = compile_condition(condition, column_expressions(store.columns()))
    rows = store.rows(f"SELECT id FROM {tables_of(sql)} WHERE {sql}", values)
    return np.array(rows, np.int64).reshape(-1)


def column_values(store: Store, column: str) -> list[tuple[int, object]]:
    """Return (item id, value) for every item with a value in a column, removed ones among them.

    Raises:
        InputError: The gallery has no such column.
    """
    sql = resolve_column(column, column_expressions(store.columns()))
    return store.rows(f"SELECT id, {sql} FROM {tables_of(sql)} WHERE {sql} IS NOT NULL")


def item_page(store: Store, condition: Condition | None, number: int, size: int) -> ItemPage:
    """Return one page of the searchable items, oldest first; the last page if `number` is beyond it.

    Args:
        store: Gallery store.
        condition: Condition that the items fulfil; `None` for all items.
        number: Page number, from 0.
        size: Items on a page.

    Raises:
        InputError: The gallery has no such column.
    """
    sql: str = "1"
    values: tuple[ConditionValue, ...] = ()
    if condition is not None:
        sql, values = compile_condition(condition, column_expressions(store.columns()))
    total = store.rows(f"SELECT count(*) {_BOTH} AND ({sql})", values)[0][0]
    number = min(max(number, 0), max(0, (total - 1) // size))
    query = f"SELECT items.id {_BOTH} AND ({sql}) ORDER BY items.id LIMIT ? OFFSET ?"
    return ItemPage([item for (item,) in store.rows(query, (*values, size, number * size))], number, total)


# ---- counts


def label_counts(store: Store) -> list[tuple[str | None, int]]:
    """Return each label with its searchable items, most frequent first; `None` or "" stands for no label."""
    return store.rows(
        f"SELECT label, count(*) AS n FROM items WHERE {SEARCHABLE} GROUP BY label ORDER BY n DESC, label"
    )


def largest_classes(store: Store, count: int) -> list[int]:
    """Return the number of searchable items of the most frequent labels, largest first, at most `count`."""
    query = (
        f"SELECT count(*) FROM items WHERE {SEARCHABLE} AND coalesce(label, '') != '' "
        "GROUP BY label ORDER BY 1 DESC LIMIT ?"
    )
    return [size for (size,) in store.rows(query, (count,))]


def value_counts(store: Store, column: str) -> list[tuple[str | int | float, int]]:
    """Return each value of a metadata column with the number of searchable items that have it."""
    name = f"metadata.{quoted(column)}"
    return store.rows(f"SELECT {name}, count(*) {_BOTH} AND {name} IS NOT NULL GROUP BY 1")


def image_sizes(store: Store) -> np.ndarray:
    """Return width and height of the searchable items whose image size is known: int64 [n, 2]."""
    rows = store.rows(f"SELECT width, height FROM items WHERE {SEARCHABLE} AND width > 0 AND height > 0")
    return np.array(rows, np.int64).reshape(-1, 2)


def state_digest(store: Store) -> str:
    """Return a short text that changes with the searchable items, their facts or the model."""
    query = f"SELECT count(*), coalesce(sum(crc), 0) FROM items WHERE {SEARCHABLE}"
    ((count, checksums),) = store.rows(query)
    uuid, fingerprint = store.meta["gallery_uuid"], store.meta["fingerprint"]
    return f"{uuid[:8]}-{fingerprint[:12]}-{count}-{checksums:x}"


# ---- keys


def ids_by_key(store: Store, keys: Sequence[str]) -> dict[str, int]:
    """Return the id of the live item of each key; keys without one are left out."""
    found: dict[str, int] = {}
    for start in range(0, len(keys), AT_ONCE):
        chunk = keys[start : start + AT_ONCE]
        marks = ", ".join("?" * len(chunk))
        found |= store.rows(f"SELECT key, id FROM items WHERE {LIVE} AND key IN ({marks})", chunk)
    return found
