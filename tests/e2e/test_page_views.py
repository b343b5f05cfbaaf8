"""The dialog, the tabs, and how the page looks on phones and in the dark, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urljoin

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from retrieval import Gallery
from retrieval.evaluation.score import evaluate
from tests.e2e.page_driver import expect_results, search_with, upload, watched
from tests.serve.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_result_is_shown_beside_the_query(page: Page, server: Server, gallery: Gallery) -> None:
    search_with(page, server, "?like=5")
    hits = gallery.search_id(5, 3)
    page.get_by_test_id("hit").first.locator("[data-act=open]").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"1. result · similarity {hits[0].score:.4f}")
    expect(dialog.get_by_role("img")).to_have_count(2)
    for name, value in hits[0].metadata.items():
        expect(dialog.locator("dl")).to_contain_text(f"{name}{value}")
    page.keyboard.press("ArrowRight")
    expect(dialog).to_contain_text(f"2. result · similarity {hits[1].score:.4f}")
    expect(page).to_have_url(re.compile(rf"open={hits[1].id}"))
    page.reload(wait_until="domcontentloaded")
    expect(dialog.get_by_role("heading")).to_contain_text(str(hits[1].label))
    # The image may be there before the hits that it is one of.
    expect(dialog).to_contain_text(f"2. result · similarity {hits[1].score:.4f}")
    dialog.get_by_role("button", name="Next image").click()
    expect(page).to_have_url(re.compile(rf"open={hits[2].id}"))
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page).to_have_url(re.compile(r"\?like=5$"))


def test_heatmaps_show_corresponding_places(page: Page, server: Server) -> None:
    search_with(page, server, "?like=5")
    page.get_by_test_id("hit").first.locator("[data-act=open]").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Where they look alike").click()
    expect(dialog.get_by_role("button", name="Where they look alike", pressed=True)).to_be_visible()
    expect(dialog.locator("canvas")).to_have_count(2)
    painted = (
        "all => all.map(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v > 0))"
    )
    assert dialog.locator("canvas").evaluate_all(painted) == [True, True]
    box = dialog.locator("canvas").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(dialog.locator(".pane i").nth(0)).to_be_visible()
    expect(dialog.locator(".pane i").nth(1)).to_be_visible()
    dialog.get_by_role("button", name="Where they look alike").click()
    expect(dialog.locator("canvas").first).to_be_hidden()


def test_picture_is_zoomed_and_opened_in_full(page: Page, server: Server) -> None:
    search_with(page, server, "?like=5&open=7")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Zoom").click()
    expect(dialog.locator(".pane.zoomed img")).to_have_attribute("src", re.compile(r"/items/7/picture$"))
    address = str(dialog.get_by_role("link", name="Full size").get_attribute("href"))
    answer = page.request.get(f"{server.url}{address}")
    assert (answer.status, answer.headers["content-type"]) == (200, "image/webp")


def test_gallery_tab_shows_the_summary(page: Page, gallery: Gallery) -> None:
    page.goto(urljoin(page.url, "?tab=gallery&view=about"), wait_until="domcontentloaded")
    stock = page.locator("#stock")
    for text in ("24", gallery.fingerprint[:12], "flat", "brand, price"):
        expect(stock.locator("dl")).to_contain_text(text)
    stock.get_by_text("1 file could not be read").click()
    row = stock.get_by_role("row").filter(has_text="broken.png")
    expect(row).to_contain_text("not-an-image")
    stock.get_by_text("Last runs").click()
    expect(stock.get_by_role("row").filter(has_text="added 24")).to_be_visible()


def test_gallery_image_becomes_the_query(page: Page, server: Server) -> None:
    page.get_by_role("tab", name="Gallery").click()
    expect(page).to_have_url(re.compile(r"\?tab=gallery$"))
    page.locator("#collection .pictures [data-item='9'] .open").click()
    expect(page.get_by_role("dialog").get_by_role("img")).to_have_count(1)
    page.get_by_role("button", name="Search with this image").click()
    expect(page).to_have_url(f"{server.url}/?like=9")
    expect_results(page, 23)


def test_tabs_are_in_the_address(page: Page, server: Server) -> None:
    search_with(page, server, "?like=5")
    page.get_by_role("tab", name="Evaluation").click()
    expect(page).to_have_url(f"{server.url}/?like=5&tab=evaluation")
    page.reload(wait_until="domcontentloaded")
    expect(page.get_by_role("tab", name="Evaluation", selected=True)).to_be_visible()
    page.go_back()
    expect(page.get_by_role("tab", name="Search", selected=True)).to_be_visible()
    expect_results(page, 23)


def test_evaluation_tab_shows_the_newest_report(page: Page, gallery: Gallery) -> None:
    page.get_by_role("tab", name="Evaluation").click()
    report = page.locator("#report")
    expect(report.locator("h2").first).to_have_text("shop")
    expect(report.get_by_role("rowheader", name="Recall@1")).to_be_visible()
    for name in ("Recall at K", "Similarities of pairs", "Recall at 1 of classes"):
        expect(report.get_by_role("img", name=name)).to_be_visible()
    stored = gallery.embeddings()
    vectors, labels = stored.vectors, stored.labels
    result = evaluate("again", vectors, np.array(labels)).result
    low, high = result.intervals["recall_at_1"]
    numbers = f"{100 * result.values['recall_at_1']:.1f}these: {100 * low:.1f} to {100 * high:.1f}"
    expect(report.locator("#report-numbers tbody td").first).to_have_text(numbers)


def test_header_switches_gallery_and_theme(page: Page, server: Server) -> None:
    assert page.get_by_role("combobox", name="Gallery").input_value() == "/"
    page.get_by_role("button", name="Dark or light").click()
    expect(page.locator("html.dark")).to_be_attached()
    page.get_by_role("combobox", name="Gallery").select_option("twice")
    expect(page).to_have_url(f"{server.url}/galleries/twice/")
    expect(page.locator("html.dark")).to_be_attached()
    page.evaluate("localStorage.clear()")
    expect(page.locator("footer")).to_have_count(0)


def test_phone_shows_results_after_a_search(browser: Browser, server: Server, shop: Path) -> None:
    with browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True) as context:
        page = watched(context.new_page(), server)
        upload(page, shop / "green" / "5.png")
        expect_results(page, 24)
        boxes = [card.bounding_box() for card in page.get_by_test_id("hit").all()[:4]]
        assert all(box and box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes)
        assert len({box["x"] for box in boxes if box}) == 2  # two cards side by side
        first = boxes[0]
        assert first
        assert first["y"] + first["height"] < 844
        page.get_by_test_id("hit").last.scroll_into_view_if_needed()
        expect(page.get_by_role("img", name="The query image")).to_be_in_viewport()
        small = page.locator("#search :is(button, summary):visible").evaluate_all(
            "all => all.filter(e => e.offsetHeight < 44 && !e.matches('.region')).map(e => e.outerHTML)"
        )
        assert small == []
        page.get_by_test_id("hit").last.locator("[data-act=open]").click()
        box = page.get_by_role("dialog").bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        page.keyboard.press("Escape")
        tabs = {"Evaluation": "#report svg >> nth=0", "Gallery": "#collection .pictures li >> nth=0"}
        for tab, content in tabs.items():
            page.get_by_role("tab", name=tab).click()
            expect(page.locator(content)).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.foreign == page.broken == []  # type: ignore[attr-defined]


def test_dark_mode_has_light_text(browser: Browser, server: Server, shop: Path) -> None:
    with browser.new_context(color_scheme="dark") as context:
        page = watched(context.new_page(), server)
        upload(page, shop / "green" / "5.png")
        expect_results(page, 24)
        assert _brightness(page, "#header h1 a", "color") > 180
        assert _brightness(page, "#status", "color") > 120
        assert _brightness(page, "body", "backgroundColor") < 60
        page.get_by_role("tab", name="Evaluation").click()
        expect(page.locator("#report tbody td").first).to_be_visible()
        assert _brightness(page, "#report tbody td", "color") > 180


def _brightness(page: Page, selector: str, what: str) -> float:
    colour = page.locator(selector).first.evaluate(f"e => getComputedStyle(e).{what}")
    return float(np.mean([float(value) for value in re.findall(r"[\d.]+", colour)[:3]]))
