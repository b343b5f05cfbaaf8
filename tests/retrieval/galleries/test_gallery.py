"""Galleries: adding, searching, models, concurrent writers and crashes."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from PIL import Image

from retrieval import Embedder, Gallery, ImageError, InputError, LookalikeError, Runtime
from retrieval.ingest.sources import scan
from retrieval.machine.devices import Device
from retrieval.storage.records import IndexSpec
from retrieval.storage.segments import files_of
from retrieval.storage.store import Store
from tests.conftest import draw
from tests.serve.model import write_model


@pytest.fixture(scope="session")
def embedder(model_file: Path) -> Embedder:
    return Embedder(model_file)


@pytest.fixture
def gallery(tmp_path: Path, embedder: Embedder) -> Gallery:
    return Gallery.create(tmp_path / "shop.gallery", embedder)


def vectors_of(embedder: Embedder, paths: list[Path]) -> np.ndarray:
    """Return embeddings computed one image at a time, which cannot mix items up."""
    return np.concatenate([embedder.embed([path]) for path in paths])


def test_search_equals_brute_force(gallery: Gallery, embedder: Embedder, shop: Path) -> None:
    paths = sorted(shop.rglob("*.png"))
    gallery.add([shop])
    everything = vectors_of(embedder, paths)
    for query in (paths[0], paths[10]):
        scores = everything @ embedder.embed([query])[0]
        hits = gallery.search(query, k=7)
        np.testing.assert_allclose([hit.score for hit in hits], np.sort(scores)[::-1][:7], atol=1e-5)
        assert {hit.path for hit in hits} == {str(paths[i]) for i in np.argsort(-scores)[:7]}
        assert hits[0].path == str(query)
        assert hits[0].label == query.parent.name


def test_adding_in_parts_equals_adding_at_once(
    gallery: Gallery, tmp_path: Path, embedder: Embedder, shop: Path
) -> None:
    pieces = Gallery.create(tmp_path / "pieces", embedder)
    gallery.add([shop])
    for name in ("red", "green", "blue"):
        pieces.add([shop / name])
    assert len(pieces) == len(gallery) == 24
    query = embedder.embed([draw(99)])
    one, many = gallery.search_vectors(query, 24)[0], pieces.search_vectors(query, 24)[0]
    assert {h.path for h in one} == {h.path for h in many}
    np.testing.assert_allclose([h.score for h in one], [h.score for h in many], atol=1e-6)


def test_index_and_tail_together(gallery: Gallery, shop: Path, embedder: Embedder) -> None:
    gallery.add([shop / "red"], reindex=True, index=IndexSpec("sq8"))
    gallery.add([shop / "blue"])
    assert gallery.outside_index == 8
    for name in ("red", "blue"):
        path = shop / name / "3.png"
        assert gallery.search(path, 1)[0].path == str(path)
    again = Gallery.open(gallery.folder)
    assert [h.id for h in again.search(path, 16)] == [h.id for h in gallery.search(path, 16)]


def test_search_by_item_leaves_the_item_out(gallery: Gallery, shop: Path) -> None:
    gallery.add([shop])
    first = gallery.search(shop / "red" / "0.png", 1)[0]
    others = gallery.search_id(first.id, 5)
    assert len(others) == 5
    assert first.id not in {hit.id for hit in others}
    with pytest.raises(InputError, match="no item"):
        gallery.search_id(10_000)


def test_search_with_libraries_that_patch_faiss(model_file: Path, shop: Path, tmp_path: Path) -> None:
    """pytorch-metric-learning imports FAISS's wrappers for torch, which replace `Index.search`."""
    program = (
        "import sys, faiss.contrib.torch_utils\n"
        "from retrieval import Gallery\n"
        "gallery = Gallery.create(sys.argv[1], sys.argv[2])\n"
        "gallery.add([sys.argv[3]], reindex=True)\n"
        "print(len(gallery.search(sys.argv[4], 3)))"
    )
    words = [str(tmp_path / "g"), str(model_file), str(shop), str(shop / "red" / "0.png")]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "3"


def test_k_beyond_the_gallery_and_empty_gallery(gallery: Gallery, shop: Path) -> None:
    assert gallery.search(shop / "red" / "0.png") == []
    gallery.add([shop])
    assert len(gallery.search(shop / "red" / "0.png", 1000)) == 24
    with pytest.raises(InputError, match="k must be"):
        gallery.search(shop / "red" / "0.png", 0)
    with pytest.raises(InputError, match="finite"):
        gallery.search_vectors(np.full((1, 16), np.nan, np.float32))
    with pytest.raises(InputError, match="finite"):
        gallery.search_vectors(np.zeros((1, 3), np.float32))


def test_one_path_is_added_as_a_list_of_it(gallery: Gallery, shop: Path) -> None:
    assert gallery.add(str(shop / "red" / "0.png")).added == 1
    assert gallery.add(shop / "red" / "1.png").added == 1
    assert len(gallery) == 2


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"price": 1}, "each file has a mapping of its values"),
        (pandas.DataFrame({"price": [1]}), "to_dict"),
        ([{3: 1}], "by name of the column"),
        ([{"price": [1]}], "column 'price': a list is neither text nor a number"),
    ],
)
def test_metadata_of_another_form_is_refused(
    gallery: Gallery, shop: Path, metadata: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        gallery.add([shop / "red" / "0.png"], metadata=metadata)


def test_metadata_may_be_records_of_pandas_and_numbers_of_numpy(gallery: Gallery, shop: Path) -> None:
    """What is missing there, NaN, NaT and NA, is missing here, and is no text such as "nan"."""
    table = pandas.DataFrame(
        {
            "label": ["hat", float("nan"), None],
            "stock": pandas.array([3, None, 5], dtype="Int64"),
            "since": pandas.to_datetime(["2026-01-02", None, None]),
        }
    )
    rows = [
        {str(name): value for name, value in row.items()} | {"price": np.float32(0.5), "sold": np.bool_(True)}
        for row in table.to_dict("records")
    ]
    assert gallery.add([shop / "red" / f"{n}.png" for n in range(3)], metadata=rows).added == 3
    both = {"price": 0.5, "sold": 1}
    assert [
        (item.label, item.metadata) for item in gallery.items(gallery.select(where="id > 0")).values()
    ] == [
        ("hat", {**both, "stock": 3, "since": "2026-01-02T00:00:00"}),
        (None, both),
        (None, {**both, "stock": 5}),
    ]


def test_values_that_are_not_known_are_refused(gallery: Gallery, shop: Path, tmp_path: Path) -> None:
    given: Any = {"duplicates": "drop"}
    with pytest.raises(InputError, match="duplicates 'drop': unknown; known: keep, refuse"):
        gallery.add(shop, **given)
    with pytest.raises(InputError, match="max_bad 7: a share of the files, from 0 to 1"):
        gallery.add(shop, max_bad=7)
    with pytest.raises(InputError, match="storage 'int8': unknown; known: float32, float16"):
        Gallery.create(tmp_path / "g", gallery.embedder, storage="int8")
    with pytest.raises(InputError, match="storage 'int8': unknown"):
        Gallery.import_vectors(tmp_path / "g", tmp_path / "v.npy", name="mine", storage="int8")
    assert not (tmp_path / "g").exists()
    assert len(gallery) == 0


def test_paths_may_be_text(gallery: Gallery, shop: Path, tmp_path: Path) -> None:
    assert gallery.difference(str(shop)).new == 24
    assert gallery.sync(str(shop)).added == 24
    assert next(gallery.watch(f"{shop}/none")).args[0].endswith("there is no such folder")
    for suffix in (".parquet", ".npy"):
        assert gallery.export(f"{tmp_path}/vectors{suffix}") == 24
    gallery.snapshot(f"{tmp_path}/copy.gallery")
    opened, is_new = Gallery.open_or_create(f"{tmp_path}/copy.gallery", gallery.embedder)
    assert (len(opened), is_new) == (24, False)
    imported = f"{tmp_path}/imported.gallery"
    Gallery.import_vectors(
        imported, f"{tmp_path}/vectors.parquet", model=str(gallery.embedder.path), root=str(shop)
    )
    found = Gallery.open(imported).search(shop / "red" / "0.png", 1)[0]
    assert (found.key, found.score) == ("red/0.png", pytest.approx(1, abs=1e-5))


def test_adding_again_is_a_no_op(gallery: Gallery, shop: Path) -> None:
    assert gallery.add([shop]).added == 24
    before = sorted(p.name for p in (gallery.folder / "segments").iterdir())
    again = gallery.add([shop])
    assert (again.added, again.unchanged) == (0, 24)
    assert sorted(p.name for p in (gallery.folder / "segments").iterdir()) == before


def test_changed_file_replaces_its_item(gallery: Gallery, tmp_path: Path) -> None:
    path = tmp_path / "pictures" / "a" / "x.png"
    path.parent.mkdir(parents=True)
    draw(1).save(path)
    gallery.add([tmp_path / "pictures"])
    old = gallery.search(draw(1), 1)[0]
    draw(2, hue=1).save(path)
    os.utime(path, ns=(1, 1))
    assert gallery.add([tmp_path / "pictures"]).added == 1
    assert len(gallery) == 1
    new = gallery.search(draw(2, hue=1), 5)
    assert [hit.id for hit in new] == [old.id]
    assert new[0].score == pytest.approx(1.0, abs=1e-5)


def test_bad_files_are_listed_skipped_and_retried(gallery: Gallery, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    (folder / "a").mkdir(parents=True)
    draw(1).save(folder / "a" / "good.png")
    (folder / "a" / "broken.jpg").write_bytes((folder / "a" / "good.png").read_bytes()[:100])
    (folder / "a" / "empty.jpg").touch()
    (folder / "a" / "notes.txt").write_text("not for us")
    (folder / "a" / ".hidden.png").touch()
    outcome = gallery.add([folder])
    assert (outcome.added, outcome.ignored) == (1, 1)
    reasons = {Path(bad.stamp.path).name: bad.reason for bad in outcome.bad}
    assert reasons == {"broken.jpg": ImageError.DAMAGED, "empty.jpg": ImageError.NOT_AN_IMAGE}
    assert {Path(bad.stamp.path).name for bad in Gallery.open(gallery.folder).contents.bad_files()} == set(
        reasons
    )
    assert len(gallery.add([folder]).bad) == 2, "unchanged bad files stay on the list"
    draw(2).save(folder / "a" / "broken.jpg")
    assert gallery.add([folder], retry=True).added == 1
    assert [Path(bad.stamp.path).name for bad in gallery.contents.bad_files()] == ["empty.jpg"]


def test_undecodable_file_name_is_listed(gallery: Gallery, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    draw(1).save(folder / "good.png")
    shutil.copy(folder / "good.png", os.fsencode(folder) + b"/\xff.png")
    outcome = gallery.add([folder])
    assert outcome.added == 1
    assert [bad.reason for bad in outcome.bad] == ["name"]


def test_single_file_joins_the_root_of_its_folder(gallery: Gallery, shop: Path) -> None:
    gallery.add([shop / "red"])
    assert gallery.search(draw(0), 1)[0].label is None, "the folder that was named gives no label"
    other = Gallery.create(gallery.folder.with_name("other"), gallery.embedder)
    other.add([shop])
    outcome = other.add([shop / "red" / "0.png"])
    assert (outcome.added, outcome.unchanged) == (0, 1)


def test_sources_without_images_are_refused(gallery: Gallery, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        gallery.add([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no image files"):
        gallery.add([tmp_path / "empty"])


def test_labels_are_the_folders(shop: Path, tmp_path: Path) -> None:
    nested = tmp_path / "top"
    shutil.copytree(shop, nested / "shop")
    assert {stamp.label for stamp in scan([shop])} == {"red", "green", "blue"}
    assert "shop/red" in {stamp.label for stamp in scan([nested])}


def test_other_model_is_refused(gallery: Gallery, model_file: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "another-name.onnx"
    shutil.copy(model_file, renamed)
    gallery.check_model(Embedder(renamed))  # the name does not count
    other = tmp_path / "other.onnx"
    other.write_bytes(with_note(model_file))
    with pytest.raises(InputError, match="both compute the same vectors"):
        gallery.check_model(Embedder(other))
    third = write_model(tmp_path / "third.onnx")
    with pytest.raises(InputError, match="built with model"):
        gallery.check_model(Embedder(third))


def with_note(model_file: Path) -> bytes:
    import onnx

    model = onnx.load(model_file)
    model.doc_string = "the same network, another file"
    return model.SerializeToString()


def test_model_that_computes_other_vectors_is_refused(gallery: Gallery, tmp_path: Path) -> None:
    probes = np.load(gallery.folder / "model" / "probes.npy")
    model = gallery.folder / "model" / "model.onnx"
    Store.create(tmp_path / "elsewhere", gallery.store.manifest, model, np.roll(probes, 1, axis=1))
    with pytest.raises(LookalikeError, match="other vectors"):
        Gallery.open(tmp_path / "elsewhere").search(draw(0))


@pytest.mark.parametrize(
    ("built", "cosine", "refused"),
    [
        ("CUDAExecutionProvider", 0.9995, ""),
        ("CUDAExecutionProvider", 0.994, ""),
        ("CUDAExecutionProvider", 0.98, "or choose the provider that it was built with"),
        (None, 0.994, "by an unknown provider"),
        ("CPUExecutionProvider", 0.994, "rebuild the gallery on this machine$"),
    ],
)
def test_gallery_of_another_provider_is_accepted_or_explained(
    gallery: Gallery,
    tmp_path: Path,
    built: str | None,
    cosine: float,
    refused: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Probe vectors as another provider would have computed them: at a given cosine to those of the CPU."""
    probes = np.load(gallery.folder / "model" / "probes.npy").astype(float)
    away = np.roll(probes, 1, axis=1)
    away -= (away * probes).sum(1, keepdims=True) * probes
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    moved = (cosine * probes + np.sqrt(1 - cosine**2) * away).astype(np.float32)
    model, manifest = gallery.folder / "model" / "model.onnx", gallery.store.manifest
    assert manifest.provider == gallery.info()["provider"] == "CPUExecutionProvider"
    Store.create(tmp_path / "g", dataclasses.replace(manifest, provider=built), model, moved)
    there = Gallery(tmp_path / "g", runtime=Runtime(Device("cpu")))
    assert there.store.manifest.provider == built
    if refused:
        with pytest.raises(LookalikeError, match=f"by CPUExecutionProvider, .*{refused}"):
            _ = there.embedder
    else:
        assert there.embedder.dim == manifest.dim
        line = capsys.readouterr().err
        assert (f"by CUDAExecutionProvider (cosine {cosine:.4f})" in line) == (cosine < 0.999)


def test_one_writer_at_a_time(gallery: Gallery, shop: Path) -> None:
    with gallery.store.writing(), pytest.raises(LookalikeError, match=f"process {os.getpid()}"):
        Gallery.open(gallery.folder).add([shop])
    assert gallery.add([shop]).added == 24


def test_readers_keep_their_view_until_they_refresh(gallery: Gallery, shop: Path) -> None:
    gallery.add([shop / "red"])
    reader = Gallery.open(gallery.folder)
    gallery.add([shop / "blue"], reindex=True)
    assert len(reader) == 8
    assert len(reader.search(draw(0), 100)) == 8
    reader.refresh()
    assert len(reader.search(draw(0), 100)) == 16


def test_folder_can_be_copied(gallery: Gallery, shop: Path, tmp_path: Path) -> None:
    gallery.add([shop], reindex=True, index=IndexSpec("sq8"))
    copy = Gallery.open(shutil.copytree(gallery.folder, tmp_path / "copy"))
    assert [h.id for h in copy.search(draw(0), 5)] == [h.id for h in gallery.search(draw(0), 5)]


def test_folders_that_are_no_gallery_are_refused(tmp_path: Path, gallery: Gallery, model_file: Path) -> None:
    with pytest.raises(InputError, match="not a gallery"):
        Gallery.open(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").touch()
    with pytest.raises(InputError, match="not an empty folder"):
        Gallery.create(tmp_path / "full", model_file)
    with sqlite3.connect(gallery.folder / "gallery.db") as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'format_version'")
    db.close()
    with pytest.raises(InputError, match=r"format 99 is not supported .*; update"):
        Gallery.open(gallery.folder)


def test_leftovers_of_a_crash_are_cleared(gallery: Gallery, shop: Path) -> None:
    (gallery.folder / "segments" / "half.npy.tmp-1").write_bytes(b"half")
    (gallery.folder / "indexes" / "half").mkdir()
    gallery.add([shop])
    (segment,) = gallery.store.segments()
    vectors, rows, facts, _ = files_of(segment.file)
    assert {file.name for file in (gallery.folder / "segments").glob("*.*")} == {vectors, rows, facts}
    assert not (gallery.folder / "indexes" / "half").exists()


@pytest.mark.slow
def test_killed_indexing_run_resumes(tmp_path: Path, model_file: Path, embedder: Embedder) -> None:
    """An indexing run that is killed repeatedly loses nothing, mixes nothing and embeds nothing twice."""
    pictures, folder = tmp_path / "pictures", tmp_path / "g"
    (pictures / "a").mkdir(parents=True)
    for seed in range(400):
        draw(seed).save(pictures / "a" / f"{seed:03d}.png")
    program = (
        "import sys; from retrieval import Gallery; from retrieval.ingest import indexing\n"
        "indexing.COMMIT_ITEMS = 32\n"
        "Gallery.open(sys.argv[1]).add([sys.argv[2]], reindex=True)"
    )
    Gallery.create(folder, model_file)
    random, sizes = np.random.default_rng(0), [0]
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", program, str(folder), str(pictures)])
        while len(Gallery.open(folder)) == sizes[-1] and process.poll() is None:
            time.sleep(0.005)
        time.sleep(random.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        process.wait()
        sizes.append(len(Gallery.open(folder)))
        assert sizes[-1] >= sizes[-2]
    assert 0 < sizes[1] < 400, "it was killed on the way"
    gallery = Gallery.open(folder)
    gallery.add([pictures], reindex=True)
    stored = gallery.embeddings()
    vectors, labels, ids = stored.vectors, stored.labels, stored.ids.tolist()
    assert len(set(ids)) == len(ids) == 400
    assert set(labels) == {"a"}
    assert sum(segment.n for segment in gallery.store.segments()) == 400, "nothing was embedded twice"
    paths = [Path(gallery.item(i).path) for i in ids]
    np.testing.assert_allclose(vectors, vectors_of(embedder, paths), atol=1e-5)


def test_old_gallery_keeps_the_scaling_that_it_was_built_with(
    gallery: Gallery, embedder: Embedder, tmp_path: Path
) -> None:
    photo = draw(3, (150, 90))
    side = embedder.preprocess.scaled
    assert embedder.preprocess.fit == "crop"
    assert embedder.preprocess.size == side
    scaled = photo.resize((side, side), Image.Resampling.BICUBIC, box=(30, 0, 120, 90))
    old = Gallery.create(tmp_path / "old", embedder)
    with old.store.writing():
        old.store.update_manifest(dataclasses.replace(old.manifest, decode_policy=2))
    opened, given, new = Gallery.open(old.folder), Gallery.open(old.folder), Gallery.open(gallery.folder)
    given.use_model(embedder)
    for one in (opened, given):
        np.testing.assert_array_equal(one.embedder.pixels(photo), scaled)
    assert (new.embedder.pixels(photo) != scaled).any()
    photo.save(tmp_path / "photo.png")
    opened.add([tmp_path / "photo.png"])
    assert opened.search(photo, k=1)[0].score == pytest.approx(1, abs=1e-6)
    np.testing.assert_array_equal(embedder.pixels(photo), new.embedder.pixels(photo))
