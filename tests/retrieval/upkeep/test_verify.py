"""Verification and repair: a flipped byte anywhere is found, never served, and repaired if possible."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from retrieval import Gallery, LookalikeError
from retrieval.storage.maintenance import drop_index
from retrieval.storage.records import BadFile, FileStamp, IndexSpec
from retrieval.storage.schema import FACTS, item_crc
from retrieval.storage.segments import files_of
from retrieval.upkeep.compact import compact
from retrieval.upkeep.verify import verify
from tests.retrieval.filling import DIM, commit, contents, small_gallery


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a gallery with three segments, an index over two of them, a removed item and metadata."""
    gallery = small_gallery(tmp_path_factory.mktemp("original"))
    commit(gallery, [f"a{i}" for i in range(20)], seed=1, brand="acme", price=2.5)
    commit(gallery, [f"b{i}" for i in range(20)], seed=2)
    with gallery.store.writing():
        gallery.build_index(IndexSpec("sq8"))
    commit(gallery, [f"c{i}" for i in range(20)], seed=3)
    gallery.remove(["a3.jpg"])
    assert not verify(gallery.folder).problems
    return gallery.folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "g")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def one(folder: Path, pattern: str) -> Path:
    return sorted(folder.glob(pattern))[0]


def first_segment(folder: Path) -> Path:
    return folder / "segments" / Gallery(folder).store.segments()[0].file


def first_rows(folder: Path) -> Path:
    return folder / "segments" / files_of(Gallery(folder).store.segments()[0].file)[1]


KINDS: dict[str, Callable[[Path], Path]] = {
    "segment": first_segment,
    "rows": first_rows,
    "facts": lambda folder: folder / "segments" / files_of(Gallery(folder).store.segments()[0].file)[2],
    "copy": lambda folder: folder / "gallery.json",
    "index": lambda folder: one(folder, "indexes/*/index.faiss"),
    "card": lambda folder: one(folder, "indexes/*/card.json"),
    "model": lambda folder: folder / "model" / "model.onnx",
    "probes": lambda folder: folder / "model" / "probes.npy",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_flipped_byte_is_found_and_repaired(folder: Path, kind: str, share: float) -> None:
    before = contents(Gallery(folder))
    path = KINDS[kind](folder)
    flip(path, int(share * path.stat().st_size))
    found = verify(folder)
    assert [path.name in problem.what for problem in found.problems] == [True]
    assert found.left == found.problems, "looking changes nothing"
    repaired = verify(folder, repair=True)
    if kind == "model":
        assert repaired.left
        return
    assert repaired.problems
    assert not repaired.left
    assert not verify(folder).problems
    after = contents(Gallery(folder))
    assert {key: before[key] for key in after} == after
    assert len(before) - len(after) == repaired.waiting <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_missing_file_is_found(folder: Path, kind: str) -> None:
    KINDS[kind](folder).unlink()
    assert verify(folder).problems
    repaired = verify(folder, repair=True)
    if kind == "model":
        assert repaired.left
        return
    assert not repaired.left
    assert repaired.waiting == (19 if kind == "segment" else 0)  # of 20, one was removed


@pytest.mark.parametrize(("name", "waiting"), [("indexes", 0), ("segments", 59)])
def test_missing_folder_is_made_again(folder: Path, name: str, waiting: int) -> None:
    shutil.rmtree(folder / name)
    assert verify(folder).problems
    repaired = verify(folder, repair=True)
    assert not repaired.left
    assert repaired.waiting == waiting
    assert (folder / name).is_dir()
    assert not verify(folder).problems


def test_truncated_segment_loses_only_its_end(folder: Path) -> None:
    path = first_segment(folder)
    path.write_bytes(path.read_bytes()[:-200])  # the last vector takes 192 bytes
    repaired = verify(folder, repair=True)
    assert not repaired.left
    assert repaired.waiting == 2
    assert (folder / "quarantine" / path.name).exists()
    gallery = Gallery(folder)
    assert len(gallery) == 57
    commit(gallery, ["a18", "a19"])  # like adding the sources again
    assert verify(folder).waiting == 0
    assert contents(gallery)["a19.jpg"][1] == {"brand": "acme", "price": 2.5}, "metadata were kept"


def test_segment_and_rows_lost_together(folder: Path) -> None:
    for path in (first_segment(folder), first_rows(folder)):
        path.unlink()
    repaired = verify(folder, repair=True)
    assert not repaired.left
    assert repaired.waiting == 19
    assert len(contents(Gallery(folder))) == 40


def test_flipped_database_bytes_are_found_or_harmless(folder: Path) -> None:
    """Any flipped byte is found, or the gallery returns the same contents as before."""
    before = dump(folder)
    database = folder / "gallery.db"
    intact = database.read_bytes()
    places = np.random.default_rng(0).choice(len(intact), 100, replace=False)
    found = 0
    for at in places.tolist():
        flip(database, at)
        try:
            problems = bool(verify(folder).problems)
        except LookalikeError:
            problems = True
        found += problems
        assert problems or dump(folder) == before, f"byte {at}"
        database.write_bytes(intact)
    assert found > 10


def dump(folder: Path) -> tuple[object, ...]:
    gallery = Gallery(folder)
    runs = gallery.store.select("SELECT * FROM runs")
    return (
        contents(gallery),
        gallery.store.manifest,
        gallery.store.segments(),
        gallery.contents.bad_files(),
        runs,
    )


def test_damaged_item_is_found_and_removed(folder: Path) -> None:
    gallery = Gallery(folder)
    (number,) = gallery.ids_of(["b1.jpg"])
    with gallery.store.writing(), gallery.store.transaction() as db:
        db.execute("UPDATE items SET path = 'other' WHERE id = ?", (number,))
    assert [f"item {number}" in problem.what for problem in verify(folder).problems] == [True]
    assert not verify(folder, repair=True).left
    assert "b1.jpg" not in contents(Gallery(folder))


def test_of_items_with_one_key_the_newest_is_kept(folder: Path) -> None:
    gallery = Gallery(folder)
    older, newer = gallery.ids_of(["b1.jpg", "b2.jpg"])
    columns = ", ".join(FACTS)
    with gallery.store.writing(), gallery.store.transaction() as db:
        facts = db.execute(f"SELECT {columns} FROM items WHERE id = ?", (older,)).fetchone()
        renamed = tuple(
            "b2.jpg" if name == "key" else value for name, value in zip(FACTS, facts, strict=True)
        )
        db.execute("UPDATE items SET key = 'b2.jpg', crc = ? WHERE id = ?", (item_crc(renamed), older))
    assert [f"key of item {older} is" in problem.what for problem in verify(folder).problems] == [True]
    assert not verify(folder, repair=True).left
    assert Gallery(folder).ids_of(["b2.jpg"]) == [newer]
    assert len(Gallery(folder)) == 58


def test_misplaced_item_is_repaired(folder: Path) -> None:
    gallery = Gallery(folder)
    before = contents(gallery)
    with gallery.store.writing(), gallery.store.transaction() as db:
        db.execute("UPDATE items SET vector = vector + 1 WHERE id = 5")
    assert verify(folder).problems
    assert not verify(folder, repair=True).left
    assert contents(Gallery(folder)) == before


def test_compaction_refuses_damaged_vectors(folder: Path) -> None:
    flip(first_segment(folder), -1)
    gallery = Gallery(folder)
    with pytest.raises(LookalikeError, match="repair"):
        compact(gallery)
    assert len(Gallery(folder)) == 59


def test_damaged_database_is_not_written(folder: Path) -> None:
    import sqlite3

    with sqlite3.connect(folder / "gallery.db") as db:
        db.execute("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'segments'")
    db.close()
    gallery = Gallery(folder)
    with pytest.raises(LookalikeError, match="verify"):
        gallery.remove([1])
    assert not verify(folder, repair=True).left
    assert gallery.remove([1]) == 1


def test_index_that_is_not_as_asked_for_is_built(folder: Path) -> None:
    with Gallery(folder).store.writing():
        pass
    gallery = Gallery(folder)
    assert gallery.index is not None
    with gallery.store.writing():
        drop_index(gallery.store)
    assert ["no index" in problem.what for problem in verify(folder).problems] == [True]
    assert not verify(folder, repair=True).left
    gallery.refresh()
    assert gallery.index.card["kind"] == "sq8"
    with gallery.store.writing():
        active = gallery.store.state().index
        gallery.store.use_index(active, IndexSpec("hnsw"))
    assert ["of kind sq8 instead" in problem.what for problem in verify(folder).problems] == [True]
    assert not verify(folder, repair=True).left
    gallery.refresh()
    assert gallery.index.card["kind"] == "hnsw"


@pytest.mark.parametrize(
    ("table", "damage"),
    [("runs", "UPDATE runs SET counts = '{}' WHERE run = 1"), ("bad", "UPDATE bad SET detail = 'x'")],
)
def test_damaged_records_are_deleted(folder: Path, table: str, damage: str) -> None:
    gallery = Gallery(folder)
    with gallery.store.writing():
        gallery.store.record_run("test", "2026-01-01", {"added": 3})
        bad = BadFile(FileStamp("/pictures", "z.jpg", 1, 1), "damaged", "it is cut off")
        gallery.store.commit(np.empty((0, DIM), np.float32), [], [bad])
    before = contents(gallery)
    with gallery.store.writing(), gallery.store.transaction() as db:
        db.execute(damage)
    assert ["1 damaged rows" in problem.what for problem in verify(folder).problems] == [True]
    assert not verify(folder, repair=True).left
    assert contents(Gallery(folder)) == before
    assert len(gallery.contents.bad_files()) == (table == "runs")


def test_leftovers_are_not_problems(folder: Path) -> None:
    (folder / "segments" / "half.npy.tmp-1").touch()
    found = verify(folder)
    assert not found.problems
    assert found.leftovers == 1
