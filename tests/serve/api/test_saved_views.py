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


def test_collections_hold_thousands_and_conditions_name_them(
    client: Client, http: httpx.Client, folder: Path
) -> None:
    """Compared with the ids themselves, in all requests that take a condition."""
    odd, name = [*range(1, 25, 2)], 'it\'s "odd" 💡'
    saved = {one.name: one.images for one in client.save_view(name, ONE, items=odd[::-1])}
    assert saved.pop(name) == len(odd)
    assert {*saved.values()} == {None}, "other views are no collections"
    test = "id in collection '{}'".format(name.replace("'", "''"))
    present = [image.id for image in client.items(where="id > 0") if image.id in odd]
    assert [image.id for image in client.items(where=test)] == present
    both = f"{test} and label = 'red' and not (label like '%in collection ''x''%')"
    assert [one.id for one in client.items(where=both)] == [
        one.id for one in client.items(where="label = 'red'") if one.id in odd
    ]
    assert client.facets(["label"], where=test.replace("id in c", "ID  IN\tC")).images == len(present)
    hits = client.search(id=2, k=24, where=test)
    assert {hit.id for hit in hits} == {*present}
    assert [hit.id for hit in hits] == [hit.id for hit in client.search(id=2, k=24) if hit.id in odd]
    removal = http.post("/v1/items:remove", json={"where": f"not {test}"}).json()
    assert removal["selected"] == len(Gallery(folder)) - len(present)
    client.save_view(name, ONE, old=ONE, items=[2])
    assert [image.id for image in client.items(where=test)] == [2]
    client.save_view(name, None, old=ONE)
    with pytest.raises(ApiError, match=r"no collection .* at character 18") as error:
        list(client.items(where=test))
    assert error.value.status == 422


def test_unusable_collections_are_refused(client: Client, http: httpx.Client) -> None:
    before = client.views()
    body = {"name": "x", "address": ONE, "old": None}
    for items, status in (([999], 404), ([0], 422), ([-1], 422), ([2**63], 422), ([1] * 10_001, 422)):
        assert http.post("/v1/views", json={**body, "items": items}).status_code == status, items[:2]
    assert client.views() == before
    assert {view.name for view in client.save_view("once", ONE, items=[1] * 10_000)} >= {"once"}
    assert next(view.images for view in client.views() if view.name == "once") == 1
