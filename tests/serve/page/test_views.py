"""The HTML of the page: escaping and formats."""

from __future__ import annotations

from pathlib import Path

from retrieval import Gallery
from retrieval.storage.records import IndexSpec
from serve.core.service import GallerySummary
from serve.page.assets import render
from serve.page.contents import summary
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


def test_summary_shows_index_kind_and_measured_recall(tmp_path: Path, shop: Path, model_file: Path) -> None:
    gallery = Gallery.create(tmp_path / "own.gallery", model_file)
    gallery.add([shop], index=IndexSpec("hnsw"))
    with gallery.store.writing():
        gallery.build_index(IndexSpec("hnsw"))
    assert gallery.index is not None
    recall = gallery.index.card["recall"]
    assert f"hnsw, measured recall {recall:.4f}" in summary(gallery, None)
