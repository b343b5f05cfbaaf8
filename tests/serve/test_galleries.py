"""Several galleries on one server: URLs, pages and names."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval import Gallery
from retrieval.errors import InputError
from serve.addresses import api_of, page_of, parse_galleries, within_page
from serve.app import create_app
from serve.client import ApiError, Client
from serve.core.service import SearchService
from tests.conftest import draw
from tests.serve.asgi_server import answering
from tests.serve.serving import SERVE, Server, serving


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory, model_file: Path) -> Path:
    """A gallery of five other images."""
    folder = tmp_path_factory.mktemp("others")
    for seed in range(5):
        draw(500 + seed).save(folder / f"{seed}.png")
    Gallery.create(folder / "Other Things.gallery", model_file).add([folder])
    return folder / "Other Things.gallery"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, shop_gallery: Path, others: Path) -> Iterator[Server]:
    with serving(
        [*SERVE, str(shop_gallery), str(others)], tmp_path_factory.mktemp("both"), forked=True
    ) as running:
        yield running


def test_each_gallery_answers_under_its_name(both: Server, others: Path) -> None:
    image = (others.parent / "3.png").read_bytes()
    with Client(both.url) as first, Client(both.url, gallery="shop") as shop:
        assert first.gallery() == shop.gallery()
        assert first.gallery().images == 24
        assert first.search(image) == shop.search(image)
    with Client(both.url, gallery="other-things") as client:
        assert client.gallery().name == "other-things"
        assert client.gallery().images == 5
        assert [one.name for one in client.galleries()] == ["shop", "other-things"]
        hits = client.search(image, k=5)
        assert [Path(hit.key).name for hit in hits[:1]] == ["3.png"]
        assert all(hit.thumbnail.startswith("/v1/galleries/other-things/items/") for hit in hits)
        assert httpx.get(both.url + hits[0].thumbnail).content == client.thumbnail(hits[0].id)
        with pytest.raises(ApiError) as refused:
            client.image(24)  # exists only in the shop
        assert refused.value.code == "no-such-image"
    with Client(both.url, gallery="nowhere") as client, pytest.raises(ApiError) as refused:
        client.gallery()
    assert refused.value.code == "not-found"


def test_galleries_are_listed(both: Server) -> None:
    listed = httpx.get(f"{both.url}/v1/galleries").json()["galleries"]
    assert [(one["name"], one["images"]) for one in listed] == [("shop", 24), ("other-things", 5)]
    for one in listed:
        assert httpx.get(f"{both.url}{one['address']}/gallery").json()["images"] == one["images"]
        assert "search" in httpx.get(f"{both.url}{one['address']}/openapi.json").text
    ready = httpx.get(f"{both.url}/readyz").json()["galleries"]
    assert {name: one["images"] for name, one in ready.items()} == {"shop": 24, "other-things": 5}
    figures = httpx.get(f"{both.url}/metrics").text
    assert 'lookalike_gallery_images{gallery="shop"} 24.0' in figures
    assert 'lookalike_gallery_images{gallery="other-things"} 5.0' in figures
    assert 'route="/v1/galleries/other-things/gallery"' in figures


def test_each_gallery_has_its_page(both: Server) -> None:
    for page, api in (("/", "/v1"), ("/galleries/other-things/", "/v1/galleries/other-things")):
        with httpx.Client(base_url=both.url + page, timeout=30) as client:
            assert "<!doctype html>" in client.get("").text.lower()
            assert '<option value="/galleries/other-things/"' in client.get("").text
            assert f'data-api="{api}" data-page="{page}"' in client.get("").text
            assert "<dt>images</dt>" in client.get("parts/about").text


def test_page_urls_redirect(both: Server) -> None:
    for path, page in (
        ("/galleries/other-things?id=3", "/galleries/other-things/?id=3"),
        ("/galleries/shop/", "/"),
    ):
        assert httpx.get(both.url + path, follow_redirects=True).url == both.url + page


@pytest.mark.parametrize(
    "path",
    [
        *("/galleries", "/galleries/", "/galleries/nowhere/", "/galleries/shop/config"),
        *("/galleries/nowhere/config", "/galleries/other-things/galleries/shop/", "/galleries/../config/x"),
        *("/galleries/other-things/gradio_api/info", "/galleries/other-things/docs"),
        *("/galleries/other-things/parts/", "/parts/about/x", "/page/x/page.css", "/page/x/../x"),
        *("/galleries/other-things/gradio_api/proxy=x", "/galleries/other-things/monitoring/x"),
    ],
)
def test_other_paths_are_not_found(both: Server, path: str) -> None:
    assert httpx.get(both.url + path).status_code == 404


def test_single_gallery_has_no_gallery_list(server: Server) -> None:
    assert 'aria-label="Gallery"' not in httpx.get(server.url).text
    assert httpx.get(f"{server.url}/v1/galleries/shop/gallery").json()["images"] == 24


def test_one_gallery_that_fails_does_not_fail_the_others(
    tmp_path: Path, shop_gallery: Path, others: Path
) -> None:
    folders = {"shop": shutil.copytree(shop_gallery, tmp_path / "shop"), "others": tmp_path / "others"}
    shutil.copytree(others, folders["others"])
    services = [SearchService(folder, name=name) for name, folder in folders.items()]
    with answering(create_app(*services, page=False)) as url, Client(url) as client:
        assert httpx.get(f"{url}/readyz").json()["status"] == "ready"
        folders["shop"].rename(tmp_path / "away")
        ready = httpx.get(f"{url}/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        states = ready.json()["galleries"]
        assert states["shop"]["problem"]["code"] == "gallery-unavailable"
        assert str(tmp_path) not in ready.text
        assert {*states["others"]} == {"images", "fingerprint"}
        shop, other = client.galleries()
        assert (shop.name, shop.images, other.name, other.images) == ("shop", None, "others", 5)
        assert shop.problem is not None
        assert (shop.problem.status, other.problem) == (503, None)
        assert httpx.get(f"{url}{other.address}/gallery").json()["images"] == 5
        folders["others"].rename(tmp_path / "gone")
        ready = httpx.get(f"{url}/readyz")
        assert (ready.status_code, ready.json()["code"]) == (503, "gallery-unavailable")
        assert len(client.galleries()) == 2
        (tmp_path / "away").rename(folders["shop"])
        assert httpx.get(f"{url}/readyz").json()["status"] == "degraded"
        assert client.galleries()[0].images == 24


# ---- names


def test_names_come_from_folders_or_arguments(tmp_path: Path) -> None:
    with_sign = tmp_path / "a=b.gallery"
    with_sign.mkdir()
    words = ["/x/Birds.gallery", "cars=/y/all=cars", "/z/Ärger & co", str(with_sign)]
    assert list(parse_galleries(words)) == ["birds", "cars", "rger-co", "a-b"]
    assert parse_galleries(words)["cars"] == Path("/y/all=cars")
    assert parse_galleries(words)["a-b"] == with_sign


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a/x.gallery", "b/x.gallery"], "gallery 'x' exists already"),
        (["A=x"], "lower-case letters"),
        (["=x"], "lower-case letters"),
        (["a/b=x"], "lower-case letters"),
        (["..=x"], "lower-case letters"),
        ([f"{'a' * 65}=x"], "lower-case letters"),
    ],
)
def test_invalid_names_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_galleries(words)


@given(st.text(max_size=100).filter(lambda text: "\0" not in text))
def test_every_folder_has_a_url_safe_name(text: str) -> None:
    (name,) = parse_galleries([f"/nowhere/x{text.replace('=', '')}"])
    address = httpx.URL(f"http://localhost{api_of(name)}/search")
    assert address.path == f"/v1/galleries/{name}/search"
    assert within_page(f"{page_of(name)}/gradio_api/queue/join") == "/gradio_api/queue/join"
    assert within_page(page_of(name)) == "/"
