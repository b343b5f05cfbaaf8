"""Database side of compaction, copies, verification and repair."""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.files import now
from retrieval.storage import database, facts, schema, segments
from retrieval.storage.items import ItemWriter, metadata_columns, read_facts
from retrieval.storage.records import Segment
from retrieval.storage.store import Store, insert_segment

_AT_ONCE = 10_000  # items read at once
_PAGES = 4096  # of the database, copied at once
_TRIES = 3  # attempts to copy a database between the commits of a writer
_FREE_SHARE = 0.1  # free pages of the database from which their space is given back


@dataclass(frozen=True)
class Replacement:
    """Neighbouring segments and the segment that takes their place.

    Attributes:
        old: Segments to replace.
        new: New segment, whose rows have the numbers that they had; `None` if no row is left.
    """

    old: Sequence[Segment]
    new: Segment | None


@dataclass(frozen=True, eq=False)
class ItemTable:
    """What the database holds about all live items, for verification.

    Attributes:
        ids: Item ids, int64 [n].
        numbers: Numbers of their vectors, int64 [n]; 0 for items that wait to be embedded again.
        damaged: Ids of items whose facts or metadata do not match their checksum.
    """

    ids: np.ndarray
    numbers: np.ndarray
    damaged: list[int]


# ---- compaction


def replace_segments(store: Store, replacements: Sequence[Replacement], *, purge: bool = False) -> int:
    """Replace segments in one transaction, and return the number of purged items.

    Args:
        store: Gallery store, inside `writing()`.
        replacements: Segments to replace.
        purge: Delete removed items, their metadata and the log of changes for good; no segment may have dead
            vectors any more.
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
    db.executemany("DELETE FROM meta WHERE key = ?", [(f"rows {segment.file}",) for segment in old])
    if new is not None:
        insert_segment(db, new, old[0].seg)


def facts_of(store: Store, ids: np.ndarray) -> Iterator[list[bytes]]:
    """Yield the facts about items, int64 [n], for the file of a segment, from the database."""
    for start in range(0, len(ids), facts.AT_ONCE):
        some = ids[start : start + facts.AT_ONCE]
        with store.reading() as db:
            known, metadata = read_facts(db, some)
        yield from facts.encoded(some.tolist(), known, metadata)


def facts_in(
    store: Store, segment: Segment, ids: np.ndarray, at: np.ndarray, changed: np.ndarray
) -> Iterator[list[bytes]]:
    """Yield the present facts about the items of rows of a segment, for the file of another one.

    They are copied from the file of the segment, but for those that only the database has.

    Args:
        store: Gallery store.
        segment: Segment.
        ids: Ids of all its items, int64 [n].
        at: Rows, int64 [m].
        changed: `changed_items`.
    """
    file = segments.open_facts(store.folder / "segments", segment)
    for start in range(0, len(at), facts.AT_ONCE):
        rows = at[start : start + facts.AT_ONCE]
        some, texts = ids[rows], list[bytes]()
        with suppress(facts.DamagedError):
            texts = file.texts(rows.tolist()) if file else []
        if not texts:
            yield from facts_of(store, some)
            continue
        others = np.flatnonzero(np.isin(some, changed))
        newer = chain.from_iterable(facts_of(store, some[others]))
        for place, text in zip(others.tolist(), newer, strict=True):
            texts[place] = text
        yield texts


def changed_items(store: Store) -> np.ndarray:
    """Return the ids of the items whose facts changed since the last compaction: int64 [n], ascending."""
    return store.select_numbers("SELECT DISTINCT item AS n FROM changes WHERE dead IS NULL ORDER BY 1")


def free_space(store: Store) -> None:
    """Give unused space in the database back to the file system if it is a tenth of the file or more."""
    with database.convert_errors(store.folder), closing(database.connect(store.folder)) as db:
        ((free,),), ((pages,),) = db.execute("PRAGMA freelist_count"), db.execute("PRAGMA page_count")
        if free >= _FREE_SHARE * pages:
            db.execute("VACUUM")


# ---- copies


class _ChangedError(Exception):
    """The database was changed while it was copied."""


def copy_database(folder: Path, target: Path) -> None:
    """Copy the last committed state of the database into another folder, where there is none.

    The copy is made in steps, between which a writer may commit; then it begins again, and after a few
    attempts it is made in one step, for which a writer waits.

    Args:
        folder: Gallery folder.
        target: Folder of the copy.
    """
    for attempt in range(_TRIES + 1):
        (target / "gallery.db").unlink(missing_ok=True)
        (target / "gallery.db").touch()  # SQLite would not let a group write to it, whatever the umask
        with (
            database.convert_errors(folder),
            closing(database.connect(folder)) as db,
            closing(sqlite3.connect(target / "gallery.db")) as copy,
        ):
            try:
                if attempt < _TRIES:
                    db.backup(copy, pages=_PAGES, progress=_refuse_restart(), sleep=0.01)
                else:
                    db.backup(copy, sleep=0.01)
            except _ChangedError:
                continue
            return


def _refuse_restart() -> Callable[[int, int, int], None]:
    """Return a function that raises an error when a copy in steps begins again."""
    least: int | None = None

    def check(_: int, remaining: int, __: int) -> None:
        nonlocal least
        if least is not None and remaining > least:
            raise _ChangedError
        least = remaining

    return check


# ---- rebuilds


def carry_identities(old: Store, new: Store) -> None:
    """Give the items of a gallery a row in its successor, as removed items: they keep their ids when added.

    An item that the successor has under its id and key already stays as it is. Items that the old gallery has
    not any more are removed from the successor, and ids that were given once are not given again.

    Args:
        old: Gallery.
        new: Its successor, inside `writing()`.
    """
    missing, outdated = _identity_differences(old, new)
    facts, columns = ", ".join(f"items.{name}" for name in schema.FACTS), old.columns()
    values = "".join(f", metadata.{schema.quoted(name)}" for name in columns)
    marks = ", ".join("?" * (len(schema.FACTS) + 2))
    insert = f"INSERT OR REPLACE INTO items ({', '.join(schema.FACTS)}, crc, deleted_at) VALUES ({marks})"
    names = "".join(f", {schema.quoted(name)}" for name in columns)
    described = f"INSERT OR REPLACE INTO metadata (id{names}) VALUES (?{', ?' * len(columns)})"
    query = (
        f"SELECT {facts}, items.crc{values} FROM items LEFT JOIN metadata ON metadata.id = items.id "
        f"WHERE items.id IN {schema.LISTED}"
    )
    when, end = now(), len(schema.FACTS) + 1
    with new.transaction() as db:
        writer = ItemWriter(db)
        writer.add_columns(columns)
        writer.remove(outdated.tolist(), when)
        for start in range(0, len(missing), _AT_ONCE):
            rows = old.select(query, (json.dumps(missing[start : start + _AT_ONCE].tolist()),))
            db.executemany(insert, ((*row[:end], when) for row in rows))
            with_values = (row for row in rows if any(value is not None for value in row[end:]))
            db.executemany(described, ((row[0], *row[end:]) for row in with_values))
        with old.reading() as earlier:
            last = database.last_given(earlier, "items")
        database.continue_after(db, "items", max(last, database.last_given(db, "items")))


def _identity_differences(old: Store, new: Store) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of live items that the new gallery lacks under their key, and those it has to drop."""
    found = []
    for store in (old, new):
        ids, keys = array("q"), array("Q")
        with store.reading() as db:
            for item, key in db.execute(f"SELECT id, key FROM items WHERE {schema.LIVE} ORDER BY id"):
                ids.append(item)
                keys.append(hash(key) & 0xFFFFFFFFFFFFFFFF)
        found.append(np.rec.fromarrays([np.frombuffer(ids, np.int64), np.frombuffer(keys, np.uint64)]))
    ours, theirs = found
    return np.setdiff1d(ours, theirs)["f0"], np.setdiff1d(theirs, ours)["f0"]


# ---- verification


def database_damage(folder: Path) -> tuple[str, str]:
    """Return SQLite's findings: damage of the database as a whole, and of its look-up tables; "" for none.

    Raises:
        InputError: The folder is not a gallery, or a gallery of another format.
        LookalikeError: The database cannot be read at present.
    """
    if not (folder / "gallery.db").is_file() and (folder / "segments").is_dir():
        return "missing", ""
    try:
        Store(folder)
        with closing(database.connect(folder)) as db:
            found = [str(row[0]) for row in db.execute("PRAGMA integrity_check (5)")]
    except InputError:
        raise
    except (LookalikeError, sqlite3.DatabaseError) as error:
        if isinstance(error.__cause__, sqlite3.DatabaseError):
            if not database.is_damage(error.__cause__):
                raise
            return f"damaged ({error.__cause__})", ""
        return "damaged", ""  # its manifest
    errors = "; ".join(found) if found != ["ok"] else ""
    return ("", errors) if all("index" in line for line in found) else (errors, "")


def is_sealed(store: Store) -> bool:
    """Return whether the small tables match the checksum of the last transaction."""
    with store.reading() as db:
        return database.sealed(db)


def item_table(store: Store) -> ItemTable:
    """Read all live items and check their facts, in ranges: a writer may commit in between."""
    facts = ", ".join(f"items.{name}" for name in schema.FACTS)
    ids, numbers, damaged = array("q"), array("q"), list[int]()
    with _tolerant(store.folder) as db:
        names = metadata_columns(db)
        values = "".join(f", metadata.{schema.quoted(name)}" for name in names)
        join = "LEFT JOIN metadata ON metadata.id = items.id" if names else ""
        query = (
            f"SELECT items.vector, items.crc, {facts}{values} FROM items {join} "
            f"WHERE {schema.LIVE} AND items.id > ? ORDER BY items.id LIMIT {_AT_ONCE}"
        )
        end, checksum = 2 + len(schema.FACTS), schema.ItemChecksum(names)
        while rows := db.execute(query, (ids[-1] if ids else 0,)).fetchall():
            for row in rows:
                ids.append(row[2])
                numbers.append(row[0] if isinstance(row[0], int) else 0)
                if checksum.of(row[2:end], row[end:]) != row[1]:
                    damaged.append(row[2])
    return ItemTable(np.frombuffer(ids, np.int64), np.frombuffer(numbers, np.int64), damaged)


@contextmanager
def _tolerant(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection for reading that replaces bytes that are not UTF-8."""
    with database.convert_errors(folder), closing(database.connect(folder)) as db:
        db.text_factory = lambda data: data.decode("utf-8", "replace")
        yield db


def listed_rows(store: Store, segment: Segment) -> np.ndarray | None:
    """Return the rows of a segment according to the database, int64 [2, n]: vector numbers and item ids.

    `None` if the database does not list as many rows as the segment has.
    """
    query = (
        "SELECT vector, id FROM items WHERE vector BETWEEN ? AND ? AND deleted_at IS NULL "
        "UNION SELECT dead, item FROM changes WHERE dead BETWEEN ? AND ? ORDER BY 1"
    )
    ends = segment.first, segment.last
    found = np.array(store.select(query, (*ends, *ends)), np.int64).reshape(-1, 2).T
    return found if found.shape[1] == segment.n else None


def unchanged_rows(store: Store, segment: Segment) -> np.ndarray:
    """Return the rows of a segment that have the present facts of their items, int64 [n, 2].

    Vector numbers, ascending, and item ids, of live items whose facts have not changed since.
    """
    query = "SELECT vector, id FROM items WHERE vector BETWEEN ? AND ? AND deleted_at IS NULL ORDER BY 1"
    found = np.array(store.select(query, (segment.first, segment.last)), np.int64).reshape(-1, 2)
    return found[~np.isin(found[:, 1], changed_items(store))]


def damaged_records(store: Store) -> dict[str, list[int]]:
    """Return the rows of the lists of runs and unusable files that do not match their checksum, by table."""
    damaged = {}
    with _tolerant(store.folder) as db:
        for table, columns in schema.RECORDS.items():
            rows = db.execute(f"SELECT rowid, crc, {', '.join(columns)} FROM {table}")
            damaged[table] = [row[0] for row in rows if schema.row_crc(row[2:]) != row[1]]
    return {table: rows for table, rows in damaged.items() if rows}


# ---- repair


def rebuild_lookups(store: Store) -> None:
    """Rebuild SQLite's indexes on the tables."""
    with store.transaction() as db:
        db.execute("REINDEX")


def seal_again(store: Store) -> None:
    """Accept the small tables as they are: an empty transaction writes their checksum."""
    with store.transaction():
        pass


def delete_records(store: Store, table: str, rows: Sequence[int]) -> None:
    """Delete damaged rows from the list of runs or of unusable files."""
    with store.transaction() as db:
        db.executemany(f"DELETE FROM {table} WHERE rowid = ?", [(row,) for row in rows])


def salvage_segment(store: Store, damaged: Segment, new: Segment | None, numbers: np.ndarray) -> None:
    """Replace a damaged segment by its good rows; the items of the others wait to be embedded again.

    Args:
        store: Gallery store, inside `writing()`.
        damaged: Damaged segment.
        new: Segment of the good rows; `None` if there are none.
        numbers: Vector numbers of the good rows, int64 [n].
    """
    ends = damaged.first, damaged.last, json.dumps(numbers.tolist())
    lost = f"BETWEEN ? AND ? AND {{}} NOT IN {schema.LISTED}"
    with store.transaction() as db:
        db.execute(f"UPDATE items SET vector = NULL WHERE vector {lost.format('vector')}", ends)
        db.execute(f"DELETE FROM changes WHERE dead {lost.format('dead')}", ends)
        _replace(db, Replacement([damaged], new))


def drop_index(store: Store) -> None:
    """Stop using the FAISS index, which becomes a leftover."""
    with store.transaction() as db:
        db.execute("DELETE FROM indexes")


def set_numbers(store: Store, numbers: Mapping[int, int | None]) -> None:
    """Correct the numbers of the vectors of items, by id; `None` makes an item wait to be embedded again."""
    with store.transaction() as db:
        pairs = [(number, item) for item, number in numbers.items()]
        db.executemany("UPDATE items SET vector = ? WHERE id = ?", pairs)


def mark_dead(store: Store, rows: np.ndarray) -> None:
    """Log vectors as dead: their numbers and the items that they do not belong to any more, int64 [2, n]."""
    with store.transaction() as db:
        db.executemany("INSERT INTO changes (dead, item) VALUES (?, ?)", rows.T.tolist())


def remove_damaged_items(store: Store, ids: Sequence[int]) -> None:
    """Remove items whose facts are damaged, with their metadata, which may be damaged as well."""
    which = (json.dumps(list(ids)),)
    with store.transaction() as db:
        log = "INSERT INTO changes (item, dead) SELECT id, vector FROM items WHERE vector NOT NULL AND id IN"
        db.execute(f"{log} {schema.LISTED}", which)
        db.execute(f"UPDATE items SET deleted_at = ? WHERE id IN {schema.LISTED}", (now(), *which))
        db.execute(f"DELETE FROM metadata WHERE id IN {schema.LISTED}", which)
