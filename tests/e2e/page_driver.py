"""The page in a real browser: a server over a small gallery, and what a visitor does with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from retrieval import Gallery
from retrieval.gallery import Hit
from retrieval.gallery_evaluation import evaluate_gallery
from tests.e2e.page_gallery import stock
from tests.serve.serving import SERVE, Server, serving

expect.set_options(timeout=30_000)  # milliseconds: machines may be busy

_QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests; LOOKALIKE_REQUIRE_BROWSER=1 makes its absence a failure."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        reason = "needs Chromium on the PATH to drive the page"
        if os.environ.get("LOOKALIKE_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(_QUIET))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> Gallery:
    """The shop, indexed and evaluated; not to be changed."""
    folder = tmp_path_factory.mktemp("page")
    gallery = stock(folder, shop)
    evaluate_gallery(gallery)
    return gallery


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, gallery: Gallery) -> Iterator[Server]:
    with serving([*SERVE, str(gallery.folder)], tmp_path_factory.mktemp("scratch")) as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    """The page, opened and ready; every request it makes must stay on the server."""
    with browser.new_context() as context:
        page = context.new_page()
        yield watched(page, server)
        assert page.foreign == []  # type: ignore[attr-defined]
        assert page.broken == []  # type: ignore[attr-defined]


def watched(page: Page, server: Server) -> Page:
    """Open the server's page; requests to elsewhere and errors of scripts are noted."""
    foreign: list[str] = []
    broken: list[str] = []

    def note(url: str) -> None:
        if urlsplit(url).scheme not in ("data", "blob") and not url.startswith(f"{server.url}/"):
            foreign.append(url)

    page.on("request", lambda request: note(request.url))
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.foreign, page.broken = foreign, broken  # type: ignore[attr-defined]
    page.goto(server.url, wait_until="domcontentloaded")
    expect(page.locator("#status")).to_contain_text("Drop, paste or choose a picture", timeout=30_000)
    return page


def upload(page: Page, path: Path) -> None:
    expect(page.locator("#query img")).to_have_count(0)  # the box takes one picture after the other
    page.locator("#query input[type=file]").set_input_files(path)


def expect_results(page: Page, count: int) -> None:
    expect(page.locator("#status")).to_contain_text(f"{count} results")
    expect(page.locator("#results li")).to_have_count(count)


def captions(page: Page) -> list[str]:
    """The alternative texts of the results."""
    return [str(image.get_attribute("alt")) for image in page.locator("#results img").all()]


def expect_pictures_loaded(page: Page) -> None:
    script = "[...document.querySelectorAll('#results img')].every(i => i.complete && i.naturalWidth > 0)"
    page.wait_for_function(script)


def settle(page: Page) -> None:
    """Wait for the grid that stays: it may be drawn once more when the last event behind an upload ends,
    and what is replaced between press and release is not clicked."""
    for _ in range(20):
        page.evaluate("document.querySelector('#results button').seen = true")
        page.wait_for_timeout(500)
        if page.evaluate("document.querySelector('#results button')?.seen === true"):
            return
    pytest.fail("the results are drawn again and again")


def caption(rank: int, hit: Hit, label: str | None) -> str:
    """The alternative text of a result of a search with a picture of that label."""
    judged = "same label" if hit.label == label else "other label"
    return f"{rank} · {hit.score:.4f} · {hit.label} · {judged}"
