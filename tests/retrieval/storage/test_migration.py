"""Galleries of format 1 are brought up to date when they are opened."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from retrieval import Gallery, LookalikeError
from retrieval.ingest.plan import present
from retrieval.upkeep.verify import verify
from tests.retrieval.filling import commit, contents, unit_vectors
from tests.retrieval.format_1 import old_gallery


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return old_gallery(tmp_path / "old")


def test_everything_is_still_there(old: Path) -> None:
    gallery = Gallery(old)
    first, second = unit_vectors(3, 1), unit_vectors(3, 2)
    assert contents(gallery) == {
        "b.jpg": ("label", {"brand": "acme", "tags": '["x"]'}, first[1].tobytes()),
        "/one/c.jpg": ("label", {}, first[2].tobytes()),
        "a.jpg": ("label", {"price": 2.5}, second[0].tobytes()),
        "/two/c.jpg": ("label", {}, second[1].tobytes()),
        "d.jpg": ("label", {}, second[2].tobytes()),
    }
    assert not verify(old).problems
    assert gallery.search_vectors(first[1:2], 1)[0][0].id == 2
    there = present(gallery.store)["/two", "d.jpg"]
    assert (there.size, there.mtime_ns) == (10, 20)
    assert [file.detail for file in gallery.bad_files()] == ["cut off"]
    assert gallery.info()["runs"][0]["counts"] == {"added": 5}
    commit(gallery, ["new"])
    assert gallery.ids_of(["new.jpg"]) == [7], "numbers go on where they were"
    assert not list((old / "indexes").iterdir()), "an exact index needs no file any more"
    assert Gallery(old).embedder.dim == 48


def test_what_is_damaged_waits_to_be_embedded_again(old: Path) -> None:
    path = old / "segments" / "11.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert set(contents(Gallery(old))) == {"a.jpg", "/two/c.jpg", "d.jpg"}
    assert verify(old).waiting == 2
    assert not verify(old).problems


def test_where_nothing_can_be_written_it_says_so(old: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a disk")
    try:
        shutil.copytree(old, disk / "old")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.raises(LookalikeError, match="cannot be written"):
            Gallery(disk / "old")
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
    assert len(Gallery(old)) == 5
