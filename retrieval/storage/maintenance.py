"""Database side of compaction, verification and repair."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrieval.files import now
from retrieval.storage import database, schema
from retrieval.storage.items import metadata_columns, read_facts
from retrieval.storage.records import Segment
from retrieval.storage.store import Store, insert_segment

_UNKNOWN = ("", "", "", 0, 0, "", 0, 0, None)  # facts about an item without a row


@dataclass(frozen=True)
class Replacement:
    """Neighbouring segments and the segment that takes their place.

    Attributes:
        old: Segments to replace.
        new: New segment, whose rows have the numbers that they had; `None` if no row is left.
    """

    old: Sequence[Segment]
    new: Segment | None


@dataclass(frozen=True)
class ItemState:
    """What the database holds about one live item, for verification.

    Attributes:
        id: Item id.
        number: Number of its vector; `None` for an item that waits to be embedded again.
        is_intact: Whether its facts and metadata match their checksum.
    """

    id: int
    number: int | None
    is_intact: bool


# ---- compaction


def replace_segments(store: Store, replacements: Sequence[Replacement], *, purge: bool = False) -> int:
    """Replace segments in one transaction, and return the number of purged items.

    Args:
        store: Gallery store, inside `writing()`.
        replacements: Segments to replace.
        purge: Delete removed items, their metadata and the log of changes for good; no dead vectors are left.
    """
    purged = 0
    with store.transaction() as db:
        for replacement in replacements:
            _replace(db, replacement)
        if purge:
            db.execute("DELETE FROM metadata WHERE id IN (SELECT id FROM items WHERE deleted_at IS NOT NULL)")
            purged = db.execute("DELETE FROM items WHERE deleted_at IS NOT NULL").rowcount
            db.execute("DELETE FROM changes")
    return purged


def _replace(db: sqlite3.Connection, replacement: Replacement) -> None:
    old, new = replacement.old, replacement.new
    db.executemany("DELETE FROM segments WHERE seg = ?", [(segment.seg,) for segment in old])
    if new is not None:
        insert_segment(db, new, old[0].seg)


def facts_of(store: Store, ids: np.ndarray) -> dict[str, list[Any]]:
    """Return the facts about items, int64 [n], as columns of n values for the file of a segment."""
    with store.reading() as db:
        found = read_facts(db, ids.tolist())
    columns = zip(*(found.get(item, _UNKNOWN) for item in ids.tolist()), strict=True)
    return {name: list(column) for name, column in zip(schema.FACTS[1:], columns, strict=True)}


# ---- verification


def integrity_errors(store: Store) -> list[str]:
    """Return SQLite's own findings about the database file; empty if it is intact."""
    found = [str(row[0]) for row in store.select("PRAGMA integrity_check (5)")]
    return [] if found == ["ok"] else found


def is_sealed(store: Store) -> bool:
    """Return whether the small tables match the checksum of the last transaction."""
    with store.reading() as db:
        return database.sealed(db)


def item_states(store: Store) -> Iterator[ItemState]:
    """Yield the state of every live item, all of one committed state."""
    query = (
        f"SELECT {', '.join(f'items.{name}' for name in schema.FACTS)}, items.crc, items.vector, metadata.* "
        f"FROM items LEFT JOIN metadata ON items.id = metadata.id WHERE {schema.LIVE}"
    )
    count = len(schema.FACTS)
    with store.reading() as db:
        names = metadata_columns(db)
        for row in db.execute(query):
            metadata = dict(zip(names, row[count + 3 :], strict=True))
            is_intact = schema.item_crc(row[:count], metadata) == row[count]
            yield ItemState(row[0], row[count + 1], is_intact)


def listed_rows(store: Store, segment: Segment) -> np.ndarray:
    """Return vector numbers and item ids of the live items in a segment, int64 [2, n], numbers ascending."""
    query = f"SELECT vector, id FROM items WHERE {schema.LIVE} AND vector BETWEEN ? AND ? ORDER BY vector"
    found = store.select(query, (segment.first, segment.last))
    return np.array(found, np.int64).reshape(-1, 2).T


# ---- repair


def rebuild_lookup_indexes(store: Store) -> None:
    """Rebuild SQLite's indexes on the tables."""
    with store.transaction() as db:
        db.execute("REINDEX")


def seal_again(store: Store) -> None:
    """Accept the small tables as they are: an empty transaction writes their checksum."""
    with store.transaction():
        pass


def salvage_segment(store: Store, damaged: Segment, new: Segment | None, numbers: np.ndarray) -> None:
    """Replace a damaged segment by its good rows; the items of the others wait to be embedded again.

    Args:
        store: Gallery store, inside `writing()`.
        damaged: Damaged segment.
        new: Segment of the good rows; `None` if there are none.
        numbers: Vector numbers of the good rows, int64 [n].
    """
    ends = damaged.first, damaged.last, json.dumps(numbers.tolist())
    lost = "BETWEEN ? AND ? AND {} NOT IN (SELECT value FROM json_each(?))"
    with store.transaction() as db:
        db.execute(f"UPDATE items SET vector = NULL WHERE vector {lost.format('vector')}", ends)
        db.execute(f"DELETE FROM changes WHERE dead {lost.format('dead')}", ends)
        _replace(db, Replacement([damaged], new))


def drop_index(store: Store) -> None:
    """Stop using the FAISS index, which becomes a leftover."""
    with store.transaction() as db:
        db.execute("DELETE FROM indexes")


def set_number(store: Store, item: int, number: int | None) -> None:
    """Correct the number of an item's vector; `None` makes the item wait to be embedded again."""
    with store.transaction() as db:
        db.execute("UPDATE items SET vector = ? WHERE id = ?", (number, item))


def remove_damaged_item(store: Store, item: int) -> None:
    """Remove an item whose facts are damaged."""
    with store.transaction() as db:
        db.execute(
            "INSERT INTO changes (item, dead) SELECT id, vector FROM items WHERE id = ? AND vector NOT NULL",
            (item,),
        )
        db.execute("UPDATE items SET deleted_at = ? WHERE id = ?", (now(), item))
