"""Search by text, by image and text, and without what a text says: command, API and client.

The model is a tiny pair whose vectors are colours, so that the right answers are known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from retrieval import Embedder, Gallery
from serve.app import create_app
from serve.client import ApiError, Client
from serve.core.service import SearchService
from tests.conftest import lookalike_here
from tests.serve.asgi_server import answering

COLOURS = {
    "red": (255, 0, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "magenta": (255, 0, 255),
}


@pytest.fixture(scope="module")
def swatches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text") / "swatches"
    folder.mkdir()
    for name, colour in COLOURS.items():
        Image.new("RGB", (20, 20), colour).save(folder / f"{name}.png")
    return folder


@pytest.fixture(scope="module")
def gallery(swatches: Path, pair_file: Path) -> Path:
    folder = swatches.with_name("g")
    Gallery.create(folder, str(pair_file)).add([swatches])
    return folder


@pytest.fixture(scope="module")
def url(gallery: Path) -> Iterator[str]:
    with answering(create_app(SearchService(gallery), page=False)) as address:
        yield address


def found(*words: str, code: int = 0) -> list[str]:
    (answer,) = json.loads(lookalike_here("search", *words, "--json", code=code).stdout)
    return [hit["key"].removesuffix(".png") for hit in answer["hits"]]


def test_command(gallery: Path, swatches: Path) -> None:
    red = str(swatches / "red.png")
    for colour in COLOURS:
        assert found(str(gallery), "--text", f"a photo of {colour}")[0] == colour
    assert set(found(str(gallery), "--text", "red", "--text", "blue", "-k", "1")) == {"magenta"}
    assert found(str(gallery), "--text", "blue", "--like", red, "-k", "1") == ["magenta"]
    assert found(str(gallery), "--like", red, "--text", "yellow", "--without", "red", "-k", "1") == ["yellow"]
    by_item = found(str(gallery), "--id", "red.png", "--text", "yellow")
    assert by_item[0] == "yellow"
    assert "red" not in by_item
    line = lookalike_here(
        "search", str(gallery), red, "--text", "yellow", "--without", "blue", "-k", "1"
    ).stdout
    assert line.splitlines()[0] == f'{red} + "yellow" - "blue"'


def test_gallery_in_a_database(tmp_path: Path, swatches: Path, pair_file: Path) -> None:
    pytest.importorskip("qdrant_edge", reason="qdrant-edge-py is not installed")
    store = f"qdrant://{tmp_path / 'edge'}"
    words = [str(tmp_path / "s"), str(swatches), "--model", str(pair_file), "--store", store]
    lookalike_here("index", "build", *words)
    assert found(str(tmp_path / "s"), "--text", "green", "-k", "1") == ["green"]
    assert Gallery.open(tmp_path / "s").embedder.has_text
    assert json.loads(lookalike_here("index", "info", str(tmp_path / "s"), "--json").stdout)["texts"]


def test_model_of_images_only_says_what_to_do(tmp_path: Path, swatches: Path, model_file: Path) -> None:
    Gallery.create(tmp_path / "g", str(model_file)).add([swatches])
    info = json.loads(lookalike_here("index", "info", str(tmp_path / "g"), "--json").stdout)
    assert info["texts"] is False
    message = lookalike_here("search", str(tmp_path / "g"), "--text", "red", code=2).stderr
    assert "text encoder" in message
    assert len(message.strip().splitlines()) == 1
    assert "--like" in lookalike_here("search", str(tmp_path / "g"), "--without", "red", code=2).stderr
    with (
        answering(create_app(SearchService(tmp_path / "g"), page=False)) as address,
        Client(address) as client,
    ):
        assert not client.gallery().texts
        for call in (lambda: client.search(text="red"), lambda: client.embed_texts(["red"])):
            with pytest.raises(ApiError) as caught:
                call()
            assert (caught.value.status, caught.value.code) == (409, "no-text-encoder")


def test_api_and_client(url: str, gallery: Path, swatches: Path, pair_file: Path) -> None:
    """All three ways to send a query give the hits of the command."""
    with Client(url) as client, httpx.Client(base_url=url) as http:
        assert client.gallery().texts
        assert client.search(text="green", k=1)[0].key == "green.png"
        image = (swatches / "red.png").read_bytes()
        assert client.search(image, text=["blue"], k=1)[0].key == "magenta.png"
        hits = client.search(id="red.png", text="yellow", without="red", k=2)
        assert hits[0].key == "yellow.png"
        assert all(hit.key != "red.png" and hit.probability is None for hit in hits)
        alone = http.post("/v1/search", json={"text": "green", "without": "red", "k": 1})
        assert alone.json()["hits"][0]["key"] == "green.png"
        form = {"files": {"image": image}, "data": {"text": ["blue"], "k": "1"}}
        assert http.post("/v1/search", **form).json()["hits"][0]["key"] == "magenta.png"
        batch = {"queries": [{"text": ["red"]}, {"text": ["green"]}], "k": 1}
        keys = [r["hits"][0]["key"] for r in http.post("/v1/search:batch", json=batch).json()["results"]]
        assert keys == ["red.png", "green.png"]
        together = http.post("/v1/search:batch", json={**batch, "together": True}).json()["results"]
        assert [r["hits"][0]["key"] for r in together] == ["yellow.png"]
        vectors = client.embed_texts(["red", "a photo of blue"]).vectors
        np.testing.assert_allclose(
            vectors, Embedder(pair_file).embed_texts(["red", "a photo of blue"]), atol=1e-6
        )


@pytest.mark.parametrize(
    "query",
    [
        {"without": ["red"]},
        {"text": [" "]},
        {"text": ""},
        {"text": ["a" * 1001]},
        {"text": ["red"] * 17},
        {"text": ["red"], "region": [0, 0, 1, 1]},
        {"text": ["red"], "min_probability": 0.5},
    ],
    ids=["only-without", "blank", "empty", "long", "many", "region", "probability"],
)
def test_unusable_texts_are_problems(url: str, query: dict[str, object]) -> None:
    answer = httpx.post(f"{url}/v1/search", json=query)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
