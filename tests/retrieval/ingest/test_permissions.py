"""Permissions of a gallery's files: those of the umask, except for uploads, which are private."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from retrieval import Embedder, Gallery
from retrieval.ingest.uploads import Upload, store_uploads
from retrieval.storage.records import IndexSpec
from retrieval.upkeep.compact import compact
from retrieval.upkeep.rebuild import rebuild
from retrieval.upkeep.snapshot import copy_gallery
from retrieval.upkeep.verify import verify
from tests.retrieval.ingest.test_uploads import encoded
from tests.serve.model import write_model


@pytest.fixture(params=[0o022, 0o077, 0o027, 0o002], ids=oct)
def umask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def upload(gallery: Gallery, name: str, seed: int) -> None:
    data = encoded(seed)
    with gallery.store.writing():
        store_uploads(gallery.store, [Upload(name, data, gallery.embedder.embed([data])[0])])
    gallery.refresh()


def modes(folder: Path) -> dict[str, int]:
    """Return the permissions of a folder and everything in it, by path."""
    paths = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in paths}


def check(folder: Path, umask: int, *, pictures: int) -> None:
    found = modes(folder)
    uploads = {path: mode for path, mode in found.items() if path.split("/")[0] == "pictures"}
    assert uploads == {path: 0o700 if path == "pictures" else 0o600 for path in uploads}
    assert len(uploads) == pictures + 1
    others = found.keys() - uploads.keys()
    expected = {path: (0o777 if (folder / path).is_dir() else 0o666) & ~umask for path in others}
    assert {path: oct(found[path]) for path in expected} == {path: oct(expected[path]) for path in expected}


def test_files_follow_the_umask_and_uploads_are_private(umask: int, shop: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx")
    folder = tmp_path / "new" / "g"
    gallery = Gallery.create(folder, model)
    gallery.add([shop / "red"])
    upload(gallery, "one.png", 1)
    gallery.add([shop / "blue"])
    with gallery.store.writing():
        gallery.optimize_index(IndexSpec("ivf-disk", memory=1 << 20))
    upload(gallery, "two.png", 2)
    check(folder, umask, pictures=2)
    compact(gallery)
    copy_gallery(folder, tmp_path / "copy")
    check(tmp_path / "copy", umask, pictures=2)
    rebuild(gallery, Embedder(write_model(tmp_path / "other.onnx", "other")))
    check(folder, umask, pictures=2)
    upload(Gallery(folder), "three.png", 3)
    check(folder, umask, pictures=3)
    assert not verify(folder).problems


def test_a_group_that_may_read_the_uploads_reads_new_ones(shop: Path, tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", write_model(tmp_path / "model.onnx"))
    upload(gallery, "one.png", 1)
    pictures = tmp_path / "g" / "pictures"
    pictures.chmod(0o755)
    upload(gallery, "two.png", 2)
    assert sorted(mode for path, mode in modes(pictures).items() if path != ".") == [0o600, 0o640]
