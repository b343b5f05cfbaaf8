"""Queries of several liked and unliked images, compared with brute force."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from retrieval import Gallery, load_image
from serve.app import create_app
from serve.core.service import SearchService
from tests.serve.asgi_server import answering


@pytest.fixture(scope="module")
def gallery(shop_gallery: Path) -> Gallery:
    return Gallery.open(shop_gallery)


@pytest.fixture(scope="module")
def api(gallery: Gallery) -> Iterator[httpx.Client]:
    app = create_app(SearchService(gallery.folder), page=False)
    with answering(app) as url, httpx.Client(base_url=f"{url}/v1", timeout=30) as client:
        yield client


def test_hits_are_those_of_liked_minus_unliked_vectors(
    api: httpx.Client, gallery: Gallery, shop: Path
) -> None:
    ids = gallery.sample(24)
    file = shop / "red" / "5.png"
    other = gallery.embedder.embed([load_image(file)])[0]
    like = np.stack([gallery.vector(ids[0]), gallery.vector(ids[9]), other])
    query = 2 * like.mean(0) - gallery.vector(ids[20])
    left = [item for item in ids if item not in (ids[0], ids[9], ids[20])]
    scores = np.stack([gallery.vector(item) for item in left]) @ (query / np.linalg.norm(query))
    order = np.argsort(-scores, kind="stable")[:5]

    image = base64.b64encode(file.read_bytes()).decode()
    body = {
        "like": [{"id": ids[0]}, {"vector": gallery.vector(ids[9]).tolist()}, {"image": image}],
        "unlike": [{"id": ids[20]}],
        "exclude": [ids[9]],
        "k": 5,
    }
    hits = api.post("/search", json=body).raise_for_status().json()["hits"]

    np.testing.assert_allclose([hit["score"] for hit in hits], scores[order], atol=1e-5)
    assert {hit["id"] for hit in hits} <= set(left)


def test_forms_have_files_and_json(api: httpx.Client, gallery: Gallery, shop: Path) -> None:
    number, files = gallery.sample(24)[7], [shop / "red" / "5.png", shop / "blue" / "2.png"]
    one, two = (base64.b64encode(file.read_bytes()).decode() for file in files)
    body = {"like": [{"image": one}], "unlike": [{"image": two}, {"id": number}]}
    parts = [("like", ("a.png", files[0].read_bytes())), ("unlike", ("b.png", files[1].read_bytes()))]
    form = api.post("/search", files=parts, data={"unlike": f'{{"id": {number}}}'}).raise_for_status()
    assert form.json() == api.post("/search", json=body).raise_for_status().json()


def test_one_liked_image_is_a_plain_query(api: httpx.Client, gallery: Gallery) -> None:
    number = gallery.sample(24)[3]
    liked = api.post("/search", json={"like": [{"id": number}]}).raise_for_status().json()
    item = api.post("/search", json={"id": number}).raise_for_status().json()
    # A liked vector is scaled to unit length once more.
    scores = [[hit.pop("score") for hit in found["hits"]] for found in (liked, item)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    assert liked == item


@pytest.mark.parametrize(
    ("body", "pointer", "words"),
    [
        ({"like": [{"id": 1}, {}]}, "#/like/1", "exactly one of image, id, vector and url"),
        ({"like": [{"id": 1}], "id": 2}, "#", "either `like`, or one"),
        ({"unlike": [{"id": 1}]}, "#", "exactly one of"),
        ({"like": [{"id": 1}] * 9, "unlike": [{"id": 2}] * 8}, "#", "at most 16 images together"),
        ({"like": [{"vector": [1.0], "region": [0, 0, 1, 1]}]}, "#/like/0", "a vector has no region"),
    ],
)
def test_wrong_views_are_refused_with_their_place(
    api: httpx.Client, body: dict[str, object], pointer: str, words: str
) -> None:
    answer = api.post("/search", json=body)
    assert answer.status_code == 422
    (fault,) = answer.json()["errors"]
    assert fault["pointer"].rstrip("/") == pointer
    assert words in fault["detail"]
    assert not fault["detail"].startswith("Value error")


def test_opposite_images_are_refused(api: httpx.Client, gallery: Gallery) -> None:
    vector = gallery.vector(gallery.sample(24)[0])
    body = {"like": [{"vector": vector.tolist()}, {"vector": (-vector).tolist()}]}
    answer = api.post("/search", json=body)
    assert answer.status_code == 422
    assert "cancel out" in answer.json()["detail"]


def test_unusable_views_are_named(api: httpx.Client, gallery: Gallery) -> None:
    good, bad = {"id": gallery.sample(24)[0]}, {"image": base64.b64encode(b"no image").decode()}
    answer = api.post("/search", json={"like": [good, bad], "unlike": [good]}).json()
    assert (answer["code"], answer["reason"]) == ("unusable-image", "not-an-image")
    assert [fault["pointer"] for fault in answer["errors"]] == ["#/like/1/image"]
    answer = api.post("/search", json={**good, "unlike": [{"id": "nobody"}]}).json()
    assert (answer["code"], answer["errors"][0]["pointer"]) == ("no-such-image", "#/unlike/0/id")
    answer = api.post("/search", json={"vector": [1.0], "unlike": [good]}).json()
    assert answer["errors"][0]["pointer"] == "#/vector"


def test_urls_need_permission(api: httpx.Client) -> None:
    body = {"like": [{"id": 1}], "unlike": [{"url": "https://pictures.example/red.jpg"}]}
    answer = api.post("/search", json=body)
    assert (answer.status_code, answer.json()["code"]) == (403, "urls-not-allowed")
