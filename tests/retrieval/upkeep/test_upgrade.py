"""Upgrade of a gallery of format 2, which is written here with SQLite and numpy alone."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from retrieval import Gallery, InputError, LookalikeError
from retrieval.storage.format2 import OldGallery
from retrieval.upkeep import upgrade as upgrading
from retrieval.upkeep.upgrade import upgrade
from retrieval.upkeep.verify import verify
from tests.conftest import lookalike_here
from tests.retrieval.filling import DIM, commit, contents, unit_vectors
from tests.retrieval.killing import kill_at_every_step

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE segments (seg INTEGER PRIMARY KEY AUTOINCREMENT, file TEXT NOT NULL UNIQUE, n INTEGER NOT NULL,
    sha256 TEXT NOT NULL, bytes INTEGER NOT NULL, rows_sha256 TEXT NOT NULL);
CREATE TABLE items (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, root TEXT NOT NULL,
    path TEXT NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, content_sha256 TEXT NOT NULL,
    width INTEGER NOT NULL, height INTEGER NOT NULL, label TEXT,
    seg INTEGER, row INTEGER, deleted_at TEXT, crc INTEGER NOT NULL);
CREATE UNIQUE INDEX live_key ON items (key) WHERE deleted_at IS NULL;
CREATE TABLE metadata (id INTEGER PRIMARY KEY REFERENCES items, "brand" , "price" );
CREATE TABLE bad (root TEXT NOT NULL, path TEXT NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, attempts INTEGER NOT NULL, last_seen TEXT NOT NULL,
    PRIMARY KEY (root, path));
CREATE TABLE indexes (idx INTEGER PRIMARY KEY, dir TEXT NOT NULL UNIQUE, sha256 TEXT NOT NULL,
    kind TEXT NOT NULL, n INTEGER NOT NULL, card_sha256 TEXT NOT NULL);
CREATE TABLE runs (run INTEGER PRIMARY KEY, command TEXT NOT NULL, started TEXT NOT NULL, ended TEXT,
    counts TEXT NOT NULL DEFAULT '{}', versions TEXT NOT NULL);
"""
META = {
    "format_version": 2,
    "gallery_uuid": "u",
    "fingerprint": "",
    "dim": DIM,
    "embedding": "random",
    "index_wish": {"kind": "sq8"},
    "metric": "cosine",
    "dtype": "float32",
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Write two segments: item 25 replaces item 5, item 30 was removed, item 40 has lost its vector."""
    folder = tmp_path / "g"
    for name in ("segments", "indexes/old", "model", "reports"):
        (folder / name).mkdir(parents=True)
    vectors = unit_vectors(40, seed=7)
    with closing(sqlite3.connect(folder / "gallery.db")) as db, db:
        db.executescript(SCHEMA)
        db.executemany("INSERT INTO meta VALUES (?, ?)", [(k, json.dumps(v)) for k, v in META.items()])
        for seg in (1, 2):
            mine = np.arange(20 * seg - 20, 20 * seg)
            crcs = [zlib.crc32(vectors[row].tobytes()) for row in mine]
            np.save(folder / "segments" / f"old{seg}.npy", vectors[mine])
            np.save(folder / "segments" / f"old{seg}.rows.npy", np.stack([mine + 1, crcs], 1))
            db.execute("INSERT INTO segments VALUES (?, ?, 20, '', 0, '')", (seg, f"old{seg}.npy"))
        for item in range(1, 41):
            key = "k5" if item == 25 else f"k{item}"
            facts = (item, key, "/pictures", f"{key}.jpg", 9, 1, f"sha{item}", 4, 3, f"label{item % 3}")
            given = {"brand": "acme", "price": 2.5} if item % 2 else {}
            crc = zlib.crc32(json.dumps([*facts, sorted(given.items())]).encode())
            place = (None, None) if item == 40 else ((item - 1) // 20 + 1, (item - 1) % 20)
            gone = "2025-01-01" if item in (5, 30) else None
            db.execute(f"INSERT INTO items VALUES ({', '.join('?' * 14)})", (*facts, *place, gone, crc))
            row = (item, given.get("brand"), given.get("price"))
            db.execute("INSERT INTO metadata VALUES (?, ?, ?)", row)
        db.execute("UPDATE sqlite_sequence SET seq = 50 WHERE name = 'items'")
        db.execute(
            "INSERT INTO runs VALUES (1, 'build', '2025-01-01', '2025-01-01', '{\"added\": 40}', '{}')"
        )
        db.execute(
            "INSERT INTO bad VALUES ('/pictures', 'z.jpg', 'damaged', 'cut off', 1, 1, 2, '2025-01-01')"
        )
    return folder


def test_everything_is_kept(old: Path) -> None:
    with pytest.raises(InputError, match=f"run `lookalike index upgrade {old}`"):
        Gallery(old)
    done = lookalike_here("index", "upgrade", str(old), "--json")
    assert json.loads(done.stdout) == {"gallery": str(old), "images": 37, "format": 3}
    gallery, vectors = Gallery(old), unit_vectors(40, seed=7)
    expected = {}
    for item in set(range(1, 40)) - {5, 30}:
        key = "k5" if item == 25 else f"k{item}"
        assert gallery.ids_of([key]) == [item]
        metadata = {"brand": "acme", "price": 2.5} if item % 2 else {}
        expected[key] = (f"label{item % 3}", metadata, vectors[item - 1].tobytes())
    assert contents(gallery) == expected
    assert gallery.index is not None
    assert gallery.index.card["kind"] == "sq8"
    assert [file.detail for file in gallery.bad_files()] == ["cut off"]
    assert gallery.info()["runs"][-1]["counts"] == {"added": 40}
    found = verify(old)
    assert not found.problems
    assert (found.waiting, found.leftovers) == (1, 0)
    commit(gallery, ["new"])
    assert gallery.ids_of(["new.jpg"]) == [51]
    with pytest.raises(InputError, match="only format 2"):
        upgrade(old)


def test_damage_is_refused(old: Path) -> None:
    path = old / "segments" / "old2.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(LookalikeError, match=r"old2\.npy is damaged"):
        upgrade(old)
    with pytest.raises(InputError, match="index upgrade"):
        Gallery(old)


@pytest.mark.parametrize("step", ["_convert", "write_database", "replace_database"])
def test_interrupted_upgrade_can_be_repeated(old: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    owner = OldGallery if step == "write_database" else upgrading
    real = getattr(owner, step)

    def cut(*given: object) -> None:
        real(*given)
        raise KeyboardInterrupt

    copy = shutil.copytree(old, old.with_name("copy"))
    expected = contents(upgrade(copy))
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, cut)
        with pytest.raises(KeyboardInterrupt):
            upgrade(old)
    if step != "replace_database":
        upgrade(old)
    assert contents(Gallery(old)) == expected
    verify(old, repair=True)  # builds the index that was asked for
    assert not verify(old).problems
    assert not verify(old).leftovers


@pytest.mark.slow
def test_killed_upgrade_can_be_repeated(old: Path, quick: Path) -> None:
    expected = contents(upgrade(shutil.copytree(old, quick / "copy")))
    steps = kill_at_every_step("upgrade", old, quick / "killed")
    for folder in steps[::4]:
        try:
            gallery = Gallery(folder)
        except InputError:
            gallery = upgrade(folder)
        assert contents(gallery) == expected
        assert not verify(folder, repair=True).left
        assert not verify(folder).leftovers
    assert len(steps) > 40
