"""Tests of indexing on a Ray cluster of two machines, both on this one: result, failures, interruption."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from retrieval import Gallery
from retrieval.ingest import ray_source, ray_workers
from retrieval.ingest.indexing import add_images
from retrieval.ingest.ray_source import RaySource
from retrieval.ingest.sources import Sources
from retrieval.ingest.vector_shards import ShardVectors, VectorShards
from retrieval.progress import Stage, progress_listener
from tests.conftest import CHECKOUT, draw, draw_classes, lookalike_here, wait_until
from tests.serve.model import write_model

pytestmark = pytest.mark.slow
IMAGES = 24  # in blocks of two


@dataclass
class Machines:
    """A running cluster of a head without cores and machines with one core each.

    Attributes:
        address: Address of the cluster.
        cluster: Ray's own helper for tests.
        others: The machines.
    """

    address: str
    cluster: Any
    others: list[Any]

    def workers(self) -> list[psutil.Process]:
        """Return the processes of our workers."""
        found = psutil.Process().children(recursive=True)
        return [process for process in found if "MapWorker" in name_of(process)]


def name_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return ""


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RAY_USAGE_STATS_ENABLED", "RAY_BACKEND_LOG_LEVEL"):  # restored in the end
            patch.setenv(name, "0")
        patch.delenv("RAY_BACKEND_LOG_LEVEL")
        patch.setenv(ray_workers.LOCAL_ONLY, "0")
        patch.setenv("PYTHONPATH", CHECKOUT)
        import ray
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        others = [cluster.add_node(num_cpus=1, wait=False) for _ in range(2)]
        cluster.wait_for_nodes()
        try:
            ray.init(address=cluster.address, log_to_driver=False)
            yield Machines(cluster.address, cluster, others)
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_source, "_LEAST_BLOCK", 2)
    monkeypatch.setattr(ray_source, "_MOST_BLOCK", 2)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Images that take a while to decode."""
    (tmp_path / "large").mkdir()
    first = tmp_path / "large" / "00.png"
    draw(0, (4000, 3000)).save(first)
    for number in range(1, IMAGES):
        first.with_name(f"{number:02d}.png").hardlink_to(first)
    return tmp_path / "large"


def contents(folder: Path) -> tuple[list[Any], np.ndarray]:
    """Return all items in order of their ids, and their vectors."""
    gallery = Gallery(folder)
    ids = sorted(gallery.state.item_ids(gallery.state.live_rows()).tolist())
    items = [item._replace(vector=None) for item in gallery.store.items(ids)]
    return items, np.array([gallery.vector(id) for id in ids])


def test_result_is_that_of_a_local_run(machines: Machines, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    photos = draw_classes(tmp_path / "photos", 3, 5)
    (photos / "00" / "bad.png").write_text("no image")
    (photos / "02" / "copy.png").write_bytes((photos / "00" / "1.png").read_bytes())
    table = tmp_path / "t.csv"
    table.write_text("path,id,label,price,name\n00/0.png,first,,3,\n02/4.png,last,odd,2.5,hat\n")
    model = str(write_model(tmp_path / "model.onnx"))
    words = [str(photos), "--metadata", str(table), "--model", model]
    here = lookalike_here("index", "build", str(tmp_path / "here"), *words, code=3)
    ray = ["--engine", "ray", "--ray-address", machines.address]
    shards = ["--shards", (tmp_path / "s").as_uri()]
    there = lookalike_here("index", "build", str(tmp_path / "there"), *words, *ray, *shards, code=3)
    assert there.stdout.replace("there:", "here:") == here.stdout
    assert "bad.png: it is not a JPEG" in there.stderr
    assert "2 workers, 1 core each" in there.stderr
    expected, found = contents(tmp_path / "here"), contents(tmp_path / "there")
    assert found[0] == expected[0]
    np.testing.assert_allclose(found[1], expected[1], atol=1e-5)
    assert len(list((tmp_path / "s").iterdir())) == 9  # only shards
    assert ShardVectors(tmp_path / "s").count == 16
    # A second gallery needs no worker: what is in the shards is not embedded again.
    again = lookalike_here("index", "build", str(tmp_path / "again"), *words, *ray, *shards, code=3)
    assert "workers" not in again.stderr
    assert contents(tmp_path / "again")[0] == expected[0]


def test_failures_cost_one_block_each(machines: Machines, large: Path, tmp_path: Path) -> None:
    """A run is interrupted; the next one continues, while a worker is killed and a machine is lost."""
    shards, written, attempts = tmp_path / "g.shards", dict[str, int](), set[str]()

    def times() -> dict[str, int]:
        return {file.name: file.stat().st_mtime_ns for file in shards.glob("*.parquet")}

    def interrupt(stage: Stage) -> None:
        if stage.what == "embedding" and stage.done >= 2:
            raise KeyboardInterrupt

    gallery = Gallery.create(tmp_path / "g", write_model(tmp_path / "model.onnx"))
    source = RaySource(machines.address)
    with pytest.raises(KeyboardInterrupt, match="2 of this run"), progress_listener(interrupt):
        add_images(gallery, Sources([large]), source=source)
    wait_until(lambda: not machines.workers())  # they may finish their block
    written |= times()
    before = len(written)
    assert 1 <= before < IMAGES // 2

    killed = list[psutil.Process]()

    def disturb() -> None:
        wait_until(lambda: len(times()) > before)
        written.update(times())
        killed.append(machines.workers()[0])
        killed[0].send_signal(signal.SIGKILL)
        wait_until(lambda: len(times()) >= min(before + 3, IMAGES // 2))
        written.update(times())
        machines.cluster.remove_node(machines.others.pop(), allow_graceful=False)

    def watch_attempts() -> None:
        while not finished.wait(0.01):
            attempts.update(file.name for file in shards.glob("*.attempt-*"))

    finished = threading.Event()
    threads = [threading.Thread(target=target) for target in (disturb, watch_attempts)]
    for thread in threads:
        thread.start()
    result = add_images(gallery, Sources([large]), source=source)
    finished.set()
    for thread in threads:
        thread.join()
    assert (result.added, result.unchanged) == (IMAGES - 2, 2)
    assert written.items() <= times().items()  # no shard was written twice
    names = VectorShards(shards).names()
    assert sum(VectorShards(shards).read(name, ["path"]).num_rows for name in names) == IMAGES
    assert killed
    again = [name for name in attempts if not name.endswith("-0")]
    assert len(again) <= 2  # the blocks of the worker and of the machine, which may be the same one
    assert all(name.endswith(("-1", "-2")) for name in again)
    assert len(machines.others) == 1
    vectors = gallery.state.vectors(gallery.state.live_rows())
    expected = gallery.embedder.embed(large / "00.png")
    np.testing.assert_allclose(vectors, np.repeat(expected, IMAGES, axis=0), atol=1e-5)
