"""Accessibility of the page: keyboard, screen readers, colours and sizes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Browser, Page, expect

from retrieval import Gallery
from retrieval.reports.folder import evaluate_and_keep
from tests.conftest import lookalike_here
from tests.e2e.accessibility import cut_off, violations, walk
from tests.e2e.page_driver import (
    enclose,
    expect_results,
    search_with,
    upload,
    watched,
)
from tests.e2e.page_gallery import large, stock
from tests.serve.serving import SERVE, Server, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> Gallery:
    """The shop with duplicated images that have wrong labels, and two reports."""
    folder = tmp_path_factory.mktemp("page")
    gallery = stock(folder, shop)
    for seed in range(4):
        shutil.copy(shop / "red" / f"{seed}.png", folder / f"{seed}.png")
    gallery.add(sorted(folder.glob("[0-3].png")), metadata=[{"label": "green"}] * 4)
    for _ in range(2):
        evaluate_and_keep(gallery)
    return gallery


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, gallery: Gallery, shop: Path) -> Iterator[Server]:
    """A server that lets visitors do everything, with another gallery of several pages."""
    more = large(gallery.folder.parent, shop, 46)
    words = [*SERVE, str(gallery.folder), str(more.folder), "--allow-changes", "--allow-urls"]
    with serving(words, tmp_path_factory.mktemp("scratch"), forked=True) as running:
        yield running


# ---- states of the page


def empty(page: Page, shop: Path) -> None:
    """Freshly opened, with examples."""
    expect(page.locator("#search .examples button").first).to_be_visible()


def several(page: Page, shop: Path) -> None:
    """Three images as one query, one with a region, and one to move away from."""
    upload(page, shop / "green" / "5.png")
    expect_results(page, 28)
    region = page.get_by_role("button", name="Region to search with")
    region.press("ArrowDown")
    expect(page).to_have_url(re.compile("@"))
    address = page.url
    page.goto(f"{address}&like=3&unlike=9", wait_until="domcontentloaded")
    expect_results(page, 26)
    expect(page.get_by_role("list", name="Query images").get_by_role("listitem")).to_have_count(3)


def parted(page: Page, shop: Path) -> None:
    """Boxes over the picture of the query."""
    search = urljoin(page.url, "?like=5")
    page.goto(search, wait_until="domcontentloaded")
    expect(page.get_by_test_id("hit").first).to_be_visible()
    page.get_by_role("button", name="Find objects").click()
    boxes = page.get_by_role("group", name="Parts of the picture").get_by_role("button")
    expect(boxes.first).to_be_visible()


def item(page: Page, shop: Path) -> None:
    """Results with labels compared, and filters in use."""
    page.goto(urljoin(page.url, "?like=5&marks=&filter=price~1.."), wait_until="domcontentloaded")
    expect(page.get_by_test_id("hit").first).to_be_visible()


def mistaken(page: Page, shop: Path) -> None:
    """An invalid condition."""
    page.goto(urljoin(page.url, "?like=5&where=price >"), wait_until="domcontentloaded")
    expect(page.get_by_test_id("filter").get_by_role("alert")).to_contain_text("At character 8")


def choosing(page: Page, shop: Path) -> None:
    """A list of values to filter by."""
    item(page, shop)
    page.get_by_test_id("filter").locator("summary", has_text="brand").click()
    expect(page.get_by_test_id("filter").get_by_role("checkbox", name="acme")).to_be_visible()


def beside(page: Page, shop: Path) -> None:
    """A result in the dialog, beside the query."""
    item(page, shop)
    page.get_by_test_id("hit").nth(2).locator("[data-act=open]").click()
    expect(page.get_by_role("dialog").get_by_role("img")).to_have_count(2)


def heated(page: Page, shop: Path) -> None:
    """The dialog with heatmaps."""
    beside(page, shop)
    name = "Where they look alike"
    page.get_by_role("button", name=name).click()
    expect(page.get_by_role("button", name=name, pressed=True)).to_be_visible()


def stocked(page: Page, shop: Path) -> None:
    """The gallery tab, with an image selected that is to get a label."""
    page.get_by_role("tab", name="Gallery").click()
    expect(page.locator("#collection .pictures li")).to_have_count(28)
    page.get_by_role("checkbox", name="Select item 1", exact=True).check()
    page.get_by_test_id("selection").get_by_role("button", name="Label").locator("visible=true").click()


def duplicated(page: Page, shop: Path) -> None:
    """Near-duplicates with the question before all are removed."""
    page.goto(urljoin(page.url, "?tab=gallery&view=duplicates"), wait_until="domcontentloaded")
    page.get_by_role("button", name="Find near-duplicates").click()
    expect(page.locator("#collection .group").first).to_be_visible()
    page.get_by_role("button", name="keep this one").first.click()
    page.locator("#collection [data-part=all]").click()


def suspected(page: Page, shop: Path) -> None:
    """A suspected label."""
    page.goto(urljoin(page.url, "?tab=gallery&view=suspects"), wait_until="domcontentloaded")
    page.get_by_role("button", name="Find suspected labels").click()
    expect(page.get_by_test_id("suspects-status")).to_have_text(re.compile("suspected|likely wrong"))
    if page.get_by_role("button", name="Look at more").is_visible():
        page.get_by_role("button", name="Look at more").click()
    expect(page.locator("#collection .suspect").first).to_be_visible()
    page.get_by_role("button", name="Choose all").click()


def described(page: Page, shop: Path) -> None:
    """The facts of the gallery, with every section open."""
    page.goto(urljoin(page.url, "?tab=gallery&view=about"), wait_until="domcontentloaded")
    expect(page.locator("#stock dl")).to_be_visible()
    expect(page.locator("#statistics summary")).to_be_visible()
    for summary in page.locator("#stock summary, #statistics summary").all():
        summary.click()
    expect(page.locator("#statistics .bars")).to_be_visible()


def removing(page: Page, shop: Path) -> None:
    """The confirmation of a removal."""
    page.get_by_role("tab", name="Gallery").click()
    page.locator("#collection .pictures .open").first.click()
    page.get_by_role("dialog").locator("button.remove").click()
    expect(page.get_by_role("button", name="Really remove it?")).to_be_visible()


def evaluated(page: Page, shop: Path) -> None:
    """The newest report, and its classes."""
    page.get_by_role("tab", name="Evaluation").click()
    expect(page.locator("#report h2")).to_be_visible()
    expect(page.get_by_test_id("classes").get_by_role("button", name="red").first).to_be_visible()


def mapped(page: Page, shop: Path) -> None:
    """The map, with all images selected."""
    page.get_by_role("tab", name="Map").click()
    enclose(page)
    expect(page.get_by_test_id("selection")).to_be_visible()


def compared(page: Page, shop: Path) -> None:
    """Two reports side by side, and the triplet diagram."""
    page.get_by_role("tab", name="Evaluation").click()
    page.get_by_label("Compare with").select_option(index=1)
    expect(page.locator("#report")).to_contain_text("difference to")
    page.get_by_role("button", name="Triplet diagram").click()
    expect(page.get_by_role("img", name="Triplet diagram")).to_be_visible()


STATES = (
    *(empty, several, parted, item, mistaken, choosing, beside, heated),
    *(stocked, duplicated, suspected, described, removing, mapped, evaluated, compared),
)


@pytest.mark.parametrize("reach", STATES, ids=lambda state: state.__name__)
def test_page_has_no_accessibility_violations(
    page: Page, shop: Path, reach: Callable[[Page, Path], None]
) -> None:
    reach(page, shop)
    wrong = [*walk(page), *cut_off(page), *violations(page)]
    assert not wrong, "\n".join(wrong)


def test_arrow_keys_switch_tabs(page: Page) -> None:
    page.get_by_role("tab", name="Search").focus()
    for key, name in (
        ("ArrowRight", "Gallery"),
        ("ArrowRight", "Map"),
        ("End", "Evaluation"),
        ("ArrowRight", "Search"),
    ):
        page.keyboard.press(key)
        expect(page.get_by_role("tab", name=name, selected=True)).to_be_focused()
        expect(page.get_by_role("tabpanel", name=name)).to_be_visible()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Home")
    expect(page.get_by_role("tab", name="Search", selected=True)).to_be_focused()


def test_first_tab_stop_skips_to_the_results(page: Page, server: Server) -> None:
    search_with(page, server, "?like=5")
    page.keyboard.press("Tab")
    skip = page.get_by_role("button", name="Skip to content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator("#results summary").first).to_be_focused()


def test_reduced_motion_is_respected(browser: Browser, server: Server, shop: Path) -> None:
    with browser.new_context(reduced_motion="reduce") as context:
        page = watched(context.new_page(), server)
        item(page, shop)
        longest = page.evaluate(
            """Math.max(...[...document.querySelectorAll('main *')].flatMap(e => {
                const style = getComputedStyle(e);
                return [style.animationDuration, style.transitionDuration]
                    .flatMap(times => times.split(',')).map(parseFloat);
            }))"""
        )
        assert longest <= 0.001  # seconds


def test_selection_is_visible_in_forced_colors(browser: Browser, server: Server, shop: Path) -> None:
    with browser.new_context(forced_colors="active") as context:
        page = watched(context.new_page(), server)
        heated(page, shop)
        border = "e => { const s = getComputedStyle(e); return s.borderStyle + s.borderWidth; }"
        chosen, other = (page.locator(f"[role=tab][aria-selected={on}]").first for on in ("true", "false"))
        assert chosen.evaluate(border) != other.evaluate(border)
        pressed, plain = page.locator("#dialog [aria-pressed=true]"), page.locator("#dialog .main")
        assert pressed.evaluate(border) != plain.evaluate(border)


def test_document_has_title_language_and_headings(page: Page, gallery: Gallery) -> None:
    assert page.title() == f"Lookalike: {gallery.folder.stem}"
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.locator("h1").all_inner_texts() == ["Lookalike"]
    viewport = page.locator("meta[name=viewport]").get_attribute("content") or ""
    assert "user-scalable" not in viewport
    assert "maximum-scale" not in viewport


# ---- pages that are files


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory, gallery: Gallery, shop: Path) -> dict[str, Path]:
    """Every kind of page that a command writes."""
    folder = tmp_path_factory.mktemp("documents")
    report = next(gallery.folder.glob("reports/*/report.html"))
    lookalike_here("compare", f"one={report.parent}", f"two={report.parent}", "--out", str(folder))
    picture = str(shop / "green" / "5.png")
    lookalike_here("search", str(gallery.folder), picture, "--sheet", str(folder / "sheet.html"))
    lookalike_here("analyze", "tsne", str(gallery.folder), "--out", str(folder / "map.svg"))
    return {"report": report, **{file.stem: file for file in folder.glob("*.html")}}


@pytest.fixture
def document(request: pytest.FixtureRequest, browser: Browser, documents: dict[str, Path]) -> Iterator[Page]:
    with browser.new_context(offline=True) as context:
        page = context.new_page()
        page.goto(documents[request.param].as_uri())
        yield page


@pytest.mark.parametrize("document", ["report", "compare", "sheet", "map"], indirect=True)
def test_files_have_no_accessibility_violations(document: Page) -> None:
    wrong = [*walk(document), *cut_off(document), *violations(document)]
    assert not wrong, "\n".join(wrong)
