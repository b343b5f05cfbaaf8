"""Durability: after a kill or a full disk, a gallery holds the state before or after the write."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from retrieval import Embedder, Gallery, InputError, LookalikeError
from retrieval.storage.manifest import write_copy
from retrieval.storage.records import IndexSpec
from retrieval.storage.store import Store, hold_lock
from retrieval.upkeep.compact import compact
from retrieval.upkeep.snapshot import copy_gallery
from retrieval.upkeep.verify import verify
from tests.conftest import draw, lookalike_here
from tests.retrieval.filling import bare_gallery, commit, contents, new_items, small_gallery, unit_vectors
from tests.retrieval.killing import OPERATIONS, kill_at_every_step
from tests.serve.model import write_model


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a gallery with segments to merge, removed rows, an index, metadata and a leftover."""
    gallery = bare_gallery(tmp_path_factory.mktemp("original") / "g")
    commit(gallery, [f"a{i}" for i in range(4)], seed=1, brand="acme")
    commit(gallery, [f"b{i}" for i in range(4)], seed=2, price=3)
    with gallery.store.writing():
        gallery.build_index(IndexSpec("sq8"))
    gallery.remove(["a0.jpg"])
    (gallery.folder / "segments" / "left.npy.tmp-1").touch()
    return gallery.folder


def damaged(folder: Path) -> None:
    """Truncate the last vector of the first segment."""
    path = folder / "segments" / Gallery(folder).store.segments()[0].file
    path.write_bytes(path.read_bytes()[:-1])


OTHERS = {
    "create",
    "decide",
    "rebuild",
    "reproject",
    "reproject_texts",
    "salvage",
    "snapshot",
    "undo",
}  # tested below and elsewhere


@pytest.mark.slow
@pytest.mark.parametrize("operation", sorted(set(OPERATIONS) - OTHERS))
def test_killed_at_every_step(original: Path, quick: Path, operation: str) -> None:
    start = shutil.copytree(original, quick / "start")
    if operation == "repair":
        damaged(start)
    before = None if operation == "repair" else contents(Gallery(start))
    steps = kill_at_every_step(operation, start, quick / "killed")
    after = contents(Gallery(steps[-1]))
    seen = set()
    for folder in steps:
        found = verify(folder)
        assert not found.problems or operation == "repair"
        if operation != "repair":
            assert Gallery(folder).index is not None, "at no time is there no index"
        if not found.problems:
            now = contents(Gallery(folder))
            assert now in (before, after), folder.name
            seen.add(now == after)
        OPERATIONS[operation](folder) if operation != "remove" or now == before else None
        finished = Gallery(folder)
        with finished.store.writing():  # the next writer tidies up
            pass
        assert not verify(folder).problems
        assert not finished.store.leftovers()
        assert contents(finished) == after
    assert len(steps) > 5
    assert True in seen


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["emptied", "pages"])
def test_killed_salvage_can_be_repeated(original: Path, quick: Path, loss: str) -> None:
    """With an intact old database except for its list of segments, and with none."""
    start = shutil.copytree(original, quick / "start")
    expected = contents(Gallery(start))
    if loss == "emptied":
        (start / "gallery.db").write_bytes(b"")
    else:
        with closing(sqlite3.connect(start / "gallery.db")) as db, db:
            db.execute("UPDATE segments SET file = 'lost-' || file")
    steps = kill_at_every_step("salvage", start, quick / "killed")
    for folder in steps:
        assert not verify(folder, repair=True).left
        assert contents(Gallery(folder)) == expected
        with Gallery(folder).store.writing():
            pass
        assert not verify(folder).problems
        assert not verify(folder).leftovers
    assert len(steps) > 5


@pytest.mark.slow
def test_killed_snapshot_leaves_a_whole_copy_or_none(original: Path, quick: Path) -> None:
    shutil.copytree(original, quick / "start" / "g")
    expected = contents(Gallery(original))
    steps = kill_at_every_step("snapshot", quick / "start", quick / "killed")
    there = [(folder / "copy").exists() for folder in steps]
    for folder, is_there in zip(steps, there, strict=True):
        if not is_there:
            OPERATIONS["snapshot"](folder)
        for gallery in (folder / "g", folder / "copy"):
            assert not verify(gallery).problems
            assert contents(Gallery(gallery)) == expected
        assert sorted(path.name for path in folder.iterdir()) == ["copy", "g"]
    assert set(there) == {False, True}


@pytest.mark.slow
def test_killed_while_creating(original: Path, quick: Path) -> None:
    for folder in kill_at_every_step("create", original, quick / "killed"):
        if (folder / "new").exists():
            assert Store(folder / "new").manifest.dim == 3
        else:
            OPERATIONS["create"](folder)
        assert not [draft for draft in folder.glob(".new.*") if any(draft.iterdir())]


# ---- a disk that is full


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the size of files: larger writes fail, as on a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("size", [0, 100, 1000, 20_000, 50_000, 90_000])
def test_failed_write_changes_nothing(original: Path, tmp_path: Path, size: int) -> None:
    folder = shutil.copytree(original, tmp_path / "g")
    gallery = Gallery(folder)
    before = contents(gallery)
    with largest_file(size), pytest.raises(LookalikeError, match=r"cannot be written|database failed"):
        add_many(gallery)
    assert not verify(folder).problems
    assert contents(Gallery(folder)) == before
    add_many(Gallery(folder))
    assert len(contents(Gallery(folder))) == len(before) + 300


def add_many(gallery: Gallery) -> None:
    with gallery.store.writing():
        gallery.store.commit(unit_vectors(300), new_items([f"n{i}" for i in range(300)], note="x" * 100))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return the mount point of a small disk."""
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", path], check=False).returncode:
        pytest.skip("needs the right to mount a disk")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


@pytest.mark.parametrize("free", [0, 4, 16, 40, 64, 100, 150])
def test_full_disk_changes_nothing(original: Path, disk: Path, free: int) -> None:
    folder = shutil.copytree(original, disk / "g")
    before = contents(Gallery(folder))
    space = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "ballast").write_bytes(b"x" * (space - free * 1024))
    for work in (add_many, compact):
        assert re.fullmatch(
            r"|No space left on device|database or disk is full|\d+ requested.*", error_of(work, folder)
        )
        assert not verify(folder).problems
        now = contents(Gallery(folder))
        assert {key: now[key] for key in before} == before
        assert len(now) in (len(before), len(before) + 300)
    (disk / "ballast").unlink()
    add_many(Gallery(folder))
    compact(Gallery(folder))
    assert len(contents(Gallery(folder))) == len(before) + 300


def error_of(work: Callable[[Gallery], object], folder: Path) -> str:
    """Return the reason of a failure; empty on success."""
    try:
        work(Gallery(folder))
    except LookalikeError as error:
        return re.findall(r"\((.*)\)", str(error))[0]
    return ""


def test_read_only_disk(original: Path, disk: Path) -> None:
    folder = shutil.copytree(original, disk / "g")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    gallery = Gallery(folder)
    assert gallery.search_vectors(unit_vectors(4, 1)[1:2], 1)[0][0].key == "a1.jpg"
    assert not gallery.changed()
    assert not verify(folder).problems
    with pytest.raises(LookalikeError, match="cannot be written"):
        gallery.remove(["a1.jpg"])
    with pytest.raises(InputError, match="no item"):
        gallery.ids_of(["a0.jpg"])


# ---- what a killed process leaves to the next one

WRITERS = sorted(set(OPERATIONS) - OTHERS | {"decide"})


@pytest.fixture(scope="module")
def outdated(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a gallery whose process was killed after a commit and before the copy of the manifest."""
    start = shutil.copytree(original, tmp_path_factory.mktemp("outdated") / "start")
    gallery = Gallery(start)
    with gallery.store.writing():
        gallery.build_index(IndexSpec("flat"))
    states = kill_at_every_step("build_index", start, start.with_name("killed"), only=["replace"])
    found = [state for state in states if verify(state).outdated_copy]
    assert len(found) == 1
    return found[0]


def test_older_copy_of_the_manifest_is_no_damage(outdated: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(outdated, tmp_path / "g")
    for words in ([], ["--repair"]):
        shown = lookalike_here("index", "verify", str(folder), *words).stdout
        assert ("gallery.json: older than gallery.db" in shown) == (not words)
        assert "no problems" in shown
    copied = (outdated / "gallery.json").read_text()
    assert copied != (folder / "gallery.json").read_text()


@pytest.mark.parametrize("operation", WRITERS)
def test_every_writer_renews_the_copy(outdated: Path, quick: Path, operation: str) -> None:
    folder = shutil.copytree(outdated, quick / "g")
    OPERATIONS[operation](folder)
    found = verify(folder)
    assert not found.problems
    assert not found.outdated_copy
    (folder / "gallery.db").unlink()
    assert not verify(folder, repair=True).left
    assert Gallery(folder).manifest.index_spec.kind == "sq8", "as the lost database said"


@pytest.mark.parametrize("change", ["other", "equal", "cut"])
def test_other_copies_are_damaged(outdated: Path, tmp_path: Path, change: str) -> None:
    """Of another gallery, other facts of the same revision, and half a file."""
    folder = shutil.copytree(outdated, tmp_path / "g")
    manifest = Store(folder).manifest
    copies = {
        "other": replace(manifest, uuid="other", revision=0),
        "equal": replace(manifest, dim=manifest.dim + 1),
    }
    if change == "cut":
        (folder / "gallery.json").write_text((folder / "gallery.json").read_text()[:40])
    else:
        write_copy(folder, copies[change])
    before = (folder / "gallery.json").read_bytes()
    commit(Gallery(folder), ["more"], seed=5)
    assert (folder / "gallery.json").read_bytes() == before, "no writer hides it"
    assert ["gallery.json: " in problem.what for problem in verify(folder).problems] == [True]
    assert not verify(folder, repair=True).left
    assert not verify(folder).problems


def test_database_older_than_the_copy_is_not_written(outdated: Path, tmp_path: Path) -> None:
    """As one that was put back from a backup: the files that it does not name are those of later commits."""
    folder = shutil.copytree(outdated, tmp_path / "g")
    commit(Gallery(folder), ["earlier"], seed=5)
    before = (folder / "gallery.db").read_bytes()
    commit(Gallery(folder), ["later"], seed=6)
    expected, manifest = contents(Gallery(folder)), Store(folder).manifest
    (folder / "gallery.db").write_bytes(before)
    write_copy(folder, replace(manifest, revision=manifest.revision + 1))
    with pytest.raises(LookalikeError, match=r"older than the gallery; .*--repair"):
        commit(Gallery(folder), ["more"], seed=7)
    assert not verify(folder, repair=True).left
    assert contents(Gallery(folder)) == expected
    assert not verify(folder).problems


def test_compaction_after_a_killed_repair_builds_the_index(original: Path, quick: Path) -> None:
    """The repair stops to use the damaged index before it builds another one."""
    start = shutil.copytree(original, quick / "start")
    (file,) = start.glob("indexes/*/index.faiss")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    expected = contents(Gallery(start))
    steps = kill_at_every_step("repair", start, quick / "killed")
    missing = 0
    for folder in steps:
        missing += Gallery(folder).index is None
        compact(Gallery(folder))
        assert not verify(folder).problems
        gallery = Gallery(folder)
        assert gallery.index is not None
        assert contents(gallery) == expected
    assert missing


def test_drafts_of_killed_rebuilds_are_deleted(quick: Path) -> None:
    """Those that were not complete; a draft whose process runs, and a folder of the user, stay."""
    start = quick / "start"
    gallery = small_gallery(start)
    draw(1).save(start / "a.png")
    gallery.add([start / "a.png"])
    write_model(start / "new.onnx", "another file")
    (killed, *_) = kill_at_every_step("rebuild", start, quick / "killed", only=["copyfile"])
    (draft,) = killed.glob("..g.rebuild.*")
    assert (draft / "model").is_dir()
    running, other = draft.with_name(f"..g.rebuild.{'1' * 32}"), draft.with_name("..g.rebuild.kept")
    for folder in (running, other):
        shutil.copytree(draft, folder)
    with hold_lock(running):
        OPERATIONS["rebuild"](killed)
    assert not draft.exists()
    assert {path.name for path in killed.glob(".*")} == {running.name, other.name}
    assert Gallery(killed / "g").fingerprint == Embedder(start / "new.onnx").fingerprint
    assert not verify(killed / "g").problems


def test_drafts_of_killed_snapshots_are_deleted(original: Path, quick: Path) -> None:
    shutil.copytree(original, quick / "start" / "g")
    *_, killed, _ = kill_at_every_step("snapshot", quick / "start", quick / "killed", only=["hardlink_to"])
    draft = killed / ".copy.snapshot"
    assert any((draft / "segments").iterdir())
    shutil.copytree(draft, killed / ".running.snapshot")
    (killed / ".mine.snapshot").mkdir()
    (killed / ".mine.snapshot" / "LOCK").touch()
    (killed / ".mine.snapshot" / "data").touch()
    with hold_lock(killed / ".running.snapshot"):
        copy_gallery(killed / "g", killed / "monday")
    assert {path.name for path in killed.iterdir()} == {"g", "monday", ".running.snapshot", ".mine.snapshot"}
    assert contents(Gallery(killed / "monday")) == contents(Gallery(original))
