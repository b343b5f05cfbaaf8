"""The HTML of the page: escaping and formats; and the parsing of what browsers send."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from retrieval import Gallery
from retrieval.errors import InputError
from retrieval.searchable import Hit, Item
from retrieval.storage.records import IndexSpec, StoredItem
from serve.core.service import EmbeddedQuery, GallerySummary, SearchService
from serve.core.thumbnails import encode
from serve.page import contents
from serve.page.assets import render
from serve.page.contents import ImagePage, image_page, images, summary
from serve.page.detail import ShownQuery, heatmap_view, item_view
from serve.page.messages import note, problem
from serve.page.query import SearchResult
from serve.page.results import result_list, status_line
from serve.page.search import SearchTab
from serve.page.visit import MAX_K, Address, SearchForm, Visit
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


def _found(
    *hits: Hit,
    item: Item | None = None,
    embed_ms: float = 0.0,
    form: SearchForm | None = None,
    best: Hit | None = None,
) -> SearchResult:
    vector = None if item else np.zeros(2, np.float32)
    return SearchResult(
        [EmbeddedQuery(vector, item, "f", embed_ms)], form or SearchForm(), list(hits), 3.14159, best
    )


def _stored(name: str) -> StoredItem:
    return StoredItem(7, name, f"/{name}", name, 1, 1, "", 4, 3, name, 1, {name: name, "price": 0.5})


# ---- search


def test_results_escape_all_names() -> None:
    hit = Hit(7, f"/shop/{_NASTY}", _NASTY, {_NASTY: _NASTY}, _NASTY, score=0.5)
    page = _Parsed(result_list(_found(hit), _SHOP))
    (image,) = page.all("img")
    assert image["src"] == "/v1/images/7/thumbnail?v=abc"
    assert image["alt"] == f"1 · 0.5000 · {_NASTY}"
    assert not page.scripted
    # On the card: label, name and value of the metadata, file name. In the table: the same, a key.
    assert page.text.count(_NASTY) == 8
    for text in (
        note(_NASTY),
        problem(_NASTY),
        render("header", gallery=GallerySummary(_NASTY, 1, "f", "u", "/v1")),
    ):
        assert _NASTY in _Parsed(text).text
        assert "<img" not in text
    item = Item(3, "", "red")
    link = _Parsed(status_line(_found(hit, item=item, form=SearchForm(where=_NASTY)), _NASTY)).all("a")
    assert parse_qs(str(link[0]["href"]).removeprefix("?"))["where"] == [_NASTY]


def test_result_shows_rank_score_label_metadata_and_key() -> None:
    hits = [
        Hit(7, "/shop/red/a.png", "red", {"price": 3}, "red/a.png", score=1.0),
        Hit(9, "/shop/b.png", None, {}, "/shop/b.png", score=-0.25),
    ]
    html = result_list(_found(*hits), _SHOP)
    page = _Parsed(html)
    assert [a["alt"] for a in page.all("img")] == ["1 · 1.0000 · red", "2 · -0.2500 · no label"]
    assert [card["data-item"] for card in page.cards] == ["7", "9"]
    assert "price: 3" in page.text
    for hit in hits:
        assert Path(hit.path).name in page.text
    assert "red/a.png" in page.text
    assert "/shop" not in html


def test_probability_is_beside_the_score() -> None:
    hits = [Hit(7, "/shop/a.png", "red", {}, "a.png", score=0.9, probability=0.876)]
    html = result_list(_found(*hits), _SHOP)
    assert _Parsed(html).all("img")[0]["alt"] == "1 · 0.9000 · probability 88% · red"
    assert "Probability" in html
    assert "Probability" not in result_list(_found(replace(hits[0], probability=None)), _SHOP)


def test_hits_are_judged_if_both_labels_are_known() -> None:
    hits = [Hit(1, "a", "red", score=0.9), Hit(2, "b", "blue", score=0.8), Hit(3, "c", None, score=0.7)]
    page = _Parsed(result_list(_found(*hits, item=Item(4, "d", "red")), _SHOP))
    assert [card["class"] for card in page.cards] == ["right", "wrong", ""]
    assert [str(a["alt"]).split(" · ")[3:] for a in page.all("img")] == [["same label"], ["other label"], []]
    assert page.text.count("✓") == page.text.count("✗") == 1
    for unknown in (Item(4, "d", None), None):
        page = _Parsed(result_list(_found(*hits, item=unknown), _SHOP))
        assert {card["class"] for card in page.cards} == {""}


def test_status_shows_durations_and_the_item() -> None:
    one = _Parsed(status_line(_found(Hit(1, "a", None), embed_ms=12.34), "?q=1")).text
    assert "1 result" in one
    assert "1 results" not in one
    assert "embedding 12.3 ms" in one
    assert "search 3.1 ms" in one
    by_item = _Parsed(status_line(_found(item=Item(24, "a", None)), "?id=24")).text
    assert "0 results" in by_item
    assert "similar to item 24" in by_item


def test_empty_result_gives_the_reason() -> None:
    assert result_list(_found(), _SHOP) == ""
    best = Hit(1, "a.jpg", None, score=0.87654, probability=0.4321)
    low = status_line(_found(form=SearchForm(min_score=0.95), best=best), "")
    assert "No result scores 0.95 or more: the best score is 0.8765" in low
    unlike = status_line(_found(form=SearchForm(min_probability=0.5), best=best), "")
    assert "Nothing like it here: the best result has a probability of 43%" in unlike
    assert "No image matches the filter" in status_line(_found(form=SearchForm(where="id = 0")), "")
    assert "no other image" in status_line(_found(), "")


# ---- what a browser sends

_forms = st.builds(
    SearchForm,
    k=st.integers(1, MAX_K),
    where=st.text().map(str.strip),
    min_score=st.none() | st.floats(-1, 1),
    min_probability=st.none() | st.floats(0, 1),
    group_by=st.text(),
)


@given(_forms, st.integers(1, 2**62))
def test_link_and_form_round_trip(form: SearchForm, item: int) -> None:
    address = Address.parse(form.url_query([("id", str(item))]))
    assert (address.items, address.form, address.entry) == (((item, None),), form, 0)
    assert SearchForm.parse(form.fields(["brand"])) == form


def test_form_accepts_k_alone_and_ignores_invalid_numbers() -> None:
    assert SearchForm.parse(3) == SearchForm(k=3)
    assert SearchForm.parse({"k": "", "min_score": "high", "where": None}) == SearchForm()
    assert [SearchForm.parse({"k": k}).k for k in ("0", "1e9", "nan", "2.9", [1])] == [1, MAX_K, 10, 2, 10]
    with pytest.raises(InputError, match="from -1 to 1"):
        SearchForm(min_score=1.5).options()


# ---- one image, the gallery, its evaluation


def test_dialog_escapes_all_names() -> None:
    image = Image.new("RGB", (4, 3), "red")
    shown = _Parsed(item_view(_stored(_NASTY), _SHOP, ShownQuery(encode(image), _NASTY, 0.5), compares=True))
    assert [image["alt"] for image in shown.all("img")] == ["the query", f"item 7, {_NASTY}"]
    assert str(shown.all("img")[0]["src"]).startswith("data:image/webp;base64,")
    compared = _Parsed(heatmap_view(_stored(_NASTY), _SHOP, _NASTY, 0.5, (image, image)))
    for page in (shown, compared):
        # Title, twice the name of the query, path (which is the key), and the metadata's name and value.
        assert page.text.count(_NASTY) == 6
        assert "0.5000" in page.text
        assert not page.scripted
    other = _stored(_NASTY)._replace(key=f"key {_NASTY}")
    assert f"key {_NASTY}" in _Parsed(item_view(other, _SHOP, None, compares=False)).text


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


def test_empty_gallery_hints_how_to_fill_it(tmp_path: Path, model_file: Path) -> None:
    gallery = Gallery.create(tmp_path / "empty.gallery", model_file)
    service = SearchService(gallery.folder)
    search = SearchTab(service)
    assert "lookalike index add" in search.again(Visit(), SearchForm())[2]
    assert "no images yet" in images(_SHOP, [], image_page(gallery, "", 0))


def test_summary_shows_index_kind_and_measured_recall(tmp_path: Path, shop: Path, model_file: Path) -> None:
    gallery = Gallery.create(tmp_path / "own.gallery", model_file)
    gallery.add([shop], index=IndexSpec("hnsw"))
    with gallery.store.writing():
        gallery.build_index(IndexSpec("hnsw"))
    assert gallery.index is not None
    recall = gallery.index.card["recall"]
    assert f"hnsw, measured recall {recall:.4f}" in summary(gallery)
