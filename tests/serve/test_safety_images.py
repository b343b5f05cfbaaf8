"""Malicious images in the API, the page, URL fetches and additions."""

from __future__ import annotations

import base64
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from serve.app import create_app
from serve.core import url_fetcher
from serve.core.permissions import Permissions
from serve.core.service import SearchService
from tests.conftest import draw, unzip_shared
from tests.retrieval.images.bombs import BOMBS, chunk, saved
from tests.serve.asgi_server import answering
from tests.serve.processes import memory, most_memory
from tests.serve.serving import SERVE, serving
from tests.serve.web_server import http, web

BYTES = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def api(shop_gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Server that allows URLs and changes, over a gallery of its own."""
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
    "preview": lambda api, content: api.post("/preview", content=content, headers=BYTES),
    "add": lambda api, content: api.post("/images", content=content, headers=BYTES),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("case", BOMBS)
def test_bombs_are_refused_by_every_route(
    api: httpx.Client, entrance: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = api.get("/gallery").json()["images"]
    with web(http(BOMBS[case])) if entrance == "an address" else nullcontext() as there:
        if there is not None:
            fetch = partial(url_fetcher.fetch_image, is_allowed=lambda _: True, look_up=there.look_up)
            monkeypatch.setattr("serve.core.service.fetch_image", fetch)
        answer = ENTRANCES[entrance](api, BOMBS[case])
    assert (answer.status_code, answer.json()["code"]) == (422, "unusable-image")
    assert answer.json()["reason"] == "too-large"
    assert api.get("/gallery").json()["images"] == before


def test_bomb_in_a_batch_does_not_affect_the_others(api: httpx.Client, shop: Path) -> None:
    good = (shop / "red" / "1.png").read_bytes()
    images = [content for bomb in BOMBS.values() for content in (bomb, good)][:16]
    answer = api.post("/search:batch", files=[("images", content) for content in images], params={"k": 1})
    bad, fine = answer.json()["results"][::2], answer.json()["results"][1::2]
    assert {one["problem"]["reason"] for one in bad} == {"too-large"}
    assert {one["hits"][0]["key"] for one in fine} == {"red/1.png"}


# ---- arbitrary bytes


def _bomb(width: int, height: int) -> bytes:
    """Return a black PNG of at most a few megabytes with many pixels."""
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    packer = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    row = packer.compress(bytes(1 + 3 * width)) + packer.flush(zlib.Z_FULL_FLUSH)  # can be repeated
    # The checksum of n zeros is known: compressing them would take seconds.
    checksum = ((1 + 3 * width) * height % 65521 << 16 | 1).to_bytes(4, "big")
    rows = b"\x78\x01" + row * height + packer.flush() + checksum
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND")


def _originals(tmp_path: Path) -> list[bytes]:
    """Return small files of every supported format, valid and broken."""
    forms = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
    files = [saved(draw(seed), form) for seed, form in enumerate(forms)]
    folder = unzip_shared("bad_inputs.zip", tmp_path)
    files += [path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()]
    return [content for content in files if len(content) < 100_000]


def _mutations(originals: list[bytes], count: int) -> Iterator[bytes]:
    """Yield files with bytes changed, truncated, repeated or mixed with those of another."""
    random = np.random.default_rng(0)
    for _ in range(count):
        content = bytearray(originals[random.integers(len(originals))])
        for _ in range(random.integers(1, 6)):
            if not content:
                break
            start, stop = sorted(random.integers(0, len(content) + 1, 2))
            way = random.integers(5)
            if way == 0:
                content[min(start, len(content) - 1)] = random.integers(256)
            elif way == 1:
                content[start : start + 4] = int(random.choice([0, 1, 2**31 - 1, 2**32 - 1])).to_bytes(
                    4, "big"
                )
            elif way == 2:
                del content[start:stop]
            elif way == 3:
                content[start:start] = content[start : min(stop, start + 512)]
            else:
                other = originals[random.integers(len(originals))]
                content[start:stop] = other[start:stop]
        yield bytes(content)


@pytest.mark.slow
def test_mutated_images_do_not_crash_the_server_or_leak_memory(
    shop_gallery: Path, shop: Path, tmp_path: Path
) -> None:
    originals = _originals(tmp_path / "files")
    good = (shop / "red" / "1.png").read_bytes()
    with serving([*SERVE, str(shop_gallery), "--no-page"], tmp_path / "scratch") as server:
        with httpx.Client(base_url=server.url, timeout=60) as client:

            def search(content: bytes) -> httpx.Response:
                found = client.post("/v1/search?k=1", content=content, headers=BYTES)
                assert found.status_code in (200, 422), (found.status_code, content[:40])
                assert str(tmp_path) not in found.text
                return found

            assert search(good).status_code == 200
            before = most_memory(server)
            assert {search(content).status_code for content in originals} == {200, 422}
            wide = (2**31 - 1).to_bytes(4, "big")
            for bomb in (
                _bomb(13_000, 13_000),
                _bomb(60_000, 900),
                _bomb(100, 1).replace((100).to_bytes(4, "big"), wide),
            ):
                assert search(bomb).json()["code"] == "unusable-image"
            assert search(_bomb(7_000, 7_000)).status_code == 200  # 49 megapixels: just allowed
            assert most_memory(server) - before < 400 * 2**20
            held = []
            for _ in range(3):  # the same files every time: growth is a leak
                for content in _mutations(originals, 250):
                    search(content)
                held.append(memory(server))
            assert held[-1] - held[0] < 40 * 2**20, held
            assert search(good).json()["hits"][0]["label"] == "red"
        code, output = server.stop()
    assert code == 0
    assert "Traceback" not in output


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
def test_number_of_form_parts_is_limited(api: httpx.Client, path: str, parts: list[tuple[str, Any]]) -> None:
    answer = api.post(path, **_form(parts))
    assert answer.status_code in (400, 413, 422)
    assert answer.json()["code"] in ("malformed-body", "too-large", "invalid-request")
