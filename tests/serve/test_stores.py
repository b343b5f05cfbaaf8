"""Commands, API and page over galleries in databases: PostgreSQL, and Qdrant in this process."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from retrieval import Embedder, Gallery
from retrieval.stores.address import PASSWORD
from serve.app import create_app
from serve.core.examples import examples
from serve.core.permissions import Permissions
from serve.core.service import SearchService
from serve.page.contents import summary
from serve.page.statistics import gallery_statistics, statistics_view
from tests.conftest import draw, lookalike_here, wait_until
from tests.retrieval.stores.postgres_server import PostgresServer, running
from tests.retrieval.stores.server import Server
from tests.serve.asgi_server import answering
from tests.serve.model import write_model

ALLOWED = Permissions(changes=True)


@dataclass(frozen=True)
class Built:
    """A gallery of the shop that `lookalike index build --store` made.

    Attributes:
        folder: Gallery folder.
        store: Address of the collection, without a password.
        server: The database; `None` if it runs in this process.
    """

    folder: Path
    store: str
    server: Server | None


@pytest.fixture(scope="module", params=["postgres", "qdrant-embedded"])
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shop: Path, model_file: Path
) -> Iterator[Built]:
    folder = tmp_path_factory.mktemp(request.param)
    table = folder / "shop.csv"
    paths = sorted(path.relative_to(shop) for path in shop.glob("*/*.png"))
    table.write_text("path,price\n" + "".join(f"{path},{n}\n" for n, path in enumerate(paths)))
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        server = None
        if request.param == "postgres":
            server = stack.enter_context(running(folder))
            patch.setenv(PASSWORD, "right")
            store = server.address.replace(":right@", "@")
        else:
            pytest.importorskip("qdrant_edge", reason="needs qdrant-edge-py")
            store = f"qdrant://{folder}/data"
        gallery = folder / "shop.gallery"
        words = ["--model", str(model_file), "--metadata", str(table)]
        done = lookalike_here("index", "build", str(gallery), str(shop), *words, "--store", store)
        assert "24 added" in done.stdout
        yield Built(gallery, store, server)


def encoded(seed: int) -> bytes:
    """Return the bytes of an image that is not in the shop."""
    buffer = io.BytesIO()
    draw(seed).save(buffer, "PNG")
    return buffer.getvalue()


def test_commands_find_what_a_gallery_in_files_finds(built: Built, shop: Path, shop_gallery: Path) -> None:
    name, image = str(built.folder), shop / "red" / "3.png"
    found = json.loads(lookalike_here("search", name, str(image), "-k", "5", "--json").stdout)
    expected = Gallery(shop_gallery).search(image, 5)
    assert [hit["key"] for hit in found[0]["hits"]] == [hit.key for hit in expected]
    assert [hit["score"] for hit in found[0]["hits"]] == pytest.approx([h.score for h in expected], abs=1e-5)
    cheap = json.loads(lookalike_here("search", name, str(image), "--where", "price < 3", "--json").stdout)
    assert sorted(hit["metadata"]["price"] for hit in cheap[0]["hits"]) == [0, 1, 2]
    again = lookalike_here("index", "add", name, str(shop)).stdout
    assert "nothing new to add, 24 unchanged" in again
    info = json.loads(lookalike_here("index", "info", name, "--json").stdout)
    assert (info["images"], info["columns"]) == (24, ["price"])
    assert "no problems: 24 images, 24 vectors" in lookalike_here("index", "verify", name).stdout
    assert (
        "no near-duplicates" in lookalike_here("check", "duplicates", name, "--min-score", "0.99999").stdout
    )
    left = lookalike_here("index", "remove", name, "--where", "price < 3", "--dry-run").stdout
    assert "3 images would be removed; 21 would stay" in left


def test_commands_for_files_say_what_to_do_instead(built: Built, shop: Path, tmp_path: Path) -> None:
    name = str(built.folder)
    for words, remedy in (
        (["optimize", name, "--compact"], "frees the space of removed images itself"),
        (["snapshot", name, str(tmp_path / "copy")], "copy the folder as it is"),
        (["optimize", name, "--kind", "hnsw"], "give --recall alone"),
    ):
        (line,) = lookalike_here("index", *words, code=2).stderr.splitlines()
        assert remedy in line, words


def test_server_adds_and_removes_at_once(built: Built, shop: Path) -> None:
    service = SearchService(built.folder, permissions=ALLOWED)
    with answering(create_app(service)) as url, httpx.Client(base_url=url, timeout=30) as client:
        assert client.get("/").status_code == 200
        described = client.get("/v1/gallery").json()
        assert (described["images"], described["columns"]) == (24, ["price"])
        data = encoded(7000)
        form = {"label": "new", "metadata": '{"price": 99}'}
        answer = client.post("/v1/items", files={"images": ("new.png", data)}, data=form)
        assert answer.status_code == 201
        (one,) = answer.json()["results"]
        assert client.post("/v1/items", files={"images": ("again.png", data)}).status_code == 200
        where = {"k": "1", "where": "price > 50"}
        (hit,) = client.post("/v1/search", params=where, files={"image": data}).json()["hits"]
        assert (hit["id"], hit["label"], hit["metadata"]) == (one["image"]["id"], "new", {"price": 99})
        assert client.get(hit["thumbnail"]).headers["content-type"] == "image/webp"
        assert [path.read_bytes() for path in (built.folder / "pictures").iterdir()] == [data]
        refused = client.post(
            "/v1/items", files={"images": encoded(7001)}, data={"metadata": '{"price": "x"}'}
        )
        assert refused.status_code == 422
        assert client.delete(f"/v1/items/{hit['id']}").status_code == 204
        assert client.delete(f"/v1/items/{hit['id']}").json()["code"] == "no-such-image"
        assert not [*(built.folder / "pictures").iterdir()]
        _check_items(client)
        wrong = client.post("/v1/search", params={"where": "colour = 1"}, files={"image": data}).text
        assert "colour" in wrong
        assert str(built.folder.parent) not in wrong
        assert len(service.gallery) == 24
    gallery = service.gallery
    assert "24" in summary(gallery, None)
    assert len(examples(gallery, 6)) == 6
    counted = gallery_statistics(gallery)
    assert dict(counted.labels.most) == {"red": 8, "green": 8, "blue": 8}
    assert counted.columns[0].numbers == (0, 11.5, 23)
    assert "red" in statistics_view(counted)
    service.gallery.engine.close()  # type: ignore[attr-defined]


def test_no_request_fails_during_a_rebuild(
    built: Built, shop: Path, model_file: Path, tmp_path: Path
) -> None:
    folder, other = tmp_path / "own.gallery", Embedder(write_model(tmp_path / "other.onnx", note="another"))
    store = f"{built.store}?collection=own" if built.server else f"qdrant://{tmp_path}/data"
    lookalike_here("index", "build", str(folder), str(shop), "--model", str(model_file), "--store", store)
    answers, done = list[httpx.Response](), threading.Event()

    def ask(url: str) -> None:
        with httpx.Client(base_url=url, timeout=30) as client:
            while not done.is_set() or answers[-1].json()["fingerprint"] != other.fingerprint:
                answers.append(client.post("/v1/search", files={"image": encoded(7000)}))
                assert answers[-1].status_code == 200, answers[-1].text

    with answering(create_app(SearchService(folder), page=False)) as url, ThreadPoolExecutor(1) as threads:
        asking = threads.submit(ask, url)
        wait_until(lambda: len(answers) > 3 or asking.done())
        Gallery.open(folder).rebuild(other)
        done.set()
        asking.result(timeout=60)
    assert len({answer.json()["fingerprint"] for answer in answers}) == 2


def _check_items(client: httpx.Client) -> None:
    """List, count, describe and remove images; 24 stay."""
    parameters: dict[str, str | int] = {"limit": 7, "where": "price >= 3"}
    listed: list[dict[str, Any]] = []
    while True:
        page = client.get("/v1/items", params=parameters).json()
        listed += page["items"]
        if page["next_cursor"] is None:
            break
        parameters["cursor"] = page["next_cursor"]
    assert sorted(item["metadata"]["price"] for item in listed) == [*range(3, 24)]
    assert [item["id"] for item in listed] == sorted(item["id"] for item in listed)
    unsorted = client.get("/v1/items", params={"order": "price"})
    assert (unsorted.status_code, "ascending id only" in unsorted.text) == (422, True)

    one = listed[0]
    changed = client.patch(f"/v1/items/{one['id']}", json={"label": "", "metadata": {"made": "2024-05-01"}})
    assert changed.json() == {**one, "label": None, "metadata": {**one["metadata"], "made": "2024-05-01"}}
    counted = client.get("/v1/facets", params={"where": "price >= 3"}).json()
    assert (counted["images"], counted["counted"]) == (21, 21)
    label, price, made = counted["facets"]
    assert (label["missing"], sum(pair["count"] for pair in label["values"])) == (1, 20)
    assert (price["distinct"], price["numbers"]) == (21, {"min": 3, "max": 23})
    assert (made["values"], made["missing"]) == ([{"value": "2024-05-01", "count": 1}], 20)
    assert made["dates"] == {"min": "2024-05-01", "max": "2024-05-01"}
    refused = client.patch(f"/v1/items/{one['id']}", json={"metadata": {"made": 3}})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid-request")
    again = {"label": one["label"], "metadata": {"made": None}}
    assert client.patch(f"/v1/items/{one['id']}", json=again).json() == one

    form = {"metadata": '{"price": 50}'}
    for seed in (7005, 7006):
        client.post("/v1/items", files={"images": encoded(seed)}, data=form)
    body = {"where": "price = 50", "dry_run": False, "expected": 1}
    assert client.post("/v1/items:remove", json=body).json()["code"] == "count-mismatch"
    done = client.post("/v1/items:remove", json={**body, "expected": 2}).json()
    assert (done["selected"], done["removed"]) == (2, 2)


def test_second_server_shares_the_database(built: Built, model_file: Path, tmp_path: Path) -> None:
    if built.server is None:
        pytest.skip("Qdrant in a process is for one process")
    other = tmp_path / "other.gallery"
    lookalike_here("index", "connect", str(other), "--store", built.store, "--model", str(model_file))
    assert "right" not in (other / "store.json").read_text()
    services = [SearchService(folder, permissions=ALLOWED) for folder in (built.folder, other)]
    with ExitStack() as stack:
        urls = [stack.enter_context(answering(create_app(one, page=False))) for one in services]
        first, second = (stack.enter_context(httpx.Client(base_url=url, timeout=30)) for url in urls)
        data = encoded(7002)
        (added,) = first.post("/v1/items", files={"images": ("a.png", data)}).json()["results"]
        (hit,) = second.post("/v1/search", params={"k": "1"}, files={"image": data}).json()["hits"]
        assert hit["id"] == added["image"]["id"]

        built.server.kill()
        for path in ("/readyz", "/v1/gallery", "/v1/items", f"/v1/items/{hit['id']}"):
            answer = second.get(path)
            assert (answer.status_code, answer.json()["code"]) == (503, "gallery-unavailable"), path
            assert "127.0.0.1" not in answer.json()["detail"]
            assert "Retry-After" in answer.headers
        searched = second.post("/v1/search", files={"image": data})
        assert (searched.status_code, searched.json()["code"]) == (503, "gallery-unavailable")
        changed = second.post("/v1/items", files={"images": encoded(7003)})
        assert (changed.status_code, changed.json()["code"]) == (503, "gallery-unavailable")
        assert second.get("/healthz").status_code == 200
        assert 'lookalike_gallery_up{gallery="other.gallery"} 0.0' in second.get("/metrics").text

        built.server.start()
        assert second.get("/readyz").status_code == 200
        (again,) = second.post("/v1/search", params={"k": "1"}, files={"image": data}).json()["hits"]
        assert again == hit
        assert 'lookalike_gallery_up{gallery="other.gallery"} 1.0' in second.get("/metrics").text
        assert second.delete(f"/v1/items/{hit['id']}").status_code == 204
        assert first.get(f"/v1/items/{hit['id']}").status_code == 404


def test_a_database_that_does_not_answer_keeps_no_other_gallery_waiting(
    built: Built, shop_gallery: Path
) -> None:
    if not isinstance(built.server, PostgresServer):
        pytest.skip("Qdrant in a process has no server")
    services = [
        SearchService(folder, name=name) for folder, name in ((shop_gallery, "a"), (built.folder, "b"))
    ]
    first = built.server.process_id
    with ExitStack() as stack:
        url = stack.enter_context(answering(create_app(*services)))
        client = stack.enter_context(httpx.Client(base_url=url, timeout=60))
        threads = stack.enter_context(ThreadPoolExecutor(20))

        def ask(name: str) -> int:
            address = f"/v1/galleries/{name}/search"
            return client.post(address, params={"k": "1"}, files={"image": encoded(7)}).status_code

        assert (ask("a"), ask("b")) == (200, 200)
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        processes = [first, *map(int, children)]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        try:
            asked = [threads.submit(ask, "b") for _ in range(8)]
            for name in ("gallery", "items/1"):
                asked += [threads.submit(client.get, f"/v1/galleries/b/{name}") for _ in range(6)]
            time.sleep(1)  # they have taken all threads that they get
            assert ask("a") == 200
            for name in ("/", "/v1/gallery", "/v1/items/1", "/v1/models", "/v1/evaluation/reports"):
                assert client.get(name).status_code == 200, name
            ready, served = client.get("/readyz").json(), client.get("/v1/galleries").json()
            metrics = client.get("/metrics").text
            assert not any(one.done() for one in asked), "each waits ten seconds for the database or longer"
            assert ready["status"] == "degraded"
            assert ready["galleries"]["a"]["images"] == 24
            assert ready["galleries"]["b"]["problem"]["code"] == "gallery-unavailable"
            assert [("problem" in one) for one in served["galleries"]] == [False, True]
            assert 'lookalike_gallery_up{gallery="a"} 1.0' in metrics
            assert 'lookalike_gallery_up{gallery="b"} 0.0' in metrics
        finally:
            for process in processes:
                os.kill(process, signal.SIGCONT)
        answers = [one.result() for one in asked]
        assert {one if isinstance(one, int) else one.status_code for one in answers} <= {200, 404, 503}
        assert client.get("/readyz").json()["status"] == "ready"


def test_another_model_or_password_is_refused(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if built.server is None:
        pytest.skip("Qdrant in a process has no password")
    other = tmp_path / "other.onnx"
    other.write_bytes((built.folder / "model" / "model.onnx").read_bytes())
    words = ["index", "connect", str(tmp_path / "g"), "--model", str(other), "--store"]
    monkeypatch.setenv(PASSWORD, "very-wrong")
    (line,) = lookalike_here(*words, built.store, code=2).stderr.splitlines()
    assert "password" in line
    assert "very-wrong" not in line
    monkeypatch.delenv(PASSWORD)
    done = lookalike_here(*words, built.server.address)
    assert f"the password is not stored; set {PASSWORD}" in done.stderr
    assert not [file for file in (tmp_path / "g").rglob("*.json") if "right" in file.read_text()]
