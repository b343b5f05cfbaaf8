"""Words that were learned from the titles of pictures: a title that none has, by API, client and page.

The pictures are real files with two colours, and the model is real: what it sees are colours in squares.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, expect

from retrieval import Embedder, Gallery
from serve.client import Client
from tests.conftest import lookalike_here
from tests.e2e.page_driver import captions, in_a_tab, opened
from tests.serve.model import write_model
from tests.serve.serving import SERVE, Server, serving

pytest.importorskip("tokenizers", reason="tokenizers is not installed")

COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 160, 40),
    "blue": (30, 50, 220),
    "yellow": (235, 220, 40),
    "black": (15, 15, 15),
    "white": (245, 245, 245),
    "pink": (245, 150, 190),
    "grey": (128, 128, 128),
    "brown": (110, 70, 30),
    "cyan": (60, 220, 220),
}
MISSING = "blue above yellow"


def words(title: str) -> set[str]:
    return set(title.split(" above "))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pictures of each pair of colours but one, which has a picture without a title, and their table."""
    folder, random = tmp_path_factory.mktemp("texts") / "pictures", np.random.default_rng(0)
    folder.mkdir()
    rows = []
    for top, bottom in product(COLOURS, repeat=2):
        title = f"{top} above {bottom}"
        for number in range(1 if title == MISSING else 2):
            pixels = random.normal(0, 20, (32, 32, 3))
            pixels[:16] += COLOURS[top]
            pixels[16:] += COLOURS[bottom]
            name = f"{top}-{bottom}-{number}.png"
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name)
            rows.append([name, "" if title == MISSING else title])
    with folder.with_name("table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "title"], *rows])
    return folder


@pytest.fixture(scope="module")
def taught(pictures: Path) -> Gallery:
    folder = pictures.with_name("words.gallery")
    model = write_model(pictures.with_name("model.onnx"))
    table = str(pictures.with_name("table.csv"))
    build = ("index", "build", str(folder), str(pictures), "--model", str(model), "--metadata", table)
    lookalike_here(*build)
    lookalike_here("teach", str(folder), "--text-column", "title")
    return Gallery(folder)


@pytest.fixture(scope="module")
def server(taught: Gallery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving([*SERVE, str(taught.folder)], tmp_path_factory.mktemp("scratch"), forked=True) as running:
        yield running


def test_api_and_client(server: Server, taught: Gallery) -> None:
    """The picture without a title is found by words that stand in the titles of others."""
    answer = httpx.post(f"{server.url}/v1/search", json={"text": MISSING, "k": 3}).json()
    assert "blue-yellow-0.png" in [hit["key"] for hit in answer["hits"]]
    with Client(server.url) as client:
        assert client.gallery().texts
        assert client.search(text="Red above red", k=2)[0].key.startswith("red-red")
        vectors = client.embed_texts([MISSING]).vectors
    np.testing.assert_allclose(vectors, taught.embedder.embed_texts([MISSING]), atol=1e-6)
    problem = httpx.post(f"{server.url}/v1/search", json={"text": "שלום"})
    assert problem.status_code == 422
    assert "nothing of it is in the titles" in problem.json()["detail"]


@pytest.mark.browser
@pytest.mark.slow
def test_page(browser: Browser, server: Server, taught: Gallery) -> None:
    with in_a_tab(browser, server) as page:
        opened(page, server)
        field = page.get_by_test_id("text")
        expect(field).to_be_visible()
        field.fill(MISSING)
        field.press("Enter")
        expect(page).to_have_url(re.compile("text=blue"))
        expect(page.get_by_test_id("hit").first).to_be_visible()
        hits = taught.search_vectors(taught.embedder.embed_texts([MISSING]), 3)[0]
        assert [f"{hit.score:.4f}" in shown for hit, shown in zip(hits, captions(page), strict=False)] == [
            True
        ] * 3
        field.fill("שלום")
        field.press("Enter")
        expect(page.get_by_test_id("status")).to_contain_text("nothing of it is in the titles")
        assert page.broken == []  # type: ignore[attr-defined]


def test_rebuild_leaves_no_text_of_the_old_model(taught: Gallery, tmp_path: Path) -> None:
    """A model of images only takes the place of both; the command says so, and how to learn titles again."""
    copy = tmp_path / "g"
    lookalike_here("index", "snapshot", str(taught.folder), str(copy))
    other = write_model(tmp_path / "other.onnx", note="another")
    done = lookalike_here("index", "rebuild", str(copy), "--model", str(other))
    assert (
        "the new model has no text encoder; `lookalike teach --text-column COLUMN` learns one" in done.stderr
    )
    assert Gallery(copy).fingerprint == Embedder(other).fingerprint
    assert json.loads(lookalike_here("index", "info", str(copy), "--json").stdout)["texts"] is False
    assert "--text-column" in lookalike_here("search", str(copy), "--text", "red", code=2).stderr
