"""Tests of vector shards: reading and writing, last rows, URIs, import; and of workers without Ray."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
import pytest

from retrieval import Embedder, Gallery, ImageError, InputError, Runtime
from retrieval.images.load import DECODE_POLICY
from retrieval.ingest import ray_workers
from retrieval.ingest.pipeline import Embedded
from retrieval.ingest.ray_workers import BlockEmbedder, Job, WorkerPool
from retrieval.ingest.vector_items import COLUMNS
from retrieval.ingest.vector_shards import (
    MTIME,
    SIZE,
    ShardedFiles,
    ShardOrigin,
    ShardVectors,
    VectorShards,
    found_in,
    shard_table,
)
from retrieval.machine.devices import Device
from tests.conftest import draw, lookalike_here
from tests.retrieval.filling import DIM, unit_vectors
from tests.serve.model import write_model

ORIGIN = ShardOrigin("f" * 64, DECODE_POLICY, DIM)


def files_table(names: list[str], size: int = 7, **metadata: list[object]) -> pa.Table:
    return pa.table(
        {
            "id": names,
            "path": [f"/photos/{name}" for name in names],
            "label": pa.array([None] * len(names), pa.string()),
            **metadata,
            SIZE: [size] * len(names),
            MTIME: [1] * len(names),
        }
    )


def images(count: int) -> list[Embedded | ImageError]:
    return [Embedded(f"sha{number}", 4, 3) for number in range(count)]


@pytest.fixture(params=["folder", "uri"])
def shards(request: pytest.FixtureRequest, tmp_path: Path) -> VectorShards:
    folder = tmp_path / "new folder" / "shards"
    address = str(folder) if request.param == "folder" else folder.as_uri()
    made = VectorShards(address)
    assert made.names() == []
    made.create()
    return made


def test_shard_has_what_was_written(shards: VectorShards, tmp_path: Path) -> None:
    vectors = unit_vectors(2)
    bad = ImageError("/photos/b", ImageError.DAMAGED, "broken")
    found = [images(1)[0], bad, Embedded("sha2", 5, 6)]
    table = shard_table(files_table(["a", "b", "c"], size_of_shoe=[1, None, 3]), found, vectors, ORIGIN)
    shards.write("r-0.parquet", table)
    assert os.listdir(tmp_path / "new folder" / "shards") == ["r-0.parquet"]
    # Another reader of Parquet files sees the columns of an export.
    read = pyarrow.parquet.read_table(tmp_path / "new folder" / "shards" / "r-0.parquet").to_pylist()
    assert list(read[0])[: len(COLUMNS) + 1] == [*COLUMNS, "size_of_shoe"]
    assert [row["size_of_shoe"] for row in read] == [1, None, 3]
    assert read[1]["vector"] is None
    assert read[1]["_detail"] == "broken"
    np.testing.assert_array_equal([read[0]["vector"], read[2]["vector"]], vectors)
    again = found_in(shards.read("r-0.parquet"))
    assert [again[0], again[2]] == [found[0], found[2]]
    assert vars(again[1]) == vars(bad)


def test_last_row_of_a_file_counts(shards: VectorShards) -> None:
    first, second = unit_vectors(3, 1), unit_vectors(2, 2)
    shards.write("1-0.parquet", shard_table(files_table(["a", "b", "c"]), images(3), first, ORIGIN))
    bad = [images(1)[0], ImageError("/photos/c", ImageError.DAMAGED, "broken")]
    table = shard_table(files_table(["b", "c"], size=8, price=[1.5, None]), bad, second[:1], ORIGIN)
    shards.write("2-0.parquet", table)
    other = ShardOrigin("e" * 64, DECODE_POLICY, DIM)
    old = ShardOrigin(ORIGIN.model, DECODE_POLICY - 1, DIM)
    for name, origin in (("3-0.parquet", other), ("4-0.parquet", old)):
        shards.write(name, shard_table(files_table(["a"]), images(1), first[:1], origin))
    pyarrow.parquet.write_table(pa.table({"x": [1]}), shards.path("5.parquet"), filesystem=shards.files)
    files = ShardedFiles(shards, ORIGIN)
    paths = ["/photos/b", "/photos/a", "/photos/x", "/photos/c", "/photos/c"]
    found = files.find(paths, [8, 7, 7, 8, 7], [1] * 5)
    assert found.tolist() == [[1, 0], [0, 0], [-1, -1], [1, 1], [-1, -1]]
    assert files.find(paths[3:4], [8], [1], retry=True).tolist() == [[-1, -1]]
    assert files.find(["/photos/a"], [7], [2]).tolist() == [[-1, -1]]
    with pytest.raises(InputError, match="shards of several models"):
        ShardVectors(shards.address)
    for name in ("3-0.parquet", "4-0.parquet"):
        shards.files.delete_file(shards.path(name))
    vectors = ShardVectors(shards.address)
    assert (vectors.count, vectors.dim, vectors.names) == (2, DIM, (*COLUMNS, "price"))
    whole, *rest = vectors.chunks(10)
    assert not rest
    assert whole.columns["id"] == ["a", "b"]
    assert whole.columns["price"] == [None, 1.5]
    np.testing.assert_array_equal(whole.vectors, [first[0], second[0]])
    assert [(chunk.start, chunk.columns["id"]) for chunk in vectors.chunks(1)] == [(0, ["a"]), (1, ["b"])]


def test_unreachable_file_is_read_again(shards: VectorShards) -> None:
    gone = [ImageError("/photos/a", ImageError.MISSING, "there is no such file")]
    shards.write("1.parquet", shard_table(files_table(["a"]), gone, unit_vectors(0), ORIGIN))
    assert ShardedFiles(shards, ORIGIN).find(["/photos/a"], [7], [1]).tolist() == [[-1, -1]]


def test_failed_write_leaves_no_shard(shards: VectorShards, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    table = shard_table(files_table(["a"]), images(1), unit_vectors(1), ORIGIN)
    monkeypatch.setattr(shards, "files", types.SimpleNamespace(open_output_stream=fail))
    with pytest.raises(InputError, match="no space left"):
        shards.write("1.parquet", table)
    monkeypatch.undo()
    assert shards.names() == []


def test_any_file_system_of_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for s3://bucket/folder: the URI gives a file system and a path in it."""
    below = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
    monkeypatch.setattr(
        "retrieval.ingest.vector_shards.open_file_system", lambda uri: (below, uri.removeprefix("x://"))
    )
    shards = VectorShards("x://bucket/shop/")
    shards.create()
    shards.write("1.parquet", shard_table(files_table(["a"]), images(1), unit_vectors(1), ORIGIN))
    assert (tmp_path / "bucket" / "shop" / "1.parquet").is_file()
    assert ShardVectors("x://bucket/shop").count == 1


def test_unknown_uri() -> None:
    with pytest.raises(InputError, match="nowhere://x"):
        VectorShards("nowhere://x")


# ---- a worker, and what the driver gives it


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Path]], BlockEmbedder]:
    """Function that makes a worker with one block of files, without Ray."""
    ray = types.SimpleNamespace(get=lambda reference: reference)
    monkeypatch.setitem(sys.modules, "ray", ray)
    model = write_model(tmp_path / "model.onnx")

    def worker(paths: list[Path]) -> BlockEmbedder:
        shards = VectorShards(tmp_path / "shards")
        origin = ShardOrigin(Embedder(model).fingerprint, DECODE_POLICY, DIM)
        job = Job(shards.address, origin, Runtime(Device("cpu")), "run")
        table = files_table([path.name for path in paths])
        table = table.set_column(1, "path", pa.array(list(map(str, paths)), pa.string()))
        assert shards.write_blocks(job.blocks, table.schema, [table]) == 1
        return BlockEmbedder(job, [model.read_bytes()], threads=1, uses_gpu=False)

    return worker


BLOCK = {"block": np.array([0])}


def test_worker_writes_a_shard_that_can_be_imported(
    make: Callable[[list[Path]], BlockEmbedder], tmp_path: Path
) -> None:
    for seed in range(3):
        draw(seed).save(tmp_path / f"{seed}.png")
    (tmp_path / "1.png").write_text("no image")
    worker = make([tmp_path / f"{seed}.png" for seed in range(3)])
    assert [column.tolist() for column in worker(BLOCK).values()] == [[0], [""]]
    model = tmp_path / "model.onnx"
    lookalike_here("index", "import", str(tmp_path / "g"), str(tmp_path / "shards"), "--model", str(model))
    gallery = Gallery(tmp_path / "g")
    ids = gallery.ids_of(["0.png", "2.png"])
    assert len(gallery) == 2
    expected = gallery.embedder.embed([tmp_path / "0.png", tmp_path / "2.png"])
    np.testing.assert_allclose([gallery.vector(id) for id in ids], expected, atol=1e-6)
    another = write_model(tmp_path / "other.onnx", note="another")
    with pytest.raises(InputError, match="vectors of another model"):
        Gallery.import_vectors(tmp_path / "h", tmp_path / "shards", model=another)


def test_worker_stops_where_no_file_exists(
    make: Callable[[list[Path]], BlockEmbedder], tmp_path: Path
) -> None:
    (error,) = make([tmp_path / "gone.png", tmp_path / "away.png"])(BLOCK)["error"]
    assert "gone.png: does not exist on" in error
    assert "mount the folder of the images at the same path" in error


def test_block_that_kills_its_workers_is_given_up(
    make: Callable[[list[Path]], BlockEmbedder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: int) -> None:
        raise MemoryError

    worker = make([tmp_path / "x.png"])
    monkeypatch.setattr(worker, "_embed", die)
    for _ in range(5):
        with pytest.raises(MemoryError):
            worker(BLOCK)
    assert "5 workers died at the 1 images from" in worker(BLOCK)["error"][0]
    VectorShards(tmp_path / "shards").delete_rest("run")
    assert os.listdir(tmp_path / "shards") == []


def test_worker_of_another_version_stops(tmp_path: Path) -> None:
    job = Job("/nowhere", ShardOrigin("", DECODE_POLICY + 1, DIM), Runtime(), "run")
    assert "another version of Lookalike" in BlockEmbedder(job, [], 1, False)(BLOCK)["error"][0]


def test_error_in_a_worker_is_one_line() -> None:
    text = "ray::MapWorker (pid=1)\n  File x\nValueError: no luck\n\nray.UserCodeException: failed\nHint."
    assert ray_workers.brief(RuntimeError(text)) == "ValueError: no luck"
    assert ray_workers.brief(RuntimeError("first\nlast\n")) == "last"
    assert ray_workers.brief(RuntimeError()) == "RuntimeError"


CPU, CUDA = Runtime(Device("cpu")), Runtime(Device("cuda"))


@pytest.mark.parametrize(
    ("nodes", "runtime", "expected"),
    [
        ([{"CPU": 2.0}], Runtime(), (1, 2, 0)),
        ([{"CPU": 12.0}], Runtime(), (2, 6, 0)),
        ([{"CPU": 64.0}, {"CPU": 16.0}, {"memory": 1.0}], Runtime(), (10, 8, 0)),
        ([{"CPU": 16.0, "GPU": 2.0}, {"CPU": 32.0}], Runtime(), (2, 8, 1)),
        ([{"CPU": 16.0, "GPU": 2.0}], CPU, (2, 8, 0)),
        ([{"CPU": 16.0, "GPU": 2.0}], Runtime(provider="openvino"), (2, 8, 0)),
        ([{"CPU": 16.0}], CUDA, (1, 1, 1)),  # machines with GPUs may join
        ([], Runtime(), (1, 1, 0)),
    ],
    ids=str,
)
def test_workers_fit_the_machines(
    nodes: list[dict[str, float]], runtime: Runtime, expected: tuple[int, int, int]
) -> None:
    pool = WorkerPool.fitting(nodes, runtime, None)
    assert (pool.count, pool.cpus, pool.gpus) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shards", "x"], "--shards needs --engine ray"),
        (["--ray-address", "auto"], "--ray-address needs --engine ray"),
        (["--engine", "ray", "--device", "cuda:1"], "Ray chooses the GPUs"),
        (["--engine", "ray", "--ray-address", "ray://h:10001"], "not HOST:PORT or auto"),
        (["--engine", "ray", "--ray-address", "127.0.0.1:9"], "no cluster there"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_wrong_options(words: list[str], message: str, tmp_path: Path) -> None:
    draw(0).save(tmp_path / "0.png")
    model = write_model(tmp_path / "model.onnx")
    command = ["index", "build", str(tmp_path / "g"), str(tmp_path / "0.png"), "--model", str(model)]
    assert message in lookalike_here(*command, *words, code=2).stderr
    assert not (tmp_path / "g").exists()


def test_ray_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_workers, "find_spec", lambda _: None)
    done = lookalike_here("index", "build", "g", "p", "--model", "m", "--engine", "ray", code=2)
    assert "needs ray: pip install 'lookalike[ray]'" in done.stderr
