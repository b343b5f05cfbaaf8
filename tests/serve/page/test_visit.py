"""The state of a visit: query, address, history and examples."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from retrieval import Gallery
from retrieval.searchable import Hit, Item
from serve.core.queries import MAX_TOGETHER, Region
from serve.core.service import EmbeddedQuery, GallerySummary, SearchService
from serve.core.thumbnails import MAX_SIDE, encode
from serve.page.query import SearchResult, from_item, from_upload, with_region
from serve.page.results import examples, history_list, query_images
from serve.page.search import SearchTab
from serve.page.visit import (
    MAX_ENTRIES,
    Address,
    QueryImage,
    QueryImages,
    SearchForm,
    Visit,
    url_parameters,
)
from tests.conftest import draw

_SHOP = GallerySummary("shop", 24, "f" * 64, "abc", "/v1")
_NASTY = "<img src=x onerror=alert(1)>'\"&"


@pytest.fixture(scope="module")
def service(shop_gallery: Path) -> SearchService:
    return SearchService(shop_gallery)


def _part(item: int | None = None, label: str | None = None, region: Region | None = None) -> QueryImage:
    image = encode(Image.new("RGB", (4, 3), "red"))
    vector = np.zeros(2, np.float32) if item is None or region else None
    query = EmbeddedQuery(vector, None if item is None else Item(item, "", label), "f", 0.0, region)
    return QueryImage(query, image, image, image, 4 / 3)


# ---- addresses

_sides = st.tuples(st.integers(0, 10**4), st.integers(0, 10**4)).filter(lambda pair: pair[0] != pair[1])
_regions = st.builds(
    lambda across, down: Region(
        min(across) / 10**4, min(down) / 10**4, max(across) / 10**4, max(down) / 10**4
    ),
    _sides,
    _sides,
)


@given(st.lists(st.tuples(st.integers(1, 2**62), st.none() | _regions), min_size=1, max_size=MAX_TOGETHER))
def test_address_of_items_and_regions_round_trip(
    wanted: list[tuple[int, Region | None]],
) -> None:
    name = url_parameters([_part(item, region=region).query for item, region in wanted])
    assert Address.parse(SearchForm(k=7).url_query(name)) == Address(tuple(wanted), 0, SearchForm(k=7))


@given(
    st.text()
    | st.lists(st.sampled_from(["id=5", "region=0,0,1", "region=a", "q=²", "&", "k=x"])).map("&".join)
)
def test_any_text_parses_as_an_address(text: str) -> None:
    address = Address.parse(text)
    assert len(address.items) <= MAX_TOGETHER
    assert address.entry >= 0


def test_query_with_an_upload_has_no_link() -> None:
    assert url_parameters([_part(5).query, _part().query]) == []
    assert SearchResult([_part().query], SearchForm(), [], 1.0).link is None
    link = SearchResult([_part(5, region=Region(0.1, 0.2, 0.5, 0.6)).query], SearchForm(), [], 1.0).link
    assert link == "?id=5&region=0.1,0.2,0.5,0.6&k=10"
    assert parse_qs(str(link).removeprefix("?"))["region"] == ["0.1,0.2,0.5,0.6"]


# ---- frames


@pytest.mark.parametrize(
    ("query", "right"),
    [
        ([_part(1, "red"), _part(2, "red")], True),
        ([_part(1, "red", Region(0, 0, 0.5, 1))], True),
        ([_part(1, "blue"), _part(2, "blue")], False),
        ([_part(1, "red"), _part(2, "blue")], None),  # of nothing in particular
        ([_part(1, "red"), _part()], None),
        ([_part(1), _part(2)], None),
    ],
)
def test_hits_are_judged_if_all_query_images_have_one_label(
    query: list[QueryImage], right: bool | None
) -> None:
    found = SearchResult([part.query for part in query], SearchForm(), [], 1.0)
    assert found.is_right(Hit(9, "", "red")) is right
    assert found.is_right(Hit(9, "", None)) is None


# ---- the visit


def test_history_has_each_search_once_and_drops_the_oldest() -> None:
    visit = Visit()
    asked: list[QueryImages] = [(_part(number),) for number in range(1, 31)]
    for one in asked:
        visit = visit.with_query(one).with_search(SearchForm())
        visit = visit.with_search(SearchForm(k=3))  # the same in another way
    assert [entry.number for entry in visit.history] == list(range(30, 30 - MAX_ENTRIES, -1))
    assert {entry.form.k for entry in visit.history} == {3}
    assert visit.entry(1) is None
    again = visit.with_query((_part(25),)).with_search(SearchForm())  # chosen again: the same image
    assert [entry.number for entry in again.history][:3] == [25, 30, 29]
    assert again.last_number == 30
    assert again.entry(25) is again.history[0]
    outside = (
        visit.with_query((_part(),))
        .with_search(SearchForm())
        .with_query((_part(),))
        .with_search(SearchForm())
    )
    assert [entry.number for entry in outside.history][:2] == [32, 31]  # two uploads are two searches


def test_history_is_bounded_by_images() -> None:
    visit = Visit()
    for _ in range(MAX_ENTRIES):
        visit = visit.with_query(tuple(_part() for _ in range(MAX_TOGETHER))).with_search(SearchForm())
    assert [len(entry.images) for entry in visit.history] == [MAX_TOGETHER]


def test_query_images_are_kept_small(service: SearchService, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1500, 2000, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    part = with_region(service, from_upload(service, tmp_path / "noise.png"), Region(0.1, 0.1, 0.9, 0.9))
    for made in (part.whole, part.searched, part.icon):
        assert max(Image.open(io.BytesIO(made.data)).size) <= MAX_SIDE
    assert len(part.whole.data) + len(part.searched.data) + len(part.icon.data) < 600_000  # of pure noise
    assert part.aspect == pytest.approx(4 / 3)


def test_region_is_cropped_from_the_thumbnail_after_the_upload_is_deleted(
    service: SearchService, tmp_path: Path
) -> None:
    path = tmp_path / "upload.png"
    draw(3, (900, 600)).save(path)
    region = Region(0.2, 0.2, 0.7, 0.7)
    whole = from_upload(service, path)
    sharp = with_region(service, whole, region)
    assert sharp.pixels().size == (450, 300)
    assert not sharp.from_thumbnail
    path.unlink()
    small = with_region(service, sharp, region)
    assert small.from_thumbnail
    assert small.query.vector is not None
    assert sharp.query.vector is not None
    assert float(small.query.vector @ sharp.query.vector) > 0.99
    shown = query_images(Visit().with_query((small,)), _SHOP, crops=True)
    assert "again for a sharper one" in shown
    assert not with_region(service, small, None).from_thumbnail  # all of it looks as it did


# ---- what is shown


def test_query_and_history_escape_all_names(service: SearchService) -> None:
    visit = Visit().with_query((_part(7, _NASTY), _part(8, _NASTY))).with_search(SearchForm(where=_NASTY))
    visit = visit.with_query((_part(9, _NASTY),)).with_search(SearchForm())
    shown = history_list(visit, _SHOP, ()) + query_images(visit, _SHOP, crops=True)
    shown += history_list(Visit(), _SHOP, [Item(7, "", _NASTY)])
    assert "<img src=x" not in shown
    assert shown.count("&lt;img src=x") >= 4


def test_gallery_without_a_model_offers_no_region() -> None:
    shown = query_images(Visit().with_query((_part(7),)), _SHOP, crops=False)
    assert "region" not in shown
    assert "Drag" not in shown


def test_items_are_linked_and_uploads_are_embedded(service: SearchService, shop: Path) -> None:
    item = query_images(Visit().with_query((from_item(service, 5),)), _SHOP, crops=True)
    assert "/v1/images/5/thumbnail" in item
    assert "data:" not in item
    outside = from_upload(service, shop / "red" / "1.png")
    assert "data:image/webp" in query_images(Visit().with_query((outside,)), _SHOP, crops=True)


def test_missing_gallery_gives_an_error_message(tmp_path: Path, shop_gallery: Path, shop: Path) -> None:
    folder = tmp_path / "own.gallery"
    shutil.copytree(shop_gallery, folder)
    service = SearchService(folder)
    search = SearchTab(service)
    visit, _, status, results, _ = search.upload(str(shop / "red" / "1.png"), Visit(), SearchForm())[:5]
    assert "10 results" in status
    assert results
    shutil.rmtree(folder)
    for answer in (
        search.again(visit, SearchForm()),
        search.again(Visit(), SearchForm()),
        search.add([str(shop / "red" / "2.png")], visit, SearchForm()),
    ):
        assert "trouble" in answer[2]
        assert str(tmp_path) not in answer[2]
        assert answer[0].images in (visit.images, ())


# ---- examples


@pytest.mark.parametrize("labels", [1, 2, 3, 6, 40])
def test_examples_cover_the_labels(tmp_path: Path, model_file: Path, labels: int) -> None:
    for seed in range(48):
        draw(seed).save(tmp_path / f"{seed:02}.png")
    gallery = Gallery.create(tmp_path / "own.gallery", model_file)
    rows = [{"label": f"l{seed * labels // 48:02}"} for seed in range(48)]
    gallery.add(sorted(tmp_path.glob("*.png")), metadata=rows)
    chosen = examples(gallery)
    assert len(chosen) == 6
    assert len({item.id for item in chosen}) == 6
    assert len({item.label for item in chosen}) == min(labels, 6)
    assert chosen == examples(Gallery(gallery.folder))
    assert {chosen[0].label, chosen[-1].label} == {"l00", f"l{labels - 1:02}"}


def test_empty_gallery_has_no_examples(tmp_path: Path, model_file: Path) -> None:
    assert examples(Gallery.create(tmp_path / "empty.gallery", model_file)) == []
