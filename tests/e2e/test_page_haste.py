"""Quick visitors on a slow connection: the latest event wins."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from retrieval import Gallery
from tests.e2e.page_driver import caption, captions, expect_results, filter_pictures, search_with
from tests.serve.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LATENCY = 200  # milliseconds added to every request


@pytest.fixture
def far(page: Page) -> Iterator[Page]:
    """The page on a slow connection."""
    line = page.context.new_cdp_session(page)
    line.send("Network.enable")
    rest = {"offline": False, "downloadThroughput": -1, "uploadThroughput": -1}
    line.send("Network.emulateNetworkConditions", {"latency": LATENCY, **rest})
    yield page
    line.send("Network.emulateNetworkConditions", {"latency": 0, **rest})


def test_latest_filter_wins(far: Page) -> None:
    far.get_by_role("tab", name="Gallery").click()
    pictures = far.locator("#collection .pictures li")
    expect(pictures).to_have_count(24)
    for label in ("red", "green", "blue"):
        filter_pictures(far, f"label = '{label}'")
    expect(pictures.get_by_text("blue")).to_have_count(8)
    expect(pictures).to_have_count(8)
    far.wait_for_timeout(3 * LATENCY)
    expect(pictures.get_by_text("blue")).to_have_count(8)


def test_latest_example_wins(far: Page, gallery: Gallery) -> None:
    expect(far.locator("#search .examples button").nth(2)).to_be_visible()
    far.evaluate("[0, 1, 2].map(n => document.querySelectorAll('#search .examples button')[n].click())")
    expect_results(far, 23)
    last = int(far.url.rpartition("=")[2])
    far.wait_for_timeout(3 * LATENCY)
    assert captions(far)[0] == caption(1, gallery.search_id(last, 1)[0])


def test_quick_back_keeps_the_forward_history(far: Page, server: Server, gallery: Gallery) -> None:
    search_with(far, server, "?like=3")
    for item in (4, 5, 6):
        far.evaluate(
            "item => document.dispatchEvent(new CustomEvent('lookalike:search', {detail: {item}}))", item
        )
        expect(far).to_have_url(re.compile(rf"like={item}$"))
    for _ in range(3):
        far.evaluate("history.back()")
        far.wait_for_timeout(LATENCY // 2)
    for item in (3, 4, 5, 6):
        expect(far).to_have_url(re.compile(rf"like={item}$"))
        first = caption(1, gallery.search_id(item, 1)[0])
        expect(far.locator("#results .hits img").first).to_have_attribute("alt", first)
        far.evaluate("history.forward()")


def test_closed_dialog_stays_closed(far: Page, server: Server) -> None:
    search_with(far, server, "?like=5")
    card = far.get_by_test_id("hit").first.locator("[data-act=open]")
    card.click()
    far.get_by_role("button", name="Where they look alike").click()
    far.keyboard.press("Escape")
    expect(far.get_by_role("dialog")).to_have_count(0)
    far.wait_for_timeout(3 * LATENCY)
    expect(far.get_by_role("dialog")).to_have_count(0)
    card.click()
    far.get_by_role("button", name="Where they look alike").click()
    expect(far.get_by_role("button", name="Where they look alike", pressed=True)).to_be_visible()


def test_tab_of_the_address_is_open_before_any_script(browser: Browser, server: Server) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{server.url}/?tab=gallery")
        expect(page.get_by_role("tab", name="Gallery")).to_have_attribute("aria-selected", "true")
        expect(page.get_by_role("tabpanel")).to_have_count(1)
        expect(page.get_by_role("tabpanel", name="Gallery")).to_be_visible()
