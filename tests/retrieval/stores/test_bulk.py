"""Bulk load into each store, and export from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrieval import Embedder, InputError
from retrieval.galleries.writer import DatabaseWriter
from retrieval.gallery import DatabaseGallery, Gallery
from retrieval.ingest import store_transfer
from retrieval.ingest.transfer import ImportResult
from retrieval.ingest.vector_shards import ShardOrigin, VectorShards, shard_table
from retrieval.stores.address import PASSWORD
from retrieval.stores.opening import parse_address
from tests.conftest import lookalike_here
from tests.retrieval.filling import DIM, bare_gallery, commit, unit_vectors
from tests.retrieval.ingest.test_vector_shards import files_table, images
from tests.serve.model import write_model


@pytest.fixture(autouse=True)
def several_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_transfer, "_AT_ONCE", 16)


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv(PASSWORD, parse_address(address).password)


def rows_of(file: Path) -> list[dict[str, Any]]:
    return sorted(pq.read_table(file).to_pylist(), key=lambda row: str(row["id"]))


def close(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Compare rows; a database may round vectors that it scales to unit length."""
    vectors = [np.array([row.pop("vector") for row in rows]) for rows in (found, expected)]
    assert found == expected
    np.testing.assert_allclose(*vectors, atol=1e-6)


def test_round_trip_through_a_store(address: str, tmp_path: Path) -> None:
    """Files -> Parquet -> store -> Parquet: the same rows with the same types."""
    gallery = bare_gallery(tmp_path / "g")
    commit(gallery, [f"a{n}" for n in range(40)], brand="acme", price=2, note=None, big=2**53 + 1)
    commit(gallery, ["d", "e"], seed=1, price=3, note='näh, "so"', size=2.5, added="2024-05-01")
    gallery.export(tmp_path / "a.parquet")
    target = {"name": "random", "store": parse_address(address)}
    assert Gallery.import_vectors(tmp_path / "s", tmp_path / "a.parquet", **target) == ImportResult(42)
    store = DatabaseGallery(tmp_path / "s")
    assert len(store) == 42
    assert store.export(tmp_path / "b.parquet") == 42
    schemas = [pq.read_schema(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    assert dict(zip(schemas[0].names, schemas[0].types, strict=True)) == dict(
        zip(schemas[1].names, schemas[1].types, strict=True)
    )
    close(rows_of(tmp_path / "b.parquet"), rows_of(tmp_path / "a.parquet"))
    assert store.export(tmp_path / "b.npy") == 42
    assert np.load(tmp_path / "b.npy").shape == (42, DIM)
    assert store.select(where="added < date '2024-05-02'") == sorted(store.ids_of(["d.jpg", "e.jpg"]))

    # Again: nothing to do; then new values for some.
    assert Gallery.import_vectors(tmp_path / "s", tmp_path / "b.npy", name="random") == ImportResult(
        unchanged=42
    )
    some = [row for row in rows_of(tmp_path / "b.parquet") if row["size"] == 2.5]
    some[0]["note"] = "new"
    pq.write_table(pa.Table.from_pylist(some), tmp_path / "c.parquet")
    assert Gallery.import_vectors(tmp_path / "s", tmp_path / "c.parquet", name="random") == ImportResult(
        0, 1, 1
    )
    assert store.item(store.ids_of(["d.jpg"])[0]).metadata["note"] == "new"
    store.engine.close()


def test_interrupted_import_continues(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "clip.npy", unit_vectors(70))
    put = DatabaseWriter.put
    calls = []

    def broken(self: DatabaseWriter, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return put(self, *arguments)

    monkeypatch.setattr(DatabaseWriter, "put", broken)
    store = parse_address(address)
    with pytest.raises(KeyboardInterrupt):
        Gallery.import_vectors(tmp_path / "s", tmp_path / "clip.npy", name="clip", store=store)
    again = Gallery.import_vectors(tmp_path / "s", tmp_path / "clip.npy", name="clip", store=store)
    assert again == ImportResult(38, 0, 32)
    np.save(tmp_path / "clip.npy", unit_vectors(70, seed=1))
    with pytest.raises(InputError, match="has another vector under the key 'clip-000000001'"):
        Gallery.import_vectors(tmp_path / "s", tmp_path / "clip.npy", name="clip")
    with pytest.raises(InputError, match="confirm that the vectors have the same origin"):
        Gallery.import_vectors(tmp_path / "s", tmp_path / "clip.npy", name="other")
    np.save(tmp_path / "bad.npy", np.full((3, DIM), np.nan, np.float32))
    with pytest.raises(InputError, match="row 1: the vector is not finite"):
        Gallery.import_vectors(tmp_path / "s", tmp_path / "bad.npy", name="clip")
    assert len(DatabaseGallery(tmp_path / "s")) == 70


def test_shards_keep_what_is_known_of_the_files(address: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx")
    shards = VectorShards(tmp_path / "shards")
    shards.create()
    origin = ShardOrigin(Embedder(model).fingerprint, 1, DIM)
    for number, names in enumerate((["a", "b"], ["c", "a"])):  # the last row of a file counts
        table = shard_table(files_table(names, size=number), images(2), unit_vectors(2, number), origin)
        shards.write(f"r-{number}.parquet", table)
    command = ["index", "import", str(tmp_path / "s"), str(tmp_path / "shards"), "--model", str(model)]
    result = lookalike_here(*command, "--store", address, "--root", "/photos", "--json")
    assert '"added": 3' in result.stdout
    store = DatabaseGallery(tmp_path / "s")
    (one,) = store.stored_items(store.ids_of(["a"]))
    assert one[2:9] == ("/photos", "a", 1, 1, "sha1", 4, 3)
    np.testing.assert_allclose(store.vectors([one.id])[one.id], unit_vectors(2, 1)[1], atol=1e-6)
    exported = lookalike_here("index", "export", str(tmp_path / "s"), str(tmp_path / "out.parquet"))
    assert "out.parquet: 3 images" in exported.stdout
