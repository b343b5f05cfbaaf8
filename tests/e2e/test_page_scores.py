"""Scores of the page in a real browser: bands of probabilities, and the calibration that gives them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from retrieval import Gallery
from retrieval.evaluation.calibration_fit import THRESHOLDS, calibrate
from retrieval.reports.folder import evaluate_and_keep
from retrieval.search.calibration import NAME, write_calibration
from tests.e2e.accessibility import violations
from tests.e2e.page_driver import below, search_with, visiting
from tests.serve.serving import SERVE, Server, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# The lowest probabilities of the bands, as docs/calibration.md states them.
BANDS = {"The same": 0.75, "Similar": 0.25, "Only related": 0.1, "Nothing like it below": 0}
_GRID = """
list => {
  const found = {};
  let band = '';
  for (const row of list.children) {
    if (row.matches('.band')) found[band = row.querySelector('h2').textContent] = [];
    else if (row.dataset.item) (found[band] ??= []).push(Number(row.dataset.item));
  }
  return found;
}
"""

# Scroll until all hits of the catalogue are shown.
_ALL = """
() => {
  scrollTo(0, document.body.scrollHeight);
  return document.querySelectorAll('#results [data-item]').length === 149;
}
"""


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, galleries: dict[str, Gallery]) -> Gallery:
    """The catalogue, neither calibrated nor evaluated."""
    folder = shutil.copytree(
        galleries["catalogue"].folder, tmp_path_factory.mktemp("scores") / "catalogue.gallery"
    )
    (folder / NAME).unlink()
    return Gallery.open(folder)


@pytest.fixture(scope="module")
def allowing(gallery: Gallery) -> Iterator[Server]:
    words = [*SERVE, str(gallery.folder), "--allow-changes"]
    with serving(words, gallery.folder.parent / "scratch", forked=True) as running:
        yield running


def expected(gallery: Gallery, item: int, shown: dict[str, list[int]]) -> dict[str, list[int]]:
    """As many hits of an item as are shown, by the bands of their probabilities."""
    found: dict[str, list[int]] = {}
    for hit in gallery.search_id(item, sum(map(len, shown.values()))):
        assert hit.probability is not None
        name = next(name for name, least in BANDS.items() if hit.probability >= least)
        found.setdefault(name, []).append(hit.id)
    return found


def in_bands(page: Page) -> dict[str, list[int]]:
    found: dict[str, list[int]] = page.locator("#results .hits").evaluate(_GRID)
    return found


def test_calibration_is_one_press_after_an_evaluation(
    context: BrowserContext, allowing: Server, gallery: Gallery
) -> None:
    with visiting(context, allowing) as page:
        search_with(page, allowing, "?like=5")
        assert page.locator("#search [data-part=min_probability_field]").evaluate("one => one.hidden")
        assert list(in_bands(page)) == [""]
        assert not re.search(r"\d\s*%", page.locator("#results").inner_text())
        page.get_by_role("tab", name="Evaluation").click()
        expect(page.get_by_role("button", name="Evaluate this gallery")).to_be_visible()
        press = page.get_by_role("button", name="Calibrate")
        expect(press).to_be_hidden()
        page.get_by_role("button", name="Evaluate this gallery").click()
        press.press("Enter")
        section = page.locator("#calibration")
        expect(section).to_contain_text("searches have probabilities from now on")
        assert page.evaluate("document.activeElement.closest('#calibration') !== null"), "the focus is kept"
        kept, quality = calibrate(gallery)
        assert gallery.calibration is not None
        assert gallery.calibration.weights == kept.weights
        expect(section).to_contain_text(f"differ by {100 * quality.ece:.1f} percentage points")
        low, high = (100 * limit(quality.ece_of_folds) for limit in (min, max))
        expect(section).to_contain_text(f"({low:.1f} to {high:.1f} in single fifths of the ")
        right, hits = (
            {one.probability: getattr(one, name) for one in quality.thresholds} for name in ("right", "hits")
        )
        similar = (hits[0.25] * right[0.25] - hits[0.75] * (right[0.75] or 0)) / (hits[0.25] - hits[0.75])
        row = section.get_by_role("row", name="Similar")
        expect(row).to_contain_text(f"{100 * similar:.0f} %")
        page.get_by_role("tab", name="Search").click()
        expect(page.get_by_test_id("status")).to_contain_text("likely the same")
        page.get_by_test_id("filter").locator("visible=true").get_by_text("Advanced").click()
        expect(page.get_by_label(re.compile("^Lowest probability"))).to_be_visible()  # without a reload
        page.keyboard.press("Escape")
        page.get_by_test_id("hit").last.scroll_into_view_if_needed()  # more hits come, of a lower band
        expect(page.locator("#search .band").nth(1)).to_be_attached()
        shown = in_bands(page)
        assert shown == expected(gallery, 5, shown)
        page.get_by_role("tab", name="Evaluation").click()
        page.reload(wait_until="domcontentloaded")
        verdict = "they can be relied on" if quality.ece <= 0.05 else "Do not rely"
        expect(section).to_contain_text(verdict)
        expect(page.get_by_role("button", name="Calibrate again")).to_be_visible()
        expect(row).to_be_visible()


def test_bands_begin_where_the_probabilities_say(
    context: BrowserContext, allowing: Server, gallery: Gallery
) -> None:
    assert {*BANDS.values()} <= {0, *THRESHOLDS}, "a calibration tells how often each is right"
    kept, _ = calibrate(gallery)
    scores = [hit.score for hit in gallery.search_id(5, 149)]
    steep = 6 / (scores[10] - scores[45])  # 95 % at one hit, 5 % at the other
    curve = replace(kept, weights=(steep, 0, 0, 0, 0, 0), offset=3 - steep * scores[10], ceiling=0.99)
    write_calibration(gallery.folder, curve)
    with visiting(context, allowing) as page:
        for item in (5, 17):
            search_with(page, allowing, f"?like={item}")
            shown = in_bands(page)
            assert shown == expected(gallery, item, shown)
        search_with(page, allowing, "?like=5")
        page.wait_for_function(_ALL)
        shown = in_bands(page)
        assert list(shown) == list(BANDS)
        assert shown == expected(gallery, 5, shown), "further hits go on in the band that has begun"
        page.get_by_test_id("hit").last.locator("[data-act=open]").click()
        expect(page.get_by_role("dialog")).to_contain_text("nothing like it: shows the same")
        page.keyboard.press("Escape")
        expect(page).to_have_url(f"{allowing.url}/?like=5")  # it has gone back
        search_with(page, allowing, "?like=5&sort=price")
        assert list(in_bands(page)) == [""], "the order is not that of the probabilities"


def test_cards_before_a_band_keep_their_size(page: Page, site: Server) -> None:
    """The last row of a band is not stretched over the width."""
    search_with(page, below(site, "catalogue"), "?like=5")
    heights = page.get_by_test_id("hit").evaluate_all("all => all.map(e => e.getBoundingClientRect().height)")
    assert max(heights) < 2.2 * min(heights)


def test_probabilities_that_cannot_be_relied_on_are_called_so(
    context: BrowserContext, allowing: Server, gallery: Gallery
) -> None:
    kept, _ = calibrate(gallery)
    write_calibration(gallery.folder, replace(kept, quality={"ece": 0.123}))
    with visiting(context, allowing) as page:
        search_with(page, allowing, "?like=5")
        expect(page.locator("#results .band").first).to_contain_text(
            "Not reliable: it is wrong by 12.3 percentage points"
        )
        page.goto(f"{allowing.url}/?tab=evaluation", wait_until="domcontentloaded")
        expect(page.locator("#calibration")).to_contain_text("Do not rely on the probabilities")


def test_who_may_not_calibrate_is_told_who_may(
    context: BrowserContext, site: Server, galleries: dict[str, Gallery]
) -> None:
    with visiting(context, below(site, "shop")) as page:
        page.get_by_role("tab", name="Evaluation").click()
        expect(page.locator("#calibration")).to_contain_text("lookalike calibrate")
        expect(page.locator("#calibration")).to_contain_text("--allow-changes")
        expect(page.get_by_role("button", name="Calibrate")).to_be_hidden()


def test_too_few_labels_are_said(
    browser: Browser, tmp_path: Path, galleries: dict[str, Gallery], context: BrowserContext
) -> None:
    folder = shutil.copytree(galleries["shop"].folder, tmp_path / "shop.gallery")
    evaluate_and_keep(Gallery.open(folder))
    words = [*SERVE, str(folder), "--allow-changes"]
    with serving(words, tmp_path / "scratch", forked=True) as server, visiting(context, server) as page:
        page.get_by_role("tab", name="Evaluation").click()
        page.get_by_role("button", name="Calibrate").click()
        expect(page.locator("#calibration")).to_contain_text("which is too few")
        expect(page.get_by_role("button", name="Calibrate")).to_be_visible()


def test_bands_and_calibration_are_accessible(browser: Browser, allowing: Server, site: Server) -> None:
    with browser.new_context() as own:
        page = own.new_page()
        search_with(page, below(site, "catalogue"), "?like=5")
        assert violations(page) == []
        page.goto(f"{allowing.url}/?tab=evaluation", wait_until="domcontentloaded")
        expect(page.locator("#calibration table")).to_be_visible()
        assert violations(page) == []
