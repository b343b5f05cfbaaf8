"""Commands and programs of the manual: those of pages on galleries and stores, and every Python program.

test_manual_training.py has the pages on training.
"""

from __future__ import annotations

import csv
import os
import re
import shlex
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from retrieval import Gallery
from retrieval.storage.query_log import LoggedSearch, QueryLog, new_id
from serve.client import Client
from tests.conftest import draw, draw_classes, lookalike_here
from tests.e2e.test_readme import blocks, commands
from tests.retrieval.stores import postgres_server
from tests.serve.serving import SERVE, Server, serving

DOCS = Path(__file__).parents[2] / "docs"
GALLERY_PAGES = (
    "coverage",
    "text",
    "bridge",
    "filters",
    "feedback",
    "calibration",
    "curation",
    "index_codes",
    "objects",
    "products",
)
PROGRAMS = {page.stem: blocks("python", page.read_text()) for page in sorted(DOCS.glob("*.md"))}
# Commands and programs that cannot run here, with the reason.
REASONS = {
    r"--from |siglip2|model\.weights=imagenet": "downloads weights",
    r"cifar10:ROOT": "downloads a data set",
    r"check undo shop.gallery 17": "needs as many decisions",
    r"lookalike hub|hf:|from_pretrained": "needs a hub: test_hub.py",
    r"s3://|https://example": "needs other servers: tests/retrieval/ingest/test_remote.py",
    r"--engine ray|\.shards": "starts a Ray: tests/retrieval/ingest/test_ray.py",
    r"client\.heatmap": "needs a model with embedding maps",
    r"lookalike (serve|mcp) ": "runs until it is ended: tests/serve",
    r"lookalike\.blocks": "runs until it is ended: tests/serve/gradio",
    r"torchrun": "needs several machines",
    r"lookalike (improve|gate) ": "may refuse: test_improvement.py and test_gate.py",
    r"lookalike compare old.gallery new.gallery": "needs visitors: tests/serve/api/test_interleaving.py",
    r"--detector ": "needs a detector: tests/retrieval/search/test_detector.py",
    r"uned:domains": "needs a data set: tests/train/experiments/test_judged_evaluation.py",
    r"--bridge ": "may refuse: tests/retrieval/upkeep/test_bridge.py",
    r"--text-column ": "may refuse: tests/e2e/test_page_texts.py",
    r"--import |colours|register_plugin": "needs plug-ins: tests/test_plugins.py",
}
LEFT_OUT = re.compile("|".join(REASONS))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, shop: Path, pair_file: Path) -> Iterator[Path]:
    """The current folder, with what the pages assume: images, a table, a model, galleries."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(shop, folder / "shop")
    draw_classes(folder / "shop", 3, 8)
    shutil.copy(pair_file, folder / "pair.zip")
    with zipfile.ZipFile(pair_file) as archive:
        (folder / "model.onnx").write_bytes(archive.read("image.onnx"))
    for number, name in enumerate(("query", "photo", "other", "bad", "room", "front", "side", "sofa")):
        draw(90 + number, hue=number % 3).save(folder / f"{name}.jpg")
    (folder / "rooms").mkdir()
    for number, name in enumerate(("kitchen", "hall")):
        draw(70 + number, (400, 300)).save(folder / "rooms" / f"{name}.jpg")
    rows = ["path,label,box_x,box_y,box_width,box_height", "rooms/kitchen.jpg,lamp,120,40,80,95"]
    (folder / "rooms.csv").write_text("\n".join([*rows, "rooms/hall.jpg,,,,,", ""]))
    with (folder / "shop.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "brand", "price", "list price", "name", "added", "sku", "colour"])
        for number, path in enumerate(sorted((folder / "shop").rglob("*.png"))):
            facts = ["acme", number, number, f"kids {number}", "2024-06-01", number // 3, path.parent.name]
            table.writerow([path.relative_to(folder / "shop"), *facts])
    before = Path.cwd()
    os.chdir(folder)
    words = ("--metadata", "shop.csv", "--model", "pair.zip")
    for name in ("shop", "train", "test"):
        lookalike_here("index", "build", f"{name}.gallery", "shop", *words)
    log_searches(folder / "searches", folder / "shop.gallery")
    yield folder
    os.chdir(before)


def log_searches(folder: Path, place: Path) -> None:
    """Log as many searches as a gallery has images."""
    gallery = Gallery.open(place)
    stored = gallery.embeddings()
    searches = [LoggedSearch(new_id(), "vector", vector, (), None, []) for vector in stored.vectors]
    QueryLog(folder).append(place.name, gallery.fingerprint, searches)


@pytest.fixture(scope="module")
def server(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    scratch = tmp_path_factory.mktemp("scratch")
    words = [*SERVE, str(place / "shop.gallery"), "--allow-changes", "--query-log", str(place / "searches")]
    with serving(words, scratch, forked=True) as running:
        yield running


@pytest.mark.parametrize("page", GALLERY_PAGES)
def test_commands_of_gallery_pages_run(page: str, place: Path) -> None:
    text = (DOCS / f"{page}.md").read_text()
    ran = [line for line in commands(text) if line.startswith("lookalike ") and not LEFT_OUT.search(line)]
    assert ran
    for command in ran:
        lookalike_here(*shlex.split(command)[1:], cwd=place)


def test_commands_of_the_page_on_stores_run(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PostgreSQL and Qdrant's engine; a machine without the folder connects to its collection."""
    for name in ("model.onnx", "query.jpg", "shop.csv"):
        shutil.copy(place / name, tmp_path)
    shutil.copytree(place / "shop", tmp_path / "shop")
    shutil.copytree(place / "shop.gallery", tmp_path / "files.gallery")
    monkeypatch.setenv("LOOKALIKE_STORE_PASSWORD", "right")
    with postgres_server.running(tmp_path) as server:
        text = (DOCS / "stores.md").read_text()
        text = text.replace("postgresql://me@db.example/shop", server.address.replace(":right", ""))
        text = text.replace("qdrant://localhost:6333/shop", f"qdrant://{tmp_path}/qdrant")
        for command in commands(text):
            if command.startswith("lookalike ") and not LEFT_OUT.search(command):
                if "--store" in command:
                    shutil.rmtree(tmp_path / "shop.gallery", ignore_errors=True)
                lookalike_here(*shlex.split(command)[1:], cwd=tmp_path)


@pytest.mark.parametrize("page", [page for page, programs in PROGRAMS.items() if programs])
def test_programs_run(page: str, place: Path, server: Server) -> None:
    """Each with a client of the server as `client`."""
    for program in PROGRAMS[page]:
        if not LEFT_OUT.search(program):
            names = {"client": Client(server.url)}
            exec(compile(program.replace("http://127.0.0.1:7860", server.url), f"{page}.md", "exec"), names)
