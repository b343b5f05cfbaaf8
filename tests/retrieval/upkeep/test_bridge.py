"""Bridge to another model: right at every commit, exact at the end, resumed after a kill."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retrieval import Embedder, Gallery, InputError, LookalikeError
from retrieval.evaluation.bridging import bridge_cost
from retrieval.evaluation.calibration_fit import calibrate
from retrieval.evaluation.gallery import evaluate_gallery
from retrieval.gallery import FileGallery
from retrieval.model.layer import Layer
from retrieval.storage.queries import bridged_ids, count_bridged
from retrieval.upkeep import bridge as module
from retrieval.upkeep.bridge import Sample, fit_map
from retrieval.upkeep.verify import verify
from tests.conftest import draw, draw_classes
from tests.retrieval.filling import new_items, unit_vectors
from tests.serve.model import DIM, write_model
from train.layers.folding import append_layer

# Commits every few images, and is killed after some of them.
_KILLED = """
import os, signal, sys
from retrieval import Embedder, Gallery
from retrieval.upkeep import bridge as module
module.COMMIT_ITEMS = 8
commit, left = module._commit, [int(sys.argv[3])]
def counted(*given):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return commit(*given)
module._commit = counted
Gallery.open(sys.argv[1]).bridge(Embedder(sys.argv[2]), 50)
"""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return draw_classes(tmp_path / "photos", ("red", "green", "blue", "black"), 15)


@pytest.fixture
def gallery(tmp_path: Path, photos: Path) -> FileGallery:
    made = Gallery.create(tmp_path / "g", write_model(tmp_path / "old.onnx"))
    table = tmp_path / "t.csv"
    table.write_text("path,price\n" + "".join(f"red/{n}.png,{n}\n" for n in range(15)))
    made.add([photos], metadata=table)
    assert isinstance(made, FileGallery)
    return made


@pytest.fixture
def model(tmp_path: Path) -> Embedder:
    random = np.random.default_rng(0)
    layer = Layer(random.normal(size=(20, DIM)).astype(np.float32), np.full(DIM, 0.02, np.float32))
    append_layer(write_model(tmp_path / "plain.onnx"), layer, tmp_path / "new.onnx", {"command": "test"})
    return Embedder(tmp_path / "new.onnx")


def stored(folder: Path) -> tuple[list[int], bytes]:
    """Return ids and the bytes of the vectors, by id."""
    found = Gallery.open(folder).embeddings()
    return found.ids.tolist(), found.vectors.tobytes()


def facts(folder: Path) -> list[tuple[object, ...]]:
    with sqlite3.connect(folder / "gallery.db") as db:
        kept = "items.id, key, root, path, size, mtime_ns, content_sha256, width, height, label, price"
        join = "items LEFT JOIN metadata USING (id)"
        return db.execute(f"SELECT {kept} FROM {join} WHERE deleted_at IS NULL ORDER BY items.id").fetchall()


def check_search(gallery: Gallery) -> None:
    """Compare searches with brute force over the vectors of the committed state."""
    found = gallery.embeddings()
    query = found.vectors[::7]
    for row, hits in zip(query, gallery.search_vectors(query, k=5), strict=True):
        scores = np.sort(found.vectors @ row)[::-1][:5]
        assert np.allclose([hit.score for hit in hits], scores, atol=1e-5)


def test_map_is_measured_on_images_that_it_has_not_seen() -> None:
    random = np.random.default_rng(0)
    old = unit_vectors(300, 1)
    turn = np.linalg.qr(random.standard_normal((old.shape[1], old.shape[1])))[0].astype(np.float32)
    folds = np.arange(300) % 5
    bridged, weight = fit_map(old, old @ turn, folds)
    assert np.einsum("nd,nd->n", bridged, old @ turn).min() > 0.99
    assert np.allclose(weight[:-1], turn, atol=0.02)
    noise = unit_vectors(300, 2)
    bridged, _ = fit_map(old, noise, folds)
    assert abs(np.einsum("nd,nd->n", bridged, noise).mean()) < 0.1, "nothing can be learned from noise"
    scrambled = bridge_cost([f"c{row % 30}" for row in range(300)], _classes(30), _classes(30), noise)
    assert scrambled.refusal is not None
    assert bridge_cost([None] * 300, old, old @ turn, noise).refusal is not None
    assert bridge_cost([None] * 300, old, old @ turn, old @ turn).refusal is None


def test_views_of_the_own_product_are_no_merit_of_a_bridge() -> None:
    """A map that keeps the product alone finds the query's own other view first, and no other product."""
    classes, products = np.repeat(np.arange(30), 10), np.repeat(np.arange(150), 2)
    random = np.random.default_rng(0)
    alone = random.standard_normal((150, 64)).astype(np.float32)[products]
    together = alone + random.standard_normal((30, 64)).astype(np.float32)[classes]
    alone, together = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (alone, together))
    labels = [f"c{number}" for number in classes]
    images = bridge_cost(labels, together, together, alone)
    assert images.rows["recall_at_1"] == (1, 1, 1)
    found = bridge_cost(labels, together, together, alone, products)
    assert found.images == 300
    assert found.rows["recall_at_1"][:2] == (1, 1)
    assert found.rows["recall_at_1"][2] < 0.5
    assert found.refusal is not None
    # A class of one product has nothing to find, and a label that is the product finds its views.
    assert (
        bridge_cost([*labels[:-10], *["last"] * 2, *[None] * 8], together, together, alone, products).images
        == 290
    )
    assert bridge_cost([f"p{one}" for one in products], together, together, alone, products).images == 300


def test_sample_knows_its_products(gallery: FileGallery, model: Embedder) -> None:
    def look(sample: Sample) -> None:
        expected = gallery.products_of(sample.ids)
        assert expected is not None
        np.testing.assert_array_equal(sample.products, expected)
        raise LookalikeError("seen")

    gallery.use_products("price")
    with pytest.raises(LookalikeError, match="seen"):
        gallery.bridge(model, 50, accept=look)


def _classes(count: int) -> np.ndarray:
    found = unit_vectors(count, 3)[np.arange(300) % count] + 0.1 * unit_vectors(300, 4)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def test_bridge_is_right_at_every_commit_and_ends_as_a_rebuild(
    gallery: FileGallery, model: Embedder, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.snapshot(tmp_path / "plain")
    Gallery.open(tmp_path / "plain").rebuild(model)
    before, reader = stored(gallery.folder), Gallery.open(gallery.folder)
    seen, left = list[Sample](), list[int]()
    monkeypatch.setattr(module, "COMMIT_ITEMS", 16)
    commit = module._commit

    def watched(*given: object) -> int:
        done = commit(*given)  # type: ignore[arg-type]
        reader.refresh()
        left.append(count_bridged(reader.store))  # type: ignore[attr-defined]
        check_search(reader)
        return done

    def added() -> None:
        reader.refresh()
        assert reader.info()["bridged"] == 60
        assert reader.fingerprint == model.fingerprint
        check_search(reader)
        other = Gallery.open(gallery.folder)
        (photos / "red" / "copy.png").write_bytes((photos / "red" / "3.png").read_bytes())
        draw(77).save(photos / "red" / "new.png")
        other.add([photos / "red"])
        assert other.info()["bridged"] == 60, "a copy of a picture has no copy of a mapped vector"

    monkeypatch.setattr(module, "_commit", watched)
    done = gallery.bridge(model, 50, accept=seen.append, serving=added)
    assert len(seen[0].ids) == 50
    assert left == sorted(left, reverse=True)
    assert left[0] > left[-1] == 0
    assert (done.result.replaced, done.result.bad) == (60, [])
    info = Gallery.open(gallery.folder).info()
    assert (info["bridged"], info["removed"], info["images"]) == (0, 0, 62)
    both = Gallery.open(tmp_path / "plain").embeddings(), Gallery.open(gallery.folder).embeddings()
    assert both[0].ids.tolist() == both[1].ids[:60].tolist()
    assert both[0].vectors.tobytes() == both[1].vectors[:60].tobytes()
    assert facts(tmp_path / "plain") == facts(gallery.folder)[:60]
    own = Gallery.open(gallery.folder)
    files = own.paths.lookup(both[1].ids[60:].tolist())
    assert np.abs(both[1].vectors[60:] - model.embed(files)).max() < 1e-5
    assert not verify(gallery.folder).problems
    assert stored(tmp_path / "g.old") == before
    again = Gallery.open(gallery.folder).bridge(model, 50)
    assert again.result.unchanged == 62


@pytest.mark.parametrize("commits", [0, 1])
def test_killed_bridge_goes_on(gallery: FileGallery, model: Embedder, tmp_path: Path, commits: int) -> None:
    gallery.snapshot(tmp_path / "plain")
    Gallery.open(tmp_path / "plain").rebuild(model)
    words = [sys.executable, "-c", _KILLED, str(gallery.folder), str(model.path), str(commits)]
    killed = subprocess.run(words, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert killed.returncode == -signal.SIGKILL
    between = Gallery.open(gallery.folder)
    left = between.info()["bridged"]
    assert 0 < left <= 60
    assert (left == 60) == (commits == 0)
    assert not verify(gallery.folder).problems
    check_search(between)
    done = between.bridge(model, 50)
    assert (done.resumed, done.result.replaced) == (60 - left, left)
    assert stored(gallery.folder) == stored(tmp_path / "plain")
    assert facts(gallery.folder) == facts(tmp_path / "plain")


def test_unreadable_images_stay_mapped_and_changes_are_kept(
    gallery: FileGallery, model: Embedder, photos: Path
) -> None:
    (photos / "blue" / "3.png").unlink()
    (photos / "blue" / "4.png").write_bytes(b"no image")

    def changed() -> None:
        other = Gallery.open(gallery.folder)
        other.remove(["red/1.png"])

    done = gallery.bridge(model, 60, serving=changed)
    assert sorted(file.stamp.path for file in done.result.bad) == ["blue/3.png", "blue/4.png"]
    assert done.result.replaced == 57
    left = Gallery.open(gallery.folder)
    assert isinstance(left, FileGallery)
    assert left.info()["bridged"] == 2
    assert sorted(item.key for item in left.items(bridged_ids(left.store, 0, 9).tolist()).values()) == [
        "blue/3.png",
        "blue/4.png",
    ]
    assert len(left) == 59
    for fitted in (left.check_projectable, lambda: calibrate(left)):
        with pytest.raises(InputError, match="has 2 vectors made from those of another model, by a bridge"):
            fitted()
    note = "2 vectors made by a bridge from those of another model."
    assert note in evaluate_gallery(left).notes
    draw(5).save(photos / "blue" / "3.png")
    draw(6).save(photos / "blue" / "4.png")
    assert left.bridge(model, 50).result.replaced == 2
    whole = Gallery.open(gallery.folder)
    assert whole.info()["bridged"] == 0
    whole.check_projectable(drop_old=True)
    assert note not in evaluate_gallery(whole).notes
    assert not verify(gallery.folder).problems


def test_open_views_go_on_while_images_are_embedded_again(gallery: FileGallery, model: Embedder) -> None:
    views = list[tuple[Gallery, np.ndarray]]()

    def opened() -> None:
        view = Gallery.open(gallery.folder)
        views.append((view, view.embeddings().vectors))

    gallery.bridge(model, 50, serving=opened)
    ((view, mapped),) = views
    (hits,) = view.search_vectors(mapped[:1], k=60)
    assert len(hits) == 60, "of the same files, though all have other vectors now"
    assert np.allclose([hit.score for hit in hits], np.sort(mapped @ mapped[0])[::-1], atol=1e-5)
    now = Gallery.open(gallery.folder)
    assert [item.path for item in view.items([hit.id for hit in hits]).values()] == [
        now.item(hit.id).path for hit in hits
    ]
    other = new_items(["x"])[0]
    assert isinstance(now, FileGallery)
    with now.store.writing():
        now.store.commit(mapped[:1], [replace(other, key="red/1.png")])
    (left,) = view.search_vectors(mapped[:1], k=60)
    assert len(left) == 59, "another file has the place of one"


def test_picture_is_embedded_with_the_model_of_the_vectors(gallery: FileGallery, model: Embedder) -> None:
    before = Gallery.open(gallery.folder)  # which has not loaded its model
    gallery.bridge(model, 50)
    file = Path(before.item(1).path)
    hit = before.search(file, k=1)[0]
    assert (hit.path, hit.score) == (str(file), pytest.approx(1, abs=1e-5))
    assert before.embedder.fingerprint == model.fingerprint


def test_refused_bridge_changes_nothing(gallery: FileGallery, model: Embedder, tmp_path: Path) -> None:
    def refuse(_: Sample) -> None:
        raise LookalikeError("no")

    before = stored(gallery.folder)
    with pytest.raises(LookalikeError, match="no"):
        gallery.bridge(model, 50, accept=refuse)
    assert stored(gallery.folder) == before
    (tmp_path / "g.old").mkdir()
    with pytest.raises(InputError, match="already exists"):
        gallery.bridge(model, 50)
    gallery.remove([f"red/{number}.png" for number in range(15)])
    with pytest.raises(InputError, match="a map needs 50 readable images, there are 45"):
        gallery.bridge(model, 50, keep_old=False)
