"""The Python client against a real server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from retrieval import Gallery, InputError
from serve.app import create_app
from serve.client import ApiError, Client
from serve.service import SearchService
from tests.serve.answering import answering


@pytest.fixture(scope="module")
def client(shop_gallery: Path) -> Iterator[Client]:
    app = create_app(SearchService(shop_gallery), page=False)
    with answering(app) as url, Client(url) as client:
        yield client


@pytest.fixture
def gallery(shop_gallery: Path) -> Gallery:
    return Gallery(shop_gallery)


def test_a_picture_may_come_in_any_form(client: Client, gallery: Gallery, shop: Path) -> None:
    path = shop / "green" / "3.png"
    expected = gallery.search(path, 4, where="label != 'red'")
    for picture in (path, str(path), path.read_bytes(), Image.open(path)):
        hits = client.search(picture, k=4, where="label != 'red'", min_score=None)
        assert [(hit.id, hit.key, hit.label, hit.metadata) for hit in hits] == [
            (hit.id, hit.key, hit.label, hit.metadata) for hit in expected
        ]
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in expected], abs=1e-6)


def test_items_and_vectors_are_searched(client: Client, gallery: Gallery) -> None:
    expected = [hit.id for hit in gallery.search_id("red/1.png", 5, exclude=[3])]
    assert [hit.id for hit in client.search(id="red/1.png", k=5, exclude=[3])] == expected
    (number,) = gallery.ids_of(["red/1.png"])
    vector = gallery.vector(number)
    for given in (vector, vector.tolist()):
        hits = client.search(vector=given, fingerprint=gallery.fingerprint, k=5, exclude=["red/1.png", 3])
        assert [hit.id for hit in hits] == expected


def test_several_pictures_have_an_answer_each(client: Client, shop: Path) -> None:
    pictures = [shop / "red" / "1.png", b"no picture", shop / "blue" / "2.png"]
    first, second, third = client.search_batch(pictures, k=2, exclude=[1, 2])
    assert [first, third] == [client.search(pictures[i], k=2, exclude=[1, 2]) for i in (0, 2)]
    assert isinstance(second, ApiError)
    assert second.code == "unusable-image"
    assert second.more == {"reason": "not-an-image"}


def test_vectors_come_with_their_models_fingerprint(client: Client, gallery: Gallery, shop: Path) -> None:
    paths = [shop / "red" / "1.png", shop / "blue" / "2.png"]
    embedded = client.embed(paths)
    assert np.array_equal(np.array(embedded.vectors, np.float32), gallery.embedder.embed(paths))
    assert embedded.fingerprint == gallery.fingerprint == client.gallery().fingerprint


def test_images_and_the_gallery_are_told_of(client: Client, gallery: Gallery) -> None:
    image = client.image(5)
    assert (image.id, image.key, image.label) == (5, "blue/4.png", "blue")
    assert client.thumbnail(5).startswith(b"RIFF")
    told = client.gallery()
    assert (told.images, told.dim, told.index, told.embeds) == (24, 48, "flat", True)


def test_refusals_are_errors_that_say_all(client: Client) -> None:
    with pytest.raises(ApiError) as refused:
        client.search(id=1, k=0, where="x")
    error = refused.value
    assert (error.code, error.status) == ("invalid-request", 422)
    assert [fault["pointer"] for fault in error.more["errors"]] == ["#/k"]
    assert error.instance.startswith("urn:uuid:")
    assert str(error).startswith("422 invalid-request: #/k")
    with pytest.raises(ApiError) as missing:
        client.image(99)
    assert missing.value.code == "no-such-image"


@pytest.mark.parametrize("given", [{}, {"id": 1, "vector": [1.0]}, {"image": b"x", "id": 1}])
def test_a_query_is_one_thing(client: Client, given: dict[str, object]) -> None:
    with pytest.raises(InputError, match="exactly one"):
        client.search(**given)  # type: ignore[arg-type]


def test_credentials_are_sent_and_answers_of_others_are_understood() -> None:
    heard: list[str | None] = []

    def proxy(request: httpx.Request) -> httpx.Response:
        """What may stand before a server."""
        heard.append(request.headers.get("authorization"))
        if request.url.path == "/v1/images/1":
            problem = {"code": "busy", "status": 503, "detail": "wait", "instance": "urn:x"}
            return httpx.Response(503, json=problem, headers={"Retry-After": "7"})
        return httpx.Response(502, text="<h1>Bad Gateway</h1>")

    transport = httpx.MockTransport(proxy)
    with Client("http://lookalike", token="secret", transport=transport) as client:
        with pytest.raises(ApiError) as busy:
            client.image(1)
        with pytest.raises(ApiError) as lost:
            client.gallery()
    assert (busy.value.code, busy.value.retry_after) == ("busy", 7)
    assert (lost.value.code, lost.value.status, lost.value.detail) == ("", 502, "Bad Gateway")
    with (
        Client("http://lookalike", user=("ann", "pass"), transport=transport) as client,
        pytest.raises(ApiError),
    ):
        client.gallery()
    assert heard == ["Bearer secret", "Bearer secret", "Basic YW5uOnBhc3M="]


def test_the_client_needs_nothing_heavy() -> None:
    code = (
        "import sys, serve.client\n"
        "heavy = ('numpy', 'PIL', 'faiss', 'onnxruntime', 'fastapi', 'gradio', 'torch', 'starlette')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
