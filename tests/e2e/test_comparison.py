"""A comparison of four models and a report with baselines in a real browser: on a phone and printed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from retrieval.reports.folder import save_comparison, save_report
from tests.conftest import draw
from tests.e2e.accessibility import violations
from tests.retrieval.evaluation.test_comparison import report, side_by_side

pytestmark = [pytest.mark.browser]

_WIDE = "[...document.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > innerWidth).length"
_PICTURES = "all => all.map(e => e.getBoundingClientRect().width)"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    reports = {f"a-rather-long-name-{seed}": report(folder, seed, noise=seed / 5) for seed in range(2, 6)}
    for path in reports["a-rather-long-name-2"].findings.queries.path:  # type: ignore[union-attr]
        (folder / path).parent.mkdir(exist_ok=True)
        draw(0).save(folder / path)
    save_comparison(side_by_side(**reports), folder)
    return folder / "compare.html"


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    with browser.new_context(viewport={"width": 390, "height": 844}, offline=True) as context:
        page = context.new_page()
        page.goto(file.as_uri())
        yield page


def test_everything_is_within_the_width_of_a_phone(page: Page) -> None:
    assert page.get_by_role("columnheader", name="name-5").count() == 2, "numbers, and gains or losses"
    assert page.evaluate(_WIDE) == 0
    assert min(page.locator(".answers img").evaluate_all(_PICTURES)) > 90
    head = page.locator("thead").last
    head.evaluate("e => scrollTo(0, e.getBoundingClientRect().bottom + scrollY + 200)")
    assert head.evaluate("e => e.getBoundingClientRect().top") == 0, "names of the models stay in sight"
    assert violations(page) == []


def test_print_is_light_and_as_wide_as_the_paper(page: Page) -> None:
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": 680, "height": 1000})  # A4 without its margins
    assert page.evaluate(_WIDE) == 0
    assert min(page.locator(".answers img").evaluate_all(_PICTURES)) > 90
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_numbers_of_five_results_do_not_overlap_on_a_phone(page: Page, tmp_path: Path) -> None:
    """A run with two baselines has five columns, and two intervals in each cell."""
    one = report(tmp_path, 0)
    names = ["off-the-shelf backbone", "raw pixels", "before training", "last epoch", "best epoch"]
    save_report(replace(one, results=[replace(one.results[0], name=name) for name in names]), tmp_path)
    page.goto((tmp_path / "report.html").as_uri())
    cells = page.locator(".stacked td", has_text=" to ")
    assert cells.count() > 5
    assert cells.evaluate_all("all => all.filter(e => e.scrollWidth > e.clientWidth).length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
