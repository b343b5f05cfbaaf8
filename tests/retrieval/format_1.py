"""A gallery of format 1, as its writer left it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path

import numpy as np

from retrieval import Embedder
from retrieval.storage.identity import probe_pixels
from tests.retrieval.filling import unit_vectors
from tests.serve.model import write_model

FORMAT_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE segments (seg INTEGER PRIMARY KEY, file TEXT NOT NULL UNIQUE, n INTEGER NOT NULL,
    sha256 TEXT NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE items (id INTEGER PRIMARY KEY AUTOINCREMENT, root TEXT NOT NULL, path TEXT NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, content_sha256 TEXT NOT NULL,
    width INTEGER NOT NULL, height INTEGER NOT NULL, label TEXT,
    seg INTEGER NOT NULL REFERENCES segments, row INTEGER NOT NULL,
    deleted_at TEXT, meta TEXT NOT NULL DEFAULT '{}');
CREATE UNIQUE INDEX live_path ON items (root, path) WHERE deleted_at IS NULL;
CREATE TABLE bad (root TEXT NOT NULL, path TEXT NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, attempts INTEGER NOT NULL, last_seen TEXT NOT NULL,
    PRIMARY KEY (root, path));
CREATE TABLE indexes (idx INTEGER PRIMARY KEY, dir TEXT NOT NULL UNIQUE, sha256 TEXT NOT NULL,
    kind TEXT NOT NULL, covers_upto_seg INTEGER NOT NULL, n INTEGER NOT NULL, active INTEGER NOT NULL);
CREATE TABLE runs (run INTEGER PRIMARY KEY, command TEXT NOT NULL, started TEXT NOT NULL, ended TEXT,
    counts TEXT NOT NULL DEFAULT '{}', versions TEXT NOT NULL);
INSERT INTO bad VALUES ('/one', 'bad.jpg', 'damaged', 'cut off', 1, 2, 3, '2026-01-01');
INSERT INTO indexes VALUES (1, 'abc', 'no', 'flat', 1, 3, 1);
INSERT INTO runs VALUES (1, 'build', '2026-01-01', '2026-01-02', '{"added": 5}', '{}');
"""


def old_gallery(folder: Path) -> Path:
    """Two segments of three; one item replaced, one path in two roots."""
    for name in ("segments", "indexes/abc", "model", "reports"):
        (folder / name).mkdir(parents=True)
    embedder = Embedder(write_model(folder / "model" / "model.onnx"))
    np.save(folder / "model" / "probes.npy", embedder.embed_pixels(probe_pixels(embedder)))
    (folder / "indexes" / "abc" / "index.faiss").write_bytes(b"flat")
    db = sqlite3.connect(folder / "gallery.db")
    db.executescript(FORMAT_1)
    for seg in (1, 2):
        path = folder / "segments" / f"{seg}{seg}.npy"
        np.save(path, unit_vectors(3, seg))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        db.execute(
            "INSERT INTO segments VALUES (?, ?, 3, ?, ?)", (seg, path.name, digest, path.stat().st_size)
        )
    items = [
        ("/one", "a.jpg", 1, 0, "2026-01-01", "{}"),
        ("/one", "b.jpg", 1, 1, None, '{"brand": "acme", "tags": ["x"]}'),
        ("/one", "c.jpg", 1, 2, None, "{}"),
        ("/one", "a.jpg", 2, 0, None, '{"price": 2.5}'),
        ("/two", "c.jpg", 2, 1, None, "{}"),
        ("/two", "d.jpg", 2, 2, None, "{}"),
    ]
    for root, path, seg, row, deleted, meta in items:
        values = (root, path, 10, 20, "sha", 4, 3, "label", seg, row, deleted, meta)
        db.execute(f"INSERT INTO items VALUES (NULL{', ?' * 12})", values)
    facts = {
        "format_version": 1,
        "gallery_uuid": "u",
        "fingerprint": embedder.fingerprint,
        "dim": embedder.dim,
    }
    db.executemany("INSERT INTO meta VALUES (?, ?)", [(k, json.dumps(v)) for k, v in facts.items()])
    db.commit()
    db.close()
    return folder
