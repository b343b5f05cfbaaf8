"""Tests of the comparison of files with items, against dictionaries."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval import LookalikeError
from retrieval.storage import planning
from retrieval.storage.manifest import Manifest
from retrieval.storage.mirror import Mirror
from retrieval.storage.planning import Comparison, ImageFile, StoreTable
from retrieval.storage.queries import live_ids
from retrieval.storage.records import BadFile, FileStamp, NewItem
from retrieval.storage.store import Store
from tests.retrieval.filling import DIM, unit_vectors

ROOTS = ("/a", "/b", "/é")
# Root, path, size, modification time: few values each, so that files and items meet.
PLACES = st.tuples(st.sampled_from(ROOTS), st.sampled_from(["x", "y", "b/x", "c/x", "ü", "z'"]))
STAMPS = st.tuples(st.integers(1, 2), st.integers(1, 2))
ITEMS = st.dictionaries(PLACES, st.tuples(STAMPS, st.sampled_from(["own", "path"]), st.booleans()))
FILES = st.dictionaries(
    PLACES, st.tuples(STAMPS, st.sampled_from([None, "same", "other"]), st.booleans()), min_size=1
)
BAD = st.dictionaries(PLACES, STAMPS, max_size=3)


def key_of(place: tuple[str, str], kind: str) -> str:
    return f"{kind}:{''.join(place)}"


def filled(folder: Path, items: dict[Any, Any], bad: dict[Any, Any]) -> Store:
    Store.create(folder, Manifest("", DIM, embedding="random"))
    store = Store(folder)
    new = [
        NewItem(FileStamp(*place, *stamp), f"sha-{''.join(place)}", 1, 1, key=key_of(place, kind))
        for place, (stamp, kind, _) in items.items()
    ]
    lost = [key_of(place, kind) for place, (_, kind, is_lost) in items.items() if is_lost]
    with store.writing():
        store.commit(
            unit_vectors(len(new)),
            new,
            [BadFile(FileStamp(*place, *stamp), "damaged", "it is") for place, stamp in bad.items()],
        )
        with store.transaction() as db:
            db.executemany("UPDATE items SET vector = NULL WHERE key = ?", [(key,) for key in lost])
    return store


def files_of(files: dict[Any, Any], items: dict[Any, Any]) -> list[ImageFile]:
    """Return files with no key, that of their item, or another one; some with metadata."""
    listed = []
    for place, (stamp, key, described) in files.items():
        own = key_of(place, items[place][1]) if place in items else "new"
        given_key = {None: None, "same": f"{own}{'' if place in items else place}", "other": f"o{place}"}[key]
        listed.append(ImageFile(*place, *stamp, None, given_key, {"m": 1} if described else {}))
    return listed


def places(files: Sequence[tuple[ImageFile, Any]]) -> set[tuple[str, str]]:
    return {(file.root, file.path) for file, _ in files}


def mirror_of(store: Store) -> Mirror:
    """Copies of the items of a gallery, as of one in a database; the lost ones have no vector."""
    mirror = Mirror(store.folder)
    for item in store.items(live_ids(store)):
        mirror.put([item], embedded=item.vector is not None)
    return mirror


@settings(max_examples=30, deadline=None)
@given(
    items=ITEMS, files=FILES, bad=BAD, retry=st.booleans(), chunk=st.integers(1, 4), mirrored=st.booleans()
)
def test_comparison_equals_dictionaries(
    items: dict[Any, Any],
    files: dict[Any, Any],
    bad: dict[Any, Any],
    retry: bool,
    chunk: int,
    mirrored: bool,
) -> None:
    bad = {} if mirrored else bad  # a database does not record unusable files
    items = {place: facts for place, facts in items.items() if place not in bad}
    listed = files_of(files, items)
    same = {
        (f.root, f.path)
        for f in listed
        if (place := (f.root, f.path)) in items
        and items[place][0] == (f.size, f.mtime_ns)
        and not items[place][2]
        and f.id in (None, key_of(place, items[place][1]))
    }
    known_bad = {place for place in files if not retry and bad.get(place) == files[place][0]} - same
    with (
        tempfile.TemporaryDirectory() as name,
        closing((mirror_of if mirrored else StoreTable)(filled(Path(name) / "g", items, bad))) as table,
    ):
        plan = Comparison(table, retry=retry, distinct=True)
        for start in range(0, len(listed), chunk):
            plan.add(listed[start : start + chunk])
        plan.add(listed)  # a second time: no difference
        todo = list(plan.todo())
        assert places(todo) == set(files) - same - known_bad
        assert len(todo) == plan.todo_count
        assert {(f.root, f.path) for f, item in todo if item} == {p for p in places(todo) if p in items}
        assert plan.unchanged == len(same)
        assert places(list(plan.described())) == {place for place in same if files[place][2]}
        assert {bad.stamp.key for bad in plan.known_bad()} == known_bad
        assert {str(path) for path, _ in plan.metadata()} <= {str(file.full) for file in listed}
        found = {
            (root, path) for root in table.roots() for some in plan.unseen(root, "", None) for _, path in some
        }
        assert found == set(items) - set(files)
        assert plan.below == len(items)
        assert table.roots() == sorted({root for root, _ in items})
        low = {path for some in plan.unseen("/a", "b/", "b0") for _, path in some}
        assert low == {path for root, path in set(items) - set(files) if root == "/a" and path[:2] == "b/"}


def test_unseen_items_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_RANGE", 3)
    items = {("/a", f"{number:02}"): ((1, 1), "path", False) for number in range(10)}
    with closing(StoreTable(filled(tmp_path / "g", items, {}))) as table:
        plan = Comparison(table)
        plan.add([ImageFile("/a", "04", 1, 1)])
        parts = [[path for _, path in some] for some in plan.unseen("/a", "", None)]
    assert parts == [["00", "01", "02"], ["03", "05"], ["06", "07", "08"], ["09"]]
    assert plan.below == 10


def test_full_disk_of_the_temporary_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path / "g", {}, {})
    monkeypatch.setattr(planning, "_SETTINGS", "PRAGMA max_page_count = 40;")
    with (
        closing(StoreTable(store)) as table,
        pytest.raises(LookalikeError, match=r"disk is full;.*SQLITE_TMPDIR"),
    ):
        Comparison(table).add([ImageFile("/a", f"{number}" * 50, 1, 1) for number in range(5000)])


class _Failing(sqlite3.Connection):
    """Connection whose statement of one number fails, as on a disk that does.

    Attributes:
        left: Statements before that one.
    """

    left = 0

    def _count(self) -> None:
        _Failing.left -= 1
        if _Failing.left == -1:
            raise sqlite3.OperationalError("disk I/O error")

    def execute(self, *given: Any) -> sqlite3.Cursor:
        self._count()
        return super().execute(*given)

    def executemany(self, *given: Any) -> sqlite3.Cursor:
        self._count()
        return super().executemany(*given)

    def executescript(self, *given: Any) -> sqlite3.Cursor:
        self._count()
        return super().executescript(*given)


def test_each_failure_of_the_temporary_database_is_an_error_of_the_gallery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = {("/a", name): ((1, 1), "path", False) for name in ("kept", "moved", "lost")}
    store = filled(tmp_path / "g", items, {})
    content = "sha-/amoved"
    monkeypatch.setattr(planning.sqlite3, "connect", partial(sqlite3.connect, factory=_Failing))

    def compare() -> None:
        with closing(StoreTable(store)) as table:
            plan = Comparison(table, checksum=True, distinct=True)
            plan.add([ImageFile("/a", "kept", 1, 1, id="path:/akept")])
            plan.add_candidates([ImageFile("/a", "new", 1, 1)])
            table.item_files(0), table.parts(), plan.repeated_key(), plan.renamed()
            plan.settle([(number, True) for number, _, _ in plan.to_check()])
            for root in table.roots():
                for some in plan.unseen(root, "", None):
                    plan.add_gone([number for number, _ in some])
            assert [plan.match(number, content) for number, _ in plan.candidates()] == [True]
            assert [place.path for _, place in plan.moved()] == ["moved"]
            assert (plan.moved_count, plan.gone_count, plan.gone_pictures) == (1, 1, 1)
            assert (plan.gone_paths(), plan.gone_example()) == (["/a/lost"], "/a/lost")
            assert (plan.gone_roots(), len([*plan.gone_items()])) == (["/a"], 1)
            plan.note_added([content])
            assert plan.duplicates() == []

    messages = list[str]()
    for number in count():
        _Failing.left = number
        try:
            compare()
        except LookalikeError as error:
            messages.append(str(error))
        else:
            break
    assert len(messages) > 40
    assert all("disk I/O error" in message for message in messages)
