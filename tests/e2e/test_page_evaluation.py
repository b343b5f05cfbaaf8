"""The evaluation tab in a real browser: measure the gallery, look at its reports and at its embeddings."""

# ruff: noqa: F401, F811  the fixtures among what is imported are used by their names

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from retrieval import Gallery
from retrieval.gallery_evaluation import evaluate_gallery
from retrieval.report import Report, kept
from tests.conftest import draw
from tests.e2e.page_driver import browser, expect_results, watched
from tests.e2e.page_gallery import write_map_model
from tests.serve.serving import SERVE, Server, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def confused(folder: Path) -> Gallery:
    """Pictures whose labels say nothing about them, so that there are mistakes to look at."""
    (folder / "pictures").mkdir()
    paths = [folder / "pictures" / f"{seed}.png" for seed in range(30)]
    for seed, path in enumerate(paths):
        draw(seed, hue=seed % 3).save(path)
    gallery = Gallery.create(folder / "mixed.gallery", write_map_model(folder / "model.onnx"))
    gallery.add(paths, metadata=[{"label": f"class {seed % 5}"} for seed in range(30)])
    return gallery


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """One with two reports, of 30 pictures and of 29; not to be changed."""
    gallery = confused(tmp_path_factory.mktemp("page"))
    evaluate_gallery(gallery)
    gallery.remove([1])
    evaluate_gallery(gallery)
    return gallery


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, gallery: Gallery) -> Iterator[Server]:
    with serving([*SERVE, str(gallery.folder)], tmp_path_factory.mktemp("scratch")) as running:
        yield running


@pytest.fixture(params=["light", "dark"])
def page(browser: Browser, server: Server, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The evaluation tab: light on a wide screen, dark on a phone."""
    size = {"width": 1280, "height": 900} if request.param == "light" else {"width": 390, "height": 844}
    with browser.new_context(viewport=size, color_scheme=request.param) as context:  # type: ignore[arg-type]
        page = on_its_tab(context.new_page(), server)
        yield page
        assert page.foreign == []  # type: ignore[attr-defined]
        assert page.broken == []  # type: ignore[attr-defined]


def on_its_tab(page: Page, server: Server) -> Page:
    watched(page, server)
    page.get_by_role("tab", name="Evaluation").click()
    return page


def expect_within_the_width(page: Page) -> None:
    assert page.viewport_size
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def test_a_gallery_is_evaluated_by_keyboard_and_for_everybody(browser: Browser, tmp_path: Path) -> None:
    gallery = confused(tmp_path)
    size = {"width": 390, "height": 844}
    with (
        serving([*SERVE, str(gallery.folder)], tmp_path / "scratch") as server,
        browser.new_context(viewport=size) as here,  # type: ignore[arg-type]
        browser.new_context() as there,
    ):
        page, other = (on_its_tab(context.new_page(), server) for context in (here, there))
        expect(page.locator("#report")).to_contain_text("no evaluation yet")
        expect(page.get_by_label("Report")).to_be_hidden()
        page.get_by_role("button", name="Evaluate this gallery").press("Enter")
        expect(page.locator("#measure")).to_contain_text("as it is now")
        expect(page.get_by_role("button", name="Evaluate this gallery")).to_have_count(0)
        assert page.evaluate("document.activeElement.closest('#measure') !== null"), "the focus is not lost"
        (folder,) = kept(gallery.folder)
        recall = f"{100 * Report.load(folder).headline.recall[1]:.1f}"
        row = page.locator("#report").get_by_role("row", name=re.compile("Recall@1"))
        expect(row.get_by_role("cell").first).to_contain_text(recall)
        expect(page.get_by_label("Report")).to_contain_text(f"Recall@1 {recall}%")
        expect_within_the_width(page)
        other.get_by_role("button", name="Evaluate this gallery").click()
        expect(other.locator("#measure")).to_contain_text("as it is now")
        assert kept(gallery.folder) == [folder], "it is not done again"
        assert page.broken == other.broken == []  # type: ignore[attr-defined]


def test_mistakes_are_searched_with(page: Page) -> None:
    _expect_to_search(page, page.locator("#report .pairs .tiles button").first)
    page.get_by_role("tab", name="Evaluation").click()
    hardest = page.locator("#report section").filter(has_text="The hardest queries")
    _expect_to_search(page, hardest.get_by_role("button").first)


def _expect_to_search(page: Page, button: Locator) -> None:
    item = button.get_attribute("data-search")
    button.press("Enter")
    expect(page.locator("#results")).to_be_visible()
    expect(page.locator("#status")).to_contain_text(f"like item {item}, itself left out")
    expect_results(page, 10)
    expect(page.get_by_role("tab", name="Search")).to_be_focused()


def test_reports_are_chosen_and_compared(page: Page) -> None:
    report, against = page.get_by_label("Report"), page.get_by_label("Compare with")
    expect(report.locator("option")).to_have_count(2)
    expect(page.locator("#report")).to_contain_text("29 query images")
    report.select_option(index=1)
    expect(page.locator("#report")).to_contain_text("30 query images")
    page.get_by_role("tab", name="Search").click()
    page.get_by_role("tab", name="Evaluation").click()
    expect(page.locator("#report")).to_contain_text("30 query images")
    report.select_option(index=0)
    against.select_option(index=1)
    expect(page.locator("#report")).to_contain_text("difference to")
    expect(page.locator("#report")).to_contain_text("Not all is the same")
    expect_within_the_width(page)
    against.select_option(index=0)
    expect(page.locator("#report")).not_to_contain_text("difference to")


def test_the_triplet_diagram_is_drawn_when_it_is_asked_for(page: Page) -> None:
    button = page.get_by_role("button", name="Triplet diagram")
    button.press("Enter")
    expect(page.get_by_role("img", name="Triplet diagram")).to_be_visible()
    expect(page.get_by_role("button", name="Triplet diagram", pressed=True)).to_be_focused()
    expect_within_the_width(page)
    button.press("Enter")
    expect(page.get_by_role("img", name="Triplet diagram")).to_have_count(0)


def test_the_map_is_walked_on_and_searched_from(page: Page, gallery: Gallery) -> None:
    page.get_by_role("button", name="Map").press("Enter")
    plane = page.get_by_role("application")
    expect(plane.locator("path")).to_have_count(29)
    expect(page.locator("#pointed")).to_have_text("Nothing is pointed at.")
    expect(page.locator("#figures .card img")).to_be_hidden()
    plane.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    mark = plane.locator(".at")
    item = int(str(mark.get_attribute("data-item")))
    expect(page.locator("#pointed")).to_have_text(f"{gallery.item(item).label}, item {item}")
    image = page.locator("#figures .card img")
    expect(image).to_have_attribute("src", re.compile(rf"/v1/(galleries/\w+/)?images/{item}/thumbnail"))
    page.wait_for_function("document.querySelector('#figures .card img').naturalWidth > 0")
    expect_within_the_width(page)
    page.keyboard.press("Escape")
    expect(page.locator("#pointed")).to_have_text("Nothing is pointed at.")
    mark = plane.locator("path").nth(7)
    mark.hover(force=True)
    item = int(str(plane.locator(".at").get_attribute("data-item")))
    expect(page.locator("#pointed")).to_contain_text(f"item {item}")
    page.mouse.down()
    page.mouse.up()
    expect(page.locator("#status")).to_contain_text(f"like item {item}, itself left out")
    expect_results(page, 10)


def test_a_finger_looks_first_and_searches_by_the_button(browser: Browser, server: Server) -> None:
    with browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True) as context:
        page = on_its_tab(context.new_page(), server)
        page.get_by_role("button", name="Map").tap()
        page.get_by_role("application").locator("path").nth(3).tap(force=True)
        expect(page.locator("#pointed")).to_contain_text("item")
        expect(page.locator("#evaluation-tab")).to_be_visible()
        button = page.get_by_role("button", name="Search with it")
        item = button.get_attribute("data-search")
        button.tap()
        expect(page.locator("#status")).to_contain_text(f"like item {item}, itself left out")
