"""Pictures that mean harm, through every entrance: the API, the page, and what a server fetches or keeps."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from serve import fetching
from serve.api import routes
from serve.app import create_app
from serve.permissions import Permissions
from serve.service import SearchService
from tests.conftest import unzip_shared
from tests.retrieval.bombs import BOMBS
from tests.serve.answering import answering
from tests.serve.page_events import search_with, upload
from tests.serve.serving import SERVE, Server, serving
from tests.serve.web import http, web

BYTES = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def api(shop_gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server that takes pictures in every way there is, over a gallery of its own."""
    folder = shutil.copytree(shop_gallery, tmp_path_factory.mktemp("own") / "shop.gallery")
    service = SearchService(folder, permissions=Permissions(changes=True, urls=True))
    with (
        answering(create_app(service, page=False)) as url,
        httpx.Client(base_url=f"{url}/v1", timeout=60) as client,
    ):
        yield client


def _as_json(content: bytes) -> str:
    return base64.b64encode(content).decode()


Send = Callable[[httpx.Client, bytes], httpx.Response]
ENTRANCES: dict[str, Send] = {
    "search": lambda api, content: api.post("/search", content=content, headers=BYTES),
    "search in JSON": lambda api, content: api.post("/search", json={"image": _as_json(content)}),
    "search in a form": lambda api, content: api.post("/search", files={"image": content}),
    "a region": lambda api, content: api.post(
        "/search", json={"image": _as_json(content), "region": [0.2, 0.2, 0.4, 0.4]}
    ),
    "an address": lambda api, content: api.post("/search", json={"url": "http://pictures.example/"}),
    "embed": lambda api, content: api.post("/embed", files=[("images", content)]),
    "together": lambda api, content: api.post(
        "/search:batch", json={"queries": [{"image": _as_json(content)}, {"id": 1}], "together": True}
    ),
    "add": lambda api, content: api.post("/images", content=content, headers=BYTES),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("case", BOMBS)
def test_bombs_are_refused_at_every_entrance(
    api: httpx.Client, entrance: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = api.get("/gallery").json()["images"]
    with web(http(BOMBS[case])) as there:
        fetch = partial(fetching.fetched, allowed=lambda _: True, look_up=there.look_up)
        monkeypatch.setattr(routes, "fetched", fetch)
        answer = ENTRANCES[entrance](api, BOMBS[case])
    assert (answer.status_code, answer.json()["code"]) == (422, "unusable-image")
    assert answer.json()["reason"] == "too-large"
    assert api.get("/gallery").json()["images"] == before


def test_one_bomb_leaves_the_others_of_a_batch_alone(api: httpx.Client, shop: Path) -> None:
    good = (shop / "red" / "1.png").read_bytes()
    pictures = [content for bomb in BOMBS.values() for content in (bomb, good)][:16]
    answer = api.post("/search:batch", files=[("images", content) for content in pictures], params={"k": 1})
    bad, fine = answer.json()["results"][::2], answer.json()["results"][1::2]
    assert {one["problem"]["reason"] for one in bad} == {"too-large"}
    assert {one["hits"][0]["key"] for one in fine} == {"red/1.png"}


# ---- the page


def _shown(client: httpx.Client, content: bytes) -> str:
    """What the page answers to a picture, as text."""
    path = upload(client, "query.png", content).json()[0]
    outcome = search_with(client, {"path": path, "meta": {"_type": "gradio.FileData"}})
    assert outcome["success"], outcome
    return json.dumps(outcome["output"]["data"], ensure_ascii=False)


def _check(shown: str, server: Server) -> bool:
    """Whether a picture was searched with; else it is said in a sentence that it cannot be."""
    assert "Traceback" not in shown
    assert "Something went wrong" not in shown
    found = "3 results" in shown
    assert found != ("This picture cannot be used" in shown)
    assert found or str(server.scratch) not in shown
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", BOMBS)
def test_bombs_are_refused_on_the_page(client: httpx.Client, server: Server, case: str) -> None:
    assert not _check(_shown(client, BOMBS[case]), server)


@pytest.mark.slow
def test_awkward_pictures_are_shown_or_refused_on_the_page(
    client: httpx.Client, server: Server, tmp_path: Path
) -> None:
    files = sorted(path for path in unzip_shared("bad_inputs.zip", tmp_path).rglob("*") if path.is_file())
    assert len(files) > 200
    assert {_check(_shown(client, file.read_bytes()), server) for file in files} == {True, False}


# ---- memory


def _mutated(contents: list[bytes], count: int) -> Iterator[bytes]:
    """Small files with a few bytes changed or cut off."""
    random = np.random.default_rng(0)
    for _ in range(count):
        content = bytearray(contents[random.integers(len(contents))])
        for place in random.integers(0, len(content), 4):
            content[place] = random.integers(256)
        yield bytes(content[: None if random.random() < 0.7 else random.integers(len(content))])


def _memory(server: Server) -> float:
    """What the server holds now, in MB."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


@pytest.mark.slow
def test_broken_pictures_leave_nothing_behind_in_memory(shop_gallery: Path, tmp_path: Path) -> None:
    folder = unzip_shared("bad_inputs.zip", tmp_path / "files")
    contents = [path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()]
    contents = [content for content in contents if 0 < len(content) < 100_000]
    held = []
    with serving([*SERVE, str(shop_gallery), "--no-page"], tmp_path / "scratch") as server:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            for _ in range(4):  # the same ones every time, so that what grows is what is kept
                for content in _mutated(contents, 250):
                    answer = client.post("/v1/search", content=content, headers=BYTES, params={"k": 1})
                    assert answer.status_code in (200, 422), answer.text
                held.append(_memory(server))
        assert server.process.poll() is None
    assert held[-1] < held[0] + 60, held


# ---- forms


def _form(parts: list[tuple[str, Any]]) -> dict[str, Any]:
    return {"files": [(name, value) for name, value in parts]}


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/embed", [("images", b"x")] * 65),
        ("/images", [("images", b"x")] * 65),
        ("/search", [(f"f{number}", b"x") for number in range(65)]),
        ("/search", [(f"f{number}", (None, "x")) for number in range(2000)]),
        ("/search", [("x" * 20_000, (None, "x"))]),
        ("/search", [("where", (None, "x" * 2_000_000))]),
        ("/search:batch", [("images", b"x")] * 65),
    ],
)
def test_forms_have_so_many_parts(api: httpx.Client, path: str, parts: list[tuple[str, Any]]) -> None:
    answer = api.post(path, **_form(parts))
    assert answer.status_code in (400, 413, 422)
    assert answer.json()["code"] in ("malformed-body", "too-large", "invalid-request")


@pytest.mark.slow
def test_an_upload_to_the_page_has_so_many_files(client: httpx.Client) -> None:
    files = [("files", ("x.png", b"x"))] * 1001
    assert client.post("/gradio_api/upload", files=files).status_code >= 400
