"""Salvage: a gallery whose database is destroyed comes back from its segments."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from retrieval import Gallery, InputError, LookalikeError
from retrieval.storage.records import Change, FileStamp, IndexSpec
from retrieval.storage.segments import files_of
from retrieval.upkeep.compact import compact
from retrieval.upkeep.verify import verify
from tests.conftest import lookalike_here
from tests.retrieval.filling import commit, contents, small_gallery
from tests.retrieval.galleries.test_divided import FIRST, SECOND, board
from tests.retrieval.search.test_detector import write_detector


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a gallery after a compaction, a removal, a replacement, a new label and a lost vector."""
    gallery = small_gallery(tmp_path_factory.mktemp("original"))
    commit(gallery, [f"a{i}" for i in range(40)], seed=1, brand="acme", price=2.5)
    commit(gallery, [f"b{i}" for i in range(40)], seed=2)
    gallery.remove(["a0.jpg"])
    compact(gallery)
    commit(gallery, ["a1", "b1", "c1"], seed=3)
    gallery.remove(["a3.jpg", "b3.jpg"])
    with gallery.store.writing():
        gallery.build_index(IndexSpec("sq8"))
        (changed,) = gallery.ids_of(["b5.jpg"])
        gallery.store.amend([Change(changed, FileStamp("/pictures", "b5.jpg", 1, 1, "new"))])
        gallery.store.record_run("test", "2026-01-01", {})
    assert not verify(gallery.folder).problems
    return gallery.folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "g")


def ids_by_key(gallery: Gallery) -> dict[str, int]:
    return {key: gallery.ids_of([key])[0] for key in contents(gallery)}


def zeroed(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def garbled(file: Path) -> None:
    file.write_bytes(np.random.default_rng(0).bytes(file.stat().st_size))


DESTROYED: dict[str, Callable[[Path], object]] = {
    "zeroed": zeroed,
    "empty": lambda file: file.write_bytes(b""),
    "deleted": lambda file: file.unlink(),
    "garbled": garbled,
}


@pytest.mark.parametrize("how", DESTROYED)
def test_destroyed_database_is_rebuilt_from_the_segments(folder: Path, how: str) -> None:
    before, ids = contents(Gallery(folder)), ids_by_key(Gallery(folder))
    assert {"a0.jpg", "a3.jpg", "b3.jpg"}.isdisjoint(before)
    DESTROYED[how](folder / "gallery.db")
    with pytest.raises(LookalikeError, match="verify"):
        Gallery(folder)
    assert [problem.repair for problem in verify(folder).problems] == ["salvage"]
    repaired = verify(folder, repair=True)
    assert repaired.salvage is not None
    assert (repaired.salvage.items, repaired.salvage.complete, repaired.salvage.lost) == (len(before), 0, 0)
    assert not repaired.left
    gallery = Gallery(folder)
    after = contents(gallery)
    assert {key: vector for key, (_, _, vector) in after.items()} == {k: v for k, (_, _, v) in before.items()}
    assert ids_by_key(gallery) == ids
    assert {key for key in after if after[key] != before[key]} == {"b5.jpg"}, "a label of later"
    assert gallery.index is not None
    assert gallery.index.card["kind"] == "sq8"
    assert (how == "deleted") != any((folder / "quarantine").glob("gallery-*.db"))
    commit(gallery, ["new", "a2"], seed=9)
    assert gallery.ids_of(["a2.jpg"]) == [ids["a2.jpg"]]
    assert gallery.ids_of(["new.jpg"])[0] > max(ids.values())
    assert not verify(folder).problems


@pytest.mark.parametrize("seed", range(8))
def test_random_pages_lose_only_what_they_held(folder: Path, seed: int) -> None:
    before, ids = contents(Gallery(folder)), ids_by_key(Gallery(folder))
    file, random = folder / "gallery.db", np.random.default_rng(seed)
    pages = bytearray(file.read_bytes())
    for page in random.choice(len(pages) // 4096, 3, replace=False).tolist():
        pages[4096 * page : 4096 * (page + 1)] = random.bytes(4096)
    file.write_bytes(pages)
    repaired = verify(folder, repair=True)
    assert not repaired.left
    gallery = Gallery(folder)
    after = contents(gallery)
    assert {key: vector for key, (_, _, vector) in after.items()} == {k: v for k, (_, _, v) in before.items()}
    assert ids_by_key(gallery) == ids
    whole = sum(after[key] == before[key] for key in before)
    assert repaired.salvage is None or whole >= repaired.salvage.complete
    assert not verify(folder).problems


def test_intact_rows_of_a_damaged_database_are_kept(folder: Path) -> None:
    """A damaged list of segments costs nothing: items and metadata have checksums of their own."""
    import sqlite3

    before = contents(Gallery(folder))
    with sqlite3.connect(folder / "gallery.db") as db:
        db.execute("UPDATE segments SET file = 'x' || file")
    db.close()
    repaired = verify(folder, repair=True)
    assert repaired.salvage is not None
    assert repaired.salvage.complete == repaired.salvage.items == len(before)
    gallery = Gallery(folder)
    assert contents(gallery) == before
    assert "test" in [run["command"] for run in gallery.info()["runs"]]
    assert gallery.index is not None, "its files are those that the old database names"


def test_removed_items_stay_removed_without_the_log(folder: Path) -> None:
    """The next writer completes a log that a killed one left behind."""
    log = (folder / "removals.log").read_bytes()
    (folder / "removals.log").write_bytes(log[:30])
    with Gallery(folder).store.writing():
        pass
    assert (folder / "removals.log").read_bytes() == log
    (folder / "gallery.db").unlink()
    verify(folder, repair=True)
    assert {"a3.jpg", "b3.jpg"}.isdisjoint(contents(Gallery(folder)))


def test_leftovers_of_a_merge_do_no_harm(folder: Path, tmp_path: Path) -> None:
    before = {key: vector for key, (_, _, vector) in contents(Gallery(folder)).items()}
    old = shutil.copytree(folder / "segments", tmp_path / "old")
    compact(Gallery(folder))
    for file in old.iterdir():
        shutil.copy(file, folder / "segments")
    log = [*old.parent.glob("g/removals.log")]
    assert not log, "compaction has deleted the dead vectors, so their log as well"
    (folder / "gallery.db").unlink()
    repaired = verify(folder, repair=True)
    after = {key: vector for key, (_, _, vector) in contents(Gallery(folder)).items()}
    assert {key: after[key] for key in before} == before
    assert not repaired.left


def test_damaged_vectors_and_facts(folder: Path) -> None:
    before, ids = contents(Gallery(folder)), ids_by_key(Gallery(folder))
    first, second = (segment.file for segment in Gallery(folder).store.segments())
    path = folder / "segments" / first
    path.write_bytes(path.read_bytes()[:-192])  # one vector
    (folder / "segments" / files_of(second)[2]).write_bytes(b"{}")
    (folder / "gallery.db").unlink()
    repaired = verify(folder, repair=True)
    assert repaired.salvage is not None
    assert (repaired.salvage.lost, repaired.salvage.nameless) == (1, 3)
    assert not repaired.left
    assert (folder / "quarantine" / first).exists()
    after = contents(Gallery(folder))
    assert {f"item-{ids[key]}" for key in ("a1.jpg", "b1.jpg", "c1.jpg")} == after.keys() - before.keys()


def test_copy_of_the_manifest_is_lost_too(folder: Path) -> None:
    before, manifest = contents(Gallery(folder)), Gallery(folder).store.manifest
    (folder / "gallery.db").unlink()
    (folder / "gallery.json").unlink()
    model = (folder / "model" / "model.onnx").rename(folder / "model.onnx")
    with pytest.raises(InputError, match="put the model file back"):
        verify(folder, repair=True)
    model.rename(folder / "model" / "model.onnx")
    repaired = verify(folder, repair=True)
    assert repaired.salvage is not None
    assert not repaired.salvage.kept_manifest
    assert not repaired.left
    gallery = Gallery(folder)
    assert contents(gallery).keys() == before.keys()
    assert (gallery.fingerprint, gallery.store.manifest.dim) == (manifest.fingerprint, manifest.dim)
    assert gallery.embedder.dim == manifest.dim


@pytest.mark.parametrize("by", ["tiles", "detector"])
def test_pictures_are_divided_as_before_without_the_manifest(by: str, tmp_path: Path) -> None:
    gallery, pictures = small_gallery(tmp_path), tmp_path / "pictures"
    pictures.mkdir()
    board(pictures / "first.png", FIRST)
    gallery.use_objects(write_detector(tmp_path / "cells.onnx", "torchvision") if by == "detector" else None)
    gallery.add([pictures])
    commit(gallery, ["plain"])
    units = gallery.manifest.units
    assert (units["product"], "detector" in units) == ("picture", by == "detector")
    for name in ("gallery.db", "gallery.json"):
        (gallery.folder / name).unlink()
    assert not verify(gallery.folder, repair=True).left
    restored = Gallery(gallery.folder)
    assert restored.manifest.units == units
    board(pictures / "second.png", SECOND, 2)
    assert restored.add([pictures]).added > len(SECOND), "a picture and its parts"


def test_products_are_said_to_be_lost_with_the_manifest(tmp_path: Path) -> None:
    """A column of one's own that is called picture divides nothing."""
    gallery = small_gallery(tmp_path)
    commit(gallery, ["a1", "a2", "b1"], picture="front", sku="a", colour="red")
    gallery.use_products("sku,colour")
    (gallery.folder / "gallery.db").unlink()
    kept = lookalike_here("index", "verify", str(gallery.folder), "--repair").stdout
    assert "--product" not in kept
    assert Gallery(gallery.folder).manifest.units == {"product": "sku", "variant": "colour"}
    for name in ("gallery.db", "gallery.json"):
        (gallery.folder / name).unlink()
    said = lookalike_here("index", "verify", str(gallery.folder), "--repair").stdout
    hint = f"set them again by `lookalike index add {gallery.folder} --product COLUMN`"
    assert f"the columns of products and variants are lost, if there were any; {hint}\n" in said
    assert Gallery(gallery.folder).manifest.units == {}
    lookalike_here("index", "add", str(gallery.folder), "--product", "sku,colour")
    assert Gallery(gallery.folder).manifest.units == {"product": "sku", "variant": "colour"}


def damage_items(folder: Path, *, but: str) -> None:
    """Overwrite the pages of the table of items, but for those with a key."""
    pages = bytearray((folder / "gallery.db").read_bytes())
    places = [place for place in range(0, len(pages), 4096) if pages[place] == 13]  # leaves of tables
    held = {place: bytes(pages[place : place + 4096]) for place in places}
    hit = [at for at, page in held.items() if b"/pictures" in page and but.encode() not in page]
    assert hit
    for place in hit:
        pages[place : place + 4096] = bytes(4096)
    (folder / "gallery.db").write_bytes(pages)
    assert "salvage" in {problem.repair for problem in verify(folder).problems}


def test_damaged_database_serves_in_place_of_the_copy(folder: Path) -> None:
    """What only the database knows of other items, and of the gallery, is kept without the copy."""
    before, ids, manifest = contents(Gallery(folder)), ids_by_key(Gallery(folder)), Gallery(folder).manifest
    assert before["b5.jpg"][0] == "new"
    damage_items(folder, but="b5.jpg")
    (folder / "gallery.json").unlink()
    repaired = verify(folder, repair=True)
    assert repaired.salvage is not None
    assert repaired.salvage.kept_manifest
    assert 0 < repaired.salvage.complete < len(before)
    assert not repaired.left
    gallery = Gallery(folder)
    assert contents(gallery) == before
    assert ids_by_key(gallery) == ids
    assert gallery.manifest == manifest
    assert "test" in [run["command"] for run in gallery.info()["runs"]]


def test_damaged_database_of_another_gallery_gives_nothing(folder: Path, tmp_path: Path) -> None:
    """Not even if both are of one model, have the same keys, and nothing else says whose it is."""
    before, other = contents(Gallery(folder)), small_gallery(tmp_path / "other")
    commit(other, [f"a{i}" for i in range(200)], seed=5, foreign="yes")
    commit(other, ["b5"], seed=6)
    other.use_products("foreign")
    with other.store.writing():
        other.store.record_run("foreign", "2026-01-01", {})
    shutil.copy(other.folder / "gallery.db", folder / "gallery.db")
    damage_items(folder, but="b5.jpg")
    (folder / "gallery.json").unlink()
    repaired = verify(folder, repair=True)
    assert repaired.salvage is not None
    assert (repaired.salvage.kept_manifest, repaired.salvage.complete) == (False, 0)
    gallery = Gallery(folder)
    after = contents(gallery)
    assert {key: vector for key, (_, _, vector) in after.items()} == {k: v for k, (_, _, v) in before.items()}
    assert "foreign" not in gallery.contents.columns()
    assert gallery.manifest.units == {}
    assert gallery.manifest.uuid != other.manifest.uuid
    assert "foreign" not in [run["command"] for run in gallery.info()["runs"]]


@pytest.mark.parametrize("fact", ["fingerprint", "dim"])
def test_garbled_facts_of_a_damaged_database_do_not_count(folder: Path, fact: str) -> None:
    import sqlite3

    with sqlite3.connect(folder / "gallery.db") as db:
        db.execute("UPDATE meta SET value = replace(value, '4', '7') WHERE key = ?", (fact,))
    db.close()
    damage_items(folder, but="b5.jpg")
    (folder / "gallery.json").unlink()
    repaired = verify(folder, repair=True)
    assert repaired.salvage is not None
    assert not repaired.salvage.kept_manifest
    assert not repaired.left


def test_products_of_a_divided_gallery_are_kept_by_its_damaged_database(tmp_path: Path) -> None:
    gallery, pictures = small_gallery(tmp_path), tmp_path / "pictures"
    pictures.mkdir()
    board(pictures / "first.png", FIRST)
    gallery.use_objects(None)
    gallery.add([pictures])
    commit(gallery, [f"plain{i}" for i in range(40)], sku="a")
    gallery.use_products("sku,picture")
    units = gallery.manifest.units
    assert (units["product"], units["variant"]) == ("sku", "picture")
    damage_items(gallery.folder, but="first.png")
    (gallery.folder / "gallery.json").unlink()
    assert not verify(gallery.folder, repair=True).left
    assert Gallery(gallery.folder).manifest.units == units
