"""The HTML of the page: escaping and formats."""

from __future__ import annotations

from pathlib import Path

from retrieval import Gallery
from retrieval.storage.records import IndexSpec
from serve.page.assets import render
from serve.page.contents import summary
from tests.retrieval.reports.html_page import Page

_NASTY = "<img src=x onerror=alert(1)>'\"&${1+1}{{2}}"


def test_messages_and_header_escape_all_names() -> None:
    header = render("header", name=_NASTY, gallery=None, pages=[(_NASTY, "/")], tabs={}, tab="", api="/v1")
    for text in (render("message", text=_NASTY), header):
        assert _NASTY in Page(text).text
        assert "<img" not in text


def test_summary_shows_index_kind_and_measured_recall(tmp_path: Path, shop: Path, model_file: Path) -> None:
    gallery = Gallery.create(tmp_path / "own.gallery", model_file)
    gallery.add([shop], index=IndexSpec("hnsw"))
    with gallery.store.writing():
        gallery.build_index(IndexSpec("hnsw"))
    assert gallery.index is not None
    recall = gallery.index.card["recall"]
    assert f"hnsw, measured recall {recall:.4f}" in summary(gallery, None)
