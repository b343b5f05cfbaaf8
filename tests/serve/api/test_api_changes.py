"""Adding and removing images over HTTP, and with the client."""

from __future__ import annotations

import base64
import io
import json
import shutil
import time
from pathlib import Path

import httpx
import pytest
from PIL import Image

from retrieval import Gallery
from serve.client import Added, ApiError, Client
from tests.conftest import draw
from tests.serve.serving import SERVE, Server, serving


@pytest.fixture(scope="module")
def folder(shop_gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(shop_gallery, tmp_path_factory.mktemp("changed") / "g")


_seeds = iter(range(3000, 4000))


def new_picture() -> bytes:
    """Return the bytes of an image that no gallery has."""
    buffer = io.BytesIO()
    draw(next(_seeds)).save(buffer, "PNG")
    return buffer.getvalue()


def images(http: httpx.Client) -> int:
    return int(http.get("/v1/gallery").json()["images"])


def test_form_of_files_is_added(http: httpx.Client) -> None:
    before = images(http)
    first, second = new_picture(), new_picture()
    files = [
        ("images", (name, data)) for name, data in (("a.png", first), ("b", b"no"), ("../c.png", second))
    ]
    fields = {"label": "red", "metadata": json.dumps({"price": 2, "brand": "acme"})}
    answer = http.post("/v1/items", files=files, data=fields)
    assert answer.status_code == 201
    one, broken, two = answer.json()["results"]
    assert (one["added"], one["image"]["key"], one["image"]["label"]) == (True, "a.png", "red")
    assert one["image"]["metadata"] == {"price": 2, "brand": "acme"}
    assert two["image"]["key"] == "c.png"
    assert set(broken) == {"problem"}
    assert (broken["problem"]["code"], broken["problem"]["reason"]) == ("unusable-image", "not-an-image")
    assert images(http) == before + 2
    assert http.get(one["image"]["thumbnail"]).headers["content-type"] == "image/webp"
    assert http.get(f"/v1/items/{one['image']['id']}").json() == one["image"]
    (hit,) = http.post("/v1/search", files={"image": first}, params={"k": 1}).json()["hits"]
    assert hit["id"] == one["image"]["id"]
    where = {"where": "brand = 'acme' and price < 3", "k": 5}
    hits = http.post("/v1/search", files={"image": first}, params=where).json()["hits"]
    assert {hit["id"] for hit in hits} == {one["image"]["id"], two["image"]["id"]}


def test_bytes_of_one_image_are_added(http: httpx.Client) -> None:
    data = new_picture()
    kind = {"Content-Type": "image/png"}
    answer = http.post("/v1/items", params={"label": "blue"}, content=data, headers=kind)
    assert answer.status_code == 201
    (added,) = answer.json()["results"]
    assert added["image"]["label"] == "blue"
    again = http.post("/v1/items", content=data, headers=kind)
    assert again.status_code == 200
    assert again.json()["results"] == [{"image": added["image"], "added": False}]
    broken = http.post("/v1/items", content=b"not an image", headers=kind)
    assert (broken.status_code, broken.json()["code"]) == (422, "unusable-image")


@pytest.mark.parametrize(
    "body",
    [
        {"images": []},
        {"images": ["AA=="] * 65},
        {"images": ["AA=="], "names": []},
        {"images": ["AA=="], "metadata": [1]},
        {"images": ["AA=="], "metadata": {"a": [1]}},
        {"images": ["AA=="], "path": "/x"},
        {"images": ["?"]},
        {"image": "AA=="},
    ],
)
def test_invalid_bodies_are_refused(http: httpx.Client, body: object) -> None:
    before = images(http)
    answer = http.post("/v1/items", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert images(http) == before


def test_metadata_that_does_not_fit_is_refused_without_a_path(http: httpx.Client, folder: Path) -> None:
    body = {"images": [base64.b64encode(new_picture()).decode()], "metadata": {"score": 3}}
    answer = http.post("/v1/items", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert str(folder) not in answer.text
    form = http.post("/v1/items", files={"images": new_picture()}, data={"metadata": "{"})
    assert (form.status_code, form.json()["code"]) == (422, "invalid-request")


def test_image_is_removed(http: httpx.Client) -> None:
    (added,) = http.post("/v1/items", files={"images": new_picture()}).json()["results"]
    before, number = images(http), added["image"]["id"]
    answer = http.delete(f"/v1/items/{number}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert images(http) == before - 1
    for path in (f"/v1/items/{number}", f"/v1/items/{number}/thumbnail"):
        assert http.get(path).json()["code"] == "no-such-image"
    for unknown in (number, 0, 2**63, 10**30):
        answer = http.delete(f"/v1/items/{unknown}")
        assert (answer.status_code, answer.json()["code"]) == (404, "no-such-image")


def test_changes_need_permission(server: Server, shop_gallery: Path) -> None:
    before = (shop_gallery / "gallery.db").read_bytes()
    with httpx.Client(base_url=server.url) as http:
        answers = [http.post("/v1/items", files={"images": new_picture()}), http.delete("/v1/items/1")]
        for answer in answers:
            assert (answer.status_code, answer.json()["code"]) == (403, "changes-not-allowed")
        assert (
            http.get("/metrics").text.count('lookalike_problems_total{code="changes-not-allowed"} 2.0') == 1
        )
    assert (shop_gallery / "gallery.db").read_bytes() == before


def test_cross_origin_changes_are_refused(shop_gallery: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(shop_gallery, tmp_path / "g")
    command = [*SERVE, str(folder), "--no-page", "--allow-changes"]
    with serving(command, tmp_path / "scratch") as server, httpx.Client(base_url=server.url) as http:
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert http.delete("/v1/items/1", headers=headers).json()["code"] == "forbidden"
            answer = http.post("/v1/items", files={"images": new_picture()}, headers=headers)
            assert answer.json()["code"] == "forbidden"
        assert images(http) == 24
        assert http.delete("/v1/items/1", headers={"Origin": server.url}).status_code == 204
        assert images(http) == 23


def test_changes_are_counted_and_described(http: httpx.Client) -> None:
    http.post("/v1/items", files={"images": new_picture()})
    http.delete("/v1/items/99999")
    metrics = http.get("/metrics").text
    assert 'method="POST",route="/v1/items",status="201"' in metrics
    assert 'method="DELETE",route="/v1/items/{id}",status="404"' in metrics
    paths = http.get("/v1/openapi.json").json()["paths"]
    assert {"200", "201", "403", "422", "503", "507"} <= set(paths["/items"]["post"]["responses"])
    assert {"204", "403", "404", "503", "507"} <= set(paths["/items/{id}"]["delete"]["responses"])


@pytest.mark.slow
def test_changes_are_visible_in_all_processes(shop_gallery: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(shop_gallery, tmp_path / "g")
    command = [*SERVE, str(folder), "--no-page", "--workers", "2", "--allow-changes"]
    with serving(command, tmp_path / "scratch") as server:
        data = new_picture()
        with httpx.Client(base_url=server.url) as http:
            (added,) = http.post("/v1/items", files={"images": data}).json()["results"]
        end = time.monotonic() + 60
        in_a_row = 0
        while in_a_row < 20:  # new connections reach both processes
            assert time.monotonic() < end
            (hit,) = httpx.post(
                f"{server.url}/v1/search", files={"image": data}, params={"k": 1}, timeout=30
            ).json()["hits"]
            in_a_row = in_a_row + 1 if hit["id"] == added["image"]["id"] else 0


# ---- near-duplicates


def like(data: bytes) -> bytes:
    """Return another file of a picture, which looks the same."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def test_refused_near_duplicates_name_the_image(http: httpx.Client) -> None:
    data = new_picture()
    (there,) = http.post("/v1/items", files={"images": data}, data={"label": "red"}).json()["results"]
    answer = http.post("/v1/items", content=like(data), params={"duplicates": "refuse", "label": "blue"})
    assert answer.status_code == 200, "nothing was added"
    (result,) = answer.json()["results"]
    assert (result["image"]["id"], result["added"]) == (there["image"]["id"], False)
    assert 0.95 <= result["similarity"] < 1
    assert result["conflict"]["label"] == "blue"
    assert "looks like it and has label 'red'; label 'blue' was not stored" in result["conflict"]["detail"]
    sent = [("images", like(data)), ("images", new_picture())]
    mixed = http.post("/v1/items", files=sent, data={"duplicates": "refuse"})
    assert mixed.status_code == 201
    assert [one["added"] for one in mixed.json()["results"]] == [False, True]
    assert "similarity" not in mixed.json()["results"][1]
    kept = http.post("/v1/items", files={"images": like(data)})
    assert kept.status_code == 201, "kept by default"
    unknown = http.post("/v1/items", files={"images": data}, data={"duplicates": "link"})
    assert (unknown.status_code, unknown.json()["errors"][0]["pointer"]) == (422, "#/duplicates")


def test_client_refuses_near_duplicates(client: Client) -> None:
    data = new_picture()
    (first,) = client.add([data])
    near, other = client.add([like(data), new_picture()], duplicates="refuse")
    assert isinstance(first, Added)
    assert isinstance(near, Added)
    assert isinstance(other, Added)
    assert (near.id, near.is_new, other.is_new, other.similarity) == (first.id, False, True, None)
    assert near.similarity is not None
    assert near.similarity >= 0.95


# ---- the client


def test_client_adds_and_removes(client: Client, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.png"
    path.write_bytes(new_picture())
    data = new_picture()
    found = client.add([path, data, b"no", draw(next(_seeds))], label="green", metadata={"price": 1.5})
    first, second, broken, third = found
    assert isinstance(first, Added)
    assert isinstance(second, Added)
    assert isinstance(third, Added)
    assert isinstance(broken, ApiError)
    assert broken.code == "unusable-image"
    assert (first.key, first.label, first.metadata, first.is_new) == (
        "mine.png",
        "green",
        {"price": 1.5},
        True,
    )
    assert client.image(first.id).key == "mine.png"
    (again,) = client.add([data])
    assert isinstance(again, Added)
    assert (again.id, again.is_new) == (second.id, False)
    (alone,) = client.add([b"no"])
    assert isinstance(alone, ApiError)
    client.remove(third.id)
    with pytest.raises(ApiError) as error:
        client.remove(third.id)
    assert error.value.code == "no-such-image"
    assert len(list((folder / "pictures").iterdir())) == sum(
        Path(item.path).parent == folder.resolve() / "pictures"
        for item in Gallery(folder).items(range(1, 200)).values()  # type: ignore[arg-type]
    )
