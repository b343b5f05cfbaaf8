"""Listing of items with keyset pagination: each page continues behind the last item of the one before.

Items that are added or removed between two pages move no other item to another page: every item that stays
is listed exactly once, unless its value in the column of the order changes meanwhile. By id, a page reads
only its own rows of the table, after a condition those up to its last item; by another column, it reads all.
"""

from __future__ import annotations

from dataclasses import dataclass

from retrieval.storage.conditions import Condition, find_column, item_columns
from retrieval.storage.items import read_items
from retrieval.storage.queries import BOTH, compiled
from retrieval.storage.records import StoredItem, Value
from retrieval.storage.store import Store

_LETTERS = 100  # of a text that are compared, so that places are small


@dataclass(frozen=True)
class Order:
    """Order of items: by a column, then by id. Numbers are before text, missing values are last.

    Attributes:
        column: Column name.
        descending: Whether high values are first. Equal values are by ascending id all the same.
    """

    column: str = "id"
    descending: bool = False

    @classmethod
    def parse(cls, text: str) -> Order:
        """Return the order of a text such as "price" or "price desc"."""
        column, _, last = text.strip().rpartition(" ")
        if column and last.lower() in ("asc", "desc"):
            return cls(column.strip(), last.lower() == "desc")
        return cls(text.strip())


@dataclass(frozen=True)
class Place:
    """Place of an item in an order.

    Attributes:
        value: Its value in the column of the order; of a text the first letters.
        id: Its id.
    """

    value: Value
    id: int


def list_items(
    store: Store, condition: Condition | None, order: Order, after: Place | None, limit: int
) -> tuple[list[StoredItem], Place | None]:
    """Return the next searchable items, and the place of the last of them; `None` if no item is behind it.

    Args:
        store: Gallery store.
        condition: Condition that the items fulfil; `None` for all items.
        order: Order of the items.
        after: Place behind which the items are; `None` for the first ones.
        limit: Largest number of items.

    Raises:
        InputError: The gallery has no such column, or it holds no values of the type.
    """
    test, values = compiled(store, condition)
    column = find_column(order.column, item_columns(store.columns()))
    down = " DESC" if order.descending else ""
    if column.name == "id":
        value, ordered = "items.id", f"items.id{down}"
    else:
        short = f"substr({column.sql}, 1, {_LETTERS})"
        value = f"CASE typeof({column.sql}) WHEN 'text' THEN {short} ELSE {column.sql} END"
        ordered = f"{value} IS NULL, {value}{down}, items.id"
    behind, bound = ("1", ()) if after is None else _behind(value, order.descending, after)
    query = f"SELECT items.id, {value} {BOTH} AND ({test}) AND ({behind}) ORDER BY {ordered} LIMIT ?"
    with store.reading() as db:
        rows = db.execute(query, (*values, *bound, limit + 1)).fetchall()
        found = {item.id: item for item in read_items(db, [number for number, _ in rows[:limit]])}
    last = Place(rows[limit - 1][1], rows[limit - 1][0]) if len(rows) > limit else None
    return [found[number] for number, _ in rows[:limit]], last


def _behind(value: str, descending: bool, place: Place) -> tuple[str, tuple[Value, ...]]:
    """Return the SQL of a test for the items behind a place, and the values to bind."""
    sign = "<" if descending else ">"
    if value == "items.id":
        return f"{value} {sign} ?", (place.id,)
    if place.value is None:
        return f"{value} IS NULL AND items.id > ?", (place.id,)
    same = f"{value} = ? AND items.id > ?"
    return f"{value} {sign} ? OR {value} IS NULL OR ({same})", (place.value, place.value, place.id)
