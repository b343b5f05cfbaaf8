"""Tests of uploads: images stored in the gallery's own folder, through all maintenance operations."""

from __future__ import annotations

import io
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from retrieval import Gallery
from retrieval.ingest.sync import sync, update
from retrieval.ingest.uploads import Upload, store_uploads
from retrieval.model.embedder import Embedder
from retrieval.storage import database
from retrieval.storage.records import IndexSpec
from retrieval.upkeep.compact import compact
from retrieval.upkeep.rebuild import rebuild
from retrieval.upkeep.verify import verify
from tests.conftest import draw
from tests.retrieval.filling import commit, item_ids, small_gallery, unit_vectors
from tests.serve.model import write_model


def encoded(seed: int) -> bytes:
    """Return the bytes of a new image."""
    buffer = io.BytesIO()
    draw(1000 + seed).save(buffer, "PNG")
    return buffer.getvalue()


def kept(folder: Path) -> set[str]:
    """Return the names of the files in the gallery's own folder."""
    return {path.name for path in (folder / "pictures").iterdir()}


def everything(gallery: Gallery) -> dict[str, tuple[str | None, bytes, bytes]]:
    """Return key -> (label, vector, bytes of the file)."""
    ids = item_ids(gallery).tolist()
    return {
        item.key: (item.label, gallery.vector(i).tobytes(), Path(item.path).read_bytes())
        for i, item in gallery.items(ids).items()
    }


@pytest.fixture
def grown(shop: Path, tmp_path: Path) -> Gallery:
    """A gallery of the shop and three uploads."""
    gallery = Gallery.create(tmp_path / "g", write_model(tmp_path / "model.onnx"))
    gallery.add([shop])
    images = {f"n{n}.png": encoded(n) for n in range(3)}
    vectors = gallery.embedder.embed(list(images.values()))
    given = [Upload(*one, vector) for one, vector in zip(images.items(), vectors, strict=True)]
    with gallery.store.writing():
        store_uploads(gallery.store, given, "new")
    gallery.refresh()
    return gallery


def test_gallery_with_uploads_can_be_moved_and_copied(grown: Gallery, tmp_path: Path) -> None:
    before = everything(grown)
    copy = shutil.copytree(grown.folder, tmp_path / "copy")
    moved = grown.folder.rename(tmp_path / "moved")
    for place in (copy, moved):
        there = Gallery(place)
        assert everything(there) == before
        assert all(Path(there.item(i).path).is_relative_to(place) for i in there.ids_of(["n0.png", "n2.png"]))
    elsewhere = Gallery(moved, root=tmp_path / "nowhere")  # for the indexed files
    (number,) = elsewhere.ids_of(["n1.png"])
    assert Path(elsewhere.item(number).path).exists()


def test_maintenance_keeps_uploads(
    grown: Gallery, shop: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before, files = everything(grown), kept(grown.folder)
    copy = Gallery(
        shutil.copytree(grown.folder, tmp_path_factory.mktemp("other") / "g", copy_function=shutil.copyfile)
    )  # with new modification times
    for gallery in (grown, copy):
        found = update(gallery, prune=True)
        assert (found.result.added, found.result.removed, found.gone) == (0, 0, [])
        compact(gallery)
        result = sync(gallery, shop)
        assert (result.added, result.removed) == (0, 0)
        result = gallery.add([gallery.folder.parent])  # it contains the gallery itself
        assert (result.added, result.moved) == (0, 0)
        assert everything(gallery) == before
        assert kept(gallery.folder) == files
        assert not verify(gallery.folder).problems


def test_file_with_the_bytes_of_an_upload_is_a_copy(grown: Gallery, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "copy.png").write_bytes(encoded(1))
    result = grown.add([tmp_path / "more"])
    assert (result.copied, result.moved) == (1, 0)
    assert len(kept(grown.folder)) == 3


@pytest.mark.parametrize("suffix", [".parquet", ".npy"])
def test_export_and_import_of_uploads(grown: Gallery, tmp_path: Path, suffix: str) -> None:
    before = everything(grown)
    grown.export(tmp_path / f"out{suffix}")
    Gallery.import_vectors(
        grown.folder, tmp_path / f"out{suffix}", model=grown.folder / "model" / "model.onnx"
    )
    grown.refresh()
    after = everything(grown)
    assert {key: (label, file) for key, (label, _, file) in after.items()} == {
        key: (label, file) for key, (label, _, file) in before.items()
    }
    with grown.store.writing():  # deletes unreferenced files
        assert len(kept(grown.folder)) == 3


@pytest.mark.parametrize("keep_old", [True, False])
def test_rebuild_keeps_uploads(grown: Gallery, tmp_path: Path, keep_old: bool) -> None:
    before, files = everything(grown), kept(grown.folder)
    done = rebuild(grown, Embedder(write_model(tmp_path / "other.onnx", "other")), keep_old=keep_old)
    assert done.result.bad == []
    after = everything(Gallery(grown.folder))
    assert {key: (label, file) for key, (label, _, file) in after.items()} == {
        key: (label, file) for key, (label, _, file) in before.items()
    }
    assert kept(grown.folder) == files
    if done.old is not None:
        Gallery(grown.folder).remove(["n1.png"])
        assert everything(Gallery(done.old)) == before  # neither shares files with the other


def test_remove_command_deletes_the_uploaded_file(grown: Gallery) -> None:
    grown.remove(["n1.png"])
    assert len(kept(grown.folder)) == 2


def test_single_uploads_stay_cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of SQLite's virtual machine and the files that are listed do not grow with the gallery."""
    steps = listed = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    real = database.connect

    def connect(folder: Path) -> sqlite3.Connection:
        db = real(folder)
        db.set_progress_handler(count, 10)
        return db

    def upload(gallery: Gallery, number: int) -> tuple[int, int]:
        nonlocal steps, listed
        steps = listed = 0
        with gallery.store.writing():
            vector = unit_vectors(1, number)[0]
            store_uploads(gallery.store, [Upload(f"n{number}.png", encoded(number), vector)])
        return steps, listed

    def iterdir(self: Path) -> Iterator[Path]:
        nonlocal listed
        for name in os.listdir(self):
            listed += 1
            yield self / name

    monkeypatch.setattr(database, "connect", connect)
    monkeypatch.setattr(Path, "iterdir", iterdir)
    costs = []
    for size in (10, 3000):
        (tmp_path / f"{size}").mkdir()
        gallery = small_gallery(tmp_path / f"{size}")
        (gallery.folder / "pictures").mkdir()
        for number in range(size):
            (gallery.folder / "pictures" / f"{number:064x}.png").touch()
        commit(gallery, [f"a{number}" for number in range(size)])
        upload(gallery, 1)
        costs.append(upload(gallery, 2))
    (few_steps, few_files), (many_steps, many_files) = costs
    assert many_files <= few_files
    assert many_steps <= 1.5 * few_steps


def test_single_uploads_are_merged_into_few_segments(tmp_path: Path) -> None:
    """With an index and removed items, which do not change; more than two merges."""
    gallery = small_gallery(tmp_path)
    commit(gallery, [f"a{n}" for n in range(30)], seed=1)
    with gallery.store.writing():
        gallery.build_index(IndexSpec("hnsw"))
    vectors = unit_vectors(80, seed=2)
    for n, vector in enumerate(vectors):
        with gallery.store.writing():
            store_uploads(gallery.store, [Upload(f"n{n}.png", encoded(n), vector)])
        if n % 10 == 3:
            gallery.remove([f"n{n}.png", f"a{n // 10}.jpg"])
        assert len(gallery.store.segments()) <= 1 + 7 * 3  # of fewer than 8, 64 and 512 rows
    gallery.refresh()
    gone = {n for n in range(len(vectors)) if n % 10 == 3}
    assert len(gallery) == 30 + len(vectors) - 2 * len(gone)
    assert gallery.outside_index == len(vectors)
    for n, vector in enumerate(vectors):
        (hit,) = gallery.search_vectors(vector[None], 1)[0]
        assert (hit.key == f"n{n}.png") == (n not in gone)
    found = verify(gallery.folder)
    assert not found.problems
    assert found.leftovers == 0
    compact(gallery)
    assert not verify(gallery.folder).problems
    assert len(gallery) == 30 + len(vectors) - 2 * len(gone)
