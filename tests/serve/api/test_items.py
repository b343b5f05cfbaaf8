"""Listing, counting, describing and removing images over HTTP, and with the client."""

from __future__ import annotations

import base64
import io
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retrieval import Gallery
from retrieval.storage.records import FileStamp, NewItem, Value
from retrieval.storage.store import Store
from serve.app import create_app
from serve.client import Added, ApiError, Client
from serve.core.service import SearchService
from tests.conftest import draw
from tests.serve.asgi_server import answering

LONG = "x" * 150
PRICES = [3, 1.5, None, 3, -2, 10**15 + 1, None, 0.1 + 0.2, 7]
BRANDS = ["acme", None, "Zeta", LONG + "b", LONG + "a", "acme", "é", None]
DAYS = ["2024-05-01", "2024-05-01T23:30:00-02:00", None, "2023-12-31T12:00:00.5Z"]
ORDERS = ["id", "id desc", "price", "price DESC", "brand desc", "label", "width"]
_numbers = count(1)


def put(folder: Path, keys: Sequence[str], doomed: Sequence[int] = ()) -> None:
    """Remove items, and add some without files, with values that repeat and are missing."""
    store = Store(folder)
    vectors = np.random.default_rng(0).normal(size=(len(keys), store.manifest.dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    items = []
    for key in keys:
        n = next(_numbers)
        metadata: dict[str, Value] = {
            "price": PRICES[n % len(PRICES)],
            "brand": BRANDS[n % len(BRANDS)],
            "day": DAYS[n % len(DAYS)],
        }
        stamp = FileStamp("", "", 0, 0, ["red", "blue", "", None][n % 4])
        items.append(NewItem(stamp, "", n % 3, 0, metadata, key))
    with store.writing():
        store.remove(doomed)
        store.commit(vectors, items)


@pytest.fixture(scope="module")
def folder(shop_gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shutil.copytree(shop_gallery, tmp_path_factory.mktemp("listed") / "g")
    put(folder, [f"made {next(_numbers)}" for _ in range(40)])
    return folder


@pytest.fixture(scope="module")
def changing(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[httpx.Client, Gallery]]:
    """A server that does not allow changes, over a gallery that is changed beside it."""
    copy = shutil.copytree(folder, tmp_path_factory.mktemp("changing") / "g")
    with answering(create_app(SearchService(copy), page=False)) as url, httpx.Client(base_url=url) as http:
        yield http, Gallery(copy)


def stored(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the values of all items by id, as conditions name them."""
    gallery = Gallery(folder)
    ids = gallery.select(where="id > 0")
    return {
        item.id: {"id": item.id, "label": item.label, "width": item.width, **item.metadata}
        for item in gallery.stored_items(ids)
    }


def rank(values: dict[str, Any], order: str) -> tuple[bool, Any]:
    """Return the key by which an item is sorted ascending, without its id: missing values are last."""
    value = values.get(order.split()[0])
    return value is None, value[:100] if isinstance(value, str) else value or 0


def in_order(items: dict[int, dict[str, Any]], order: str) -> list[int]:
    """Return the ids of items in an order, by sorting in memory."""
    if order == "id desc":
        return sorted(items, reverse=True)
    present = [number for number in sorted(items) if not rank(items[number], order)[0]]
    present.sort(key=lambda number: rank(items[number], order), reverse=order.lower().endswith("desc"))
    return present + [number for number in sorted(items) if rank(items[number], order)[0]]


def walk(http: httpx.Client, limit: int, **parameters: str) -> Iterator[list[int]]:
    """Yield the ids on each page of a listing."""
    cursor: dict[str, str] = {}
    while True:
        answer = http.get("/v1/items", params={"limit": limit, **parameters, **cursor})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        yield [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            return
        cursor = {"cursor": page["next_cursor"]}


@pytest.mark.parametrize("order", ORDERS)
def test_listing_is_in_order(http: httpx.Client, folder: Path, order: str) -> None:
    items = stored(folder)
    pages = [*walk(http, 7, order=order)]
    assert [number for page in pages for number in page] == in_order(items, order)
    assert {*map(len, pages[:-1])} == {7}
    cheap = {n: values for n, values in items.items() if (values.get("price") or 99) < 3}
    found = [number for page in walk(http, 5, order=order, where="price < 3") for number in page]
    assert found == in_order(cheap, order)
    assert [len(page) for page in walk(http, len(cheap), order=order, where="price < 3")] == [len(cheap)]


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.sampled_from(ORDERS), limit=st.integers(15, 30), seed=st.integers(0, 2**32))
def test_every_image_that_stays_is_listed_once(
    changing: tuple[httpx.Client, Gallery], order: str, limit: int, seed: int
) -> None:
    http, gallery = changing
    chance = random.Random(seed)  # what goes depends on what earlier examples have left
    before = stored(gallery.folder)
    seen, ever, always = [], {*before}, {*before}
    for page in walk(http, limit, order=order):
        seen += page
        doomed = chance.sample(sorted(always), chance.randint(0, 6))
        keys = [f"made {next(_numbers)}" for _ in range(chance.randint(0, 6))]
        # Half of those that go come back at once under their key, with other values.
        keys += [item.key for item in gallery.stored_items(doomed[::2])]
        put(gallery.folder, keys, doomed)
        always -= {*doomed}
        ever |= {*gallery.select(where="id > 0")}
    expected = {number: values for number, values in before.items() if number in always}
    assert [number for number in seen if number in always] == in_order(expected, order)
    assert {*seen} <= ever


def test_items_of_the_client_are_images(client: Client) -> None:
    found = list(client.items("label = 'red' and width > 3", page_size=3))
    assert found
    assert found == [client.image(image.id) for image in found]


def test_cursor_of_something_else_is_refused(http: httpx.Client, shop_gallery: Path) -> None:
    cursor = http.get("/v1/items", params={"limit": 2, "where": "label = 'red'"}).json()["next_cursor"]
    values = json.loads(base64.urlsafe_b64decode(cursor + "=="))

    def refused(cursor: str, **parameters: str) -> str:
        answer = http.get("/v1/items", params={"cursor": cursor, **parameters})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
        assert [fault["pointer"] for fault in answer.json()["errors"]] == ["#/query/cursor"]
        return str(answer.json()["detail"])

    def changed(at: int, value: object) -> str:
        made = json.dumps([*values[:at], value, *values[at + 1 :]])
        return base64.urlsafe_b64encode(made.encode()).decode()

    same = {"where": "label = 'red'"}
    for other in ({}, {"where": "label = 'blue'"}, {**same, "order": "id desc"}):
        assert "another condition or order" in refused(cursor, **other)
    assert "rebuilt" in refused(changed(0, "ffffffff"), **same)
    damaged = ["", "e30", "no cursor!", cursor[:-6], "W1tbW1s" * 200]
    wrong = [changed(3, number) for number in (0, 2**63, 1.5, "1", None, True)]
    wrong += [changed(2, value) for value in (2**64, [1], True, "\0")]
    for one in (*damaged, *wrong):
        assert "not one of this API" in refused(one, **same)


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("items", {"order": "colour"}),
        ("items", {"where": "colour = 1"}),
        ("items", {"limit": "0"}),
        ("items", {"limit": "1001"}),
        ("facets", {"columns": "label,colour"}),
        ("facets", {"columns": "key"}),
        ("facets", {"columns": ",".join(["label"] * 51)}),
        ("facets", {"where": "price ="}),
    ],
)
def test_invalid_parameters_are_refused(http: httpx.Client, path: str, parameters: dict[str, str]) -> None:
    answer = http.get(f"/v1/{path}", params=parameters)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")


@pytest.mark.parametrize("where", [None, "price >= 1.5", "price > 10 and price < 1"])
def test_facets_count_values(client: Client, folder: Path, where: str | None) -> None:
    gallery = Gallery(folder)
    items = stored(folder)
    if where is not None:
        items = {number: items[number] for number in gallery.select(where=where)}
    found = client.facets(["label,price", "BRAND", "day"], where=where, limit=4)
    assert (found.images, found.counted, [*found.facets]) == (
        len(items),
        len(items),
        ["label", "price", "brand", "day"],
    )
    for name, facet in found.facets.items():
        values = [values.get(name) or None for values in items.values()]
        counts = Counter(value for value in values if value is not None)
        assert facet.values == sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:4]
        assert (facet.distinct, facet.missing) == (len(counts), values.count(None))
        numbers = (min(counts), max(counts)) if counts and name == "price" else None
        assert facet.numbers == numbers
    dates = found.facets["day"].dates
    assert dates == (("2023-12-31T12:00:00.500000Z", "2024-05-02T01:30:00Z") if items else None)
    assert found.facets["brand"].dates is None


def test_facets_are_of_label_and_metadata_by_default(client: Client) -> None:
    assert [*client.facets().facets] == ["label", "price", "brand", "day"]


def test_label_and_metadata_are_changed(http: httpx.Client, client: Client, folder: Path) -> None:
    put(folder, ["described"])
    image = client.image("described")
    client.update(image.id, metadata={"brand": "acme", "price": 5, "day": None})
    first = client.update(image.id, label="green")
    assert (first.label, first.metadata) == ("green", {"brand": "acme", "price": 5})
    again = client.update(image.id, metadata={"PRICE": None, "note": "new"})
    assert again == first.model_copy(update={"metadata": {"brand": "acme", "note": "new"}})
    assert client.image(image.id) == again
    assert [one.id for one in client.items("label = 'green' and note = 'new'")] == [image.id]
    hits = http.post("/v1/search", json={"id": 1, "where": "note = 'new'"}).json()["hits"]
    assert [hit["id"] for hit in hits] == [image.id]
    assert client.update(image.id, label=None).label is None
    assert client.update(image.id, metadata={"note": None}).metadata == {"brand": "acme"}
    runs = [run["command"] for run in Gallery(folder).info()["runs"]]
    assert "update" in runs


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, "#"),
        ({"metadata": {}}, "#"),
        ({"label": 3}, "#/label"),
        ({"label": "x" * 1001}, "#/label"),
        ({"label": "\0"}, "#/label"),
        ({"metadata": {"price": "cheap"}}, "#/metadata"),
        ({"metadata": {"brand": 3}}, "#/metadata"),
        ({"metadata": {"price": 2**70}}, "#/metadata"),
        ({"metadata": {"score": 1}}, "#/metadata"),
        ({"metadata": {"a\nb": 1}}, "#/metadata"),
        ({"label": "ok", "metadata": {"price": [1]}}, "#/metadata/price"),
        ({"label": "ok", "colour": "red"}, "#/colour"),
    ],
)
def test_invalid_changes_are_refused(
    http: httpx.Client, folder: Path, body: dict[str, object], place: str
) -> None:
    before = http.get("/v1/items/1").json()
    answer = http.patch("/v1/items/1", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert answer.json()["errors"][0]["pointer"] == place
    assert str(folder) not in answer.text
    assert http.get("/v1/items/1").json() == before


def test_changes_of_unknown_images_are_refused(http: httpx.Client) -> None:
    for number in (0, 10**6, 2**63):
        answer = http.patch(f"/v1/items/{number}", json={"label": "red"})
        assert (answer.status_code, answer.json()["code"]) == (404, "no-such-image")


def test_images_of_a_condition_are_removed(http: httpx.Client, client: Client, folder: Path) -> None:
    put(folder, [f"old {n}" for n in range(130)])
    where, images = "key like 'old %'", client.gallery().images
    counted = client.remove_where(where)
    assert (counted.dry_run, counted.selected, counted.removed, len(counted.ids)) == (True, 130, 0, 100)
    assert counted.ids == Gallery(folder).select(where=where)[:100]
    put(folder, ["old 130"])
    with pytest.raises(ApiError, match="131 images now, not 130; nothing was removed") as error:
        client.remove_where(where, counted.selected)
    assert (error.value.code, error.value.status) == ("count-mismatch", 409)
    assert error.value.more["errors"][0]["pointer"] == "#/expected"
    for body in ({"where": where, "dry_run": False}, {"where": "", "expected": 0}, {"where": "price ="}, {}):
        answer = http.post("/v1/items:remove", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert client.gallery().images == images + 1
    done = client.remove_where(where, 131)
    assert (done.dry_run, done.selected, done.removed) == (False, 131, 131)
    assert client.gallery().images == images - 130
    assert client.remove_where(where, 0).removed == 0


def test_changes_need_permission(changing: tuple[httpx.Client, Gallery]) -> None:
    http, gallery = changing
    before = gallery.state_digest()
    answers = [
        http.patch("/v1/items/1", json={"label": "red"}),
        http.post("/v1/items:remove", json={"where": "id > 0"}),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (403, "changes-not-allowed")
    assert gallery.state_digest() == before


def test_same_bytes_with_another_label_are_a_conflict(client: Client) -> None:
    buffer = io.BytesIO()
    draw(8100).save(buffer, "PNG")
    data = buffer.getvalue()
    (first,) = client.add([data], label="red", metadata={"price": 2, "brand": "acme"})
    assert isinstance(first, Added)
    assert first.conflict is None
    for same in ({}, {"label": "red"}, {"metadata": {"PRICE": 2.0, "day": None}}):
        (again,) = client.add([data], **same)  # type: ignore[arg-type]
        assert again == first.model_copy(update={"is_new": False})
    (other,) = client.add([data], label="blue", metadata={"price": 3, "brand": "acme"})
    assert isinstance(other, Added)
    assert (other.id, other.label, other.is_new) == (first.id, "red", False)
    assert other.conflict is not None
    assert (other.conflict.label, other.conflict.metadata) == ("blue", {"price": 3})
    for words in (f"image {first.id} ", "'red'", "'blue'", "'price'", f"PATCH /v1/items/{first.id}"):
        assert words in other.conflict.detail
    client.update(first.id, label=other.conflict.label, metadata=other.conflict.metadata)
    (agreed,) = client.add([data], label="blue", metadata={"price": 3})
    assert isinstance(agreed, Added)
    assert agreed.conflict is None
