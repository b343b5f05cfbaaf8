"""Routes of shared pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from serve.app import create_app
from serve.core.permissions import Permissions
from serve.core.service import SearchService
from serve.http.rate_limit import ShareLimitMiddleware
from tests.serve.asgi_server import answering


@pytest.fixture(scope="module")
def api(shop_gallery: Path) -> Iterator[httpx.Client]:
    service = SearchService(shop_gallery, permissions=Permissions(sharing=2, urls=True))
    app = ShareLimitMiddleware(create_app(service, page=False))
    with answering(app) as url, httpx.Client(base_url=f"{url}/v1", timeout=30) as client:
        yield client


def test_a_shared_picture_finds_what_the_own_one_does(api: httpx.Client, shop: Path) -> None:
    assert api.get("/gallery").json()["sharing"] == 2
    image = (shop / "red" / "5.png").read_bytes()
    form = api.post("/pictures", files={"image": ("x.png", image)})
    encoded = api.post("/pictures", json={"image": base64.b64encode(image).decode()})
    shared = api.post("/pictures", content=image)
    assert shared.status_code == 201
    assert form.json()["id"] == encoded.json()["id"] == shared.json()["id"]
    assert shared.headers["location"] == shared.json()["address"] == f"/v1/pictures/{shared.json()['id']}"
    copy = api.get(f"/pictures/{shared.json()['id']}")
    assert copy.headers["content-type"] == "image/webp"
    assert copy.headers["cache-control"] == "no-store"
    own, other = (api.post("/search", content=data).json()["hits"] for data in (image, copy.content))
    assert [hit["id"] for hit in own] == [hit["id"] for hit in other]


def test_what_is_kept_is_encoded_anew(api: httpx.Client) -> None:
    """A file that is also a page keeps none of it, and lies as it is shown."""
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "<script>secret</script>"  # turned by 90 degrees, described
    Image.new("RGB", (80, 40), "red").save(buffer, "JPEG", exif=exif)
    id = api.post("/pictures", content=buffer.getvalue() + b"<script>secret</script>").json()["id"]
    data = api.get(f"/pictures/{id}").content
    assert b"secret" not in data
    assert Image.open(io.BytesIO(data)).size == (40, 80)


def test_preview_is_what_is_searched_with(
    api: httpx.Client, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every form of a picture, one that browsers cannot decode, too, becomes the same upright WebP."""
    pixels = Image.open(shop / "red" / "5.png").convert("RGB")
    buffer = io.BytesIO()
    pixels.resize((1600, 800)).save(buffer, "TIFF")
    content = buffer.getvalue()

    async def fetch(url: str) -> bytes:
        return {"https://pictures.example/5.tiff": content}[url]

    monkeypatch.setattr("serve.core.service.fetch_image", fetch)
    asked: list[dict[str, Any]] = [
        {"content": content},
        {"files": {"image": ("x.tiff", content)}},
        {"json": {"image": base64.b64encode(content).decode()}},
        {"json": {"url": "https://pictures.example/5.tiff"}},
    ]
    answers = [api.post("/preview", **one) for one in asked]
    assert {answer.headers["content-type"] for answer in answers} == {"image/webp"}
    assert len({answer.content for answer in answers}) == 1
    shown = Image.open(io.BytesIO(answers[0].content)).convert("RGB")
    assert shown.size == (1024, 512)
    expected = np.asarray(pixels.resize((1024, 512)), np.int16)
    assert np.abs(np.asarray(shown, np.int16) - expected).mean() < 6


@pytest.mark.parametrize("asked", [{}, {"image": "", "url": "https://pictures.example/a.png"}, {"uri": "x"}])
def test_preview_takes_one_picture(api: httpx.Client, asked: dict[str, str]) -> None:
    refused = api.post("/preview", json=asked)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid-request")


def test_preview_fetches_only_with_the_option(shop_gallery: Path) -> None:
    with answering(create_app(SearchService(shop_gallery), page=False)) as url:
        refused = httpx.post(f"{url}/v1/preview", json={"url": "https://pictures.example/a.png"}, timeout=30)
    assert (refused.status_code, refused.json()["code"]) == (403, "urls-not-allowed")


@pytest.mark.parametrize("id", ["0" * 32, "..%2f..%2fetc%2fpasswd", "x"])
def test_unknown_pictures_are_not_found(api: httpx.Client, id: str) -> None:
    assert api.get(f"/pictures/{id}").status_code == 404


def test_pictures_cannot_be_listed(api: httpx.Client) -> None:
    assert api.get("/pictures").status_code == 405


def test_what_is_no_image_is_refused(api: httpx.Client) -> None:
    refused = api.post("/pictures", content=b"text", headers={"Content-Type": "image/png"})
    assert (refused.status_code, refused.json()["code"]) == (422, "unusable-image")


def test_one_client_shares_a_bounded_number(api: httpx.Client) -> None:
    codes = {api.post("/pictures", content=b"text").status_code for _ in range(40)}
    assert 429 in codes
    refused = api.post("/pictures", content=b"text")
    assert refused.json()["code"] == "too-many-requests"
    assert 1 <= int(refused.headers["retry-after"]) <= 15
    assert api.get("/gallery").status_code == 200


def test_nothing_is_shared_without_the_option(shop_gallery: Path, shop: Path) -> None:
    app = create_app(SearchService(shop_gallery), page=False)
    with answering(app) as url, httpx.Client(base_url=f"{url}/v1") as client:
        assert client.get("/gallery").json()["sharing"] == 0
        for refused in (
            client.post("/pictures", content=(shop / "red" / "5.png").read_bytes()),
            client.get("/pictures/" + "0" * 32),
        ):
            assert (refused.status_code, refused.json()["code"]) == (403, "sharing-not-allowed")
