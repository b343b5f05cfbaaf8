"""Objects by HTTP and by the client, compared with the search of the gallery's files."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

from retrieval import Gallery
from retrieval.galleries.objects import load_tiles, search_objects
from retrieval.search.options import SearchOptions
from serve.app import create_app
from serve.client import ApiError, Client
from serve.core.service import SearchService
from tests.conftest import draw
from tests.serve.asgi_server import answering
from tests.serve.model import write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> Path:
    model = write_model(tmp_path_factory.mktemp("model") / "maps.onnx", maps=True)
    folder = tmp_path_factory.mktemp("galleries") / "objects.gallery"
    Gallery.create(folder, model).add([shop])
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with answering(create_app(SearchService(folder), page=False)) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


@pytest.fixture(scope="module")
def room() -> bytes:
    picture = Image.new("RGB", (900, 600), "white")
    for seed, hue, corner in ((1, 0, (0, 0)), (2, 1, (330, 360)), (3, 2, (660, 0))):
        picture.paste(draw(seed, (240, 240), hue), corner)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def test_objects_are_those_of_the_gallery(client: Client, folder: Path, room: bytes) -> None:
    gallery = Gallery.open(folder)
    options = SearchOptions(5, where="label != 'green'", group_by="label")
    wanted = search_objects(gallery, load_tiles(room, gallery.embedder.preprocess), options)
    found = client.objects(room, k=5, where="label != 'green'", group_by="label")
    for answers, hits in ((found.hits, wanted.hits), (found.boxes, wanted.boxes)):
        assert [(one.id, one.box) for one in answers] == [(hit.id, hit.box) for hit in hits]
        assert [one.score for one in answers] == pytest.approx([hit.score for hit in hits], abs=1e-5)
    assert {one.label for one in found.hits} == {"red", "blue"}
    assert found.fingerprint == gallery.fingerprint


def test_a_box_is_a_region_to_search_with(client: Client, room: bytes) -> None:
    box = client.objects(room).boxes[0].box
    assert client.search(room, region=box, k=1)


def test_an_item_is_not_among_its_own_hits(client: Client) -> None:
    number = client.image("red/1.png").id
    found = client.objects(id="red/1.png", k=1000)
    assert len(found.hits) == 23
    assert number not in {hit.id for hit in (*found.hits, *found.boxes)}


def test_all_ways_to_send_an_image_are_the_same(client: Client, url: str, room: bytes) -> None:
    wanted = client.objects(room, k=3)
    encoded = base64.b64encode(room).decode()
    for sent in ({"params": {"k": 3}, "files": {"image": room}}, {"json": {"image": encoded, "k": 3}}):
        answer = httpx.post(f"{url}/v1/objects", **sent)  # type: ignore[arg-type]
        assert answer.status_code == 200
        assert [hit["id"] for hit in answer.json()["hits"]] == [hit.id for hit in wanted.hits]
        assert answer.json()["hits"][0]["box"] == list(wanted.hits[0].box)


def test_refusals_say_what_to_do(client: Client, room: bytes) -> None:
    cases = (
        (lambda: client.objects(), 422, "invalid-request"),
        (lambda: client.objects(id=99), 404, "no-such-image"),
        (lambda: client.objects(b"not an image"), 422, "unusable-image"),
        (lambda: client.objects(room, rerank="k-reciprocal"), 422, "invalid-request"),
        (lambda: client.objects(room, order="width"), 422, "invalid-request"),
        (lambda: client.objects(room, where="nothing = 1"), 422, "invalid-request"),
    )
    for ask, status, code in cases:
        with pytest.raises(ApiError) as error:
            ask()
        assert (error.value.status, error.value.code) == (status, code)
