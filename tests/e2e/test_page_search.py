"""Queries in a real browser: regions, and several pictures that are liked or not."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from retrieval import Gallery, load_image
from retrieval.galleries.objects import load_tiles, search_objects
from retrieval.search.options import SearchOptions
from tests.e2e.page_driver import caption, captions, expect_results, search_with, upload, watched
from tests.serve.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def region_of(page: Page, name: str = "like") -> list[float]:
    """The region in the address."""
    found = re.search(rf"{name}=[^&]*@([\d.,]+)", page.url)
    assert found, page.url
    return [float(edge) for edge in found[1].split(",")]


def frame_of_query(page: Page) -> tuple[float, float, float, float]:
    """Return x, y, width and height of the frame around the query, once its picture is loaded."""
    page.wait_for_function("() => document.querySelector('#search .frame img')?.complete")
    box = page.locator("#search .frame").bounding_box()
    assert box is not None
    return box["x"], box["y"], box["width"], box["height"]


def draw(page: Page, left: float, top: float, right: float, bottom: float) -> None:
    """Draw a region with the mouse."""
    x, y, width, height = frame_of_query(page)
    page.mouse.move(x + left * width, y + top * height)
    page.mouse.down()
    page.mouse.move(x + right * width, y + bottom * height, steps=3)
    page.mouse.up()


def crop(path: Path, region: list[float]) -> np.ndarray:
    image = load_image(path)
    width, height = image.size
    left, top, right, bottom = region
    box = (round(left * width), round(top * height), round(right * width), round(bottom * height))
    return np.asarray(image.crop(box))


def test_drawn_region_of_an_upload_is_searched(page: Page, gallery: Gallery, shop: Path) -> None:
    path = shop / "red" / "2.png"
    upload(page, path)
    expect_results(page, 24)
    draw(page, 0.2, 0.2, 0.8, 0.9)
    expect(page).to_have_url(re.compile("@"))
    np.testing.assert_allclose(region_of(page), [0.2, 0.2, 0.8, 0.9], atol=0.02)
    expect_results(page, 24)
    vector = gallery.embedder.embed([crop(path, region_of(page))])[0]
    (hits,) = gallery.search_vectors(vector[None], k=24)
    first = hits[0]
    expect(page.locator("#results .hits img").first).to_have_attribute(
        "alt", re.compile(rf"· {first.label}$")
    )
    scores = [float(text.split(" · ")[1].removeprefix("similarity ")) for text in captions(page)]
    np.testing.assert_allclose(scores, [hit.score for hit in hits], atol=2e-3)
    page.get_by_role("button", name="Whole image", exact=True).click()
    expect(page.locator("#results .hits img").first).to_have_attribute("alt", "1 · similarity 1.0000 · red")


def test_region_of_an_item_is_in_the_address(page: Page, server: Server, gallery: Gallery) -> None:
    search_with(page, server, "?like=5")
    draw(page, 0.1, 0.1, 0.6, 0.7)
    expect(page).to_have_url(re.compile(r"like=5@0\."))
    expect_results(page, 23)  # the item itself is left out
    found, address = captions(page), page.url
    page.reload(wait_until="domcontentloaded")
    expect_results(page, 23)
    assert (captions(page), page.url) == (found, address)


def test_region_is_moved_and_resized_by_keyboard(page: Page, server: Server) -> None:
    search_with(page, server, "?like=5")
    region = page.get_by_role("button", name="Region to search with")
    region.press("ArrowRight")
    expect(page).to_have_url(re.compile("@0.2,0.2,0.8,0.8"))
    region.press("ArrowRight")
    expect(page).to_have_url(re.compile("@0.22,0.2,0.82,0.8"))
    region.press("Shift+ArrowDown")
    expect(page).to_have_url(re.compile("@0.22,0.2,0.82,0.82"))
    region.press("Escape")
    expect(page).to_have_url(re.compile(r"like=5$"))
    expect(region).to_be_focused()


def test_region_is_drawn_by_touch(browser: Browser, server: Server) -> None:
    with browser.new_context(viewport={"width": 1024, "height": 800}, has_touch=True) as context:
        page = watched(context.new_page(), server)
        search_with(page, server, "?like=5")
        x, y, width, height = frame_of_query(page)
        line = context.new_cdp_session(page)

        def touch(kind: str, *places: tuple[float, float]) -> None:
            points = [{"x": x + across * width, "y": y + down * height} for across, down in places]
            line.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        touch("touchStart", (0.2, 0.2))
        touch("touchMove", (0.5, 0.5))
        touch("touchMove", (0.8, 0.8))
        touch("touchEnd")
        expect(page).to_have_url(re.compile("@"))
        np.testing.assert_allclose(region_of(page), [0.2, 0.2, 0.8, 0.8], atol=0.02)


def test_latest_region_wins(page: Page, server: Server) -> None:
    search_with(page, server, "?like=5")
    for left, right in ((0.1, 0.3), (0.4, 0.9)):
        draw(page, left, 0.1, right, 0.9)
    expect_results(page, 23)
    np.testing.assert_allclose(region_of(page), [0.4, 0.1, 0.9, 0.9], atol=0.02)


def test_hits_are_liked_and_unliked(page: Page, server: Server, gallery: Gallery) -> None:
    search_with(page, server, "?like=5")
    hits = gallery.search_id(5, 23)
    for act, place in (("like", 0), ("unlike", 4)):
        number = hits[place].id
        card = page.locator(f".hits [data-item='{number}']")
        card.hover()
        card.locator(f"[data-act={act}]").click()
        expect(page.locator(f".hits [data-item='{number}']")).to_have_count(0)
    liked, unliked = hits[0].id, hits[4].id
    expect(page).to_have_url(f"{server.url}/?like=5&like={liked}&unlike={unliked}")
    expect_results(page, 21)
    vectors = {number: gallery.vector(number) for number in (5, liked, unliked)}
    query = vectors[5] + vectors[liked] - vectors[unliked]
    (found,) = gallery.search_vectors((query / np.linalg.norm(query))[None], k=24)
    left = [hit for hit in found if hit.id not in vectors]
    assert captions(page) == [caption(rank, hit) for rank, hit in enumerate(left, 1)]
    page.get_by_role("button", name="Remove image 3, to move away from").click()
    expect(page).to_have_url(f"{server.url}/?like=5&like={liked}")
    expect_results(page, 22)


def test_pictures_are_added_to_the_query(page: Page, shop: Path) -> None:
    upload(page, shop / "green" / "5.png")
    expect_results(page, 24)
    page.get_by_role("checkbox", name="Add to this query").check()
    upload(page, shop / "red" / "2.png", shop / "blue" / "1.png")
    expect(page.get_by_role("list", name="Query images").get_by_role("listitem")).to_have_count(3)
    expect_results(page, 24)
    page.get_by_role("button", name="Remove query image 1").click()
    expect(page.get_by_role("list", name="Query images").get_by_role("listitem")).to_have_count(2)
    page.go_back()
    expect(page.get_by_role("list", name="Query images").get_by_role("listitem")).to_have_count(3)


def test_unusable_one_of_several_pictures_is_named(page: Page, shop: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_text("not an image")
    upload(page, shop / "green" / "5.png", tmp_path / "notes.png")
    status = page.locator("#status.trouble")
    expect(status).to_contain_text("notes.png: This picture cannot be used: it is not")
    expect(status).to_contain_text("Nothing was searched for.")
    expect(page.get_by_test_id("hit")).to_have_count(0)


def test_hits_are_sorted_by_a_column(page: Page, server: Server, gallery: Gallery) -> None:
    search_with(page, server, "?like=5")
    hits = gallery.search_id(5, 23)
    page.locator("#search").get_by_label("Order").select_option("price")
    cards = page.get_by_test_id("hit")
    by_price = sorted(hits, key=lambda hit: hit.metadata["price"])
    expect(cards.first).to_have_attribute("data-item", str(by_price[0].id))
    assert [int(str(card.get_attribute("data-item"))) for card in cards.all()] == [hit.id for hit in by_price]
    assert int(str(cards.first.get_attribute("data-rank"))) == 1
    cards.nth(2).locator("[data-act=open]").click()
    expect(page).to_have_url(
        re.compile(rf"sort=price&open={by_price[2].id}$|open={by_price[2].id}&sort=price$")
    )
    page.reload(wait_until="domcontentloaded")
    page.keyboard.press("Escape")
    expect(cards.first).to_have_attribute("data-item", str(by_price[0].id))
    page.locator("#search").get_by_label("Order").select_option("")
    expect(cards.first).to_have_attribute("data-item", str(hits[0].id))


def test_objects_of_a_picture_are_offered_to_search_with(
    page: Page, gallery: Gallery, shop: Path, tmp_path: Path
) -> None:
    room = tmp_path / "room.png"
    picture = Image.new("RGB", (600, 400), "white")
    for name, corner in (("red/1.png", (20, 20)), ("blue/2.png", (380, 200))):
        picture.paste(load_image(shop / name).resize((160, 160)), corner)
    picture.save(room)
    parts = load_tiles(room, gallery.embedder.preprocess)
    wanted = [hit.box for hit in search_objects(gallery, parts, SearchOptions()).boxes]
    upload(page, room)
    expect_results(page, 24)
    find = page.get_by_role("button", name="Find objects")
    boxes = page.get_by_role("group", name="Parts of the picture").get_by_role("button")
    find.click()
    expect(boxes).to_have_count(len(wanted))
    expect(page.locator("#search .region-help")).to_contain_text(f"{len(wanted)} parts may be in the gallery")
    x, y, width, height = frame_of_query(page)
    for number, (left, top, right, bottom) in enumerate(wanted):
        shown = boxes.nth(number).bounding_box()
        assert shown is not None
        assert shown["x"] == pytest.approx(x + left * width, abs=1.5)
        assert shown["y"] == pytest.approx(y + top * height, abs=1.5)
        assert shown["width"] == pytest.approx(max(24, (right - left) * width), abs=1.5)
        assert shown["height"] == pytest.approx(max(24, (bottom - top) * height), abs=1.5)
    left, top, right, bottom = wanted[1]
    boxes.nth(1).focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("@"))
    assert region_of(page) == [left, top, right, bottom]
    expect(boxes).to_have_count(0)
    expect(page.locator("#results .hits.stale")).to_have_count(0)
    vector = gallery.embedder.embed([crop(room, region_of(page))])[0]
    first = gallery.search_vectors(vector[None], k=1)[0][0]
    expect(page.locator("#results .hits img").first).to_have_attribute(
        "alt", re.compile(rf"^1 · similarity {first.score:.2f}.* · {first.label}$")
    )
    find.click()  # the boxes are known: again, without asking the server
    expect(boxes).to_have_count(len(wanted))
    boxes.first.press("Escape")
    expect(boxes).to_have_count(0)
    expect(find).to_be_focused()
    find.click()
    boxes.first.click()  # with the mouse: no region is drawn
    assert region_of(page) == [*wanted[0]]
    page.get_by_role("button", name="Clear").click()
    expect(find).to_be_hidden()
