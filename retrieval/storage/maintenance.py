"""Database side of compaction, verification and repair."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.files import now
from retrieval.storage import database, schema
from retrieval.storage.items import metadata_columns
from retrieval.storage.records import Segment
from retrieval.storage.store import Store, insert_segment

RowPlace = tuple[int, int]  # segment number, row in the segment


@dataclass(frozen=True)
class Replacement:
    """Neighbouring segments and the segment that takes their place.

    Attributes:
        old: Segments to replace.
        new: New segment; `None` if no row is left.
        ids: Item ids of the new segment's rows, int64 [n].
    """

    old: Sequence[Segment]
    new: Segment | None
    ids: np.ndarray


@dataclass(frozen=True)
class ItemState:
    """What the database holds about one item, for verification.

    Attributes:
        id: Item id.
        place: Its vector's place according to the database; `None` for an item without a vector.
        is_intact: Whether its facts and metadata match their checksum; True for removed items.
    """

    id: int
    place: RowPlace | None
    is_intact: bool


# ---- compaction


def replace_segments(
    store: Store, replacements: Sequence[Replacement], *, purge: bool = False, drop_index: bool = False
) -> int:
    """Replace segments in one transaction, and return the number of purged items.

    Args:
        store: Gallery store, inside `writing()`.
        replacements: Segments to replace.
        purge: Delete removed items and their metadata for good.
        drop_index: Stop using the index, whose rows have moved.
    """
    purged = 0
    with store.transaction() as db:
        for replacement in replacements:
            _replace(db, replacement)
        if purge:
            db.execute("DELETE FROM metadata WHERE id IN (SELECT id FROM items WHERE deleted_at IS NOT NULL)")
            purged = db.execute("DELETE FROM items WHERE deleted_at IS NOT NULL").rowcount
        if drop_index:
            _drop_index(db)
    return purged


def _replace(db: sqlite3.Connection, replacement: Replacement) -> None:
    old, new = replacement.old, replacement.new
    db.executemany("DELETE FROM segments WHERE seg = ?", [(segment.seg,) for segment in old])
    if new is not None:
        seg = insert_segment(db, new, old[0].seg)
        places = [(seg, row, item) for row, item in enumerate(replacement.ids.tolist())]
        db.executemany("UPDATE items SET seg = ?, row = ? WHERE id = ?", places)


def _drop_index(db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM indexes")


# ---- verification


def integrity_errors(store: Store) -> list[str]:
    """Return SQLite's own findings about the database file; empty if it is intact."""
    with database.reading(store.folder) as db:
        found = [str(row[0]) for row in db.execute("PRAGMA integrity_check (5)")]
    return [] if found == ["ok"] else found


def is_sealed(store: Store) -> bool:
    """Return whether the small tables match the checksum of the last transaction."""
    with database.reading(store.folder) as db:
        return database.sealed(db)


def listed_ids(store: Store, segment: Segment) -> list[int]:
    """Return the ids of the items that the database places in a segment, by row."""
    query = "SELECT id FROM items WHERE seg = ? ORDER BY row"
    return [item for (item,) in store.select(query, (segment.seg,))]


def listed_places(store: Store, segment: Segment) -> dict[int, RowPlace]:
    """Return the places, according to the database, of the items in a segment."""
    rows = store.select("SELECT id, seg, row FROM items WHERE seg = ?", (segment.seg,))
    return {item: (seg, row) for item, seg, row in rows}


def item_states(store: Store) -> Iterator[ItemState]:
    """Yield the state of every item, removed ones among them, all of one committed state."""
    query = (
        f"SELECT {', '.join(f'items.{name}' for name in schema.FACTS)}, items.crc, items.seg, items.row, "
        "items.deleted_at, metadata.* FROM items LEFT JOIN metadata ON items.id = metadata.id"
    )
    count = len(schema.FACTS)
    with database.reading(store.folder) as db:
        names = metadata_columns(db)
        for row in db.execute(query):
            facts, (crc, seg, place, deleted_at, owner), values = (
                row[:count],
                row[count : count + 5],
                row[count + 5 :],
            )
            metadata = {name: value for name, value in zip(names, values, strict=True) if value is not None}
            is_intact = deleted_at is not None or (
                owner == row[0] and schema.item_crc(facts, metadata) == crc
            )
            yield ItemState(row[0], None if seg is None else (seg, place), is_intact)


# ---- repair


def rebuild_lookup_indexes(store: Store) -> None:
    """Rebuild SQLite's indexes on the tables."""
    with store.transaction() as db:
        db.execute("REINDEX")


def seal_again(store: Store) -> None:
    """Accept the small tables as they are: an empty transaction writes their checksum."""
    with store.transaction():
        pass


def drop_index(store: Store) -> None:
    """Stop using the FAISS index, which becomes a leftover."""
    with store.transaction() as db:
        _drop_index(db)


def set_rows_checksum(store: Store, segment: Segment, rows_sha256: str) -> None:
    """Record the checksum of a segment's rewritten file of rows."""
    with store.transaction() as db:
        db.execute("UPDATE segments SET rows_sha256 = ? WHERE seg = ?", (rows_sha256, segment.seg))


def salvage_segment(store: Store, damaged: Segment, new: Segment | None, ids: np.ndarray) -> None:
    """Replace a damaged segment by its good rows; the other items wait to be embedded again.

    Args:
        store: Gallery store, inside `writing()`.
        damaged: Damaged segment.
        new: Segment of the good rows; `None` if there are none.
        ids: Item ids of the good rows, int64 [n].
    """
    with store.transaction() as db:
        db.execute("UPDATE items SET seg = NULL, row = NULL WHERE seg = ?", (damaged.seg,))
        _replace(db, Replacement([damaged], new, ids))
        _drop_index(db)


def set_item_place(store: Store, item: int, place: RowPlace | None) -> None:
    """Correct the place of an item's vector; `None` makes the item wait to be embedded again."""
    with store.transaction() as db:
        db.execute("UPDATE items SET seg = ?, row = ? WHERE id = ?", (*(place or (None, None)), item))


def remove_damaged_item(store: Store, item: int) -> None:
    """Remove an item whose facts are damaged, whether or not it has a row of metadata."""
    with store.transaction() as db:
        db.execute("UPDATE items SET deleted_at = ? WHERE id = ?", (now(), item))
        db.execute("INSERT OR IGNORE INTO metadata (id) VALUES (?)", (item,))
