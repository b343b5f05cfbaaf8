"""A detector on the command line and on a server: its boxes are the parts that are searched for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retrieval import Gallery
from serve.client import Client
from tests.conftest import draw, lookalike_here
from tests.retrieval.search.test_detector import write_detector
from tests.serve.model import write_model
from tests.serve.serving import SERVE, serving

BOXES = [[0.25, 0.25, 0.5, 0.5], [0.75, 0.75, 1.0, 1.0]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector, a picture of two things on white, and a gallery that has both."""
    made = tmp_path_factory.mktemp("detectors")
    write_detector(made / "detector.onnx", "torchvision")
    room = np.full((64, 64, 3), 255, np.uint8)
    things = [np.asarray(draw(seed, (16, 16)).convert("RGB")) // 2 for seed in (1, 2)]
    room[16:32, 16:32], room[48:, 48:] = things
    Image.fromarray(room).save(made / "room.png")
    gallery = Gallery.create(made / "g", write_model(made / "model.onnx", maps=True))
    for number, thing in enumerate(things):
        Image.fromarray(thing).save(made / f"{number}.png")
    for seed in range(5):
        draw(20 + seed).save(made / f"other{seed}.png")
    gallery.add(sorted(made.glob("[0-9o]*.png")))
    return made


def test_the_command_searches_for_what_the_detector_finds(folder: Path) -> None:
    words = ["search", str(folder / "g"), str(folder / "room.png"), "--objects", "-k", "2", "--json"]
    words += ["--detector", str(folder / "detector.onnx")]
    hits = json.loads(lookalike_here(*words).stdout)[0]["hits"]
    found = {Path(hit["path"]).name: (hit["box"], hit["score"]) for hit in hits}
    for number, box in enumerate(BOXES):
        assert found[f"{number}.png"] == (pytest.approx(box), pytest.approx(1, abs=1e-3))
    said = lookalike_here(*words[:3], "--detector", str(folder / "detector.onnx"), code=2).stderr
    assert "--detector goes with --objects" in said
    words[-1] = str(folder / "room.png")
    assert "not a complete ONNX model" in lookalike_here(*words, code=2).stderr


def test_a_server_finds_what_its_detector_finds(folder: Path, tmp_path: Path) -> None:
    words = [*SERVE, str(folder / "g"), "--detector", str(folder / "detector.onnx")]
    with serving(words, tmp_path, forked=True) as server, Client(server.url) as client:
        found = client.objects(folder / "room.png", k=2)
        assert sorted([*one.box] for one in found.boxes) == [pytest.approx(box) for box in BOXES]
        assert {hit.key for hit in found.hits} == {"0.png", "1.png"}
        # A picture in which it finds nothing is covered by tiles.
        white = np.full((64, 64, 3), 255, np.uint8)
        assert client.objects(white, k=2).boxes
