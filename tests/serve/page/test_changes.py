"""Changes through the events of the page, sent by another client."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from retrieval import Gallery
from tests.conftest import draw
from tests.serve.page.page_events import send_event, upload
from tests.serve.serving import SERVE, Server, files_in, serving


@pytest.fixture(scope="module")
def folder(shop_gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(shop_gallery, tmp_path_factory.mktemp("page") / "g")


@pytest.fixture(scope="module")
def changeable(folder: Path) -> Iterator[Server]:
    with serving(
        [*SERVE, str(folder), "--allow-changes"], folder.with_name("scratch"), forked=True
    ) as running:
        yield running


@pytest.fixture
def page(changeable: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=changeable.url, timeout=30) as client:
        yield client


def file(path: str, name: str = "x.png") -> dict[str, Any]:
    return {"path": path, "orig_name": name, "meta": {"_type": "gradio.FileData"}}


def test_only_uploads_are_added(
    page: httpx.Client, changeable: Server, folder: Path, shop: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.png"
    draw(4000).save(secret)
    before = len(Gallery(folder))
    for path in (
        str(secret),
        str(shop / "red" / "1.png"),
        f"{changeable.scratch}/../g/gallery.db",
        "/etc/passwd",
    ):
        outcome = send_event(page, "click", [[file(path)], "red"], of="add-go")
        assert not outcome["success"]
        assert str(folder) not in json.dumps(outcome)
    assert len(Gallery(folder)) == before
    assert not (folder / "pictures").exists()
    assert secret.name not in {path.name for path in files_in(changeable.scratch)}
    (path,) = upload(page, "mine.png", secret.read_bytes()).json()
    outcome = send_event(page, "click", [[file(path, "../<b>mine.png")], "red"], of="add-go")
    assert outcome["success"]
    assert "1 image added" in outcome["output"]["data"][0]
    assert "<b>mine" not in outcome["output"]["data"][0]
    assert len(Gallery(folder)) == before + 1
    (number,) = Gallery(folder).ids_of(["<b>mine.png"])
    assert Gallery(folder).item(number).label == "red"


def test_url_of_a_file_is_not_fetched(page: httpx.Client, changeable: Server, folder: Path) -> None:
    before, images = files_in(changeable.scratch), len(Gallery(folder))
    own = f"{changeable.url}/v1/images/1/thumbnail"  # a URL that would respond
    outcome = send_event(page, "click", [[{**file(own), "url": own}], "red"], of="add-go")
    assert not outcome["success"]
    assert (files_in(changeable.scratch), len(Gallery(folder))) == (before, images)


def test_invalid_events_change_nothing(page: httpx.Client, folder: Path) -> None:
    before = len(Gallery(folder))
    for data in ([None, None], [[], "x"], ["a", 3], [[file("")], "x" * 10_000], [{}, {}]):
        outcome = send_event(page, "click", data, of="add-go")
        assert str(folder) not in json.dumps(outcome)
    assert len(Gallery(folder)) == before
