"""The evaluation tab in a real browser: evaluations, reports and figures."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect

from retrieval import Gallery
from retrieval.evaluation.report import Report, kept_reports
from tests.e2e.page_driver import below, expect_results, visiting, watched
from tests.serve.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def gallery(galleries: dict[str, Gallery]) -> Gallery:
    """The gallery with two reports, of 30 images and of 29."""
    return galleries["mixed"]


@pytest.fixture(scope="module")
def server(site: Server) -> Server:
    return below(site, "mixed")


@pytest.fixture
def page(context: BrowserContext, server: Server) -> Iterator[Page]:
    """The evaluation tab."""
    with visiting(context, server) as page:
        page.get_by_role("tab", name="Evaluation").click()
        expect(page.get_by_label("Report")).to_be_visible()  # its modules are there
        yield page


def on_its_tab(page: Page, server: Server) -> Page:
    watched(page, server)
    page.get_by_role("tab", name="Evaluation").click()
    return page


def expect_within_the_width(page: Page) -> None:
    assert page.viewport_size
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def test_evaluation_by_keyboard_is_shared_by_all_visitors(
    browser: Browser, context: BrowserContext, site: Server, galleries: dict[str, Gallery]
) -> None:
    gallery, server = galleries["fresh"], below(site, "fresh")
    size = {"width": 390, "height": 844}
    with (
        visiting(context, server) as other,
        browser.new_context(viewport=size) as phone,  # type: ignore[arg-type]
    ):
        other.get_by_role("tab", name="Evaluation").click()
        page = on_its_tab(phone.new_page(), server)
        expect(page.locator("#report")).to_contain_text("no evaluation yet")
        expect(page.get_by_label("Report")).to_be_hidden()
        held: list[Route] = []
        page.route("**/parts/report?*", lambda route: held.append(route))
        with page.expect_request("**/parts/report?*"):
            page.get_by_role("button", name="Evaluate this gallery").press("Enter")
        expect(page.locator("#measure")).to_contain_text("in its current state")
        expect(page.locator("#report")).not_to_contain_text("no evaluation yet")  # while it is read
        for route in held:
            route.continue_()
        expect(page.get_by_role("button", name="Evaluate this gallery")).to_have_count(0)
        assert page.evaluate("document.activeElement.closest('#measure') !== null"), "the focus is not lost"
        (folder,) = kept_reports(gallery.folder)
        recall = f"{100 * Report.load(folder).headline.values['recall_at_1']:.1f}"
        row = page.locator("#report").get_by_role("row", name=re.compile("Recall@1"))
        expect(row.get_by_role("cell").first).to_contain_text(recall)
        expect(page.get_by_label("Report")).to_contain_text(f"Recall@1 {recall}%")
        expect_within_the_width(page)
        table = page.get_by_test_id("classes").locator(".table")
        expect(table.get_by_role("rowheader").first).to_be_visible()
        assert table.evaluate("e => e.scrollWidth <= e.clientWidth"), "no column is out of sight"
        other.get_by_role("button", name="Evaluate this gallery").click()
        expect(other.locator("#measure")).to_contain_text("in its current state")
        assert kept_reports(gallery.folder) == [folder], "it is not done again"
        assert page.foreign == page.broken == []  # type: ignore[attr-defined]


def test_report_mistake_becomes_the_query(page: Page) -> None:
    _expect_to_search(page, page.locator("#report .pairs .tiles button").first)
    page.get_by_role("tab", name="Evaluation").click()
    hardest = page.locator("#report section").filter(has_text="The hardest queries")
    _expect_to_search(page, hardest.get_by_role("button").first)


def _expect_to_search(page: Page, button: Locator) -> None:
    item = button.get_attribute("data-search")
    button.press("Enter")
    expect(page.locator("#results")).to_be_visible()
    expect(page).to_have_url(re.compile(rf"like={item}$"))
    expect_results(page, 28)
    expect(page.get_by_role("tab", name="Search")).to_be_focused()


def test_reports_are_chosen_and_compared(page: Page) -> None:
    report, against = page.get_by_label("Report"), page.get_by_label("Compare with")
    expect(report.locator("option")).to_have_count(2)
    expect(page.locator("#report")).to_contain_text("29 query images")
    report.select_option(index=1)
    expect(page.locator("#report")).to_contain_text("30 query images")
    expect(page).to_have_url(re.compile(r"tab=evaluation.*report="))
    page.reload(wait_until="domcontentloaded")
    expect(page.locator("#report")).to_contain_text("30 query images")
    page.go_back()
    expect(page.locator("#report")).to_contain_text("29 query images")
    page.go_forward()
    expect(page.locator("#report")).to_contain_text("30 query images")
    page.get_by_role("tab", name="Search").click()
    page.get_by_role("tab", name="Evaluation").click()
    expect(page.locator("#report")).to_contain_text("30 query images")
    report.select_option(index=0)
    expect(page.locator("#report")).to_contain_text("29 query images")
    against.select_option(index=1)
    expect(page.locator("#report")).to_contain_text("difference to")
    expect(page.locator("#report")).to_contain_text(" differs from ")
    against.select_option(index=0)
    expect(page.locator("#report")).not_to_contain_text("difference to")


def test_every_class_can_be_looked_into(page: Page, gallery: Gallery) -> None:
    """The table and the pairs are those of the report; an image opens, and the class is in the address."""
    report = Report.load(kept_reports(gallery.folder)[-1])
    assert report.findings
    classes = report.findings.class_results()
    panel = page.get_by_test_id("classes")
    expect(panel.locator("tbody tr")).to_have_count(len(classes))
    expect(panel.locator("tbody tr").first).to_contain_text(classes[0].name)
    last = classes[-1].name
    panel.get_by_label("Find a class").fill(last.upper())
    expect(panel.locator("tbody tr")).to_have_count(sum(last in one.name for one in classes))
    panel.get_by_role("rowheader").get_by_role("button", name=last, exact=True).click()
    queries = report.findings.answered_queries(last)
    pairs = page.get_by_test_id("class-queries").get_by_role("listitem")
    expect(pairs).to_have_count(len(queries))
    page.reload(wait_until="domcontentloaded")
    expect(pairs).to_have_count(len(queries))
    path = report.findings.absolute(report.findings.queries.path[queries[0]])
    pairs.first.get_by_role("button").first.click()
    expect(page).to_have_url(re.compile(rf"open={gallery.item_at(path)}\b"))
    expect(page.get_by_role("dialog")).to_be_visible()


def test_signs_of_percent_stay_with_their_numbers(page: Page) -> None:
    """At no width, a line of the table of classes begins with one."""
    rows = page.get_by_test_id("classes").locator("tbody")
    expect(rows.locator("tr").first).to_contain_text("%")
    found = """table => {
      const lines = [];
      for (const cell of table.querySelectorAll('small')) {
        for (let width = 20; width < 200; width += 5) {
          cell.style.cssText = `display: block; width: ${width}px`;
          const node = cell.firstChild, range = document.createRange();
          const top = at => {
            range.setStart(node, at);
            range.setEnd(node, at + 1);
            return range.getBoundingClientRect().top;
          };
          for (const {index} of node.data.matchAll(/%/g)) {
            if (top(index) !== top(index - 2)) lines.push(node.data);
          }
        }
      }
      return lines;
    }"""
    assert rows.evaluate(found) == []


def test_triplet_diagram_is_computed_on_demand(page: Page) -> None:
    button = page.get_by_role("button", name="Triplet diagram")
    button.press("Enter")
    expect(page.get_by_role("img", name="Triplet diagram")).to_be_visible()
    expect(page.get_by_role("button", name="Triplet diagram", pressed=True)).to_be_focused()
    expect(page).to_have_url(re.compile("figure=triplets"))
    page.reload(wait_until="domcontentloaded")
    expect(page.get_by_role("img", name="Triplet diagram")).to_be_visible()
    button.press("Enter")
    expect(page.get_by_role("img", name="Triplet diagram")).to_have_count(0)


def test_comparison_and_figure_fit_a_phone(browser: Browser, server: Server) -> None:
    with browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True) as context:
        page = on_its_tab(context.new_page(), server)
        page.get_by_label("Compare with").select_option(index=1)
        expect(page.locator("#report")).to_contain_text("difference to")
        expect_within_the_width(page)
        page.get_by_role("button", name="Triplet diagram").tap()
        expect(page.get_by_role("img", name="Triplet diagram")).to_be_visible()
        expect_within_the_width(page)
