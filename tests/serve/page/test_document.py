"""The page's document and files: complete, compressed, and with what is shown of a link to it."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from serve.app import create_app
from serve.core.service import SearchService
from serve.page.assets import files, files_path, first_modules, later_modules
from tests.retrieval.reports.html_page import Page

MOST = 160_000  # bytes of a first visit without pictures


@pytest.fixture(scope="module")
def client(shop_gallery: Path) -> Iterator[httpx.Client]:
    with TestClient(
        create_app(SearchService(shop_gallery, name="shop")), base_url="http://shop.example"
    ) as client:
        yield client


def previews(page: str) -> dict[str, str | None]:
    """What a chat shows of a link."""
    metas = Page(page).all("meta")
    return {str(one.get("property") or one.get("name")): one["content"] for one in metas if "content" in one}


def test_document_has_the_gallery_and_the_options(client: httpx.Client) -> None:
    page = client.get("/").text
    assert page.startswith("<!doctype html>")
    found = re.search('id="gallery">(.*?)</script>', page)
    assert found
    assert json.loads(found[1]) == client.get("/v1/gallery").json()
    assert '<html lang="en">' in page
    assert "<title>Lookalike: shop</title>" in page
    assert not re.search(r"<script(?! (src|type=\"(module|application/json)\"))", page), "an inline script"
    assert not re.search(r"\son[a-z]+=", page), "a handler in an attribute"


def test_link_shows_the_gallery_and_its_picture(client: httpx.Client) -> None:
    plain = previews(client.get("/").text)
    assert plain["og:title"] == "shop: find images that look alike"
    assert plain["og:url"] == "http://shop.example/"
    assert "og:image" not in plain
    found = previews(client.get("/?like=5@0.1,0.1,0.9,0.9&like=7").text)
    assert found["og:image"] == "http://shop.example/v1/items/5/thumbnail"
    assert client.get(str(found["og:image"])).headers["content-type"] == "image/webp"
    assert not any("radio" in str(text) for text in found.values())
    for query in ("like=picture:abc", "like=5x", "like=", "like=%22%3E%3Cscript%3E"):
        shown = client.get(f"/?{query}").text
        assert "og:image" not in previews(shown)
        assert "<script>" not in shown


@pytest.mark.parametrize("tab", ["search", "gallery", "map", "evaluation"])
def test_tab_of_the_address_is_open(client: httpx.Client, tab: str) -> None:
    page = Page(client.get("/" if tab == "search" else f"/?tab={tab}").text)
    panels = {one["id"]: "hidden" in one for _, one in page.tags if one.get("role") == "tabpanel"}
    assert [name for name, hidden in panels.items() if not hidden] == [f"{tab}-tab"]
    selected = [one["id"] for one in page.all("button") if one.get("aria-selected") == "true"]
    assert selected == [f"{tab}-tab-button"]
    assert client.get("/?tab=nonsense").text.count('aria-selected="true"') == 1


def test_answers_are_compressed_and_known_by_their_checksum(client: httpx.Client) -> None:
    for path in ("/", f"{files_path()}/page.css", f"{files_path()}/main.js"):
        plain = client.get(path, headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        packed = client.get(path, headers={"Accept-Encoding": "gzip"})
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.content == plain.content
        assert int(packed.headers["content-length"]) < len(plain.content)
        again = client.get(path, headers={"If-None-Match": plain.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert "immutable" in plain.headers["cache-control"]


def test_first_visit_is_small(client: httpx.Client) -> None:
    """All files together, even those of tabs that are not opened."""
    document = gzip.compress(client.get("/?like=5").content)
    sizes = {name: len(gzip.compress(content)) for name, (content, _) in files().items()}
    assert len(document) + sum(sizes.values()) < MOST
    assert sum(name.endswith(".css") for name in sizes) == 1


def test_modules_of_a_search_are_loaded_at_once_only_for_a_search(client: httpx.Client) -> None:
    """Otherwise they wait in a template, until a visitor can begin."""
    for query in ("", "?like=5", "?text=red"):
        page = client.get(f"/{query}").text
        waiting = re.search(r'<template id="later">(.*?)</template>', page)
        assert waiting
        at_once = page[: page.index("</head>")]
        for name in first_modules():
            assert f"/{name}" in at_once
        for name in later_modules():
            assert (f"/{name}" in at_once, f"/{name}" in waiting[1]) == (bool(query), not query), name


def test_only_the_present_files_are_served(client: httpx.Client) -> None:
    for path in ("/page/000000000000/main.js", f"{files_path()}/none.js", f"{files_path()}/../icon.svg"):
        assert client.get(path).status_code == 404
    assert client.get("/favicon.ico").headers["content-type"] == "image/svg+xml"


def test_page_opens_although_its_gallery_cannot_be_read(shop_gallery: Path, tmp_path: Path) -> None:
    """The scripts ask for the gallery then, and say what is wrong."""
    service = SearchService(shutil.copytree(shop_gallery, tmp_path / "shop.gallery"))
    with TestClient(create_app(service)) as client:
        shutil.rmtree(tmp_path / "shop.gallery")
        (tmp_path / "shop.gallery").mkdir()
        answer = client.get("/")
        assert answer.status_code == 200
        assert "Find pictures that look like yours" in answer.text
