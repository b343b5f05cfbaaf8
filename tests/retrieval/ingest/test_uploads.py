"""Pictures that a gallery keeps itself, and everything else that is done to galleries."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest

from retrieval import Gallery
from retrieval.embedder import Embedder
from retrieval.ingest.rebuild import rebuild
from retrieval.ingest.sync import sync, update
from retrieval.ingest.transfer import export, import_vectors
from retrieval.ingest.uploads import Upload, store_uploads
from retrieval.storage.records import IndexSpec
from retrieval.upkeep.compact import MANY, compact
from retrieval.upkeep.verify import verify
from tests.conftest import draw
from tests.retrieval.filling import commit, small_gallery, unit_vectors
from tests.serve.model import write_model


def encoded(seed: int) -> bytes:
    """The bytes of a new picture."""
    buffer = io.BytesIO()
    draw(1000 + seed).save(buffer, "PNG")
    return buffer.getvalue()


def kept(folder: Path) -> set[str]:
    """What lies among the pictures that a gallery keeps."""
    return {path.name for path in (folder / "pictures").iterdir()}


def everything(gallery: Gallery) -> dict[str, tuple[str | None, bytes, bytes]]:
    """By key: label, vector, and the bytes of the file."""
    ids = gallery.snapshot.ids[gallery.snapshot.ids > 0].tolist()
    return {
        item.key: (item.label, gallery.vector(i).tobytes(), Path(item.path).read_bytes())
        for i, item in gallery.items(ids).items()
    }


@pytest.fixture
def grown(shop: Path, tmp_path: Path) -> Gallery:
    """The shop, and three pictures that the gallery keeps."""
    gallery = Gallery.create(tmp_path / "g", write_model(tmp_path / "model.onnx"))
    gallery.add([shop])
    pictures = {f"n{n}.png": encoded(n) for n in range(3)}
    vectors = gallery.embedder.embed(list(pictures.values()))
    given = [Upload(*one, vector) for one, vector in zip(pictures.items(), vectors, strict=True)]
    with gallery.store.writing():
        store_uploads(gallery.store, given, "new")
    gallery.refresh()
    return gallery


def test_the_folder_may_move_and_be_copied(grown: Gallery, tmp_path: Path) -> None:
    before = everything(grown)
    copy = shutil.copytree(grown.folder, tmp_path / "copy")
    moved = grown.folder.rename(tmp_path / "moved")
    for place in (copy, moved):
        there = Gallery(place)
        assert everything(there) == before
        assert all(Path(there.item(i).path).is_relative_to(place) for i in there.ids_of(["n0.png", "n2.png"]))
    elsewhere = Gallery(moved, root=tmp_path / "nowhere")  # about the files that were indexed
    (number,) = elsewhere.ids_of(["n1.png"])
    assert Path(elsewhere.item(number).path).exists()


def test_upkeep_leaves_them_as_they_are(
    grown: Gallery, shop: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before, files = everything(grown), kept(grown.folder)
    copy = Gallery(
        shutil.copytree(grown.folder, tmp_path_factory.mktemp("other") / "g", copy_function=shutil.copyfile)
    )  # other times
    for gallery in (grown, copy):
        found = update(gallery, prune=True)
        assert (found.result.added, found.result.removed, found.gone) == (0, 0, [])
        compact(gallery)
        outcome = sync(gallery, shop)
        assert (outcome.added, outcome.removed) == (0, 0)
        outcome = gallery.add([gallery.folder.parent])  # the gallery itself lies in there
        assert (outcome.added, outcome.moved) == (0, 0)
        assert everything(gallery) == before
        assert kept(gallery.folder) == files
        assert not verify(gallery.folder).problems


def test_a_file_elsewhere_with_the_same_bytes_is_a_copy(grown: Gallery, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "copy.png").write_bytes(encoded(1))
    outcome = grown.add([tmp_path / "more"])
    assert (outcome.copied, outcome.moved) == (1, 0)
    assert len(kept(grown.folder)) == 3


@pytest.mark.parametrize("suffix", [".parquet", ".npy"])
def test_they_go_out_and_come_in_again(grown: Gallery, tmp_path: Path, suffix: str) -> None:
    before = everything(grown)
    export(grown, tmp_path / f"out{suffix}")
    import_vectors(grown.folder, tmp_path / f"out{suffix}", model=grown.folder / "model" / "model.onnx")
    grown.refresh()
    after = everything(grown)
    assert {key: (label, file) for key, (label, _, file) in after.items()} == {
        key: (label, file) for key, (label, _, file) in before.items()
    }
    with grown.store.writing():  # clears what no row names
        assert len(kept(grown.folder)) == 3


@pytest.mark.parametrize("keep_old", [True, False])
def test_a_rebuilt_gallery_takes_them_along(grown: Gallery, tmp_path: Path, keep_old: bool) -> None:
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
        assert everything(Gallery(done.old)) == before  # each has its own


def test_removing_by_command_takes_the_file_too(grown: Gallery) -> None:
    grown.remove(["n1.png"])
    assert len(kept(grown.folder)) == 2


def test_pictures_that_come_one_by_one_leave_few_segments(tmp_path: Path) -> None:
    """Beside an index and removed items, which are as before; more than two merges."""
    gallery = small_gallery(tmp_path)
    commit(gallery, [f"a{n}" for n in range(30)], seed=1)
    with gallery.store.writing():
        gallery.build_index(IndexSpec("hnsw"))
    vectors = unit_vectors(3 * MANY, seed=2)
    for n, vector in enumerate(vectors):
        with gallery.store.writing():
            store_uploads(gallery.store, [Upload(f"n{n}.png", encoded(n), vector)])
        if n % 10 == 3:
            gallery.remove([f"n{n}.png", f"a{n // 10}.jpg"])
        assert len(gallery.store.segments()) <= MANY + 1
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
