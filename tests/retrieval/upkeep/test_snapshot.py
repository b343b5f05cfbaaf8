"""Copies of a gallery, made while another process writes to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retrieval import Gallery, InputError, LookalikeError
from retrieval.errors import LockedError
from retrieval.files import file_lock
from retrieval.search.calibration import Calibration, write_calibration
from retrieval.storage.records import IndexSpec
from retrieval.upkeep import snapshot
from retrieval.upkeep.compact import compact
from retrieval.upkeep.snapshot import copy_gallery
from retrieval.upkeep.verify import verify
from tests.conftest import lookalike_here
from tests.retrieval.filling import bare_gallery, commit, contents, small_gallery

WRITER = """
import sys
from retrieval import Gallery
from retrieval.storage.records import IndexSpec
from retrieval.upkeep.compact import compact
from tests.retrieval.filling import commit
gallery = Gallery(sys.argv[1])
for generation in range(1, 1000):
    commit(gallery, [f'n{i}' for i in range(10)], generation, generation=generation)
    if generation % 3 == 0:
        compact(gallery)
    with gallery.store.writing():
        gallery.build_index(IndexSpec('sq8'))
"""


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    """Return a gallery with an index, a removed item and a model."""
    gallery = small_gallery(tmp_path)
    commit(gallery, [f"a{i}" for i in range(20)], seed=1, brand="acme")
    with gallery.store.writing():
        gallery.build_index(IndexSpec("sq8"))
    gallery.remove(["a3.jpg"])
    curve = Calibration(gallery.fingerprint, 20, (9.0, *[0.0] * 5), -1.0, 1.0, 0.5, "", {"ece": 0.01})
    write_calibration(gallery.folder, curve)
    return gallery


def test_copies_are_whole_while_a_process_writes(tmp_path: Path) -> None:
    """The writer replaces all items, compacts and indexes without a pause."""
    gallery = bare_gallery(tmp_path / "g")
    commit(gallery, [f"n{i}" for i in range(10)], generation=0)
    command = [sys.executable, "-c", WRITER, str(gallery.folder)]
    generations: list[int] = []

    def copy() -> None:
        target = tmp_path / f"copy{len(generations)}"
        copy_gallery(gallery.folder, target)
        (found,) = {m["generation"] for _, m, _ in contents(Gallery(target)).values()}
        generations.append(found)  # type: ignore[arg-type]

    with subprocess.Popen(command, cwd=Path(__file__).parents[3]) as writer:
        while not gallery.changed():
            assert writer.poll() is None
        copy()
        while len(generations) < 12 or generations[-1] < generations[0] + 3:
            assert writer.poll() is None
            copy()
        writer.kill()
    assert not any(verify(tmp_path / f"copy{number}").problems for number in range(len(generations)))
    assert generations == sorted(generations)


def test_copy_is_independent(gallery: Gallery, tmp_path: Path) -> None:
    before = contents(gallery)
    done = copy_gallery(gallery.folder, tmp_path / "copy")
    assert done.copied == 0, "all files but the database are links"
    commit(gallery, ["b"], seed=2)
    compact(gallery)
    copy = Gallery(tmp_path / "copy")
    assert contents(copy) == before
    assert copy.index is not None
    assert copy.calibration is not None
    assert copy.calibration == gallery.calibration
    copy.remove(["a4.jpg"])
    assert "a4.jpg" in contents(gallery)
    for folder in (gallery.folder, copy.folder):
        assert not verify(folder).problems
    (copy.folder / "gallery.db").unlink()
    assert not verify(copy.folder, repair=True).left
    assert {"a3.jpg", "a4.jpg"}.isdisjoint(contents(Gallery(copy.folder)))


def test_file_system_without_links(gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(1, "no links")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    done = copy_gallery(gallery.folder, tmp_path / "copy")
    assert done.copied == done.files
    assert not verify(tmp_path / "copy").problems
    assert contents(Gallery(tmp_path / "copy")) == contents(gallery)


def test_files_deleted_meanwhile(gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction between the copy of the database and the links."""
    steps = iter([lambda: compact(gallery)])
    real = snapshot.maintenance.copy_database

    def copy_then_write(folder: Path, target: Path) -> None:
        real(folder, target)
        next(steps, lambda: None)()  # type: ignore[arg-type, return-value]

    monkeypatch.setattr(snapshot.maintenance, "copy_database", copy_then_write)
    copy_gallery(gallery.folder, tmp_path / "copy")
    found = verify(tmp_path / "copy")
    assert not found.problems
    assert found.leftovers == 0


def test_gallery_is_replaced_meanwhile(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    other = small_gallery(tmp_path / "other")
    commit(other, ["x", "y"], seed=5)
    real = snapshot.maintenance.copy_database

    def copy_then_swap(folder: Path, target: Path) -> None:
        real(folder, target)
        if other.folder.exists():
            gallery.folder.rename(tmp_path / "old")
            other.folder.rename(gallery.folder)

    monkeypatch.setattr(snapshot.maintenance, "copy_database", copy_then_swap)
    copy_gallery(gallery.folder, tmp_path / "copy")
    assert not verify(tmp_path / "copy").problems
    assert contents(Gallery(tmp_path / "copy")).keys() == {"x.jpg", "y.jpg"}


def test_refusals(gallery: Gallery, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a gallery"):
        copy_gallery(tmp_path, tmp_path / "copy")
    with pytest.raises(InputError, match="exists"):
        copy_gallery(gallery.folder, tmp_path)
    with pytest.raises(InputError, match="inside"):
        copy_gallery(gallery.folder, gallery.folder / "copy")
    draft = tmp_path / ".copy.snapshot"
    draft.mkdir()
    with file_lock(draft / "LOCK", print), pytest.raises(LockedError, match="another process"):
        copy_gallery(gallery.folder, tmp_path / "copy")
    (gallery.folder / "segments" / gallery.store.segments()[0].file).unlink()
    with pytest.raises(LookalikeError, match="missing; run `lookalike index verify"):
        copy_gallery(gallery.folder, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_command(gallery: Gallery, tmp_path: Path) -> None:
    target = tmp_path / "sub" / "copy"
    done = lookalike_here("index", "snapshot", str(gallery.folder), str(target), "--json")
    facts = json.loads(done.stdout)
    assert facts["folder"] == str(target)
    assert facts["bytes"] == sum(f.stat().st_size for f in target.rglob("*") if f.is_file())
    again = lookalike_here("index", "snapshot", str(gallery.folder), str(target), code=2)
    assert "choose another name" in again.stderr
    assert sorted(os.listdir(tmp_path / "sub")) == ["copy"]


def test_no_copy_lacks_the_facts_of_a_segment(tmp_path: Path) -> None:
    gallery = bare_gallery(tmp_path / "g")
    commit(gallery, ["a", "b"])
    (facts,) = (gallery.folder / "segments").glob("*.facts")
    facts.unlink()
    with pytest.raises(LookalikeError, match=rf"{facts.name}: missing; .*--repair"):
        copy_gallery(gallery.folder, tmp_path / "copy")
