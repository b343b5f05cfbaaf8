"""The page in a real browser: what a visitor does, and what they see."""

from __future__ import annotations

import base64
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from retrieval import Gallery
from retrieval.evaluation import evaluate
from retrieval.report import Report
from retrieval.reports.findings import Pictures, find
from tests.serve.model import write_model
from tests.serve.serving import SERVE, Server, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]
expect.set_options(timeout=30_000)  # milliseconds: machines may be busy

_QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests; LOOKALIKE_REQUIRE_BROWSER=1 makes its absence a failure."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        reason = "needs Chromium on the PATH to drive the page"
        if os.environ.get("LOOKALIKE_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(_QUIET))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> Gallery:
    """The shop, indexed and evaluated; not to be changed."""
    folder = tmp_path_factory.mktemp("page")
    gallery = Gallery.create(folder / "shop.gallery", write_model(folder / "model.onnx"))
    gallery.add([shop])
    vectors, labels, contents, ids = gallery.labelled_vectors()
    evaluation = evaluate("the model", vectors, np.array(labels))
    pictures = Pictures([Path(gallery.item(i).path) for i in ids], labels, contents)
    report = Report(
        data="folder:shop",
        protocol="each searches the others",
        images=len(labels),
        classes=3,
        fingerprint=gallery.fingerprint,
        results=[evaluation.result],
        findings=find(evaluation, pictures, pictures),
    )
    report.save(gallery.folder / "reports" / "2026-01-01")
    return gallery


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, gallery: Gallery) -> Iterator[Server]:
    with serving([*SERVE, str(gallery.folder)], tmp_path_factory.mktemp("scratch")) as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    """The page, opened and ready; every request it makes must stay on the server."""
    with browser.new_context() as context:
        page = context.new_page()
        yield _watched(page, server)
        assert page.foreign == []  # type: ignore[attr-defined]
        assert page.broken == []  # type: ignore[attr-defined]


def _watched(page: Page, server: Server) -> Page:
    """Open the server's page; requests to elsewhere and errors of scripts are noted."""
    foreign: list[str] = []
    broken: list[str] = []

    def note(url: str) -> None:
        if urlsplit(url).scheme not in ("data", "blob") and not url.startswith(f"{server.url}/"):
            foreign.append(url)

    page.on("request", lambda request: note(request.url))
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.foreign, page.broken = foreign, broken  # type: ignore[attr-defined]
    page.goto(server.url, wait_until="domcontentloaded")
    expect(page.locator("#status")).to_contain_text("Drop, paste or choose a picture", timeout=30_000)
    return page


def _upload(page: Page, path: Path) -> None:
    page.locator("#query input[type=file]").set_input_files(path)


def _expect_results(page: Page, count: int) -> None:
    expect(page.locator("#status")).to_contain_text(f"{count} results")
    expect(page.locator("#results li")).to_have_count(count)


def _captions(page: Page) -> list[str]:
    return [str(image.get_attribute("alt")) for image in page.locator("#results img").all()]


def _expect_pictures_loaded(page: Page) -> None:
    script = "[...document.querySelectorAll('#results img')].every(i => i.complete && i.naturalWidth > 0)"
    page.wait_for_function(script)


def test_a_picture_finds_itself_first_with_its_label_and_path(page: Page, shop: Path) -> None:
    path = shop / "green" / "5.png"
    _upload(page, path)
    _expect_results(page, 10)
    assert _captions(page)[0] == "1 · 1.0000 · green"
    first = page.locator("#results li").first
    expect(first).to_contain_text("1.0000")
    expect(first).to_contain_text("green")
    _settle(page)
    page.locator("#results summary").click()
    expect(page.locator("#results tbody tr").first).to_contain_text(str(path))
    expect(page.locator("#status")).to_have_text(re.compile(r"embedding \d+\.\d ms.*search \d+\.\d ms"))
    expect(page.locator("#query img")).to_be_visible()
    _expect_pictures_loaded(page)


def test_the_results_are_those_of_the_gallery(page: Page, gallery: Gallery, shop: Path) -> None:
    path = shop / "red" / "2.png"
    _upload(page, path)
    _expect_results(page, 10)
    hits = gallery.search(path, k=10)
    assert _captions(page) == [f"{rank} · {hit.score:.4f} · {hit.label}" for rank, hit in enumerate(hits, 1)]


def test_k_changes_the_number_of_results(page: Page, shop: Path) -> None:
    _upload(page, shop / "blue" / "0.png")
    _expect_results(page, 10)
    number = page.get_by_label("number input for Results (K)")
    for typed, count in (("3", 3), ("17", 17), ("100", 24)):  # the shop has 24
        number.fill(typed)
        number.press("Tab")
        _expect_results(page, count)
    assert _captions(page)[0] == "1 · 1.0000 · blue"


def test_a_picture_can_follow_a_change_of_k(page: Page, shop: Path) -> None:
    for name, k in (("0", 3), ("1", 5)):
        page.get_by_label("number input for Results (K)").fill(str(k))
        _upload(page, shop / "blue" / f"{name}.png")
        _expect_results(page, k)
        assert _captions(page)[0] == "1 · 1.0000 · blue"


def _settle(page: Page) -> None:
    """Wait for the grid that stays: it may be drawn once more when the last event behind an upload ends,
    and what is replaced between press and release is not clicked."""
    for _ in range(20):
        page.evaluate("document.querySelector('#results button').seen = true")
        page.wait_for_timeout(500)
        if page.evaluate("document.querySelector('#results button')?.seen === true"):
            return
    pytest.fail("the results are drawn again and again")


@pytest.mark.parametrize("way", ["click", "keyboard"])
def test_a_result_can_be_searched_with(page: Page, gallery: Gallery, shop: Path, way: str) -> None:
    _upload(page, shop / "green" / "5.png")
    _expect_results(page, 10)
    _settle(page)
    second = page.locator("#results button").nth(1)
    item = int(str(second.get_attribute("data-item")))
    if way == "click":
        second.click()
    else:
        page.locator("#results button").first.focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text(f"like item {item}, itself left out")
    _expect_results(page, 10)
    hits = gallery.search_id(item, k=10)
    assert _captions(page) == [f"{rank} · {hit.score:.4f} · {hit.label}" for rank, hit in enumerate(hits, 1)]
    shown = [card.get_attribute("data-item") for card in page.locator("#results button").all()]
    assert shown == [str(hit.id) for hit in hits]
    assert str(item) not in shown
    expect(page.locator("#query img")).to_be_visible()


def test_an_unreadable_upload_gets_a_sentence_and_no_stale_results(
    page: Page, shop: Path, tmp_path: Path
) -> None:
    _upload(page, shop / "green" / "5.png")
    _expect_results(page, 10)
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    _upload(page, tmp_path / "broken.png")
    expect(page.locator("#status")).to_contain_text("This picture cannot be used: it is not a JPEG")
    expect(page.locator("#results li")).to_have_count(0)
    expect(page.locator("#query img")).to_have_count(0)
    _upload(page, shop / "red" / "0.png")  # and the page goes on
    _expect_results(page, 10)


def test_an_upload_that_is_too_large_says_so_and_leaves_no_stale_results(
    page: Page, shop: Path, tmp_path: Path
) -> None:
    _upload(page, shop / "green" / "5.png")
    _expect_results(page, 10)
    (tmp_path / "large.png").write_bytes(bytes(21 * 1024 * 1024))
    _upload(page, tmp_path / "large.png")
    expect(page.get_by_test_id("toast-body")).to_contain_text("exceed the maximum allowed size of 20.0 Mb")
    expect(page.locator("#results li")).to_have_count(0)
    expect(page.locator("#query img")).to_have_count(0)


def test_taking_the_picture_away_empties_the_results(page: Page, shop: Path) -> None:
    _upload(page, shop / "green" / "5.png")
    _expect_results(page, 10)
    page.get_by_label("Remove Image").click()
    expect(page.locator("#status")).to_contain_text("Drop, paste or choose a picture")
    expect(page.locator("#results li")).to_have_count(0)


def test_a_picture_can_be_pasted(browser: Browser, server: Server, shop: Path) -> None:
    with browser.new_context(permissions=["clipboard-read", "clipboard-write"]) as context:
        page = _watched(context.new_page(), server)
        picture = base64.b64encode((shop / "green" / "5.png").read_bytes()).decode()
        page.evaluate(
            """async picture => {
                const bytes = Uint8Array.from(atob(picture), c => c.charCodeAt(0));
                const blob = new Blob([bytes], {type: 'image/png'});
                await navigator.clipboard.write([new ClipboardItem({'image/png': blob})]);
            }""",
            picture,
        )
        page.get_by_label("Paste from clipboard").click()
        _expect_results(page, 10)
        assert _captions(page)[0] == "1 · 1.0000 · green"


def test_the_evaluation_shows_table_and_curve_of_the_newest_report(page: Page, gallery: Gallery) -> None:
    page.get_by_role("tab", name="Evaluation").click()
    report = page.locator("#report")
    expect(report.locator("h2")).to_have_text("folder:shop")
    expect(report.get_by_role("rowheader", name="Recall@1")).to_be_visible()
    for name in ("Recall at K", "Similarities of pairs", "Recall at 1 of classes"):
        expect(report.get_by_role("img", name=name)).to_be_visible()
    vectors, labels, _, _ = gallery.labelled_vectors()
    result = evaluate("again", vectors, np.array(labels)).result
    low, high = result.intervals["recall_at_1"]
    numbers = f"{100 * result.recall[1]:.1f}{100 * low:.1f} to {100 * high:.1f}"
    expect(report.locator("tbody td").first).to_have_text(numbers)


def test_the_header_names_the_gallery_and_its_model(page: Page, gallery: Gallery) -> None:
    for text in ("shop.gallery", "24 images", gallery.fingerprint[:12]):
        expect(page.locator("#header")).to_contain_text(text)
    expect(page.locator("footer")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_everything_within_its_width(
    browser: Browser, server: Server, shop: Path, scheme: str
) -> None:
    size = {"width": 390, "height": 844}
    with browser.new_context(viewport=size, color_scheme=scheme) as context:  # type: ignore[arg-type]
        page = _watched(context.new_page(), server)
        _upload(page, shop / "green" / "5.png")
        _expect_results(page, 10)
        _settle(page)
        page.locator("#results summary").click()
        for tab, content in (("Evaluation", "#report svg >> nth=0"), ("Search", "#results tbody")):
            page.get_by_role("tab", name=tab).click()
            expect(page.locator(content)).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
        boxes = [card.bounding_box() for card in page.locator("#results li").all()]
        assert all(box and box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes)
        assert len({box["x"] for box in boxes if box}) == 2  # two cards side by side


def test_the_dark_page_has_light_text_in_both_tabs(browser: Browser, server: Server, shop: Path) -> None:
    with browser.new_context(color_scheme="dark") as context:
        page = _watched(context.new_page(), server)
        _upload(page, shop / "green" / "5.png")
        _expect_results(page, 10)
        assert _brightness(page, "#results li button", "color") > 180
        assert _brightness(page, "#status b", "color") > 180
        assert _brightness(page, "body", "backgroundColor") < 60
        page.get_by_role("tab", name="Evaluation").click()
        expect(page.locator("#report tbody td").first).to_be_visible()
        assert _brightness(page, "#report tbody td", "color") > 180


def _brightness(page: Page, selector: str, what: str) -> float:
    colour = page.locator(selector).first.evaluate(f"e => getComputedStyle(e).{what}")
    return float(np.mean([float(value) for value in re.findall(r"[\d.]+", colour)[:3]]))
