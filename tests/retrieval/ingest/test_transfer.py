"""Tests of the export and import of vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrieval import Gallery, InputError
from retrieval.ingest.transfer import BATCH, export_vectors, import_vectors
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
    assert export_vectors(gallery, tmp_path / name) == 4
    assert import_vectors(tmp_path / "new", tmp_path / name, name="random") == 4
    there, back = contents(gallery), contents(Gallery(tmp_path / "new"))
    assert {key: value[:2] for key, value in back.items()} == {key: value[:2] for key, value in there.items()}
    for key, (_, _, vector) in there.items():
        np.testing.assert_allclose(
            np.frombuffer(back[key][2], np.float32), np.frombuffer(vector, np.float32), atol=1e-7
        )
    assert Gallery(tmp_path / "new").item(1).path == "/pictures/a.jpg"
    assert not verify(tmp_path / "new").problems


def test_export_is_readable_by_other_programs(gallery: Gallery, tmp_path: Path) -> None:
    export_vectors(gallery, tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column("id").to_pylist() == ["a.jpg", "c.jpg", "d.jpg", "e.jpg"]
    assert table.column("price").to_pylist() == [2, 2, 2.5, 2.5]
    vectors = np.stack(table.column("vector").to_numpy())
    export_vectors(gallery, tmp_path / "out.npy")
    np.testing.assert_array_equal(vectors, np.load(tmp_path / "out.npy"))
    np.testing.assert_array_equal(vectors[:1], unit_vectors(3)[:1])
    assert not list(tmp_path.glob("*.tmp*"))


def test_import_of_several_batches(tmp_path: Path) -> None:
    vectors = unit_vectors(BATCH + 7) * 3
    np.savez(tmp_path / "in.npz", vectors=vectors, ids=np.arange(len(vectors)) + 100)
    assert import_vectors(tmp_path / "g", tmp_path / "in.npz", name="x") == len(vectors)
    gallery = Gallery(tmp_path / "g")
    hit = gallery.search_vectors(vectors[-1:] / 3, 1)[0][0]
    assert (hit.key, hit.path) == (str(len(vectors) + 99), "")
    assert hit.score == pytest.approx(1)
    assert import_vectors(tmp_path / "g", tmp_path / "in.npz", name="x") == len(vectors)
    assert len(Gallery(tmp_path / "g")) == len(vectors), "items with the same ids are replaced"
    with pytest.raises(InputError, match="external embedding"):
        gallery.search(draw(0))


def test_import_with_a_model_allows_search_by_image(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx")
    draw(1).save(tmp_path / "x.png")
    whole = Gallery.create(tmp_path / "whole", model)
    whole.add([tmp_path / "x.png"])
    export_vectors(whole, tmp_path / "out.parquet")
    import_vectors(tmp_path / "new", tmp_path / "out.parquet", model=model)
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
        import_vectors(gallery.folder, tmp_path / "in.npz", name="random")
    assert contents(gallery) == before
    with pytest.raises(InputError):
        import_vectors(tmp_path / "new", tmp_path / "in.npz", name="random" if len(arrays) > 1 else None)
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
            import_vectors(tmp_path / "new", tmp_path / name, name="x")
        assert not (tmp_path / "new").exists()
    with pytest.raises(InputError, match=r"\.parquet or \.npy"):
        export_vectors(gallery, tmp_path / "x.csv")


def test_origin_of_the_vectors_is_required(gallery: Gallery, tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", unit_vectors(2))
    with pytest.raises(InputError, match="--embedding 'random'"):
        import_vectors(gallery.folder, tmp_path / "in.npy", name="clip")
    with pytest.raises(InputError, match="--embedding NAME"):
        import_vectors(tmp_path / "new", tmp_path / "in.npy")
    with pytest.raises(InputError, match="built with random"):
        import_vectors(gallery.folder, tmp_path / "in.npy", model=write_model(tmp_path / "m.onnx"))
    np.save(tmp_path / "in.npy", np.ones((2, 3)))
    with pytest.raises(InputError, match="48 dimensions, but the vectors have 3"):
        import_vectors(tmp_path / "new", tmp_path / "in.npy", model=tmp_path / "m.onnx")


def test_export_and_import_commands(gallery: Gallery, tmp_path: Path) -> None:
    out, new = str(tmp_path / "out.parquet"), str(tmp_path / "new")
    lookalike_here("index", "export", str(gallery.folder), out)
    assert "4 vectors imported" in lookalike_here("index", "import", new, out, "--embedding", "e").stdout
    assert "a.jpg" in lookalike_here("search", new, "--id", "d.jpg").stdout
    lookalike_here("index", "import", new, out, "--embedding", "e", "--model", "m", code=2)
