"""The page while the server is away or slow, pictures of unusual size, and the page on paper."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, Route, expect

from tests.e2e.accessibility import violations
from tests.e2e.page_driver import Fragile, captions, expect_results, noting, opened, search_with, upload
from tests.serve.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# Pictures that a visitor would see as broken.
BROKEN = """
() => [...document.images].filter(image => image.src && image.complete && !image.naturalWidth
  && image.checkVisibility({opacityProperty: true})).map(image => image.src)
"""
LOADED = "() => [...document.querySelectorAll('#results .hits img')].every(image => image.naturalWidth > 0)"


@pytest.fixture
def visit(browser: Browser, fragile: Fragile) -> Iterator[Page]:
    """The page of the fragile server, in a browser of its own."""
    with browser.new_context() as context:
        page = opened(noting(context.new_page(), fragile.server), fragile.server)
        yield page
        assert page.foreign == page.broken == [], (page.foreign, page.broken)  # type: ignore[attr-defined]


def notice(page: Page) -> Any:
    return page.get_by_test_id("notice")


def test_a_killed_server_is_told_and_the_page_goes_on_by_itself(
    visit: Page, fragile: Fragile, shop: Path
) -> None:
    upload(visit, shop / "green" / "5.png")
    expect_results(visit, 24)
    found = captions(visit)
    fragile.kill()
    upload(visit, shop / "red" / "5.png")
    expect(visit.locator("#status.trouble")).to_contain_text("The server cannot be reached.")
    expect(notice(visit)).to_contain_text("The page goes on when it is back.")
    expect(notice(visit).get_by_role("button", name="Try again")).to_be_visible()
    expect(visit.get_by_role("button", name="Try again")).to_have_count(1)
    assert captions(visit) == found
    assert violations(visit) == []
    visit.wait_for_timeout(1500)
    expect(visit.locator("#status.trouble")).to_contain_text("The server cannot be reached.")
    fragile.revive()
    expect(visit.locator("#results .hits img").first).to_have_attribute("alt", "1 · similarity 1.0000 · red")
    expect(notice(visit)).to_be_hidden()
    expect(visit.locator("#status.trouble")).to_have_count(0)


def test_pictures_that_failed_are_no_glyphs_and_come_when_the_server_is_back(
    visit: Page, fragile: Fragile
) -> None:
    failed: list[str] = []
    visit.on("requestfailed", lambda request: failed.append(request.url))
    visit.route("**/thumbnail*", lambda route: route.abort())
    search_with(visit, fragile.server, "?like=3")
    expect(visit.locator("#results .hits img.missing")).not_to_have_count(0)
    assert visit.evaluate(BROKEN) == []
    expect(notice(visit)).to_be_hidden()  # the server is there
    before = -1
    while before < len(failed):  # each is asked for again once, after two seconds
        before = len(failed)
        visit.wait_for_timeout(3000)
    visit.evaluate("document.querySelector('#results .hits img').dataset.kept = 'yes'")
    fragile.kill()
    visit.evaluate("dispatchEvent(new Event('online'))")
    expect(notice(visit)).to_be_visible()
    visit.unroute("**/thumbnail*")
    fragile.revive()
    expect(notice(visit)).to_be_hidden()
    visit.wait_for_function(LOADED)
    expect(visit.locator("#results .hits img[data-kept=yes]")).to_have_count(1)
    expect(visit.locator("img.missing")).to_have_count(0)


def test_pictures_that_failed_once_are_loaded_again(page: Page, server: Server) -> None:
    page.route("**/thumbnail*", lambda route: route.abort())
    search_with(page, server, "?like=3&unlike=20")
    expect(page.locator("#results .hits img.missing").first).to_be_attached()
    page.unroute("**/thumbnail*")
    page.wait_for_function(LOADED)
    expect(page.locator("img.missing")).to_have_count(0)


def test_try_again_asks_at_once(visit: Page, fragile: Fragile) -> None:
    fragile.kill()
    visit.evaluate("dispatchEvent(new Event('online'))")
    for _ in range(4):  # after the fourth, it is asked again by itself eight seconds later
        visit.wait_for_event("requestfailed", lambda request: request.url.endswith("/healthz"))
    fragile.revive()
    button = notice(visit).get_by_role("button", name="Try again")
    with visit.expect_response("**/healthz") as answer:
        button.click()
    assert answer.value.ok
    expect(notice(visit)).to_be_hidden()
    expect(visit.locator("#results")).to_be_focused()


def test_a_part_that_could_not_be_loaded_comes_when_the_server_is_back(visit: Page, fragile: Fragile) -> None:
    fragile.kill()
    visit.get_by_role("tab", name="Gallery").click()
    expect(visit.get_by_role("alert").filter(has_text="could not be loaded")).to_be_visible()
    expect(notice(visit)).to_be_visible()
    fragile.revive()
    expect(visit.locator("#collection .pictures li")).to_have_count(24)


def test_the_dialog_shows_its_image_when_the_server_is_back(visit: Page, fragile: Fragile) -> None:
    search_with(visit, fragile.server, "?like=3")
    visit.get_by_test_id("hit").first.locator("[data-act=open]").click()
    expect(visit.get_by_role("dialog")).to_contain_text("price")
    fragile.kill()
    visit.keyboard.press("ArrowRight")
    expect(visit.get_by_role("dialog")).to_contain_text("The server cannot be reached.")
    assert visit.evaluate(BROKEN) == []
    fragile.revive()
    expect(visit.get_by_role("dialog")).to_contain_text("price")
    expect(visit.get_by_role("dialog")).not_to_contain_text("The server cannot be reached.")


def test_offline_is_said_at_once(page: Page) -> None:
    page.context.set_offline(True)
    try:
        expect(notice(page)).to_contain_text("You are offline.", timeout=4000)
    finally:
        page.context.set_offline(False)
    expect(notice(page)).to_be_hidden()


def test_a_slow_server_is_said_and_can_be_left_alone(visit: Page, fragile: Fragile) -> None:
    search_with(visit, fragile.server, "?like=3")
    found, address = captions(visit), visit.url
    process = fragile.server.process.pid
    os.kill(process, signal.SIGSTOP)
    try:
        visit.get_by_test_id("hit").nth(2).get_by_role("button", name="More like this").click()
        expect(visit.locator("#status")).to_have_text("Searching …")
        expect(notice(visit)).to_contain_text("The server is slow.")
        assert violations(visit) == []
        notice(visit).get_by_role("button", name="Cancel").click()
        expect(notice(visit)).to_be_hidden()
        expect(visit.locator("#status")).to_have_text("Cancelled.")
        expect(visit).to_have_url(address)
        assert captions(visit) == found
        expect(visit.locator("#results .stale")).to_have_count(0)
        visit.get_by_test_id("hit").nth(2).get_by_role("button", name="More like this").click()
        expect(notice(visit)).to_contain_text("The server is slow.")
    finally:
        os.kill(process, signal.SIGCONT)
    expect(notice(visit)).to_be_hidden()
    expect(visit.get_by_test_id("hit")).to_have_count(22)


@pytest.mark.parametrize("status", [429, 503])
def test_a_refused_search_is_tried_again_by_a_button(page: Page, server: Server, status: int) -> None:
    body = '{"detail": "the server is busy; try again in 1 s"}'
    search_with(page, server, "?like=3")
    page.route("**/search", lambda route: route.fulfill(status=status, body=body))
    page.get_by_test_id("hit").first.get_by_role("button", name="More like this").click()
    expect(page.locator("#status.trouble")).to_have_text("The server is busy; try again in 1 s.")
    page.unroute("**/search")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_test_id("hit")).to_have_count(22)
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)


# ---- pictures


LOG = """
() => {
  window.log = [];
  const line = document.getElementById('status');
  const send = XMLHttpRequest.prototype.send;
  XMLHttpRequest.prototype.send = function (body) {
    const size = image => [image.width, image.height];
    if (body instanceof Blob) window.sent = createImageBitmap(body).then(size);
    return send.call(this, body);
  };
  new MutationObserver(() => log.push([line.textContent, line.classList.contains('trouble')]))
    .observe(line, {childList: true, characterData: true, subtree: true, attributes: true});
}
"""


def test_a_vast_picture_of_few_bytes_is_shrunk_and_an_old_error_goes_at_once(
    page: Page, vast: Path, tmp_path: Path
) -> None:
    (tmp_path / "list.txt").write_text("milk, eggs")
    upload(page, tmp_path / "list.txt")
    expect(page.locator("#status.trouble")).to_contain_text("This picture cannot be used")
    page.evaluate(LOG)
    upload(page, vast)
    expect_results(page, 24)
    first, *rest = page.evaluate("log")
    assert first == ["Reading the picture …", False]
    assert not any(trouble for _, trouble in rest)
    assert page.evaluate("sent") == [1024, 1024]
    best = re.match(r"1 · similarity (\S+) · red", captions(page)[0])
    assert best, captions(page)[0]
    assert float(best[1]) > 0.99


def test_the_picture_that_was_given_last_is_searched_with(page: Page, shop: Path, tmp_path: Path) -> None:
    """Also if one before needs longer to be read: the server decodes it."""
    Image.new("RGB", (60, 50), "blue").save(tmp_path / "first.tif")
    waiting: list[Route] = []
    page.route("**/preview", lambda route: waiting.append(route))
    upload(page, tmp_path / "first.tif")
    page.wait_for_timeout(500)
    assert waiting, "the browser decodes TIFF itself"
    upload(page, shop / "green" / "5.png")
    expect_results(page, 24)
    waiting[0].continue_()
    page.wait_for_timeout(1500)
    assert captions(page)[0] == "1 · similarity 1.0000 · green"
    page.unroute("**/preview")


# ---- on paper

PAPER = {"width": 690, "height": 1000}  # A4 between its margins, in pixels of CSS


def on_paper(page: Page) -> None:
    page.set_viewport_size(PAPER)  # type: ignore[arg-type]
    page.emulate_media(media="print", color_scheme="dark")


def controls(page: Page) -> list[str]:
    """What can be pressed and is visible, but for images and names that are buttons."""
    return [
        str(control.evaluate("one => one.outerHTML.slice(0, 120)"))
        for control in page.locator("button, input, select, summary").all()
        if control.is_visible()
        and not control.locator("img").count()
        and not control.evaluate("one => one.matches('#classes :is(td, th) button, select, #report summary')")
    ]


@pytest.mark.parametrize("query", ["?like=3", "?like=3&like=5&unlike=20&filter=label%3Dred"])
def test_a_search_on_paper_has_the_query_and_the_hits_with_captions(
    page: Page, server: Server, query: str
) -> None:
    search_with(page, server, query)
    page.wait_for_function(LOADED)
    on_paper(page)
    assert controls(page) == []
    expect(page.locator("#search .frame img")).to_be_visible()
    expect(page.get_by_role("tab")).to_have_count(0)
    for hit in page.get_by_test_id("hit").all():
        image = hit.locator("img").bounding_box()
        words = hit.locator("[data-part=label]").bounding_box()
        assert image
        assert words
        assert image["height"] > 60
        assert words["y"] >= image["y"] + image["height"] - 1, "the caption is below the picture"
        assert words["width"] > 0
        assert image["x"] + image["width"] <= PAPER["width"]
    label = page.get_by_test_id("hit").first.locator("[data-part=label]")
    expect(label).to_have_css("color", "rgb(0, 0, 0)")
    if "filter" in query:
        expect(page.locator("#search .chips")).to_contain_text("label: red")


def test_an_evaluation_on_paper_is_complete(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/galleries/mixed/?tab=evaluation")
    expect(page.locator("#report .lookalike-report")).to_be_visible()
    expect(page.locator("#classes tbody tr").first).to_be_visible()
    on_paper(page)
    assert controls(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER["width"]
    for part in page.locator("#report :is(h3, figure, table, details > ul), #classes table").all():
        box = part.bounding_box()
        assert box
        assert box["height"] > 0
        cut = box["x"] + box["width"] - PAPER["width"]
        assert cut <= 1, part.evaluate("one => one.outerHTML.slice(0, 200)")
    page.emulate_media(media="print", color_scheme="light")
    pages = page.pdf(format="A4").count(b"/Type /Page\n")
    assert pages >= page.locator("#report").evaluate("one => one.offsetHeight") / 1400


def test_an_open_image_on_paper_is_alone(page: Page, server: Server) -> None:
    search_with(page, server, "?like=3&open=5")
    expect(page.get_by_role("dialog")).to_contain_text("acme")
    on_paper(page)
    assert controls(page) == []
    expect(page.get_by_test_id("hit").first).to_be_hidden()
    expect(page.locator("#dialog").get_by_role("img", name="item 5, blue")).to_be_visible()
    expect(page.locator("#dialog dl")).to_contain_text("price")
    assert page.pdf(format="A4").count(b"/Type /Page\n") == 1


def test_the_map_is_drawn_on_paper(page: Page, server: Server) -> None:
    """A canvas of WebGL is empty once it has been shown."""
    page.goto(f"{server.url}/?tab=map")
    expect(page.get_by_role("application")).to_have_attribute("aria-busy", "false")
    page.wait_for_timeout(500)
    drawn = """print => {
      const canvas = document.querySelector('#map canvas'), {width, height} = canvas;
      if (print) dispatchEvent(new Event('beforeprint'));
      const copy = Object.assign(document.createElement('canvas'), {width, height}).getContext('2d');
      copy.drawImage(canvas, 0, 0);
      return copy.getImageData(0, 0, width, height).data.some(value => value > 0);
    }"""
    assert page.evaluate(drawn, False) is False
    assert page.evaluate(drawn, True) is True
    on_paper(page)
    assert controls(page) == []
    expect(page.locator("#map canvas")).to_be_visible()
