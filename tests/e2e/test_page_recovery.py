"""Failures on the page: they are reported, and the page recovers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from retrieval import Gallery
from tests.e2e.page_driver import expect_pictures_loaded, expect_results, in_a_tab, settle, upload, watched
from tests.serve.serving import SERVE, Server, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SIGNED_IN = {"username": "ann", "password": "correct horse: battery ☂"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, gallery: Gallery) -> Iterator[Server]:
    """A server with sign-in that fetches images by URL."""
    folder = tmp_path_factory.mktemp("locked")
    password = folder / "password"
    password.write_text(SIGNED_IN["password"])
    password.chmod(0o600)
    words = ["--allow-urls", "--user", SIGNED_IN["username"], "--password-file", str(password)]
    with serving([*SERVE, str(gallery.folder), *words], folder / "scratch", forked=True) as running:
        yield running


@pytest.fixture(scope="module")
def tab(browser: Browser, server: Server) -> Iterator[Page]:
    with in_a_tab(browser, server, http_credentials=SIGNED_IN) as page:
        yield page


def test_page_works_after_signing_in(browser: Browser, server: Server, shop: Path) -> None:
    with browser.new_context(http_credentials=SIGNED_IN) as context:
        page = context.new_page()
        refused: list[str] = []
        page.on("response", lambda found: refused.append(found.url) if found.status in (401, 403) else None)
        watched(page, server)
        upload(page, shop / "green" / "5.png")
        expect_results(page, 10)
        expect_pictures_loaded(page)
        expect(page.locator("#asked img")).to_be_visible()
        assert set(refused) <= {f"{server.url}/"}


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (503, '{"detail": "Queue is full."}', "currently busy. Please try again"),
        (429, '{"detail": "too many requests; try again in 1 s"}', "try again in 1 s"),
    ],
    ids=["busy", "limited"],
)
def test_refused_request_gives_an_error_and_the_page_recovers(
    page: Page, shop: Path, status: int, body: str, message: str
) -> None:
    upload(page, shop / "green" / "5.png")
    expect_results(page, 10)
    settle(page)
    join = "**/queue/join*"
    page.route(join, lambda route: route.fulfill(status=status, content_type="application/json", body=body))
    page.locator("#results .grid button").first.click()
    expect(page.get_by_test_id("toast-body")).to_contain_text(message)
    page.unroute(join)
    page.locator("#results .grid button").first.click()
    expect(page.get_by_role("dialog").locator("img")).to_have_count(2)


def test_url_of_a_private_address_is_refused(page: Page) -> None:
    page.get_by_label("Image URL").fill("https://127.0.0.1/picture.png")
    page.get_by_label("Image URL").press("Enter")
    expect(page.locator("#status .trouble")).to_be_visible()  # a loopback address
    expect(page.locator("#results li")).to_have_count(0)
    assert "127.0.0.1" not in page.locator("#status").inner_text()


def test_lost_server_is_reported(page: Page, server: Server, shop: Path) -> None:
    """The last test of this file: it ends its server."""
    upload(page, shop / "green" / "5.png")
    expect_results(page, 10)
    settle(page)
    server.process.kill()
    page.locator("#results .grid button").first.click()
    expect(page.get_by_test_id("toast-body")).to_contain_text("Connection to the server was lost")
