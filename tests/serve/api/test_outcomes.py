"""Recording of searches: only if asked for, what is in the log and what is not, outcomes, processes."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from retrieval import Gallery
from retrieval.search.calibration import Calibration, write_calibration
from retrieval.storage.query_log import QueryLog, Searches, read_searches
from serve.app import create_app
from serve.client import ApiError, AsyncClient, Client
from serve.core.service import SearchService
from tests.conftest import draw
from tests.serve.asgi_server import answering
from tests.serve.serving import SERVE, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, shop_gallery: Path) -> Path:
    """A calibrated gallery."""
    folder = shutil.copytree(shop_gallery, tmp_path_factory.mktemp("recorded") / "shop.gallery")
    weights = (9.0, -3.0, 0.0, 0.0, 0.0, 0.0)
    fingerprint = Gallery(folder).fingerprint
    write_calibration(
        folder, Calibration(fingerprint, 24, weights, -4.0, 0.9, 0.5, "2026-01-01", {"ece": 0.02})
    )
    return folder


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def url(folder: Path, log: Path) -> Iterator[str]:
    services = [
        SearchService(folder, name=name, address=f"/v1/galleries/{name}", query_log=QueryLog(log))
        for name in "ab"
    ]
    with answering(create_app(*services, page=False)) as url:
        yield url


def png(seed: int) -> bytes:
    content = io.BytesIO()
    draw(seed).save(content, "PNG")
    return content.getvalue()


def recorded(folder: Path, log: Path) -> Searches:
    gallery = Gallery(folder)
    return read_searches(log, "shop.gallery", gallery.fingerprint, gallery.manifest.dim)


def test_nothing_is_recorded_unless_it_is_asked_for(folder: Path, tmp_path: Path) -> None:
    with answering(create_app(SearchService(folder), page=False)) as url, Client(url) as client:
        assert client.gallery().recorded is False
        found = client.search(id=3)
        assert found.query_id is None
        assert "query_id" not in httpx.post(f"{url}/v1/search", json={"id": 3}).json()
        with pytest.raises(ApiError) as error:
            client.record_outcome("0" * 16, 3, "opened")
        assert (error.value.status, error.value.code) == (403, "not-recorded")


def test_searches_of_each_kind_are_recorded(url: str, folder: Path, log: Path) -> None:
    with Client(url) as client:
        assert client.gallery().recorded is True
        answers = {
            "image": client.search(png(500), k=20, where="label != 'red'"),
            "item": client.search(id=3),
            "vector": client.search(vector=Gallery(folder).vector(5)),
            "several": client.search(like=[{"id": 4}, {"id": 6}], unlike=[{"id": 9}]),
        }
        batch = client.search_batch([png(501), b"no image", png(502)], k=3)
        objects = client.objects(png(503), k=5)
    found = recorded(folder, log)
    by_id = {one.id: (one, vector) for one, vector in zip(found.each, found.vectors, strict=True)}
    assert len(by_id) == 6
    assert found.without == 1
    assert objects.query_id is not None
    for kind, hits in answers.items():
        assert hits.query_id is not None
        one, vector = by_id[hits.query_id]
        assert one.kind == kind
        assert [hit[0] for hit in one.hits] == [hit.id for hit in hits[:10]], "the first ten"
        for (_, score, probability), hit in zip(one.hits, hits, strict=False):
            assert score == pytest.approx(hit.score, abs=1e-6)
            assert probability == pytest.approx(hit.probability, abs=1e-6)
        again = Gallery(folder).search_vectors(vector[None], 24)[0]
        left = [hit.id for hit in again if hit.id not in one.items]
        assert left[:3] == [hit.id for hit in hits][:3] or one.where, "16 bits find the same"
    assert by_id[str(answers["image"].query_id)][0].where == "label != 'red'"
    assert [by_id[str(answers[kind].query_id)][0].items for kind in ("item", "several")] == [(3,), (4, 6, 9)]
    assert isinstance(batch[1], ApiError)
    assert [by_id[str(one.query_id)][0].kind for one in batch if not isinstance(one, ApiError)] == [
        "image"
    ] * 2
    image = by_id[str(answers["image"].query_id)][1]
    assert float(image @ Gallery(folder).embedder.embed([draw(500)])[0]) > 1 - 1e-6


def test_log_has_nothing_of_the_visitor(url: str, log: Path) -> None:
    picture = png(504)
    headers = {
        "User-Agent": "Mozilla/5.0 (secret)",
        "X-Forwarded-For": "203.0.113.9",
        "Referer": "http://a.example",
    }
    files = {"image": ("my passport.png", picture, "image/png")}
    answer = httpx.post(f"{url}/v1/search", files=files, headers=headers).json()
    httpx.post(f"{url}/v1/outcomes", json={"query_id": answer["query_id"], "item": 3, "outcome": "opened"})
    first, second = (json.loads(line) for file in log.iterdir() for line in file.read_text().splitlines())
    assert {*first} == {"id", "time", "gallery", "model", "kind", "vector", "items", "where", "hits"}
    assert {*second} == {"search", "time", "gallery", "item", "outcome"}
    text = json.dumps([first, second])
    for secret in ("passport", "secret", "203.0.113", "127.0.0.1", "a.example", "PNG"):
        assert secret not in text


def test_outcomes_belong_to_their_search(url: str, folder: Path, log: Path) -> None:
    async def asynchronously(id: str) -> None:
        async with AsyncClient(url) as client:
            await client.record_outcome(id, 9, "wrong")

    with Client(url) as client:
        first, second = client.search(id=3), client.search(id=4)
        assert first.query_id
        assert second.query_id
        client.record_outcome(first.query_id, 7, "opened")
        client.record_outcome(first.query_id, 8, "right")
        asyncio.run(asynchronously(second.query_id))
    one, two = recorded(folder, log).each
    assert (one.opened, one.right, one.wrong) == ({7, 8}, {8}, set())
    assert (two.opened, two.right, two.wrong) == (set(), set(), {9})


def test_further_hits_are_no_other_search(url: str, folder: Path, log: Path) -> None:
    first = httpx.post(f"{url}/v1/search", json={"id": 3, "k": 2}).json()
    more = httpx.post(f"{url}/v1/search", json={"id": 3, "k": 4, "query_id": first["query_id"]}).json()
    assert more["query_id"] == first["query_id"]
    assert len(more["hits"]) == 4
    assert [one.id for one in recorded(folder, log).each] == [first["query_id"]]


@pytest.mark.parametrize("header", ["Sec-GPC", "DNT"])
def test_visitor_who_objects_is_not_recorded(url: str, log: Path, header: str) -> None:
    with httpx.Client(base_url=url, headers={header: "1"}) as http:
        for path, body in (("search", {"id": 3}), ("objects", {"id": 3}), ("search/by-id", {"id": 3})):
            assert "query_id" not in http.post(f"/v1/{path}", json=body).json()
        batch = http.post("/v1/search:batch", json={"queries": [{"id": 3}]}).json()
        assert "query_id" not in batch["results"][0]
        outcome = {"query_id": "0" * 16, "item": 3, "outcome": "opened"}
        assert http.post("/v1/outcomes", json=outcome).status_code == 204
    assert not [*log.iterdir()]


def test_search_of_several_galleries_is_recorded_for_each(url: str, folder: Path, log: Path) -> None:
    with Client(url) as client:
        hits = client.search(id=3, galleries=["a", "b"], k=5)
    assert {one.id for one in recorded(folder, log).each} == {hits.query_id}


@pytest.mark.parametrize(
    ("changed", "pointer"),
    [({"outcome": "liked"}, "#/outcome"), ({"query_id": "x"}, "#/query_id"), ({"item": 0}, "#/item")],
)
def test_wrong_outcomes_are_refused(url: str, changed: dict[str, object], pointer: str) -> None:
    body = {"query_id": "0" * 16, "item": 3, "outcome": "opened", **changed}
    answer = httpx.post(f"{url}/v1/outcomes", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == pointer


@pytest.mark.slow
def test_several_processes_write_one_log(shop_gallery: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = [*SERVE, str(shop_gallery), "--no-page", "--workers", "2", "--query-log", str(log)]
    (tmp_path / "scratch").mkdir()
    ids = list[str]()
    with serving(words, tmp_path / "scratch") as server:
        for number in range(40):  # a connection each, which either process may accept
            answer = httpx.post(f"{server.url}/v1/search", json={"id": 1 + number % 24}, timeout=60)
            ids.append(answer.json()["query_id"])
        code, errors = server.stop()
    assert code == 0, errors
    found = recorded(shop_gallery, log)
    assert [one.id for one in found.each] == ids
    assert found.damaged == 0
    assert np.allclose(found.vectors[0], Gallery(shop_gallery).vector(1), atol=1e-3)
