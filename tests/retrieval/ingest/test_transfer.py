"""Tests of the export and import of vectors."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrieval import Gallery, InputError, LookalikeError
from retrieval.ingest import vector_items
from retrieval.ingest.transfer import AT_ONCE, ImportResult
from retrieval.ingest.vector_files import open_vectors
from retrieval.ingest.vector_items import VectorItems
from retrieval.progress import Stage, progress_listener
from retrieval.storage import schema
from retrieval.storage.records import IndexSpec
from retrieval.upkeep.compact import compact
from retrieval.upkeep.verify import verify
from tests.conftest import draw, lookalike_here
from tests.retrieval.filling import DIM, bare_gallery, commit, contents, unit_vectors
from tests.serve.model import write_model


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    gallery = bare_gallery(tmp_path / "g")
    commit(gallery, ["a", "b", "c"], brand="acme", price=2, note=None)
    commit(gallery, ["d", "e"], seed=1, price=2.5, note='näh, "so"')
    gallery.remove(["b.jpg"])
    return gallery


@pytest.mark.parametrize("name", ["out.parquet", "out.npy"])
def test_round_trip(gallery: Gallery, tmp_path: Path, name: str) -> None:
    assert gallery.export(tmp_path / name) == 4
    assert Gallery.import_vectors(tmp_path / "new", tmp_path / name, name="random") == ImportResult(4)
    there, back = contents(gallery), contents(Gallery(tmp_path / "new"))
    assert {key: value[:2] for key, value in back.items()} == {key: value[:2] for key, value in there.items()}
    assert {key: value[2] for key, value in back.items()} == {key: value[2] for key, value in there.items()}
    assert Gallery(tmp_path / "new").item(1).path == "/pictures/a.jpg"
    assert not verify(tmp_path / "new").problems


def test_products_and_parts_go_with_a_parquet_file(gallery: Gallery, tmp_path: Path) -> None:
    gallery.use_products("brand,price")
    for name in ("out.parquet", "out.npy"):
        gallery.export(tmp_path / name)
        Gallery.import_vectors(tmp_path / f"of {name}", tmp_path / name, name="random")
    units = [Gallery(tmp_path / f"of out.{suffix}").manifest.units for suffix in ("parquet", "npy")]
    assert units == [{"product": "brand", "variant": "price"}, {}]
    # A gallery that exists keeps its own.
    Gallery(tmp_path / "of out.npy").use_products("price")
    Gallery.import_vectors(tmp_path / "of out.npy", tmp_path / "out.parquet", name="random")
    assert Gallery(tmp_path / "of out.npy").manifest.units == {"product": "price"}


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (b"no JSON", {}),
        (b"[1]", {}),
        (b'{"product": ["brand"], "variant": {}, "objects": 1}', {}),
        (b'{"product": "sku", "variant": "price"}', {}),
        (b'{"product": "brand", "variant": "brand"}', {"product": "brand"}),
        (b'{"objects": true}', {}),  # without the column by which parts know their picture
        (b'{"variant": "price", "detector": "0", "dim": 7}', {}),
    ],
)
def test_products_that_a_file_cannot_have_are_left_out(
    gallery: Gallery, tmp_path: Path, said: bytes, kept: dict[str, str]
) -> None:
    gallery.export(tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    pq.write_table(table.replace_schema_metadata({b"lookalike.units": said}), tmp_path / "other.parquet")
    Gallery.import_vectors(tmp_path / "new", tmp_path / "other.parquet", name="random")
    assert Gallery(tmp_path / "new").manifest.units == kept
    assert len(Gallery(tmp_path / "new")) == 4


def test_export_is_readable_by_other_programs(gallery: Gallery, tmp_path: Path) -> None:
    gallery.export(tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column("id").to_pylist() == ["a.jpg", "c.jpg", "d.jpg", "e.jpg"]
    assert table.column("price").to_pylist() == [2, 2, 2.5, 2.5]
    vectors = np.stack(table.column("vector").to_numpy())
    gallery.export(tmp_path / "out.npy")
    np.testing.assert_array_equal(vectors, np.load(tmp_path / "out.npy"))
    np.testing.assert_array_equal(vectors[:1], unit_vectors(3)[:1])
    assert not list(tmp_path.glob("*.tmp*"))


@pytest.mark.parametrize("suffix", [".parquet", ".npy"])
def test_damaged_facts_are_not_exported(gallery: Gallery, tmp_path: Path, suffix: str) -> None:
    with closing(sqlite3.connect(gallery.folder / "gallery.db")) as db, db:
        db.execute("UPDATE metadata SET price = 7 WHERE id = 3")
    with pytest.raises(LookalikeError, match="item 3: its facts"):
        gallery.export(tmp_path / f"out{suffix}")
    assert not list(tmp_path.glob("out*"))


def test_import_of_several_batches(tmp_path: Path) -> None:
    vectors = unit_vectors(AT_ONCE + 7) * 3
    np.savez(tmp_path / "in.npz", vectors=vectors, ids=np.arange(len(vectors)) + 100)
    assert Gallery.import_vectors(tmp_path / "g", tmp_path / "in.npz", name="x") == ImportResult(len(vectors))
    gallery = Gallery(tmp_path / "g")
    hit = gallery.search_vectors(vectors[-1:] / 3, 1)[0][0]
    assert (hit.key, hit.path) == (str(len(vectors) + 99), "")
    assert hit.score == pytest.approx(1)
    again = Gallery.import_vectors(tmp_path / "g", tmp_path / "in.npz", name="x")
    assert again == ImportResult(0, len(vectors)), "items with the same ids are replaced"
    assert len(Gallery(tmp_path / "g")) == len(vectors)
    with pytest.raises(InputError, match="external embedding"):
        gallery.search(draw(0))


def save(path: Path, vectors: np.ndarray) -> Path:
    np.save(path, vectors)
    return path


def test_vectors_without_ids_never_replace_others(tmp_path: Path) -> None:
    many = unit_vectors(8)
    folder = tmp_path / "g"
    assert Gallery.import_vectors(folder, save(tmp_path / "a.npy", many[:3]), name="x") == ImportResult(3)
    assert Gallery.import_vectors(folder, save(tmp_path / "b.npy", many[3:5]), name="x") == ImportResult(2)
    keys = ["a-000000001", "a-000000002", "a-000000003", "b-000000001", "b-000000002"]
    assert_vectors(folder, keys, many[:5])
    assert Gallery.import_vectors(folder, tmp_path / "a.npy", name="x") == ImportResult(unchanged=3)
    save(tmp_path / "a.npy", np.concatenate([many[:3], many[5:]]))
    assert Gallery.import_vectors(folder, tmp_path / "a.npy", name="x") == ImportResult(3, unchanged=3)
    (tmp_path / "other").mkdir()
    other = save(tmp_path / "other" / "a.npy", many[::-1])
    before = contents(Gallery(folder))
    with pytest.raises(InputError, match=r"other vectors under the keys a-000000001 to .*--prefix"):
        Gallery.import_vectors(folder, other, name="x")
    assert contents(Gallery(folder)) == before
    assert Gallery.import_vectors(folder, other, name="x", prefix="c") == ImportResult(8)
    found = contents(Gallery(folder))
    assert len(found) == 16
    assert {key: found[key] for key in before} == before


def test_removed_vectors_without_ids(tmp_path: Path) -> None:
    """An import neither brings them back nor takes another row for theirs, and continues after the last."""
    vectors = unit_vectors(6)
    source = save(tmp_path / "a.npy", vectors)
    Gallery.import_vectors(tmp_path / "g", source, name="x")
    Gallery(tmp_path / "g").remove(["a-000000002", "a-000000006"])
    assert Gallery.import_vectors(tmp_path / "g", source, name="x") == ImportResult(1, unchanged=5)
    keys = [f"a-{row:09}" for row in (1, 3, 4, 5, 6)]
    assert_vectors(tmp_path / "g", keys, vectors[[0, 2, 3, 4, 5]])


def assert_vectors(folder: Path, keys: list[str], vectors: np.ndarray) -> None:
    found = contents(Gallery(folder))
    assert sorted(found) == keys
    stored = np.stack([np.frombuffer(found[key][2], np.float32) for key in keys])
    np.testing.assert_array_equal(stored, vectors)


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize(("step", "filled"), [("written", 1), ("committed", 1), ("committed", 1000)])
def test_killed_import_leaves_the_first_rows_and_continues(
    tmp_path: Path, step: str, filled: int, with_ids: bool
) -> None:
    """With the indexes on the items made at the end, of which a kill leaves none, or from the start."""
    vectors, keys = unit_vectors(100), [f"k{row:03}" for row in range(100)]
    np.savez(tmp_path / "in.npz", vectors=vectors, **({"id": np.array(keys)} if with_ids else {}))
    child = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "g"), str(tmp_path / "in.npz"), step, str(filled)],
        capture_output=True,
        text=True,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    left = {"written": 64, "committed": 96}[step]
    keys = keys if with_ids else [f"in-{row:09}" for row in range(1, 101)]
    assert_vectors(tmp_path / "g", keys[:left], vectors[:left])
    assert Gallery(tmp_path / "g").ids_of(keys[:left]) == list(range(1, left + 1))
    assert not verify(tmp_path / "g").problems
    assert _has_indexes(tmp_path / "g") == (filled == 1000)
    expected = ImportResult(100 - left, left) if with_ids else ImportResult(100 - left, 0, left)
    assert Gallery.import_vectors(tmp_path / "g", tmp_path / "in.npz", name="x") == expected
    assert_vectors(tmp_path / "g", keys, vectors)
    assert not verify(tmp_path / "g").problems
    assert _has_indexes(tmp_path / "g")


def _has_indexes(folder: Path) -> bool:
    with Gallery(folder).store.reading() as db:
        return schema.has_indexes(db)


# Imports 32 rows at a time, and is killed in the third commit: before or after its transaction.
KILLED = """
import os, signal, sys
from pathlib import Path
from retrieval import Gallery
from retrieval.ingest import transfer, vector_items
from retrieval.storage import segments
from retrieval.storage.store import Store

folder, source, step, filled = sys.argv[1:]
transfer._FILLED = int(filled)
vector_items._LEAST_ROWS = vector_items._MOST_ROWS = 32
owner, name = (segments, "write") if step == "written" else (Store, "append")
original, calls = getattr(owner, name), []


def kill_after(*arguments):
    result = original(*arguments)
    calls.append(result)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return result


setattr(owner, name, kill_after)
Gallery.import_vectors(Path(folder), Path(source), name="x")
"""


def test_interrupted_import_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_items, "_MOST_ROWS", 10)
    monkeypatch.setattr(vector_items, "_LEAST_ROWS", 10)
    source = save(tmp_path / "a.npy", unit_vectors(35))

    def interrupt(stage: Stage) -> None:
        if stage.what == "importing" and stage.done == 20:
            raise KeyboardInterrupt

    with progress_listener(interrupt), pytest.raises(KeyboardInterrupt):
        Gallery.import_vectors(tmp_path / "g", source, name="x")
    gallery = Gallery(tmp_path / "g")
    assert len(gallery) == 20
    assert gallery.info()["runs"][0]["counts"] == {"added": 20, "replaced": 0, "unchanged": 0}
    assert Gallery.import_vectors(tmp_path / "g", source, name="x") == ImportResult(15, unchanged=20)


def test_imported_vectors_are_indexed(tmp_path: Path) -> None:
    source, folder = save(tmp_path / "a.npy", unit_vectors(2000)), tmp_path / "g"
    Gallery.import_vectors(folder, source, name="x", index=IndexSpec("sq8"))
    gallery = Gallery(folder)
    assert gallery.index is not None
    assert (gallery.index.card["kind"], gallery.outside_index) == ("sq8", 0)
    Gallery.import_vectors(folder, save(tmp_path / "b.npy", unit_vectors(5, seed=1)), name="x")
    assert Gallery(folder).outside_index == 5, "a few new vectors are searched exactly"
    Gallery.import_vectors(folder, save(tmp_path / "c.npy", unit_vectors(10_100, seed=2)), name="x")
    assert Gallery(folder).outside_index == 0, "many are added to the index"


def test_float16_storage(tmp_path: Path) -> None:
    """Vectors and scores are those of the rounded vectors, and all operations keep the type."""
    vectors = unit_vectors(300)
    source, folder = save(tmp_path / "a.npy", vectors), tmp_path / "g"
    Gallery.import_vectors(folder, source, name="x", storage="float16")
    with pytest.raises(InputError, match="stores float16; omit --storage"):
        Gallery.import_vectors(folder, source, name="x", storage="float32", prefix="b")
    assert Gallery.import_vectors(folder, source, name="x") == ImportResult(unchanged=300)
    gallery = Gallery(folder)
    assert gallery.info()["storage"] == "float16"
    rounded = vectors.astype(np.float16).astype(np.float32)
    assert_vectors(folder, [f"a-{row:09}" for row in range(1, 301)], rounded)
    scores = vectors[:20] @ rounded.T
    for row, hits in enumerate(gallery.search_vectors(vectors[:20], 5)):
        best = np.argsort(-scores[row])[:5]
        assert [hit.id for hit in hits] == (best + 1).tolist()
        expected = np.minimum(scores[row, best], 1)  # a rounded vector may be longer
        np.testing.assert_allclose([hit.score for hit in hits], expected, atol=1e-6)
    gallery.remove(["a-000000001"])
    compact(Gallery(folder))
    assert not verify(folder).problems
    assert_vectors(folder, [f"a-{row:09}" for row in range(2, 301)], rounded[1:])
    Gallery(folder).export(tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), rounded[1:])


def test_same_ids_in_distant_rows_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_items, "_MOST_ROWS", 7)
    monkeypatch.setattr(vector_items, "_LEAST_ROWS", 7)
    monkeypatch.setattr(vector_items, "hash", lambda key: len(key), raising=False)  # equal for all
    ids = [f"k{row:02}" for row in range(30)]
    np.savez(tmp_path / "in.npz", vectors=unit_vectors(30), id=np.array(ids))
    assert Gallery.import_vectors(tmp_path / "g", tmp_path / "in.npz", name="x") == ImportResult(30)
    ids[25] = "k03"
    np.savez(tmp_path / "in.npz", vectors=unit_vectors(30), id=np.array(ids))
    with pytest.raises(InputError, match="row 26: the id 'k03' is already used"):
        Gallery.import_vectors(tmp_path / "g2", tmp_path / "in.npz", name="x")


def test_table_beside_an_array(tmp_path: Path) -> None:
    """Paths are optional, and the types of a column hold for all rows, however far apart."""
    save(tmp_path / "in.npy", unit_vectors(4))
    (tmp_path / "in.csv").write_text(
        "id,label,sku,price,note,size\n"
        "1,a,0017,1,,3\n"
        '"2 ""x""",,42,2.5,,\n'
        "3,a,7,,,12\n"
        '4,b,8,4,"two\nlines",5\n'
    )
    Gallery.import_vectors(tmp_path / "g", tmp_path / "in.npy", name="x")
    found = contents(Gallery(tmp_path / "g"))
    assert {key: value[:2] for key, value in found.items()} == {
        "1": ("a", {"sku": "0017", "price": 1.0, "size": 3}),
        '2 "x"': (None, {"sku": "42", "price": 2.5}),
        "3": ("a", {"sku": "7", "size": 12}),
        "4": ("b", {"sku": "8", "price": 4.0, "note": "two\nlines", "size": 5}),
    }
    (tmp_path / "in.csv").write_text("id,price\n1,2\n2,3\n3,cheap\n4,\n")
    before = contents(Gallery(tmp_path / "g"))
    with pytest.raises(InputError, match="column 'price' is text, but number in the gallery"):
        Gallery.import_vectors(tmp_path / "g", tmp_path / "in.npy", name="x")
    (tmp_path / "in.csv").write_text("id,price\n1,2\n,3\n3,1\n4,\n")
    with pytest.raises(InputError, match="row 2: no id and no path"):
        Gallery.import_vectors(tmp_path / "g", tmp_path / "in.npy", name="x")
    (tmp_path / "in.csv").write_text("id,price\n1,2\n2,3\n")
    with pytest.raises(InputError, match=r"2 rows, but in\.npy has 4 vectors"):
        Gallery.import_vectors(tmp_path / "g", tmp_path / "in.npy", name="x")
    assert contents(Gallery(tmp_path / "g")) == before


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_arrays_of_every_layout(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_items, "_MOST_ROWS", 4)
    monkeypatch.setattr(vector_items, "_LEAST_ROWS", 4)
    vectors = unit_vectors(9).astype(np.float64)
    for name, array in {
        "fortran": np.asfortranarray(vectors),
        "half": vectors.astype(np.float16),
        "tiny": (vectors * 1e-30).astype(np.float32),
        "huge": (vectors * 1e30).astype(np.float32),
    }.items():
        source = tmp_path / f"{name}{suffix}"
        if suffix == ".npy":
            save(source, array)
        else:
            np.savez_compressed(source, vectors=array, n=np.arange(9), x=np.full(9, np.nan))
        items = VectorItems(open_vectors(source), tmp_path, name)
        assert items.check(None) == 0
        for skipped in (0, 3, 4):
            chunks = list(items.chunks(tmp_path, skipped))
            found = np.concatenate([unit for unit, _, _ in chunks])
            np.testing.assert_allclose(found, vectors[skipped:], atol=3e-4 if name == "half" else 1e-7)
            if suffix == ".npz":
                assert [n for _, _, columns in chunks for n in columns["n"]] == [*range(skipped, 9)]
                assert {x for _, _, columns in chunks for x in columns["x"]} == {None}


def test_import_with_a_model_allows_search_by_image(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx")
    draw(1).save(tmp_path / "x.png")
    whole = Gallery.create(tmp_path / "whole", model)
    whole.add([tmp_path / "x.png"])
    whole.export(tmp_path / "out.parquet")
    Gallery.import_vectors(tmp_path / "new", tmp_path / "out.parquet", model=model)
    (hit,) = Gallery(tmp_path / "new").search(draw(1))
    assert hit.path == str(tmp_path / "x.png")
    assert hit.score == pytest.approx(1, abs=1e-5)


def broken(values: float) -> np.ndarray:
    vectors = unit_vectors(6)
    vectors[4] = values
    return vectors


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"vectors": broken(np.nan)}, "row 5: the vector is not finite"),
        ({"vectors": broken(np.inf)}, "row 5: the vector is not finite"),
        ({"vectors": broken(0)}, "row 5: the vector is zero"),
        ({"vectors": np.ones((2, DIM), np.int64)}, "floating-point"),
        ({"vectors": np.ones(3)}, r"\[N, D\]"),
        ({"vectors": np.ones((0, 3))}, "no vectors"),
        ({"other": np.ones((2, 3))}, "no array 'vectors'"),
        ({"vectors": unit_vectors(2), "ids": np.array(["a", "a"])}, "row 2: the id 'a' is already used"),
        ({"vectors": unit_vectors(2), "label": np.array(["a"])}, "not one value per vector"),
        ({"vectors": unit_vectors(2), "x": np.array([{}, {}], object)}, "pickled objects"),
        ({"vectors": unit_vectors(2), "score": np.ones(2)}, "name is reserved"),
        ({"vectors": unit_vectors(2, 0)[:, :5]}, "48 dimensions, not 5"),
    ],
)
def test_invalid_vectors_change_nothing(
    gallery: Gallery, tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    before = contents(gallery)
    np.savez(tmp_path / "in.npz", **arrays)
    with pytest.raises(InputError, match=message):
        Gallery.import_vectors(gallery.folder, tmp_path / "in.npz", name="random")
    assert contents(gallery) == before
    with pytest.raises(InputError):
        Gallery.import_vectors(
            tmp_path / "new", tmp_path / "in.npz", name="random" if len(arrays) > 1 else None
        )
    assert not (tmp_path / "new").exists()


def test_other_files_are_rejected(gallery: Gallery, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "x.npy").write_bytes(b"no")
    pq.write_table(pa.table({"vector": [[1.0, 2.0], [1.0]]}), tmp_path / "ragged.parquet")
    pq.write_table(pa.table({"vector": [None, [1.0]]}), tmp_path / "none.parquet")
    pq.write_table(pa.table({"v": [1.0]}), tmp_path / "other.parquet")
    pq.write_table(pa.table({"vector": ["text"]}), tmp_path / "text.parquet")
    for name in (
        "x.parquet",
        "x.npy",
        "ragged.parquet",
        "none.parquet",
        "other.parquet",
        "text.parquet",
        "y.npy",
    ):
        with pytest.raises(InputError, match=name):
            Gallery.import_vectors(tmp_path / "new", tmp_path / name, name="x")
        assert not (tmp_path / "new").exists()
    with pytest.raises(InputError, match=r"\.parquet or \.npy"):
        gallery.export(tmp_path / "x.csv")


def test_origin_of_the_vectors_is_required(gallery: Gallery, tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", unit_vectors(2))
    with pytest.raises(InputError, match="--embedding 'random'"):
        Gallery.import_vectors(gallery.folder, tmp_path / "in.npy", name="clip")
    with pytest.raises(InputError, match="--embedding NAME"):
        Gallery.import_vectors(tmp_path / "new", tmp_path / "in.npy")
    with pytest.raises(InputError, match="built with random"):
        Gallery.import_vectors(gallery.folder, tmp_path / "in.npy", model=write_model(tmp_path / "m.onnx"))
    np.save(tmp_path / "in.npy", np.ones((2, 3)))
    with pytest.raises(InputError, match="48 dimensions, but the vectors have 3"):
        Gallery.import_vectors(tmp_path / "new", tmp_path / "in.npy", model=tmp_path / "m.onnx")


def test_export_and_import_commands(gallery: Gallery, tmp_path: Path) -> None:
    out, new = str(tmp_path / "out.parquet"), str(tmp_path / "new")
    lookalike_here("index", "export", str(gallery.folder), out)
    given = ("index", "import", new, out, "--embedding", "e")
    assert "4 added, 0 replaced; 4 images in the gallery, index: flat" in lookalike_here(*given).stdout
    counts = json.loads(lookalike_here(*given, "--kind", "sq8", "--json").stdout)
    assert counts.pop("table") == {"bad": [], "mixed": []}
    assert counts == {"gallery": new, "added": 0, "replaced": 4, "unchanged": 0, "images": 4, "index": "sq8"}
    assert "a.jpg" in lookalike_here("search", new, "--id", "d.jpg").stdout
    lookalike_here("index", "import", new, out, "--embedding", "e", "--model", "m", code=2)
