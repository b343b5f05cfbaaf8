"""The search tab in a real browser."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from retrieval import Gallery
from tests.e2e.page_driver import (
    caption,
    captions,
    expect_pictures_loaded,
    expect_results,
    settle,
    upload,
    watched,
)
from tests.e2e.page_gallery import BRANDS
from tests.serve.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_uploaded_gallery_image_is_the_first_hit(page: Page, shop: Path) -> None:
    path = shop / "green" / "5.png"
    upload(page, path)
    expect_results(page, 10)
    assert captions(page)[0] == "1 · 1.0000 · green"
    first = page.locator("#results li").first
    expect(first).to_contain_text("1.0000")
    expect(first).to_contain_text("green")
    settle(page)
    page.locator("#results summary").click()
    expect(page.locator("#results tbody tr").first).to_contain_text(path.name)
    expect(page.locator("#status")).to_have_text(re.compile(r"embedding \d+\.\d ms.*search \d+\.\d ms"))
    expect(page.locator("#asked img")).to_be_visible()
    expect_pictures_loaded(page)


def test_results_match_the_gallery(page: Page, gallery: Gallery, shop: Path) -> None:
    path = shop / "red" / "2.png"
    upload(page, path)
    expect_results(page, 10)
    hits = gallery.search(path, k=10)
    assert captions(page) == [f"{rank} · {hit.score:.4f} · {hit.label}" for rank, hit in enumerate(hits, 1)]


def test_k_changes_the_number_of_results(page: Page, shop: Path) -> None:
    upload(page, shop / "blue" / "0.png")
    expect_results(page, 10)
    number = page.get_by_label("Results (K)")
    for typed, count in (("3", 3), ("17", 17), ("100", 24)):  # the shop has 24
        number.fill(typed)
        number.press("Tab")
        expect_results(page, count)
    assert captions(page)[0] == "1 · 1.0000 · blue"


def test_upload_uses_the_changed_k(page: Page, shop: Path) -> None:
    for name, k in (("0", 3), ("1", 5), ("2", 4)):
        page.get_by_label("Results (K)").fill(str(k))
        upload(page, shop / "blue" / f"{name}.png")
        expect_results(page, k)
        assert captions(page)[0] == "1 · 1.0000 · blue"


@pytest.mark.parametrize("way", ["click", "keyboard"])
def test_result_becomes_the_query(page: Page, gallery: Gallery, shop: Path, way: str) -> None:
    upload(page, shop / "green" / "5.png")
    expect_results(page, 10)
    settle(page)
    second = page.locator("#results button").nth(1)
    item = int(str(second.get_attribute("data-item")))
    if way == "click":
        second.click()
        page.get_by_role("button", name="Search with this image").click()
    else:
        page.locator("#results button").first.focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Close")).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text(f"similar to item {item}, which is left out")
    expect_results(page, 10)
    hits = gallery.search_id(item, k=10)
    label = gallery.item(item).label
    assert captions(page) == [caption(rank, hit, label) for rank, hit in enumerate(hits, 1)]
    shown = [card.get_attribute("data-item") for card in page.locator("#results li button").all()]
    assert shown == [str(hit.id) for hit in hits]
    assert str(item) not in shown
    expect(page.locator("#dialog")).to_be_hidden()
    expect(page.locator("#asked img")).to_be_visible()


def test_form_fields_are_applied(page: Page, gallery: Gallery, shop: Path) -> None:
    path = shop / "green" / "5.png"
    upload(page, path)
    expect_results(page, 10)
    filter_box = page.locator("#form").get_by_label("Filter")
    for name in ("label", "brand", "price"):
        expect(filter_box).to_have_attribute("placeholder", re.compile(name))
    filter_box.fill("brand = 'acme' and price < 12")
    filter_box.press("Enter")
    expect_results(page, 6)
    assert {hit.metadata["brand"] for hit in gallery.search(path, where="price < 12 and brand='acme'")} == {
        "acme"
    }
    expect(page.locator("#results li").first).to_contain_text("brand: acme")
    filter_box.fill("")
    page.get_by_label("One result per").select_option("brand")
    expect_results(page, 2)
    expect(page.locator("#results")).to_contain_text(BRANDS[1])  # as text
    assert captions(page) == [
        f"{rank} · {hit.score:.4f} · {hit.label}"
        for rank, hit in enumerate(gallery.search(path, group_by="brand"), 1)
    ]
    page.get_by_label("One result per").select_option("image (all of them)")
    expect_results(page, 10)
    scores = [hit.score for hit in gallery.search(path, k=24)]
    page.get_by_label("Minimum score").fill("0.9")
    page.get_by_label("Minimum score").press("Tab")
    expect_results(page, min(10, sum(score >= 0.9 for score in scores)))


def test_form_errors_are_shown_and_can_be_corrected(page: Page, gallery: Gallery, shop: Path) -> None:
    upload(page, shop / "green" / "5.png")
    expect_results(page, 10)
    filter_box = page.locator("#form").get_by_label("Filter")
    filter_box.fill("prize < 12")
    filter_box.press("Enter")
    expect(page.locator("#status .trouble")).to_contain_text("no column 'prize'")
    expect(page.locator("#results li")).to_have_count(0)
    expect(page.locator("#asked img")).to_be_visible()
    filter_box.fill("label = 'blue'")
    page.get_by_label("Minimum score").fill("0.999")
    page.get_by_label("Minimum score").press("Enter")
    best = gallery.search(shop / "green" / "5.png", k=1, where="label = 'blue'")[0].score
    expect(page.locator("#status .trouble")).to_have_text(
        f"No result scores 0.999 or more: the best score is {best:.4f}."
    )
    page.get_by_label("Minimum score").fill("7")
    page.get_by_label("Minimum score").press("Enter")
    expect(page.locator("#status .trouble")).to_contain_text("from -1 to 1")
    page.get_by_label("Minimum score").fill("")
    page.get_by_label("Minimum score").press("Enter")
    expect_results(page, 8)


def test_address_runs_and_follows_the_search(
    page: Page, server: Server, gallery: Gallery, shop: Path
) -> None:
    address = f"{server.url}/?id=11&k=4&where=price+%3E+3&min_score=-0.5"
    page.goto(address, wait_until="domcontentloaded")
    expect_results(page, 4)
    hits = gallery.search_id(11, k=4, where="price > 3", min_score=-0.5)
    label = gallery.item(11).label
    assert captions(page) == [caption(rank, hit, label) for rank, hit in enumerate(hits, 1)]
    expect(page).to_have_url(address)
    expect(page.get_by_label("Results (K)")).to_have_value("4")
    expect(page.locator("#form").get_by_label("Filter")).to_have_value("price > 3")
    expect(page.locator("#asked img")).to_be_visible()
    page.get_by_label("Results (K)").fill("3")
    page.get_by_label("Results (K)").press("Tab")
    expect_results(page, 3)
    expect(page).to_have_url(address.replace("k=4", "k=3"))
    expect(page.get_by_role("link", name="link to this search")).to_have_attribute(
        "href", page.url.removeprefix(f"{server.url}/")
    )
    upload(page, shop / "blue" / "0.png")  # its address is valid for this visit only
    expect(page).to_have_url(re.compile(re.escape(f"{server.url}/?q=") + r"\d+&k=3&where=price"))
    expect_results(page, 3)


def test_back_returns_to_the_previous_search(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/?id=11&k=4", wait_until="domcontentloaded")
    expect_results(page, 4)
    settle(page)
    item = page.locator("#results button").first.get_attribute("data-item")
    page.locator("#results button").first.click()
    page.get_by_role("button", name="Search with this image").click()
    expect(page).to_have_url(f"{server.url}/?id={item}&k=4")
    page.go_back()
    expect(page.locator("#status")).to_contain_text("similar to item 11")
    expect(page).to_have_url(f"{server.url}/?id=11&k=4")
    expect_results(page, 4)


def test_address_of_a_missing_item_gives_an_error(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/?id=4711", wait_until="domcontentloaded")
    expect(page.locator("#status .trouble")).to_contain_text("no item 4711")
    expect(page.locator("#results li")).to_have_count(0)
    expect(page).to_have_url(f"{server.url}/")
    page.go_back()  # to the page that this one was opened from, not to the address that failed
    expect(page.locator("#status")).to_contain_text("Drop, paste or choose an image")


def test_hits_are_judged_by_colour_and_symbol(page: Page, server: Server, gallery: Gallery) -> None:
    page.goto(f"{server.url}/?id=3&k=24", wait_until="domcontentloaded")
    expect_results(page, 23)
    label = gallery.item(3).label
    expect(page.locator("#status")).to_contain_text("7 of 23 with the same label")
    for card, hit in zip(page.locator("#results li button").all(), gallery.search_id(3, k=24), strict=True):
        right = hit.label == label
        expect(card).to_have_class("right" if right else "wrong")
        expect(card).to_contain_text("✓" if right else "✗")


def test_uploads_in_quick_succession_are_all_answered(
    page: Page, gallery: Gallery, shop: Path, tmp_path: Path
) -> None:
    box = page.locator("#query input[type=file]")
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not a picture")
    for name in ("green", "red", "blue"):
        box.set_input_files(shop / name / "5.png")
        hits = gallery.search(shop / name / "5.png")
        expect(page.locator("#results img").first).to_have_attribute("alt", f"1 · 1.0000 · {name}")
        expect_results(page, 10)
        assert captions(page) == [f"{n} · {hit.score:.4f} · {hit.label}" for n, hit in enumerate(hits, 1)]
        expect(page.locator("#asked img")).to_have_count(1)
        box.set_input_files(broken)
        expect(page.locator("#status")).to_contain_text("This image cannot be used: it is not a JPEG")
        expect(page.locator("#results li")).to_have_count(0)  # nothing stale
        expect(page.locator("#asked img")).to_have_count(0)
    for name in ("green", "red"):  # two valid images in a row
        box.set_input_files(shop / name / "5.png")
        expect(page.locator("#results img").first).to_have_attribute("alt", f"1 · 1.0000 · {name}")


def test_upload_that_is_too_large_leaves_the_search(page: Page, shop: Path, tmp_path: Path) -> None:
    upload(page, shop / "green" / "5.png")
    expect_results(page, 10)
    (tmp_path / "large.png").write_bytes(bytes(21 * 1024 * 1024))
    upload(page, tmp_path / "large.png")
    expect(page.get_by_test_id("toast-body")).to_contain_text("exceed the maximum allowed size of 20.0 Mb")
    expect(page.locator("#results li")).to_have_count(10)
    expect(page.locator("#asked img")).to_have_count(1)
    upload(page, shop / "red" / "0.png")  # the page still works
    expect(page.locator("#results img").first).to_have_attribute("alt", "1 · 1.0000 · red")


def test_removing_the_query_clears_the_results(page: Page, shop: Path) -> None:
    upload(page, shop / "green" / "5.png")
    expect_results(page, 10)
    page.get_by_role("button", name="Remove the query image").click()
    expect(page.locator("#status")).to_contain_text("Drop, paste or choose an image")
    expect(page.locator("#results li")).to_have_count(0)


def test_image_can_be_pasted(browser: Browser, server: Server, shop: Path) -> None:
    with browser.new_context(permissions=["clipboard-read", "clipboard-write"]) as context:
        page = watched(context.new_page(), server)
        picture = base64.b64encode((shop / "green" / "5.png").read_bytes()).decode()
        page.evaluate(
            """async picture => {
                const bytes = Uint8Array.from(atob(picture), c => c.charCodeAt(0));
                const blob = new Blob([bytes], {type: 'image/png'});
                await navigator.clipboard.write([new ClipboardItem({'image/png': blob})]);
            }""",
            picture,
        )
        page.get_by_label("Paste from clipboard").click()
        expect_results(page, 10)
        assert captions(page)[0] == "1 · 1.0000 · green"
