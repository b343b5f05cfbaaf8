"""`lookalike up FOLDER`: a page over a growing gallery, a second start, changes of the folder, kills."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from playwright.sync_api import Browser, expect
from sklearn.datasets import load_sample_image

from retrieval.storage.store import hold_lock
from tests.conftest import lookalike_here
from tests.e2e.page_driver import noting
from tests.serve.serving import Server, serving

pytestmark = pytest.mark.slow
UP = [sys.executable, "-m", "lookalike", "up"]
EACH = 60  # photographs of a class: enough to see the gallery grow


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def crops() -> list[tuple[str, Image.Image]]:
    """Parts of two photographs, each with its class, a palace or a flower."""
    found = []
    for label, name in (("palace", "china.jpg"), ("flower", "flower.jpg")):
        photograph = Image.fromarray(load_sample_image(name))
        for at in range(EACH):
            left, top = 37 * at % (photograph.width - 250), 29 * at % (photograph.height - 250)
            found.append((f"{label}/{at}.jpg", photograph.crop((left, top, left + 250, top + 250))))
    return found


@pytest.fixture
def photos(tmp_path: Path, crops: list[tuple[str, Image.Image]]) -> Path:
    """A folder of the photographs, a sub-folder for each class, and a file that is no picture."""
    folder = tmp_path / "photos"
    for name, crop in crops:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        crop.save(folder / name, quality=95)
    (folder / "palace" / "broken.jpg").write_bytes(b"not a picture")
    return folder


def gallery_of(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.url}/v1/gallery", timeout=30).json()
    return found


def waited(server: Server, ready: Callable[[dict[str, Any]], bool], seconds: float = 120) -> dict[str, Any]:
    """Ask for the gallery until it is as wanted, and return it."""
    end = time.monotonic() + seconds
    while not ready(found := gallery_of(server)):
        assert time.monotonic() < end, found
        time.sleep(0.02)
    return found


def search(server: Server, picture: Path) -> list[dict[str, Any]]:
    found = httpx.post(f"{server.url}/v1/search?k=3", content=picture.read_bytes(), timeout=30)
    hits: list[dict[str, Any]] = found.raise_for_status().json()["hits"]
    return hits


@pytest.mark.browser
def test_the_page_shows_the_gallery_as_it_grows(photos: Path, tmp_path: Path, browser: Browser) -> None:
    with serving([*UP, str(photos)], tmp_path / "scratch", forked=True) as server:
        page = noting(browser.new_page(), server)
        page.goto(server.url, wait_until="domcontentloaded")
        growing = waited(server, lambda now: now["images"] > 0)
        assert growing["indexing"] is not None
        assert growing["images"] < 2 * EACH
        assert growing["indexing"]["total"] == 2 * EACH + 1
        (first, *_) = sorted((photos / "flower").iterdir())  # folders are read in alphabetical order
        assert (search(server, first)[0]["key"], search(server, first)[0]["label"]) == (
            "flower/0.jpg",
            "flower",
        )
        expect(page.get_by_test_id("indexing")).to_contain_text(f"of {2 * EACH + 1} images")
        waited(server, lambda now: now["indexing"] is None)
        expect(page.get_by_test_id("status")).to_have_text(f"{2 * EACH} images in the gallery.")
        expect(page.get_by_test_id("indexing")).to_be_hidden()
        page.locator("[data-part=examples] button").first.click()
        expect(page.get_by_test_id("hit").first).to_be_visible()
        assert page.broken == page.foreign == []  # type: ignore[attr-defined]
        page.close()
        code, said = server.stop()
    assert code == 0, said
    assert "model: EfficientNet-Lite0, ImageNet weights, licence apache-2.0, as HF_HUB_OFFLINE is set" in said
    assert f"{2 * EACH} added" in said
    assert "labels: 2 classes, from the sub-folders" in said
    assert "broken.jpg" in said


def test_a_second_start_finds_everything_and_follows_the_folder(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The labels are those of a table, which is found; the last start is without a command's name."""
    monkeypatch.setenv("LOOKALIKE_SERVE_PAGE", "false")
    rows = [
        (path.relative_to(photos), "old" if path.parent.name == "palace" else "plant")
        for path in photos.rglob("?.jpg")
    ]
    with (photos / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), ("gone.jpg", "gone"), *rows])
    only = [*sorted(photos.rglob("??.jpg")), photos / "palace" / "broken.jpg"]
    for path in only:
        path.unlink()
    scratch = tmp_path / "scratch"
    with serving([*UP, str(photos)], scratch, forked=True) as server:
        waited(server, lambda now: now["indexing"] is None and now["images"] == 20)
        assert {hit["label"] for hit in search(server, photos / "flower" / "3.jpg")} == {"plant"}
        server.stop()
    (photos / "palace" / "3.jpg").unlink()
    with serving([*UP[:-1], str(photos)], scratch, forked=True) as server:
        assert gallery_of(server)["images"] in (19, 20), "at once, perhaps before the folder is looked at"
        waited(server, lambda now: now["images"] == 19)
        (photos / "palace" / "3.jpg").write_bytes((photos / "flower" / "3.jpg").read_bytes())
        waited(server, lambda now: now["images"] == 20)
        code, said = server.stop()
    assert code == 0, said
    assert f"gallery: {photos}.gallery, which is there already" in said
    assert "model:" not in said


def test_a_run_that_failed_is_done_again_with_the_table(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process writes at the start: what is added later has the labels of the table all the same."""
    monkeypatch.setenv("LOOKALIKE_SERVE_PAGE", "false")
    for path in photos.rglob("??.jpg"):
        path.unlink()
    gallery, scratch = tmp_path / "photos.gallery", tmp_path / "scratch"
    lookalike_here("index", "build", str(gallery), str(photos), "--json", code=3)
    (photos / "labels.csv").write_text("path,label\nflower/3.jpg,plant\nlater.jpg,later\n")
    other = ExitStack()
    other.enter_context(hold_lock(gallery))
    with other, serving([*UP, str(photos)], scratch, forked=True) as server:
        waited(server, lambda now: now["indexing"] is None)
        other.close()
        picture = photos / "flower" / "3.jpg"
        waited(server, lambda _: "plant" in {hit["label"] for hit in search(server, picture)})
        # So have those that come while it follows the folder.
        (photos / "later.jpg").write_bytes(picture.read_bytes())
        waited(server, lambda _: "later" in {hit["label"] for hit in search(server, picture)})
        code, said = server.stop()
    assert code == 0, said
    assert said.count("being written by") == 1


def test_killed_and_interrupted_runs_lose_nothing(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery, kept = tmp_path / "photos.gallery", 0
    monkeypatch.setenv("LOOKALIKE_SERVE_PAGE", "false")
    for number in signal.SIGKILL, signal.SIGINT:
        with serving([*UP, str(photos)], tmp_path / "scratch", forked=True) as server:
            before = waited(server, lambda now, kept=kept: now["images"] > kept or now["indexing"] is None)
            assert before["images"] >= kept
            server.process.send_signal(number)
            _, said = server.process.communicate(timeout=60)
        facts = json.loads(lookalike_here("index", "info", str(gallery), "--json").stdout)
        assert facts["images"] >= before["images"], said
        kept = facts["images"]
    with serving([*UP, str(photos)], tmp_path / "scratch", forked=True) as server:
        waited(server, lambda now: now["indexing"] is None and now["images"] == 2 * EACH)
        server.stop()
    lookalike_here("index", "verify", str(gallery))
    again = json.loads(lookalike_here("index", "build", str(gallery), str(photos), "--json", code=3).stdout)
    assert (again["added"], again["unchanged"], again["images"]) == (0, 2 * EACH, 2 * EACH)


def test_what_cannot_be_served_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, reason in (
        ("none", "there is no such folder"),
        ("file", "a file, not a folder"),
        ("empty", "no image files in it"),
    ):
        done = subprocess.run([*UP, str(tmp_path / name)], capture_output=True, text=True)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert reason in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "file"}
