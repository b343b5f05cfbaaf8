"""Re-projection of a gallery by a layer in its model file, and its undo."""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retrieval import Embedder, Gallery, InputError, LookalikeError
from retrieval.ingest.uploads import Upload, store_uploads
from retrieval.model.layer import Layer
from retrieval.model.precision import Drift, Precision
from retrieval.search.calibration import NAME as CALIBRATION
from retrieval.storage.records import Change, IndexSpec
from retrieval.upkeep.compact import compact
from retrieval.upkeep.reprojection import reproject, undo
from retrieval.upkeep.verify import verify
from tests.conftest import draw, draw_classes, lookalike_here
from tests.retrieval.filling import commit, contents, item_ids, small_gallery
from tests.retrieval.killing import OPERATIONS, kill_at_every_step
from tests.serve.model import DIM, write_model
from train.layers.folding import append_layer

NEW_DIM = 20


def some_layer(seed: int = 0) -> Layer:
    random = np.random.default_rng(seed)
    weight = np.linalg.qr(random.normal(size=(DIM, DIM)))[0][:NEW_DIM] * random.uniform(0.5, 2, (NEW_DIM, 1))
    return Layer(weight.astype(np.float32), random.normal(0, 0.05, DIM).astype(np.float32))


def write_layered(model: Path, layer: Layer, path: Path) -> Embedder:
    """Write the small model with a layer at its end."""
    append_layer(model, layer, path, {"command": "test"})
    return Embedder(path)


def gallery_of(folder: Path, photos: Path, storage: str = "float32") -> Gallery:
    """Return a gallery with labels, metadata, an upload, a bad file, a removed and a replaced image."""
    gallery = Gallery.create(folder, write_model(folder.with_name("model.onnx")), storage=storage)
    table = photos / "t.csv"
    table.write_text("path,id,label,price\nred/0.png,a,scarlet,12\nred/1.png,b,,3\n")
    gallery.add([photos], metadata=table)
    with gallery.store.writing():
        vector = gallery.embedder.embed([draw(40)])[0]
        draw(40).save(photos / "upload.png")
        store_uploads(gallery.store, [Upload("u.png", (photos / "upload.png").read_bytes(), vector)], "up")
        gallery.build_index(IndexSpec("sq8"))
    (photos / "upload.png").unlink()
    gallery.remove(["b"])
    draw(41).save(photos / "red" / "0.png")
    gallery.add([photos / "red"])
    (photos / "t.csv").unlink()
    return gallery


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = draw_classes(tmp_path / "photos", ("red", "green"), 3)
    (folder / "green" / "bad.png").write_bytes(b"no image")
    return folder


@pytest.fixture
def gallery(tmp_path: Path, photos: Path) -> Gallery:
    return gallery_of(tmp_path / "g", photos)


def facts(gallery: Gallery) -> dict[int, tuple[object, ...]]:
    """Return everything about the live items except their vectors, and the unusable files."""
    ids = item_ids(gallery).tolist()
    items: dict[int, tuple[object, ...]] = {item.id: tuple(item[1:]) for item in gallery.store.items(ids)}
    return items | {-1: tuple(gallery.contents.bad_files())}


def vectors(gallery: Gallery) -> np.ndarray:
    snapshot = gallery.state
    ids = np.sort(item_ids(gallery))
    return snapshot.vectors(snapshot.rows_of(ids))


@pytest.mark.parametrize(("storage", "tolerance"), [("float32", 1e-5), ("float16", 1e-3)])
def test_vectors_are_those_of_the_new_model(
    tmp_path: Path, photos: Path, storage: str, tolerance: float
) -> None:
    gallery = gallery_of(tmp_path / "g", photos, storage)
    before, earlier, reader = facts(gallery), contents(gallery), Gallery(gallery.folder)
    layer = some_layer()
    model = write_layered(tmp_path / "model.onnx", layer, tmp_path / "new.onnx")
    done = reproject(gallery, layer, model, command="teach", counts={"labels": 7})
    new = done.gallery
    assert facts(new) == before
    assert (new.manifest.dtype, new.manifest.dim, done.vectors) == (storage, NEW_DIM, len(new))
    assert new.index_kind == "sq8"
    assert new.outside_index == 0
    files = new.paths.lookup(np.sort(item_ids(new)).tolist())
    assert np.abs(vectors(new) - new.embedder.embed(files)).max() < tolerance
    draw(50).save(photos / "red" / "9.png")
    new.add([photos / "red" / "9.png"])
    assert new.search(photos / "red" / "9.png", 1)[0].key == "red/9.png"
    assert not verify(new.folder).problems
    assert new.info()["runs"][1]["counts"] == {"labels": 7, "vectors": len(before) - 1}
    assert contents(Gallery(done.old)) == earlier
    assert reader.search_id("a", 1)[0].id != reader.ids_of(["a"])[0], "it still has the old files open"
    assert reader.replaced()
    reader.refresh()
    assert reader.embedder.fingerprint == model.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir() if "g" in path.name) == ["g", "g.old"]


def test_way_back_after_an_addition_is_one_that_works(tmp_path: Path) -> None:
    """The layer finds more by the labels, so that a rebuild with the model before would be refused."""
    model = Embedder(write_model(tmp_path / "model.onnx"))
    pictures = [draw(number) for number in range(40)]
    found = model.embed(pictures)
    layer = Layer(np.random.default_rng(0).normal(size=(1, DIM)).astype(np.float32), np.median(found, axis=0))
    for number, side in enumerate(layer(found)[:, 0].tolist()):
        folder = tmp_path / "photos" / ("above" if side > 0 else "below")
        folder.mkdir(parents=True, exist_ok=True)
        pictures[number].save(folder / f"{number}.png")
    gallery = Gallery.create(tmp_path / "g", model)
    gallery.add([tmp_path / "photos"])
    layered = write_layered(tmp_path / "model.onnx", layer, tmp_path / "new.onnx")
    new = reproject(gallery, layer, layered, command="teach").gallery
    draw(50).save(tmp_path / "photos" / "above" / "50.png")
    new.add([tmp_path / "photos"])
    with pytest.raises(InputError, match="1 images were added since") as refused:
        undo(new)
    (command,) = re.findall("`lookalike (.*)`", str(refused.value))
    lookalike_here(*shlex.split(command))
    back = Gallery.open(tmp_path / "g")
    assert (back.fingerprint, len(back)) == (model.fingerprint, 41)


def test_undo_restores_the_vectors_and_keeps_later_changes(
    gallery: Gallery, tmp_path: Path, photos: Path
) -> None:
    precision = Precision("tf32", Drift(1, 1, 1, 256), "CUDAExecutionProvider", "2026-11-26")
    gallery.writer.use_manifest(replace(gallery.manifest, precision=precision))
    earlier = contents(gallery)
    layer = some_layer()
    done = reproject(
        gallery, layer, write_layered(tmp_path / "model.onnx", layer, tmp_path / "new.onnx"), command="teach"
    )
    new = done.gallery
    assert new.manifest.precision is None  # it was measured with the model without the layer
    new.remove(["green/0.png"])
    with new.store.writing():
        new.store.amend([Change(new.ids_of(["a"])[0], key="renamed", metadata={"price": 13})])
    compact(new)
    draw(50).save(photos / "red" / "9.png")
    new.add([photos / "red" / "9.png"])
    with pytest.raises(InputError, match="1 images were added since"):
        undo(new)
    new.remove(["red/9.png"])
    restored = undo(new)
    assert restored.manifest.precision == precision
    found = contents(restored)
    label, metadata, vector = earlier.pop("a")
    del earlier["green/0.png"]
    assert found == earlier | {"renamed": (label, {**metadata, "price": 13}, vector)}
    assert restored.embedder.fingerprint == Embedder(tmp_path / "model.onnx").fingerprint
    assert restored.index_kind == "sq8"
    assert not verify(restored.folder).problems
    assert not list(tmp_path.glob("*g*.*old*"))
    with pytest.raises(InputError, match="nothing to undo"):
        undo(restored)
    restored.add([photos / "red" / "9.png"])


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["reproject", "undo"])
def test_killed_at_steps_of_the_swap(quick: Path, operation: str) -> None:
    """The gallery is the old one or the new one; what was interrupted can be repeated or undone.

    Between the steps, only the draft changes.
    """
    start, layer = quick / "start", some_layer()
    start.mkdir(parents=True)
    model = write_layered(write_model(start / "model.onnx"), layer, start / "new.onnx")
    np.savez(start / "layer.npz", weight=layer.weight, mean=layer.mean)
    gallery = small_gallery(start)
    for seed, names in enumerate([["a0", "a1", "a2"], ["b0", "a0"]]):
        commit(gallery, names, seed, brand="acme")
    old = contents(gallery)
    if operation == "undo":
        reproject(gallery, layer, model, command="teach")
    before, seen = contents(Gallery(gallery.folder)), []
    for folder in (
        steps := kill_at_every_step(operation, start, quick / "killed", ["rename", "rmtree", "copyfile"])
    ):
        there = Gallery(folder / "g")
        assert not verify(there.folder).problems
        seen.append(contents(there) == before)
        if contents(there) == old:
            if operation == "undo":
                with pytest.raises(InputError, match="nothing to undo"):
                    OPERATIONS["undo"](folder)
                assert sorted(path.name for path in folder.glob("*g*")) == ["g"], "nothing is left of it"
            OPERATIONS["reproject"](folder)
        assert contents(Gallery(folder / "g")) != old
        OPERATIONS["undo"](folder)
        assert contents(Gallery(folder / "g")) == old
        assert sorted(path.name for path in folder.glob("*g")) == ["g"]
    assert len(steps) > 5
    assert seen == sorted(seen, reverse=True)
    assert set(seen) == {False, True}


def test_calibration_is_that_of_the_vectors(gallery: Gallery, tmp_path: Path) -> None:
    layer = some_layer()
    model = write_layered(tmp_path / "model.onnx", layer, tmp_path / "new.onnx")
    (gallery.folder / CALIBRATION).write_text("{}")
    new = reproject(gallery, layer, model, command="teach").gallery
    assert not (new.folder / CALIBRATION).exists()
    assert (undo(new).folder / CALIBRATION).read_text() == "{}"


def test_lost_database_of_a_new_gallery(gallery: Gallery, tmp_path: Path) -> None:
    """The facts beside the segments and the copy of the manifest are those of the new gallery."""
    layer = some_layer()
    model = write_layered(tmp_path / "model.onnx", layer, tmp_path / "new.onnx")
    new = reproject(gallery, layer, model, command="teach").gallery
    expected = contents(new).keys()
    (new.folder / "gallery.db").unlink()
    assert not verify(new.folder, repair=True).left
    assert contents(Gallery(new.folder)).keys() == expected


def test_refusals(gallery: Gallery, tmp_path: Path) -> None:
    layer = some_layer()
    model = write_layered(tmp_path / "model.onnx", layer, tmp_path / "new.onnx")
    before = contents(gallery)
    with pytest.raises(InputError, match="maps 48 to 10 dimensions"):
        reproject(gallery, Layer(layer.weight[:10], layer.mean), model, command="teach")
    with pytest.raises(InputError, match="not the model of"):
        reproject(gallery, some_layer(1), model, command="teach")
    with pytest.raises(InputError, match="nothing to undo"):
        undo(gallery)
    (tmp_path / "g.old").mkdir()
    with pytest.raises(InputError, match="already exists"):
        reproject(gallery, layer, model, command="teach")
    assert contents(Gallery(gallery.folder)) == before
    new = reproject(gallery, layer, model, command="teach", drop_old=True).gallery
    assert contents(Gallery(tmp_path / "g.old")) == before
    vectors_of(new)[0, 3] = 9
    with pytest.raises(LookalikeError, match="damaged"):
        reproject(new, Layer(np.eye(NEW_DIM, dtype=np.float32), np.zeros(NEW_DIM, np.float32)),
                  new.embedder, command="teach", drop_old=True)  # fmt: skip
    assert sorted(path.name for path in tmp_path.glob("*g*")) == ["g", "g.old"]
    shutil.rmtree(tmp_path / "g.old")
    with pytest.raises(InputError, match="cannot be undone, because"):
        undo(new)


def vectors_of(gallery: Gallery) -> np.ndarray:
    """Return the file of the first segment's vectors, writable."""
    path = gallery.folder / "segments" / gallery.store.segments()[0].file
    return np.load(path, mmap_mode="r+")
