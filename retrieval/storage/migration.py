"""Bring a gallery of format 1 up to date: one transaction, after the files that it needs are written."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.files import sha256_of
from retrieval.storage import database, schema, segments
from retrieval.storage.items import Items
from retrieval.storage.records import Value

_OLD = ("segments", "items", "bad", "indexes", "runs")


def migrate(folder: Path) -> None:
    """Turn format 1 into format 2: keys, columns for metadata, checksums of rows. The vectors stay.

    Format 1 knew exact indexes alone, which format 2 has no need of: the segments are searched as they lie.

    Raises:
        LookalikeError: the database failed; the gallery is as it was.
    """
    with database.writing(folder) as db:
        for table in _OLD:
            db.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
        db.execute("DROP INDEX live_path")
        for statement in schema.TABLES.split(";\n")[1:]:  # meta stays
            db.execute(statement)
        for number, file, n, sha256, size in db.execute("SELECT * FROM old_segments").fetchall():
            path = folder / "segments" / file
            query = "SELECT id FROM old_items WHERE seg = ? ORDER BY row"
            ids = np.array(db.execute(query, (number,)).fetchall(), np.int64).reshape(-1)
            if path.is_file() and sha256_of(path) == sha256:
                digest = segments.write_rows(path, np.load(path, mmap_mode="r", allow_pickle=False), ids)
                values = (number, file, n, sha256, size, digest)
                db.execute("INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?)", values)
        _items(db)
        db.execute("INSERT INTO bad SELECT * FROM old_bad")
        db.execute("INSERT INTO runs SELECT * FROM old_runs")
        for table in _OLD:
            db.execute(f"DROP TABLE old_{table}")
        probes = sha256_of(folder / "model" / "probes.npy")
        for key, value in (("format_version", schema.FORMAT_VERSION), ("probes_sha256", probes)):
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))


def _items(db: sqlite3.Connection) -> None:
    """The items: those whose vectors are lost wait to be embedded again."""
    rows = db.execute("SELECT * FROM old_items ORDER BY id").fetchall()
    living = Counter(path for _, _, path, *_, deleted_at, _ in rows if deleted_at is None)
    kept = {seg for (seg,) in db.execute("SELECT seg FROM segments")}
    table = Items(db)
    for number, root, path, size, mtime, sha256, width, height, label, seg, row, deleted_at, text in rows:
        key = path if living[path] < 2 else Path(root, path).as_posix()
        facts = (number, key, root, path, size, mtime, sha256, width, height, label)
        place = (seg, row) if seg in kept else (None, None)
        metadata = {name: _plain(value) for name, value in json.loads(text).items()}
        table.take_over(facts, metadata, place, deleted_at)


def _plain(value: Any) -> Value:
    """A value of format 1, which took any JSON."""
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)
