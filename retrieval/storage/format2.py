"""Galleries of format 2, where every vector had an item id of its own: reading and conversion."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.storage import database, schema, segments
from retrieval.storage.items import ItemWriter, metadata_columns, read_facts
from retrieval.storage.manifest import Manifest, write_manifest
from retrieval.storage.records import IndexSpec, Segment
from retrieval.storage.store import insert_segment

_FACTS = ", ".join(f"items.{name}" for name in schema.FACTS)
_ITEM = f"INSERT INTO items ({', '.join(schema.FACTS)}, vector, crc) VALUES ({', '.join('?' * 12)})"


@dataclass(frozen=True, eq=False)
class OldSegment:
    """A segment of format 2.

    Attributes:
        file: Name of its file of vectors, float32 [n, D].
        ids: Item ids of its rows, int64 [n], ascending over all segments.
        checksums: CRC-32 of the vectors, int64 [n].
    """

    file: str
    ids: np.ndarray
    checksums: np.ndarray


class OldGallery:
    """A gallery of format 2, for reading.

    Args:
        folder: Gallery folder.

    Raises:
        InputError: It has another format, or is no gallery.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "gallery.db").is_file():
            raise InputError(f"{folder}: not a gallery")
        with database.convert_errors(folder):
            self._db = database.connect(folder)
            meta = {
                name: json.loads(value) for name, value in self._db.execute("SELECT key, value FROM meta")
            }
        if meta.get("format_version") != 2:
            self._db.close()
            raise InputError(f"{folder}: has format {meta.get('format_version')}; only format 2 is upgraded")
        self.manifest = Manifest(
            fingerprint=meta["fingerprint"],
            dim=meta["dim"],
            embedding=meta.get("embedding"),
            decode_policy=meta.get("decode_policy"),
            probes_sha256=meta.get("probes_sha256"),
            rebuilt_from=meta.get("rebuilt_from"),
            index_spec=IndexSpec(**meta.get("index_wish", {})),
            uuid=meta["gallery_uuid"],
        )

    def close(self) -> None:
        self._db.close()

    def segments(self) -> Iterator[OldSegment]:
        """Yield the segments, oldest first.

        Raises:
            LookalikeError: A file is damaged.
        """
        for file, count in self._db.execute("SELECT file, n FROM segments ORDER BY seg").fetchall():
            path = segments.rows_file(self.folder / "segments" / file)
            try:
                rows = np.load(path, allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                raise self._damaged(f"segments/{path.name}") from error
            if rows.shape != (count, 2):
                raise self._damaged(f"segments/{path.name}")
            yield OldSegment(file, rows[:, 0], rows[:, 1])

    def vectors(self, segment: OldSegment) -> np.ndarray:
        """Return the vectors of a segment, float32 [n, D], memory-mapped and checked.

        Raises:
            LookalikeError: A vector is damaged.
        """
        try:
            found: np.ndarray = np.load(self.folder / "segments" / segment.file, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise self._damaged(f"segments/{segment.file}") from error
        found = np.asarray(found)
        checksums = np.fromiter(map(zlib.crc32, np.ascontiguousarray(found)), np.int64, len(found))
        if found.shape != (len(segment.ids), self.manifest.dim) or (checksums != segment.checksums).any():
            raise self._damaged(f"segments/{segment.file}")
        return found

    def facts(self, ids: np.ndarray) -> dict[str, list[Any]]:
        """Return the facts about items, int64 [n], as columns of n values for the file of a segment."""
        return read_facts(self._db, ids)

    def write_database(self, draft: Path, listed: list[Segment], numbers: np.ndarray) -> None:
        """Write a database of the present format.

        The number of a vector is the id of the item that it had; items that were removed are dropped.

        Args:
            draft: Folder in which to write it.
            listed: New segments, oldest first.
            numbers: Vector numbers in them, int64 [n], ascending.
        """
        database.create(draft)
        with database.convert_errors(self.folder), database.writing(draft) as db:
            write_manifest(db, self.manifest)
            for segment in listed:
                insert_segment(db, segment)
            live = self._copy_items(db)
            dead = numbers[~np.isin(numbers, live)].tolist()
            db.executemany("INSERT INTO changes (item, dead) VALUES (?, ?)", ((n, n) for n in dead))
            for table, columns in schema.RECORDS.items():
                names = [name for _, name, *_ in self._db.execute(f"PRAGMA table_info ({table})")]
                at = [names.index(name) for name in columns]
                marks = ", ".join("?" * (len(names) + 1))
                for row in self._db.execute(f"SELECT {', '.join(names)} FROM {table}"):
                    crc = schema.row_crc(row[i] for i in at)
                    db.execute(f"INSERT INTO {table} ({', '.join(names)}, crc) VALUES ({marks})", (*row, crc))
            last = database.last_given(self._db, "items")
            database.continue_after(db, "items", last)
            db.execute("INSERT OR REPLACE INTO meta VALUES ('last_vector', ?)", (json.dumps(last),))

    def _copy_items(self, db: sqlite3.Connection) -> np.ndarray:
        """Copy the live items with their metadata, checked, and return the ids of those with a vector."""
        names = metadata_columns(self._db)
        ItemWriter(db).add_columns(names)
        columns = "".join(f", {schema.quoted(name)}" for name in names)
        describe = f"INSERT INTO metadata (id{columns}) VALUES (?{', ?' * len(names)})"
        query = (
            f"SELECT items.seg, items.crc, {_FACTS}, metadata.* FROM items "
            "JOIN metadata ON metadata.id = items.id "
            "WHERE deleted_at IS NULL ORDER BY items.id"
        )
        end, with_vector = 2 + len(schema.FACTS), []
        for row in self._db.execute(query):
            facts, values = row[2:end], row[end + 1 :]
            metadata = {name: value for name, value in zip(names, values, strict=True) if value is not None}
            if zlib.crc32(json.dumps([*facts, sorted(metadata.items())]).encode()) != row[1]:
                raise self._damaged(f"gallery.db, item {row[2]}")
            number = None if row[0] is None else row[2]
            db.execute(_ITEM, (*facts, number, schema.item_crc(facts, metadata)))
            if metadata:
                db.execute(describe, (row[2], *values))
            if number is not None:
                with_vector.append(number)
        return np.array(with_vector, np.int64)

    def _damaged(self, what: str) -> LookalikeError:
        return LookalikeError(
            f"{self.folder}: {what} is damaged; repair the gallery with the version that wrote it"
        )
