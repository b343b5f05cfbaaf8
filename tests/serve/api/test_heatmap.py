"""Heatmaps by HTTP and by the client, compared with those of the model and the image files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from retrieval import Embedder, Gallery, load_image
from retrieval.analysis.heatmaps import heatmaps
from serve.app import create_app
from serve.client import ApiError, Client
from serve.core.service import SearchService
from tests.conftest import draw
from tests.serve.asgi_server import answering
from tests.serve.model import write_model

REGION = [0.25, 0.5, 0.75, 1.0]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "maps.onnx", maps=True)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, shop: Path, model: Path) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("galleries") / "maps.gallery"
    Gallery.create(folder, model).add([shop])
    with answering(create_app(SearchService(folder), page=False)) as url, Client(url) as client:
        yield client


def test_query_image_is_compared_with_an_item(client: Client, shop: Path, model: Path) -> None:
    query = draw(3, (80, 40))
    found = client.heatmap("red/1.png", query)
    expected = heatmaps(Embedder(model), query, shop / "red" / "1.png")
    assert found.score == pytest.approx(expected.cosine, abs=1e-5)
    np.testing.assert_allclose(found.query.contributions, expected.contributions_a, atol=1e-6)
    np.testing.assert_allclose(found.item.contributions, expected.contributions_b, atol=1e-6)
    np.testing.assert_allclose(found.query.strengths, expected.strengths[0], atol=1e-5)
    np.testing.assert_allclose(found.similarities, expected.similarities, atol=1 / 32767)
    assert found.query.box == (0.25, 0, 0.75, 1)  # the central square
    assert found.fingerprint == client.gallery().fingerprint


def test_region_of_an_item_and_keys_and_ids_are_the_same(client: Client, shop: Path, model: Path) -> None:
    number = client.image("red/1.png").id
    found = client.heatmap(number, id="red/2.png", region=REGION)
    image = load_image(shop / "red" / "2.png")
    width, height = image.size
    cut = image.crop((round(width / 4), round(height / 2), round(3 * width / 4), height))
    expected = heatmaps(Embedder(model), cut, shop / "red" / "1.png")
    np.testing.assert_allclose(found.query.contributions, expected.contributions_a, atol=1e-6)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    by_bytes = client.heatmap(number, buffer.getvalue(), region=REGION)  # all of it in the query string
    np.testing.assert_array_equal(by_bytes.query.contributions, found.query.contributions)
    left, top, right, bottom = found.query.box
    assert 0.25 <= left < right <= 0.75
    assert 0.5 <= top < bottom <= 1
    pixels = (right - left) * width, (bottom - top) * height
    assert pixels[0] == pytest.approx(pixels[1], abs=1)  # the model sees a square


def test_refusals_say_what_to_do(client: Client, shop_gallery: Path) -> None:
    cases = (
        (lambda: client.heatmap(1), 422, "invalid-request"),
        (lambda: client.heatmap(1, id=99), 404, "no-such-image"),
        (lambda: client.heatmap(99, draw(0)), 404, "no-such-image"),
        (lambda: client.heatmap(1, b"not an image"), 422, "unusable-image"),
    )
    for ask, status, code in cases:
        with pytest.raises(ApiError) as error:
            ask()
        assert (error.value.status, error.value.code) == (status, code)
    with answering(create_app(SearchService(shop_gallery), page=False)) as url:
        answer = httpx.post(f"{url}/v1/heatmap", json={"id": 1, "item": 2}, timeout=30)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "no-embedding-map")
    assert str(shop_gallery) not in problem["detail"]
