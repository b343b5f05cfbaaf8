"""Parts of pictures over HTTP, in the client and on the command line: hits carry their box."""

from __future__ import annotations

import io
import json
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from retrieval import Gallery
from serve.app import create_app
from serve.client import Client
from serve.core.service import SearchService
from tests.conftest import draw, lookalike_here
from tests.serve.asgi_server import answering
from tests.serve.model import write_model

PART = pytest.approx((0.2, 0.5, 0.6, 5 / 6))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery of a picture of 80 x 60 pixels, and of a part of it."""
    made = tmp_path_factory.mktemp("parts")
    draw(0, (80, 60)).save(made / "0.png")
    table = made / "table.csv"
    table.write_text("path,box_x,box_y,box_width,box_height\n0.png,16,30,32,20\n0.png,,,,\n")
    gallery = Gallery.create(made / "g", write_model(made / "model.onnx"))
    assert gallery.add((), metadata=table).added == 2
    return made


def test_hits_carry_their_box(folder: Path) -> None:
    crop = Image.open(folder / "0.png").crop((16, 30, 48, 50)).convert("RGB")
    app = create_app(SearchService(folder / "g"), page=False)
    with answering(app) as url, httpx.Client(base_url=url) as http, Client(url) as client:
        part, whole = client.search(crop)
        assert part.part == PART
        assert (part.width, part.height) == (32, 20)
        assert whole.part is None
        assert (whole.width, whole.height) == (80, 60)
        assert http.get(f"/v1/items/{part.id}").json()["part"] == PART
        assert "part" not in http.get(f"/v1/items/{whole.id}").json()

        def picture(address: str) -> Image.Image:
            return Image.open(io.BytesIO(http.get(address).raise_for_status().content))

        width, height = picture(part.thumbnail).size
        assert width / height == pytest.approx(1.6)
        assert picture(f"{part.thumbnail}&whole=true").size == (80, 60)
        assert picture(whole.thumbnail).size == (80, 60)
        pixels = np.asarray(picture(f"/v1/items/{part.id}/picture").resize((32, 20)), float)
        assert np.abs(pixels - np.asarray(crop, float)).mean() < 5
        # The item as the query, also in the heatmap's view and for objects, is the part.
        (other,) = client.search(id=part.id, k=1)
        expected = Gallery.open(folder / "g").vector(part.id) @ Gallery.open(folder / "g").vector(whole.id)
        assert other.score == pytest.approx(float(expected), abs=2e-3)


def test_the_command_prints_the_box(folder: Path) -> None:
    crop = Image.open(folder / "0.png").crop((16, 30, 48, 50))
    crop.save(folder / "crop.png")
    words = ["search", str(folder / "g"), str(folder / "crop.png")]
    first, second = json.loads(lookalike_here(*words, "--json").stdout)[0]["hits"]
    assert first["part"] == PART
    assert "part" not in second
    assert "0.png#xywh=16,30,32,20" in lookalike_here(*words).stdout
