"""Store: commits, metadata columns, keys, locking and change detection."""

from __future__ import annotations

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval import Gallery, InputError, LookalikeError
from retrieval.errors import LockedError
from retrieval.storage import database
from retrieval.storage.items import ItemWriter
from retrieval.storage.records import BadFile, Change, FileStamp, IndexSpec, NewItem, Value
from retrieval.storage.schema import TABLES
from retrieval.storage.store import Store
from retrieval.storage.watch import Watch
from retrieval.upkeep.compact import compact
from retrieval.upkeep.successor import exchange
from retrieval.upkeep.verify import verify
from tests.retrieval.filling import bare_gallery, commit, contents, new_items, small_gallery, unit_vectors


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    return small_gallery(tmp_path)


def metadata_of(gallery: Gallery) -> dict[str, dict[str, Value]]:
    return {key: metadata for key, (_, metadata, _) in contents(gallery).items()}


def test_metadata_columns_keep_their_types(gallery: Gallery) -> None:
    commit(gallery, ["a"], brand="acme", price=2)
    commit(gallery, ["b"], price=2.5, **{'odd "name"; --': None, "größe": "ü"})
    assert gallery.store.columns() == ["brand", "price", 'odd "name"; --', "größe"]
    assert metadata_of(gallery) == {
        "a.jpg": {"brand": "acme", "price": 2},
        "b.jpg": {"price": 2.5, "größe": "ü"},
    }
    query = "SELECT typeof(price) FROM metadata ORDER BY id"
    assert gallery.store.select(query) == [("integer",), ("real",)]


PLACES = st.tuples(st.sampled_from(["/a", "/b"]), st.sampled_from("xyz"))
KEYS = st.sampled_from(["x", "y", "k", "/a/x"])


@settings(deadline=None)
@given(
    st.lists(st.tuples(KEYS, PLACES), unique_by=lambda item: item[0]),
    st.lists(st.tuples(PLACES, st.none() | KEYS), min_size=1, max_size=5),
)
def test_keys_of_files(
    live: list[tuple[str, tuple[str, str]]], files: list[tuple[tuple[str, str], str | None]]
) -> None:
    """One file after the other, against the live items in the order of their ids."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(TABLES)
        insert = "INSERT INTO items VALUES (NULL, ?, ?, ?, 1, 1, '', 1, 1, NULL, NULL, NULL, 0)"
        db.executemany(insert, ((key, *place) for key, place in live))
        db.execute("INSERT INTO items SELECT NULL, 'z', '/a', 'z', 1, 1, '', 1, 1, NULL, NULL, 'once', 0")
        items = [NewItem(FileStamp(*place, 1, 1), "", 1, 1, key=key) for place, key in files]
        found = ItemWriter(db).keys_of(items)
    expected: list[str] = []
    given_keys = {key for _, key in files if key is not None}
    for (root, path), key in files:
        taken = {*expected, *given_keys}
        at_place = next((one for one, place in live if place == (root, path)), None)
        free = path not in taken and path not in dict(live)
        own = at_place if at_place not in taken else None
        expected.append(key or own or (path if free else f"{root}/{path}"))
    assert found == expected


VALUES = (
    st.none()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)


@settings(max_examples=15)
@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), VALUES), min_size=1, max_size=5))
def test_metadata_values_round_trip(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Value]]
) -> None:
    gallery = bare_gallery(tmp_path_factory.mktemp("any"))
    items = [NewItem(FileStamp("/r", str(i), 1, 1), "", 1, 1, row, key=f"k{i}") for i, row in enumerate(rows)]
    with gallery.store.writing():
        gallery.store.commit(unit_vectors(len(rows)), items)
    expected = {f"k{i}": {n: v for n, v in row.items() if v is not None} for i, row in enumerate(rows)}
    assert metadata_of(gallery) == expected


def test_metadata_columns_may_have_names_of_internal_columns(gallery: Gallery) -> None:
    given = {"size": "XL", "seg": 1, "row": 2, "crc": 3, "deleted_at": "x", "n": 4, "rowid": 5}
    commit(gallery, ["a"], **given)
    commit(gallery, ["a"], seed=1, row=3)
    assert metadata_of(gallery) == {"a.jpg": {**given, "row": 3}}
    gallery.search_vectors(unit_vectors(1), where="size = 'XL' and \"row\" = 3")[0][0].metadata.pop("n")
    assert not verify(gallery.folder).problems
    compact(gallery)
    assert metadata_of(gallery) == {"a.jpg": {**given, "row": 3}}


def test_column_names_ignore_case(gallery: Gallery) -> None:
    commit(gallery, ["a"], Brand="acme")
    commit(gallery, ["b"], brand="bolt")
    assert gallery.store.columns() == ["Brand"]
    assert metadata_of(gallery)["b.jpg"] == {"Brand": "bolt"}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"path": "x"}, "reserved"),
        ({"ID": 1}, "reserved"),
        ({" ": 1}, "printable"),
        ({"a\0b": 1}, "printable"),
        ({"a" * 101: 1}, "100"),
        ({f"c{i}": i for i in range(501)}, "at most 500"),
        ({"a": float("nan")}, "finite"),
        ({"a": 2**63}, "64 bit"),
        ({"a": [1]}, "list"),
        ({"a": "\ud800"}, "is not text"),
    ],
)
def test_invalid_metadata_changes_nothing(gallery: Gallery, metadata: dict[str, Value], message: str) -> None:
    before = commit(gallery, ["a"], brand="acme").tobytes()
    with pytest.raises(InputError, match=message):
        commit(gallery, ["a", "b"], brand="bolt", **metadata)
    assert contents(gallery) == {"a.jpg": ("a", {"brand": "acme"}, before)}
    assert gallery.store.columns() == ["brand"]


def test_new_item_replaces_the_one_with_its_key(gallery: Gallery) -> None:
    commit(gallery, ["a", "b"], brand="acme", price=3)
    old = gallery.ids_of(["a.jpg"])[0]
    (vector,) = commit(gallery, ["a"], seed=1, price=None)
    assert contents(gallery)["a.jpg"] == ("a", {"brand": "acme"}, vector.tobytes())
    assert gallery.ids_of(["a.jpg"])[0] == old
    assert len(gallery) == 2


def test_key_is_the_path_unless_two_roots_share_it(gallery: Gallery) -> None:
    with gallery.store.writing():
        gallery.store.commit(unit_vectors(1), new_items(["x"], "/one"))
        gallery.store.commit(unit_vectors(1), new_items(["x"], "/two"))
        gallery.store.commit(unit_vectors(1), new_items(["x"], "/two"))  # again: it keeps its key
    assert set(contents(gallery)) == {"x.jpg", "/two/x.jpg"}


def test_unusable_file_loses_its_item(gallery: Gallery) -> None:
    commit(gallery, ["a", "b"])
    with gallery.store.writing():
        bad = BadFile(FileStamp("/pictures", "a.jpg", 9, 9), "damaged", "cut off")
        gallery.store.commit(unit_vectors(0), [], [bad])
    assert set(contents(gallery)) == {"b.jpg"}
    assert [file.detail for file in gallery.contents.bad_files()] == ["cut off"]
    commit(gallery, ["a"])
    assert not gallery.contents.bad_files()


def test_facts_change_without_the_vector(gallery: Gallery) -> None:
    (vector,) = commit(gallery, ["a"], brand="acme")
    commit(gallery, ["b"])
    (number,) = gallery.ids_of(["a.jpg"])
    moved = FileStamp("/elsewhere", "n.jpg", 5, 6, "new")
    with gallery.store.writing():
        gallery.store.amend([Change(number, moved, {"price": 4}, "sku-1")])
    assert contents(gallery)["sku-1"] == ("new", {"brand": "acme", "price": 4}, vector.tobytes())
    assert gallery.item(number).path == "/elsewhere/n.jpg"
    with gallery.store.writing(), pytest.raises(InputError, match="another item has the key"):
        gallery.store.amend([Change(number, metadata={"price": 5}), Change(number, key="b.jpg")])
    assert contents(gallery)["sku-1"][1]["price"] == 4


def test_removal_is_atomic(gallery: Gallery) -> None:
    commit(gallery, ["a", "b", "c"])
    (b,) = gallery.ids_of(["b.jpg"])
    assert gallery.remove([b, "a.jpg"]) == 2
    assert set(contents(gallery)) == {"c.jpg"}
    with pytest.raises(InputError, match=r"no item 'a\.jpg'"):
        gallery.remove(["c.jpg", "a.jpg"])
    with pytest.raises(InputError, match=f"no item {b}"):
        gallery.remove([b])
    assert set(contents(Gallery(gallery.folder))) == {"c.jpg"}
    commit(gallery, ["a"])
    assert len(gallery) == 2


def test_nothing_is_written_without_the_lock(gallery: Gallery) -> None:
    with pytest.raises(LookalikeError, match="lock"):
        gallery.store.commit(unit_vectors(1), new_items(["a"]))
    assert not gallery.store.leftovers()


def test_a_database_that_another_process_keeps_locked(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_PATIENCE", 0.1)
    before = contents(gallery)
    with closing(database.connect(gallery.folder)) as other:
        other.execute("BEGIN")
        other.execute("SELECT * FROM meta").fetchone()  # as a reader that is stopped here
        with pytest.raises(LockedError, match=r"another process has kept .* locked for 0.1 seconds"):
            commit(gallery, ["later"])
        other.execute("ROLLBACK")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LockedError, match=r"let it go on or end it"):
            Gallery(gallery.folder)
    assert contents(Gallery(gallery.folder)) == before
    commit(Gallery(gallery.folder), ["later"])


def test_commits_of_other_stores_are_seen(gallery: Gallery) -> None:
    reader = Gallery(gallery.folder)
    assert not reader.changed()
    commit(gallery, ["a"])
    assert reader.changed()
    assert len(reader) == 0
    reader.refresh()
    assert not reader.changed()
    assert len(reader) == 1


def test_refresh_loads_a_gallery_that_replaced_this_one(gallery: Gallery, tmp_path: Path) -> None:
    commit(gallery, ["a"])
    other = small_gallery(tmp_path / "other")
    commit(other, ["b", "c"])
    gallery.folder.rename(tmp_path / "old")
    with pytest.raises(LookalikeError, match="deleted"):
        gallery.changed()
    other.folder.rename(gallery.folder)
    assert gallery.changed()
    assert gallery.replaced()
    assert set(contents(gallery)) == {"b.jpg", "c.jpg"}


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("moment", ["state", "open_segments"])
def test_reader_takes_a_gallery_that_replaces_this_one_meanwhile(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, again: bool
) -> None:
    """Before its state is read, or its files are opened; when it is opened, or looked at again."""
    commit(gallery, ["a"])
    reader = Gallery(gallery.folder)
    commit(gallery, ["d"], seed=2)
    other = small_gallery(tmp_path / "other")
    commit(other, ["b", "c"])
    new = other.manifest.uuid
    rest, real = iter([None]), getattr(Store, moment)

    def swapped(store: Store, *given: object) -> object:
        if next(rest, 0) is None:
            exchange(other.folder, gallery.folder)
        return real(store, *given)

    monkeypatch.setattr(Store, moment, swapped)
    if again:
        reader.refresh()
    else:
        reader = Gallery(gallery.folder)
    if reader.changed():  # the state that was read is of the old one, whose files are open
        reader.refresh()
    assert set(contents(reader)) == {"b.jpg", "c.jpg"}
    assert reader.manifest.uuid == new
    assert not reader.changed()


def test_reader_retries_if_a_writer_deletes_files(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction and another write happen between reading the state and opening its files."""
    commit(gallery, ["a", "b"])
    commit(gallery, ["c"], seed=1)
    rest = iter([None])
    read = Store.state

    def state_then_compaction(store: Store) -> object:
        seen = read(store)
        if store is not gallery.store and next(rest, 0) is None:
            compact(gallery)
        return seen

    monkeypatch.setattr(Store, "state", state_then_compaction)
    assert len(Gallery(gallery.folder)) == 3


@pytest.mark.parametrize(
    ("version", "hint"),
    [(1, "build the gallery again"), (2, "build the gallery again"), (4, "update lookalike")],
)
def test_other_formats_are_refused(gallery: Gallery, version: int, hint: str) -> None:
    with sqlite3.connect(gallery.folder / "gallery.db") as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'format_version'", (str(version),))
    db.close()
    with pytest.raises(InputError, match=rf"format {version} is not supported .*; {hint}"):
        Gallery(gallery.folder)


def test_moved_images_are_found_under_another_root(gallery: Gallery, tmp_path: Path) -> None:
    commit(gallery, ["a"])
    moved = gallery.folder.rename(tmp_path / "moved")
    there = Gallery(moved, root=tmp_path / "pictures")
    (hit,) = there.search_vectors(unit_vectors(1), 1)[0]
    assert hit.path == str(tmp_path / "pictures" / "a.jpg")
    assert hit.score == pytest.approx(1)


def test_a_damaged_row_of_the_database_is_not_served(gallery: Gallery) -> None:
    """The file of the segment has the same facts; where it is missing, the row is found to be damaged."""
    commit(gallery, ["aa", "ab"])
    with sqlite3.connect(gallery.folder / "gallery.db") as db:
        db.execute("UPDATE items SET label = 'z' WHERE id = 1")
    db.close()
    opened = Gallery(gallery.folder)
    assert {hit.label for hit in opened.search_vectors(unit_vectors(1))[0]} == {"a"}
    with pytest.raises(LookalikeError, match="item 1"):
        opened.stored_items([1])
    for file in (gallery.folder / "segments").glob("*.facts"):
        file.unlink()
    with pytest.raises(LookalikeError, match="item 1"):
        Gallery(gallery.folder).search_vectors(unit_vectors(1))
    assert gallery.item(2).label == "a"


def test_no_damaged_vector_is_served(gallery: Gallery) -> None:
    commit(gallery, ["a", "b"])
    (segment,) = gallery.store.segments()
    path = gallery.folder / "segments" / segment.file
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(LookalikeError, match="verify"):
        Gallery(gallery.folder).search_vectors(np.ones((1, 48), np.float32))


def test_headers_are_parsed_by_one_thread_at_a_time(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at once may end with `SystemError: AST constructor recursion depth mismatch` in CPython 3.11."""
    commit(gallery, ["a"])
    load, inside, alone = np.load, Lock(), []

    def watched(*args: Any, **kwargs: Any) -> np.ndarray:
        alone.append(inside.acquire(blocking=False))
        time.sleep(0.01)
        loaded: np.ndarray = load(*args, **kwargs)
        inside.release()
        return loaded

    monkeypatch.setattr(np, "load", watched)
    with ThreadPoolExecutor(4) as pool:
        opened = [pool.submit(Gallery.open, gallery.folder) for _ in range(4)]
        assert [len(job.result()) for job in opened] == [1] * 4
    assert len(alone) >= 8
    assert all(alone)


def test_files_stay_open_from_one_state_to_the_next(gallery: Gallery) -> None:
    commit(gallery, ["a", "b"])
    with gallery.store.writing():
        gallery.build_index(IndexSpec("sq8"))
    before = gallery.state
    commit(gallery, ["c"])
    after = gallery.state
    assert after.index is before.index
    assert np.shares_memory(after.stored.parts[0], before.stored.parts[0])
    assert len(after) == len(before) + 1


def test_the_next_writer_replaces_missing_and_older_indexes(gallery: Gallery) -> None:
    """Those of an earlier version, or none after a fill that was killed: what is found is the same."""
    commit(gallery, ["a", "b", "c"])
    gallery.remove(["a.jpg"])
    expected = _indexes(gallery)
    assert expected
    for older in ("CREATE UNIQUE INDEX live_key ON items (key) WHERE deleted_at IS NULL", ""):
        with closing(sqlite3.connect(gallery.folder / "gallery.db")) as db, db:
            for name in expected:
                db.execute(f"DROP INDEX {name}")
            db.execute(older)
        with database.writing(gallery.folder):
            pass  # the schema is part of the checksum
        opened = Gallery(gallery.folder)
        assert _indexes(opened) != expected
        assert set(opened.ids_of(["b.jpg", "c.jpg"])) == {2, 3}
        assert opened.remove(["b.jpg"]) == 1
        commit(opened, ["a", "b"])
        assert _indexes(opened) == expected
        assert set(opened.ids_of(["a.jpg", "b.jpg", "c.jpg"])) == {1, 2, 3}
        assert not verify(gallery.folder).problems
        opened.remove(["a.jpg"])


def _indexes(gallery: Gallery) -> dict[str, str]:
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'items'"
    return dict(gallery.store.select(query))


def test_state_is_read_after_a_transaction_that_could_not_be_ended(tmp_path: Path) -> None:
    """As on an error of the disk: the next look works, and sees what was committed since."""
    gallery = bare_gallery(tmp_path / "g")
    watch = Watch(gallery.folder)
    before = watch.state()
    watch._db.execute("BEGIN")
    commit(gallery, ["a"])
    assert len(watch.state().segments) == len(before.segments) + 1
