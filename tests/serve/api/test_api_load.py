"""Concurrent requests: bounded queue, deadlines, batching, and changes of the gallery."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from retrieval import Embedder, Gallery
from retrieval.machine.resources import cores
from retrieval.upkeep.rebuild import rebuild
from serve.app import create_app
from serve.core.batching import Batcher
from serve.core.errors import BusyError, DeadlineExceededError
from serve.core.originals import Original
from serve.core.permissions import Permissions
from serve.core.service import SearchService
from serve.core.telemetry import Telemetry
from serve.core.workers import Limits, Workers
from tests.conftest import draw, wait_until
from tests.serve.asgi_server import answering
from tests.serve.model import write_model

BYTES = {"Content-Type": "application/octet-stream"}
_MANY = httpx.Limits(max_connections=None)
_DECODED = ("lookalike_stage_seconds_count", {"stage": "decode"})
_LOOKED_UP = ("/healthz", "/readyz", "/metrics", "/v1/gallery", "/v1/galleries", "/v1/items/1")


@contextmanager
def _decoding_is_slow(service: SearchService) -> Iterator[None]:
    """Simulate decoding of large images: new requests wait."""
    for _ in range(cores()):
        service._resolver.decoding.acquire()
    try:
        yield
    finally:
        for _ in range(cores()):
            service._resolver.decoding.release()


def _figure(service: SearchService, name: str) -> float:
    value = service.telemetry.registry.get_sample_value(name)
    assert value is not None
    return value


@pytest.fixture
def image(shop: Path) -> bytes:
    return (shop / "green" / "3.png").read_bytes()


def test_full_queue_refuses_further_requests(shop_gallery: Path, image: bytes) -> None:
    service = SearchService(shop_gallery)
    app = create_app(service, page=False, limits=Limits(threads=1, queued=2))
    with answering(app) as url, ThreadPoolExecutor(3) as pool:

        def ask() -> httpx.Response:
            return httpx.post(f"{url}/v1/search", content=image, headers=BYTES, timeout=60)

        with _decoding_is_slow(service):
            accepted = [pool.submit(ask) for _ in range(3)]
            wait_until(lambda: _figure(service, "lookalike_queue_depth") == 2)
            assert _figure(service, "lookalike_workers_busy") == 1
            refused = ask()
            assert refused.status_code == 503
            assert refused.json()["code"] == "busy"
            assert int(refused.headers["retry-after"]) > 0
            assert httpx.get(f"{url}/healthz").status_code == 200  # during the overload
        assert [answer.result().status_code for answer in accepted] == [200] * 3
        assert ask().status_code == 200
    assert _figure(service, "lookalike_queue_depth") == 0


def test_deadline_exceeded_is_reported(shop_gallery: Path, image: bytes) -> None:
    service = SearchService(shop_gallery)
    app = create_app(service, page=False, limits=Limits(seconds=0.05))
    with answering(app) as url:
        with _decoding_is_slow(service):
            answer = httpx.post(f"{url}/v1/search", content=image, headers=BYTES)
        assert answer.status_code == 504
        assert answer.json()["code"] == "deadline-exceeded"
        wait_until(lambda: _figure(service, "lookalike_workers_busy") == 0)


def test_batch_stops_at_its_deadline(shop_gallery: Path, image: bytes) -> None:
    service = SearchService(shop_gallery)
    app = create_app(service, page=False, limits=Limits(seconds=0.2))
    with answering(app) as url:
        with _decoding_is_slow(service):
            files = [("images", ("a", image))] * 20
            assert httpx.post(f"{url}/v1/search:batch", files=files).status_code == 504
        wait_until(lambda: _figure(service, "lookalike_workers_busy") == 0)
    decoded = service.telemetry.registry.get_sample_value(*_DECODED)
    assert decoded is not None
    assert decoded <= 1  # of the 20


@contextmanager
def _disk_hangs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate a hanging network file system."""
    go, read = threading.Event(), Original.read

    def late(self: Original) -> bytes:
        assert go.wait(30)
        return read(self)

    monkeypatch.setattr(Original, "read", late)
    try:
        yield
    finally:
        go.set()


def test_thumbnails_do_not_delay_searches(
    shop_gallery: Path, image: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.app._QUEUED_THUMBNAILS", 60)
    service = SearchService(shop_gallery)
    app = create_app(service, page=False, limits=Limits(threads=2, queued=1))
    with answering(app) as url, httpx.Client(base_url=url, limits=_MANY, timeout=60) as client:
        assert client.get("/v1/items/1/thumbnail").status_code == 200
        with ThreadPoolExecutor(61) as pool:
            with _disk_hangs(monkeypatch):
                numbers = [2 + i % 20 for i in range(61)]
                asked = [pool.submit(client.get, f"/v1/items/{i}/thumbnail") for i in numbers]
                wait_until(lambda: _figure(service, "lookalike_queue_depth") == 60)
                too_much = client.get("/v1/items/24/thumbnail")
                assert (too_much.status_code, too_much.json()["code"]) == (503, "busy")
                for path in (*_LOOKED_UP, "/v1/items/1/thumbnail"):  # the last one is cached
                    assert client.get(path).status_code == 200
                assert client.post("/v1/search", content=image, headers=BYTES).status_code == 200
            assert [answer.result().status_code for answer in asked] == [200] * 61
        assert _figure(service, "lookalike_thumbnails_total") == 1 + 61 + 1
        assert _figure(service, "lookalike_thumbnails_made_total") == 1 + 20


def test_searches_do_not_delay_thumbnails(shop_gallery: Path, image: bytes) -> None:
    service = SearchService(shop_gallery)
    app = create_app(service, page=False, limits=Limits(threads=1, queued=1))
    with (
        answering(app) as url,
        httpx.Client(base_url=url, limits=_MANY, timeout=60) as client,
        ThreadPoolExecutor(12) as pool,
    ):
        with _decoding_is_slow(service):
            asked = [pool.submit(client.post, "/v1/search", content=image, headers=BYTES) for _ in range(2)]
            wait_until(lambda: _figure(service, "lookalike_queue_depth") == 1)
            paths = [*_LOOKED_UP, *(f"/v1/items/{1 + i % 24}/thumbnail" for i in range(60))]
            assert {answer.status_code for answer in pool.map(client.get, paths)} == {200}
        assert [answer.result().status_code for answer in asked] == [200] * 2


def test_fetch_and_search_share_one_deadline(shop_gallery: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(address: str) -> bytes:
        return await asyncio.Event().wait()  # type: ignore[return-value]

    monkeypatch.setattr("serve.core.service.fetch_image", never)
    service = SearchService(shop_gallery, permissions=Permissions(urls=True))
    with answering(create_app(service, page=False, limits=Limits(seconds=0.2))) as url:
        answer = httpx.post(f"{url}/v1/search", json={"url": "https://pictures.example/a.jpg"}, timeout=30)
    assert (answer.status_code, answer.json()["code"]) == (504, "deadline-exceeded")


def test_late_work_is_dequeued_and_running_work_is_counted() -> None:
    telemetry, go, ran = Telemetry(), threading.Event(), []
    workers = Workers(1, Limits(queued=1, seconds=1), telemetry)

    async def main() -> None:
        first = asyncio.create_task(workers.run(go.wait))
        await asyncio.sleep(0)
        second = asyncio.create_task(workers.run(lambda: ran.append(2)))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await workers.run(lambda: None)
        for task in (first, second):
            with pytest.raises(DeadlineExceededError, match="within 1 s:"):
                await task
        third = asyncio.create_task(workers.run(lambda: 3))  # in the freed place of the second
        await asyncio.sleep(0)
        with pytest.raises(BusyError):  # the first still occupies its thread
            await workers.run(lambda: None)
        go.set()
        assert await third == 3

    asyncio.run(main())
    workers.close()
    assert ran == []


def test_images_are_batched_while_the_model_runs() -> None:
    running, go, sizes = threading.Event(), threading.Event(), []

    def embed(pixels: np.ndarray) -> np.ndarray:
        sizes.append(len(pixels))
        running.set()
        assert go.wait(30)
        return 2.0 * pixels[:, 0, 0]

    batcher = Batcher(embed, max_batch=4)
    images = [np.full((1, 2, 2, 3), i, np.uint8) for i in range(7)]
    with ThreadPoolExecutor(7) as pool:
        futures = [pool.submit(batcher, images[0])]
        assert running.wait(30)
        futures += [pool.submit(batcher, image) for image in images[1:]]
        wait_until(lambda: len(batcher._pending) == 6)
        go.set()
        vectors = [future.result() for future in futures]
    assert sizes == [1, 4, 2]
    for i, vector in enumerate(vectors):
        assert np.array_equal(vector, np.full((1, 3), 2.0 * i))


def test_request_may_exceed_the_batch_size() -> None:
    batcher = Batcher(lambda pixels: pixels[:, 0, 0].astype(float), max_batch=2)
    images = np.arange(5, dtype=np.uint8)[:, None, None, None].repeat(3, 3)
    assert np.array_equal(batcher(images), images[:, 0, 0])


def test_failed_run_raises_for_its_images_only() -> None:
    def embed(pixels: np.ndarray) -> np.ndarray:
        if pixels.max() == 13:
            raise MemoryError
        return pixels[:, 0, 0]

    batcher = Batcher(embed)
    with pytest.raises(MemoryError):
        batcher(np.full((2, 1, 1, 3), 13, np.uint8))
    assert np.array_equal(batcher(np.full((1, 1, 1, 3), 7, np.uint8)), [[7, 7, 7]])


@pytest.mark.parametrize("batching", [False, True])
def test_concurrent_results_equal_sequential_results(shop_gallery: Path, shop: Path, batching: bool) -> None:
    service = SearchService(shop_gallery, batching=batching)
    images = [path.read_bytes() for path in sorted(shop.rglob("*.png"))]
    gallery = Gallery(shop_gallery)
    expected = [[hit.id for hit in gallery.search(image, 5)] for image in images]
    app = create_app(service, page=False, limits=Limits(queued=100))
    with answering(app) as url, httpx.Client(timeout=60) as client, ThreadPoolExecutor(16) as pool:

        def ask(image: bytes) -> list[int]:
            answer = client.post(f"{url}/v1/search?k=5", content=image, headers=BYTES)
            return [hit["id"] for hit in answer.json()["hits"]]

        assert list(pool.map(ask, images * 4)) == expected * 4
    assert _figure(service, "lookalike_batch_images_sum") == 4 * 24


@contextmanager
def _asking(url: str, item: str) -> Iterator[list[httpx.Response]]:
    """Search in three threads in the background and yield their responses."""
    stop, answers = threading.Event(), list[httpx.Response]()

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while not stop.is_set():
                answers.append(client.post("/v1/search", json={"id": item, "k": 100}))

    with ThreadPoolExecutor(3) as pool:
        asking: list[Future[None]] = [pool.submit(ask) for _ in range(3)]
        try:
            yield answers
        finally:
            stop.set()
        for future in asking:
            future.result()


def test_no_request_fails_during_a_commit(tmp_path: Path, shop: Path, shop_gallery: Path) -> None:
    folder = shutil.copytree(shop_gallery, tmp_path / "own.gallery")
    service = SearchService(folder)
    writer = Gallery(folder)
    with answering(create_app(service, page=False)) as url, _asking(url, "red/0.png") as answers:
        for number in range(5):
            draw(500 + number, hue=2).save(tmp_path / f"{number}.png")
            writer.add([tmp_path / f"{number}.png"])
            seen = len(answers)
            wait_until(lambda: len(answers) > seen + 6)  # noqa: B023
        writer.remove(["red/7.png"])
        last = httpx.post(f"{url}/v1/search", json={"id": "red/0.png", "k": 100}).json()["hits"]
    assert {answer.status_code for answer in answers} == {200}
    assert {len(answer.json()["hits"]) for answer in answers} <= set(range(23, 29))
    assert [hit["id"] for hit in last] == [hit.id for hit in Gallery(folder).search_id("red/0.png", 100)]
    assert "red/7.png" not in [hit["key"] for hit in last]


@pytest.mark.slow
def test_no_request_fails_during_a_rebuild(tmp_path: Path, shop_gallery: Path) -> None:
    folder = shutil.copytree(shop_gallery, tmp_path / "own.gallery")
    before = Gallery(folder).fingerprint
    other = write_model(tmp_path / "other.onnx", note="another")
    with (
        answering(create_app(SearchService(folder), page=False)) as url,
        _asking(url, "red/0.png") as answers,
    ):
        wait_until(lambda: len(answers) > 6)
        rebuild(Gallery(folder), Embedder(other))
        after = Gallery(folder).fingerprint
        wait_until(lambda: answers[-1].status_code == 200 and answers[-1].json()["fingerprint"] == after)
    assert after != before
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["fingerprint"] for answer in answers} == {before, after}
