"""The page after something went wrong: a visitor is told, and can go on."""

# ruff: noqa: F401, F811  the fixtures among what is imported are used by their names

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from retrieval import Gallery
from tests.conftest import draw
from tests.e2e.page_driver import browser, expect_results, settle, upload, watched
from tests.e2e.page_gallery import stock
from tests.serve.serving import SERVE, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def gallery(tmp_path: Path, shop: Path) -> Gallery:
    return stock(tmp_path, shop)


def test_a_lost_server_is_told(browser: Browser, gallery: Gallery, shop: Path, tmp_path: Path) -> None:
    with serving([*SERVE, str(gallery.folder)], tmp_path) as server, browser.new_context() as context:
        page = watched(context.new_page(), server)
        upload(page, shop / "green" / "5.png")
        expect_results(page, 10)
        settle(page)
        server.process.kill()
        page.locator("#results .grid button").first.click()
        expect(page.get_by_test_id("toast-body")).to_contain_text("Connection to the server was lost")
        assert page.broken == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (503, '{"detail": "Queue is full."}', "currently busy. Please try again"),
        (429, '{"detail": "too many requests; try again in 1 s"}', "try again in 1 s"),
    ],
    ids=["busy", "limited"],
)
def test_a_refusal_is_told_and_the_page_goes_on(
    browser: Browser, gallery: Gallery, shop: Path, tmp_path: Path, status: int, body: str, told: str
) -> None:
    with serving([*SERVE, str(gallery.folder)], tmp_path) as server, browser.new_context() as context:
        page = watched(context.new_page(), server)
        upload(page, shop / "green" / "5.png")
        expect_results(page, 10)
        settle(page)
        join = "**/queue/join*"
        page.route(
            join, lambda route: route.fulfill(status=status, content_type="application/json", body=body)
        )
        page.locator("#results .grid button").first.click()
        expect(page.get_by_test_id("toast-body")).to_contain_text(told)
        page.unroute(join)
        page.locator("#results .grid button").first.click()
        expect(page.get_by_role("dialog").locator("img")).to_have_count(2)
        assert page.broken == []  # type: ignore[attr-defined]


def test_files_can_be_added_after_none_were_chosen(
    browser: Browser, gallery: Gallery, tmp_path: Path
) -> None:
    for seed in range(2):
        draw(100 + seed).save(tmp_path / f"new {seed}.png")
    words = [*SERVE, str(gallery.folder), "--allow-changes"]
    with serving(words, tmp_path / "scratch") as server, browser.new_context() as context:
        page = watched(context.new_page(), server)
        page.get_by_role("tab", name="Gallery").click()
        page.get_by_role("button", name="Add images").click()
        add = page.get_by_role("button", name="Add", exact=True)
        add.click()
        expect(page.locator("#add-outcome .trouble")).to_have_text("choose images first")
        page.locator("#add-files input[type=file]").set_input_files(sorted(tmp_path.glob("new*.png")))
        expect(page.locator("#add-files")).to_contain_text("new 1")
        add.click()
        expect(page.locator("#add-outcome")).to_contain_text("2 pictures added.")
        assert page.broken == []  # type: ignore[attr-defined]
