"""Dialog, gallery and evaluation tabs in a real browser, on several screens."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from retrieval import Gallery
from retrieval.evaluation.score import evaluate
from tests.e2e.page_driver import expect_results, settle, upload, watched
from tests.serve.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.mark.parametrize("outside", [True, False], ids=["upload", "item"])
def test_result_is_shown_beside_the_query(
    page: Page, server: Server, gallery: Gallery, shop: Path, outside: bool
) -> None:
    if outside:
        upload(page, shop / "green" / "5.png")
    else:
        page.goto(f"{server.url}/?id=5", wait_until="domcontentloaded")
    expect_results(page, 10)
    settle(page)
    card = page.locator("#results button").nth(2)
    item = gallery.item(int(str(card.get_attribute("data-item"))))
    card.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(str(item.label))
    expect(dialog).to_contain_text("cosine similarity")
    for text in (str(item.metadata["brand"]), str(item.metadata["price"]), Path(item.path).name, "48 × 40"):
        expect(dialog.locator("dl")).to_contain_text(text)
    _expect_two_pictures(page, ["the query", f"item {item.id}, {item.label}"])
    dialog.get_by_role("button", name="Where they look alike").press("Enter")
    _expect_two_pictures(page, ["where the query looks like the item", "where the item looks like the query"])
    toggle = dialog.get_by_role("button", name="Where they look alike", pressed=True)
    expect(toggle).to_be_focused()
    toggle.press("Enter")
    _expect_two_pictures(page, ["the query", f"item {item.id}, {item.label}"])
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(card).to_be_focused()
    card.click()  # open the same card again
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)


def _expect_two_pictures(page: Page, names: list[str]) -> None:
    pictures = page.locator("#dialog img")
    for number, name in enumerate(names):
        expect(pictures.nth(number)).to_have_attribute("alt", name)
    expect(pictures).to_have_count(2)
    page.wait_for_function(
        "[...document.querySelectorAll('#dialog img')].every(i => i.complete && i.naturalWidth > 0)"
    )


def test_gallery_tab_shows_the_summary(page: Page, gallery: Gallery) -> None:
    page.get_by_role("tab", name="Gallery").click()
    stock = page.locator("#stock")
    for text in ("24", gallery.fingerprint[:12], "flat", "brand, price"):
        expect(stock.locator("dl")).to_contain_text(text)
    stock.get_by_text("1 file could not be read").click()
    row = stock.get_by_role("row").filter(has_text="broken.png")
    expect(row).to_contain_text("not-an-image")
    stock.get_by_text("Last runs").click()
    expect(stock.get_by_role("row").filter(has_text="added 24")).to_be_visible()
    expect(page.locator("#browse li")).to_have_count(24)
    filter_box = page.locator("#browse").get_by_label("Filter")
    filter_box.fill("label = 'red' and price > 20")
    filter_box.press("Enter")
    expect(page.locator("#browse nav")).to_have_text("1 to 4 of 4 images")
    filter_box.fill("price >")
    filter_box.press("Enter")
    expect(page.locator("#browse .trouble")).to_contain_text("where")
    expect(filter_box).to_have_value("price >")


def test_gallery_image_becomes_the_query(page: Page, gallery: Gallery) -> None:
    page.get_by_role("tab", name="Gallery").click()
    page.locator("#browse button[data-item='9']").click()
    expect(page.get_by_role("dialog").locator("img")).to_have_count(1)
    page.get_by_role("button", name="Search with this image").click()
    expect(page.locator("#status")).to_contain_text("similar to item 9, which is left out")
    expect(page.locator("#results")).to_be_visible()
    expect_results(page, 10)
    assert "id=9" in page.url


def test_evaluation_tab_shows_the_newest_report(page: Page, gallery: Gallery) -> None:
    page.get_by_role("tab", name="Evaluation").click()
    report = page.locator("#report")
    expect(report.locator("h2")).to_have_text("shop.gallery")
    expect(report.get_by_role("rowheader", name="Recall@1")).to_be_visible()
    for name in ("Recall at K", "Similarities of pairs", "Recall at 1 of classes"):
        expect(report.get_by_role("img", name=name)).to_be_visible()
    stored = gallery.embeddings()
    vectors, labels = stored.vectors, stored.labels
    result = evaluate("again", vectors, np.array(labels)).result
    low, high = result.intervals["recall_at_1"]
    numbers = f"{100 * result.values['recall_at_1']:.1f}{100 * low:.1f} to {100 * high:.1f}"
    expect(report.locator("tbody td").first).to_have_text(numbers)


def test_header_shows_gallery_and_model(page: Page, gallery: Gallery) -> None:
    for text in ("shop", "24 images", gallery.fingerprint[:12]):
        expect(page.locator("#header")).to_contain_text(text)
    expect(page.locator("footer")).to_have_count(0)


def test_page_fits_a_phone(browser: Browser, server: Server, shop: Path) -> None:
    with browser.new_context(viewport={"width": 390, "height": 844}) as context:
        page = watched(context.new_page(), server)
        upload(page, shop / "green" / "5.png")
        expect_results(page, 10)
        settle(page)
        page.locator("#results summary").click()
        tabs = {"Evaluation": "#report svg >> nth=0", "Gallery": "#browse li >> nth=0"}
        for tab, content in {**tabs, "Search": "#results tbody"}.items():
            page.get_by_role("tab", name=tab).click()
            expect(page.locator(content)).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.locator("#results button").first.click()
        box = page.get_by_role("dialog").bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        page.keyboard.press("Escape")
        boxes = [card.bounding_box() for card in page.locator("#results li").all()]
        assert all(box and box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes)
        assert len({box["x"] for box in boxes if box}) == 2  # two cards side by side


def test_dark_mode_has_light_text(browser: Browser, server: Server, shop: Path) -> None:
    with browser.new_context(color_scheme="dark") as context:
        page = watched(context.new_page(), server)
        upload(page, shop / "green" / "5.png")
        expect_results(page, 10)
        assert _brightness(page, "#results li button", "color") > 180
        assert _brightness(page, "#status b", "color") > 180
        assert _brightness(page, "body", "backgroundColor") < 60
        page.get_by_role("tab", name="Evaluation").click()
        expect(page.locator("#report tbody td").first).to_be_visible()
        assert _brightness(page, "#report tbody td", "color") > 180


def _brightness(page: Page, selector: str, what: str) -> float:
    colour = page.locator(selector).first.evaluate(f"e => getComputedStyle(e).{what}")
    return float(np.mean([float(value) for value in re.findall(r"[\d.]+", colour)[:3]]))
