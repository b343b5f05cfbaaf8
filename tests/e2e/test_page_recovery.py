"""Failures on the page: they are reported, and the page recovers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page, expect

from retrieval import Gallery
from tests.e2e.page_driver import captions, expect_pictures_loaded, expect_results, upload, watched
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
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A context that signs in."""
    with browser.new_context(http_credentials=SIGNED_IN) as context:  # type: ignore[arg-type]
        yield context


def test_page_works_after_signing_in(browser: Browser, server: Server, shop: Path) -> None:
    with browser.new_context(http_credentials=SIGNED_IN) as context:
        page = context.new_page()
        refused: list[str] = []
        page.on("response", lambda found: refused.append(found.url) if found.status in (401, 403) else None)
        watched(page, server)
        upload(page, shop / "green" / "5.png")
        expect_results(page, 24)
        expect_pictures_loaded(page)
        assert set(refused) <= {f"{server.url}/"}


@pytest.mark.parametrize(
    ("status", "detail", "message"),
    [
        (503, "the server is busy: try again in 1 s", "The server is busy: try again in 1 s."),
        (429, "too many requests; try again in 1 s", "Too many requests; try again in 1 s."),
        (502, None, "The server answered with status 502. Try again."),
    ],
    ids=["busy", "limited", "proxy"],
)
def test_refused_request_gives_an_error_and_the_page_recovers(
    page: Page, shop: Path, status: int, detail: str | None, message: str
) -> None:
    upload(page, shop / "green" / "5.png")
    expect_results(page, 24)
    found = captions(page)
    body = "<html>" if detail is None else json.dumps({"detail": detail, "code": "busy"})
    page.route("**/embed", lambda route: route.fulfill(status=status, body=body))
    upload(page, shop / "red" / "5.png")
    expect(page.locator("#status.trouble")).to_have_text(message)
    assert captions(page) == found
    page.unroute("**/embed")
    upload(page, shop / "blue" / "5.png")
    expect(page.locator("#results .hits img").first).to_have_attribute("alt", "1 · similarity 1.0000 · blue")


def test_slow_line_shows_how_much_is_sent(page: Page, tmp_path: Path) -> None:
    Image.effect_noise((1000, 1000), 90).convert("RGB").save(tmp_path / "noise.jpg", quality=60)
    line = page.context.new_cdp_session(page)
    line.send("Network.enable")
    slow = {"offline": False, "latency": 20, "downloadThroughput": -1, "uploadThroughput": 150_000}
    line.send("Network.emulateNetworkConditions", slow)
    upload(page, tmp_path / "noise.jpg")
    expect(page.locator("#status")).to_have_text(re.compile(r"Sending the picture: \d+\s%"))
    expect_results(page, 24)
    line.send("Network.emulateNetworkConditions", {**slow, "latency": 0, "uploadThroughput": -1})


def test_a_text_file_is_refused_as_a_picture(page: Page, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("milk, eggs")
    upload(page, tmp_path / "list.txt")
    expect(page.locator("#status.trouble")).to_contain_text("This picture cannot be used: it is not")


def test_a_part_that_is_not_loaded_says_so(page: Page) -> None:
    page.route("**/collection.js", lambda route: route.abort())
    page.get_by_role("tab", name="Gallery").click()
    expect(page.get_by_role("alert").filter(has_text="could not be loaded")).to_be_visible()
    page.unroute("**/collection.js")


def test_url_of_a_private_address_is_refused(page: Page) -> None:
    field = page.get_by_label("Address of a picture")
    field.fill("https://127.0.0.1/picture.png")
    field.press("Enter")
    expect(page.locator("#status.trouble")).to_be_visible()  # a loopback address
    expect(page.get_by_test_id("hit")).to_have_count(0)
    assert "127.0.0.1" not in page.locator("#status").inner_text()


def test_lost_server_is_reported(page: Page, server: Server, shop: Path) -> None:
    """The last test of this file: it ends its server."""
    upload(page, shop / "green" / "5.png")
    expect_results(page, 24)
    server.process.kill()
    upload(page, shop / "red" / "5.png")
    expect(page.locator("#status.trouble")).to_contain_text("The server cannot be reached.")
