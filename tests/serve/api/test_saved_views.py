"""Saved views of the page: for everybody, kept in the log, and not overwritten unknowingly."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from retrieval import Gallery
from retrieval.storage.decisions import FILE, DecisionLog
from serve.app import create_app
from serve.client import ApiError, Client
from serve.core.service import SearchService
from tests.serve.asgi_server import answering

ONE, TWO = "?tab=gallery&filter=label=red", "?like=5"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, shop_gallery: Path) -> Path:
    return shutil.copytree(shop_gallery, tmp_path_factory.mktemp("views") / "g")


def named(client: Client) -> dict[str, str]:
    return {view.name: view.address for view in client.views()}


def test_views_are_saved_replaced_and_deleted(client: Client, folder: Path) -> None:
    client.update(1, label="other")
    assert client.save_view("b", ONE)[0].name == "b"
    client.save_view("  a \U0001f4a1 ", TWO)
    client.keep(2)
    assert named(client) == {"a \U0001f4a1": TWO, "b": ONE}
    client.save_view("b", TWO, old=ONE)
    client.save_view("a \U0001f4a1", None, old=TWO)
    assert named(client) == {"b": TWO}
    log = DecisionLog(folder)
    assert [one.action for one in log.read()] == ["label", "keep"]
    client.undo_decision(log.read()[0].n)
    assert [one.undone for one in client.decisions()] == [False, True]
    assert client.image(1).label == Gallery(folder).item(1).label != "other"
    numbers = [json.loads(line)["n"] for line in (folder / FILE).read_text().splitlines()]
    assert numbers == [*range(1, len(numbers) + 1)]


def test_view_that_somebody_else_saved_stays(client: Client, http: httpx.Client) -> None:
    client.save_view("ours", ONE)
    for address, old in ((TWO, None), (None, None), (TWO, "?other"), (None, TWO)):
        with pytest.raises(ApiError) as error:
            client.save_view("ours", address, old=old)
        assert (error.value.status, error.value.code) == (412, "changed")
    with pytest.raises(ApiError, match="'gone' was deleted"):
        client.save_view("gone", TWO, old=ONE)
    assert named(client)["ours"] == ONE

    def save(number: int) -> int:
        body = {"name": "race", "address": f"?k={number}", "old": None}
        return http.post("/v1/views", json=body).status_code

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(save, range(8))) == [200] + [412] * 7


@pytest.mark.parametrize(
    "body",
    [
        {"name": " ", "address": ONE, "old": None},
        {"name": "x" * 101, "address": ONE, "old": None},
        {"name": "x", "address": "https://elsewhere.example/", "old": None},
        {"name": "x", "address": "//elsewhere.example/?", "old": None},
        {"name": "x", "address": "?" * 8001, "old": None},
        {"name": "x", "address": ONE},
    ],
)
def test_unusable_views_are_refused(http: httpx.Client, body: dict[str, str | None]) -> None:
    before = http.get("/v1/views").json()
    assert http.post("/v1/views", json=body).status_code == 422
    assert http.get("/v1/views").json() == before


def test_views_are_seen_without_permission_to_change(client: Client, folder: Path) -> None:
    expected = named(client)
    with answering(create_app(SearchService(folder), page=False)) as url, Client(url) as visitor:
        assert named(visitor) == expected
        with pytest.raises(ApiError) as error:
            visitor.save_view("mine", ONE)
        assert error.value.code == "changes-not-allowed"
