"""Links to searches with pictures of the visitor, opened by others in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from retrieval import Gallery
from retrieval.search.options import SearchOptions
from tests.e2e.accessibility import violations
from tests.e2e.page_driver import below, in_a_tab, upload, watched
from tests.serve.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]

_DECODED = """
text => [...atob(text.replaceAll('-', '+').replaceAll('_', '/'))].map(one => (one.charCodeAt(0) << 24) >> 24)
"""

_SHOWS = """
items => `${items}` === `${[...document.querySelectorAll('[data-testid=hit]')].map(one => one.dataset.item)}`
"""


@pytest.fixture
def own(browser: Browser, server: Server) -> Iterator[Page]:
    """The page in a browser of its own, whose clipboard can be read."""
    with browser.new_context(permissions=["clipboard-read", "clipboard-write"]) as context:
        yield watched(context.new_page(), server)


def found(page: Page) -> list[int]:
    """The hits that are shown, best first."""
    expect(page.get_by_test_id("hit").first).to_be_visible()
    cards = page.get_by_test_id("hit")
    return [int(str(card.get_attribute("data-item"))) for card in cards.all()]


def link_of(page: Page) -> str:
    """Copy the link to the search, without its picture."""
    page.get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Copy without the picture").click()
    expect(page.get_by_test_id("status")).to_contain_text("without your picture")
    return str(page.evaluate("navigator.clipboard.readText()"))


def vector_of(page: Page, link: str, place: int = 0) -> np.ndarray:
    (text,) = re.findall(rf"[#&]{place}=[0-9a-f]{{16}}\.([\w-]+)", link)
    return np.array(page.evaluate(_DECODED, text), np.float64)


def test_another_visitor_sees_the_search_without_the_picture(
    browser: Browser, own: Page, server: Server, gallery: Gallery, shop: Path
) -> None:
    upload(own, shop / "green" / "5.png")
    shown = found(own)
    before = own.url
    link = link_of(own)
    assert own.url == before, "the address stays as it is"
    assert link.startswith(before + "#0=" + gallery.fingerprint[:16])
    vector = vector_of(own, link)
    exact = gallery.embedder.embed([shop / "green" / "5.png"])[0]
    assert float(vector @ exact / np.linalg.norm(vector)) > 0.999
    sent: list[str] = []
    with in_a_tab(browser, server) as other:
        other.on("request", lambda request: sent.append(request.url))
        other.goto(link, wait_until="domcontentloaded")
        (hits,) = gallery.find(vector[None].astype(np.float32), SearchOptions(len(shown)))
        assert found(other) == [hit.id for hit in hits]
        assert found(other)[:5] == shown[:5]
        expect(other.locator("#search .region-help")).to_contain_text("not in this link")
        expect(other.locator("#search .region")).to_be_hidden()
        sketch = other.get_by_alt_text("The query image, which is not in this link")
        other.set_viewport_size({"width": 390, "height": 844})
        expect(sketch).to_be_visible()
        other.set_viewport_size({"width": 1280, "height": 720})
        assert not any(one.endswith("/embed") or "/v1/pictures" in one for one in sent)
        other.reload(wait_until="domcontentloaded")
        assert found(other) == [hit.id for hit in hits]
        other.get_by_test_id("hit").nth(2).locator("[data-act=open]").click()
        expect(other.get_by_role("dialog")).to_be_visible()
        expect(other.locator("#dialog .query-figure")).to_be_hidden()
        expect(other.get_by_role("button", name="Where they look alike")).to_be_hidden()
        other.keyboard.press("Escape")
        other.get_by_test_id("hit").nth(1).hover()
        other.get_by_test_id("hit").nth(1).get_by_role("button", name="Less like this").click()
        expect(other).to_have_url(re.compile(r"unlike=\d+.*#0="))
        other.go_back()
        other.wait_for_function(_SHOWS, arg=[hit.id for hit in hits])  # the others stay until these are there
        assert other.foreign == other.broken == []  # type: ignore[attr-defined]
        assert violations(other) == []
    own.goto(link, wait_until="domcontentloaded")  # where the picture is, it is shown and searched with
    expect(own.locator("#search .region-help")).to_contain_text("Drag over")
    assert found(own) == shown


def test_regions_and_several_views_travel(
    browser: Browser, own: Page, server: Server, gallery: Gallery, shop: Path
) -> None:
    upload(own, shop / "green" / "5.png")
    found(own)
    region = own.locator("#search .region")
    region.press("ArrowDown")
    expect(own).to_have_url(re.compile("@0.2,0.2,0.8,0.8"))
    with own.expect_response(re.compile("/search$")):
        own.get_by_label("Add to this query").check()
        upload(own, shop / "red" / "2.png")
        expect(own).to_have_url(re.compile("like=picture:.*like=picture:"))
    expect(own.get_by_test_id("hit").nth(1)).to_be_visible()
    card = own.get_by_test_id("hit").nth(7)
    unwanted = card.get_attribute("data-item")
    card.hover()
    with own.expect_response(re.compile("/search$")):
        card.get_by_role("button", name="Less like this").click()
    expect(own.locator(f"#results [data-item='{unwanted}']")).to_have_count(0)
    link = link_of(own)
    views = [{"vector": vector_of(own, link, place).tolist()} for place in (0, 1)]
    body = {"like": views, "unlike": [{"id": int(str(unwanted))}], "k": 48}
    answer = httpx.post(f"{server.url}/v1/search", json=body).json()
    with in_a_tab(browser, server) as other:
        other.goto(link, wait_until="domcontentloaded")
        assert found(other) == [hit["id"] for hit in answer["hits"]]


def test_link_of_another_model_is_refused_in_a_sentence(
    browser: Browser, own: Page, server: Server, site: Server, shop: Path
) -> None:
    upload(own, shop / "green" / "5.png")
    found(own)
    link = link_of(own)
    elsewhere = below(site, "catalogue")
    with in_a_tab(browser, server) as other:
        status = other.get_by_test_id("status")
        other.goto(link.replace(server.url, elsewhere.url), wait_until="domcontentloaded")
        expect(status).to_contain_text("another model than the gallery has now")
        other.goto("about:blank")
        other.goto(link[:-20], wait_until="domcontentloaded")
        expect(status).to_contain_text("not complete")
        other.goto("about:blank")
        other.goto(link.partition("#")[0], wait_until="domcontentloaded")
        expect(status).to_contain_text("only in the browser it was searched with")
        upload(other, shop / "green" / "5.png")
        assert found(other)
        assert "#" not in other.url
        assert other.broken == []  # type: ignore[attr-defined]


def test_shared_picture_that_is_gone_leaves_the_search(
    browser: Browser, own: Page, server: Server, shop: Path
) -> None:
    upload(own, shop / "green" / "5.png")
    shown = found(own)
    own.get_by_role("button", name="Copy link").click()
    own.get_by_role("button", name="Share and copy").click()
    expect(own.get_by_test_id("status")).to_contain_text("for 2 hours")
    link = own.evaluate("navigator.clipboard.readText()")
    assert "like=shared:" in link
    with in_a_tab(browser, server) as other:
        other.goto(link, wait_until="domcontentloaded")
        assert found(other) == shown
        expect(other.locator("#search [data-part=large]")).to_have_attribute("src", re.compile("^blob:"))
        other.goto("about:blank")
        other.goto(re.sub("shared:.{4}", "shared:0000", link), wait_until="domcontentloaded")
        assert found(other)[:5] == shown[:5]
        expect(other.locator("#search .region-help")).to_contain_text("not in this link")
