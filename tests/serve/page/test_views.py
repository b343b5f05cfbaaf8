"""The HTML of the page: escaping and formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrieval import Gallery
from retrieval.errors import InputError
from retrieval.searchable import Item
from retrieval.storage.records import IndexSpec
from serve.core.service import GallerySummary
from serve.page import contents
from serve.page.assets import render
from serve.page.contents import ImagePage, image_page, images, summary
from serve.page.messages import note, problem
from tests.retrieval.reports.html_page import Page

_SHOP = GallerySummary("shop", 24, "f" * 64, "abc", "/v1")
_NASTY = "<img src=x onerror=alert(1)>'\"&${1+1}{{2}}"


class _Parsed(Page):
    @property
    def cards(self) -> list[dict[str, str | None]]:
        return [button for button in self.all("button") if "data-item" in button]

    @property
    def scripted(self) -> bool:
        return any(name.startswith("on") for _, attributes in self.tags for name in attributes)


def test_messages_and_header_escape_all_names() -> None:
    summary_ = GallerySummary(_NASTY, 1, "f", "u", "/v1")
    for text in (note(_NASTY), problem(_NASTY), render("header", gallery=summary_, pages=[(_NASTY, "/")])):
        assert _NASTY in _Parsed(text).text
        assert "<img" not in text


def test_pages_cover_all_images_and_filter_like_the_search(
    shop_gallery: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "PAGE_SIZE", 10)
    gallery = Gallery(shop_gallery)
    pages = [image_page(gallery, "", number) for number in range(3)]
    assert [item.id for page in pages for item in page.items] == list(range(1, 25))
    assert {page.total for page in pages} == {24}
    assert image_page(gallery, "", 99).number == 2
    assert image_page(gallery, "", -1).number == 0
    for where in ("label = 'red' or id > 20", "not path like '%1.png'", "width > 1e6"):
        (found,) = gallery.search_vectors(gallery.vector(1)[None], k=24, where=where)
        expected = {hit.id for hit in found}
        page = image_page(gallery, where, 0)
        assert page.total == len(expected)
        assert {item.id for item in page.items} == set(sorted(expected)[:10])
    with pytest.raises(InputError, match="no column 'prize'"):
        image_page(gallery, "prize < 3", 0)


def test_gallery_tab_escapes_all_names(shop_gallery: Path) -> None:
    gallery = Gallery(shop_gallery)
    stock = _Parsed(summary(gallery))
    assert "24" in stock.text
    assert gallery.fingerprint[:12] in stock.text
    page = ImagePage([Item(7, f"/{_NASTY}", _NASTY)], _NASTY, 0, 1)
    shown = _Parsed(images(_SHOP, gallery.store.columns(), page))
    assert shown.all("div")[0]["data-where"] == _NASTY
    assert not shown.scripted
    assert shown.text.count(_NASTY) == 2  # label and file name


def test_empty_gallery_says_so(tmp_path: Path, model_file: Path) -> None:
    gallery = Gallery.create(tmp_path / "empty.gallery", model_file)
    assert "no images yet" in images(_SHOP, [], image_page(gallery, "", 0))


def test_summary_shows_index_kind_and_measured_recall(tmp_path: Path, shop: Path, model_file: Path) -> None:
    gallery = Gallery.create(tmp_path / "own.gallery", model_file)
    gallery.add([shop], index=IndexSpec("hnsw"))
    with gallery.store.writing():
        gallery.build_index(IndexSpec("hnsw"))
    assert gallery.index is not None
    recall = gallery.index.card["recall"]
    assert f"hnsw, measured recall {recall:.4f}" in summary(gallery)
