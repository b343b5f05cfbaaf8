"""Drive the page in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, Request, expect

from retrieval import Gallery
from retrieval.galleries.items import Hit
from tests.serve.serving import SERVE, Server, serving

expect.set_options(timeout=30_000)  # milliseconds: machines may be busy


class Fragile:
    """A server that can be killed, and started again at the same address."""

    def __init__(self, gallery: Gallery, scratch: Path) -> None:
        self._words = [*SERVE, str(gallery.folder)]
        self._scratch, self._running = scratch, ExitStack()
        self.server = self._start(0)

    def _start(self, port: int) -> Server:
        return self._running.enter_context(serving(self._words, self._scratch, forked=True, port=port))

    def kill(self) -> None:
        self._running.close()

    def revive(self) -> None:
        self.server = self._start(int(self.server.url.rpartition(":")[2]))


def below(server: Server, name: str) -> Server:
    """Return the server at the page of another gallery."""
    return replace(server, url=f"{server.url}/galleries/{name}")


def noting(page: Page, server: Server) -> Page:
    """Record requests to other hosts, and script errors, of a page."""
    foreign: list[str] = []
    broken: list[str] = []

    def begun(request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.netloc != urlsplit(server.url).netloc:
            foreign.append(request.url)

    page.on("request", begun)
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.foreign, page.broken = foreign, broken  # type: ignore[attr-defined]
    return page


@contextmanager
def in_a_tab(browser: Browser, server: Server, **how: Any) -> Iterator[Page]:
    """Open a new tab; `how` has the options of Playwright's `new_context`."""
    with browser.new_context(**how) as context:
        yield noting(context.new_page(), server)


def opened(page: Page, server: Server) -> Page:
    """Open the server's page and wait until it is ready."""
    page.goto(server.url, wait_until="domcontentloaded")
    expect(page.get_by_test_id("status")).to_contain_text("in the gallery.")
    expect(page.locator("#search .facets > *").first).to_be_attached()  # what comes after the first modules
    return page


@contextmanager
def unbroken_page(context: BrowserContext, server: Server) -> Iterator[Page]:
    """Yield a page that is noted as by `noting`; its scripts must have no error."""
    with context.new_page() as page:
        noting(page, server)
        yield page
        assert page.broken == []  # type: ignore[attr-defined]


def watched(page: Page, server: Server) -> Page:
    """Open the page; requests to other hosts and script errors are recorded."""
    return opened(noting(page, server), server)


@contextmanager
def visiting(context: BrowserContext, server: Server) -> Iterator[Page]:
    """Open the page in a new tab: the history and requests of an earlier visit do not reach it."""
    with context.new_page() as page:
        yield watched(page, server)
        assert page.foreign == page.broken == [], (page.foreign, page.broken)  # type: ignore[attr-defined]


def upload(page: Page, *paths: Path) -> None:
    """Choose pictures to search with."""
    page.locator("#search input[data-part=choose]").set_input_files(paths)


def search_with(page: Page, server: Server, query: str) -> None:
    """Open the address of a search, such as `?like=5`, and wait for its results."""
    page.goto(f"{server.url}/{query}", wait_until="domcontentloaded")
    expect(page.get_by_test_id("hit").first).to_be_visible()


def expect_results(page: Page, count: int) -> None:
    expect(page.get_by_test_id("status")).to_have_text(re.compile(rf"^{count} (result|of \d+ images match)"))
    expect(page.get_by_test_id("hit")).to_have_count(count)


def open_filters(page: Page) -> None:
    """Open the sheet of filters, which is there on narrow screens only."""
    button = page.get_by_test_id("filter").locator("[data-part=sheet]")
    if button.is_visible() and button.get_attribute("aria-expanded") == "false":
        button.click()


def captions(page: Page) -> list[str]:
    """The alternative texts of the results."""
    return [str(image.get_attribute("alt")) for image in page.locator("#results .hits img").all()]


def expect_pictures_loaded(page: Page) -> None:
    page.wait_for_function(
        "() => [...document.querySelectorAll('#results .hits img')]"
        ".some(image => image.complete && image.naturalWidth > 0)"
    )


def filter_pictures(page: Page, condition: str) -> None:
    """Filter the images of the gallery tab by a condition."""
    field = page.locator("#collection").get_by_label("Condition")
    if not field.is_visible():
        page.locator("#collection summary", has_text="Advanced").click()
    field.fill(condition)
    field.press("Enter")


def list_suspects(page: Page) -> None:
    """List the suspected labels: the likely ones, then all."""
    page.get_by_role("button", name="Find suspected labels").click()
    status, more = page.get_by_test_id("suspects-status"), page.get_by_role("button", name="Look at more")
    expect(status).to_contain_text(re.compile("suspected|likely wrong"))
    if more.is_visible():
        more.click()
        expect(status).to_contain_text(re.compile("suspected|likely wrong"))


def enclose(page: Page) -> None:
    """Draw a lasso around all points of the map."""
    stage = page.get_by_role("application")
    expect(stage).to_have_attribute("aria-busy", "false")
    box = stage.bounding_box()
    assert box is not None
    corners = [(0.01, 0.02), (0.99, 0.02), (0.99, 0.98), (0.01, 0.98), (0.01, 0.03)]
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in corners]
    page.keyboard.down("Shift")
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=8)
        page.wait_for_timeout(40)  # the lasso takes a point every few milliseconds
    page.mouse.up()
    page.keyboard.up("Shift")


def caption(rank: int, hit: Hit) -> str:
    """The alternative text of a result."""
    return f"{rank} · similarity {hit.score:.4f} · {hit.label}"
