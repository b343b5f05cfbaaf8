"""Names, labels, facts and views that are markup: the page and the files of commands show them as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urljoin

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from retrieval import Gallery
from retrieval.reports.folder import evaluate_and_keep
from tests.conftest import draw, lookalike_here
from tests.e2e.page_driver import enclose, noting, opened, upload
from tests.e2e.page_gallery import create
from tests.serve.serving import SERVE, Server, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TAG = '<img src=x data-hacked onerror="window.hacked=1">'
QUOTES = '"\' data-hacked=1 onmouseover="window.hacked=1" x=\''
ADDRESS = "javascript:window.hacked=1"
TEMPLATE = "${window.hacked=1}{{7*7}}</script></textarea></title>"
ALL = f"{TAG}{QUOTES}{TEMPLATE}"

_WATCH = """
window.violations = [];
addEventListener("securitypolicyviolation", event => window.violations.push(event.violatedDirective));
"""
_MARKUP = """() => [
    ...[...document.querySelectorAll("[data-hacked], [onerror], [onmouseover], [href^='javascript:' i]")]
        .map(element => element.outerHTML),
    ...(window.hacked ? ["a script ran"] : []),
    ...(window.violations ?? []),
]"""


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """Thirty images, each with another hostile name; some are stored twice, and many labels are wrong."""
    folder = tmp_path_factory.mktemp("hostile")
    pictures, rows = folder / TAG, []
    pictures.mkdir()
    labels = [f"{n} {ALL}" for n in range(3)]
    for seed in range(30):
        draw(seed % 28, hue=seed % 3).save(pictures / f"{seed:02d} {QUOTES}.png")
        row = {"label": labels[(seed + seed // 25) % 3], "price": seed + 0.5, "link": ADDRESS}
        rows.append(row | {f"odd {TAG}": f"{seed % 4} {ALL}", "text": f"{ALL} " * 5})
    (pictures / f"broken {TAG}.png").write_bytes(b"not a picture")
    gallery = create(folder, "hostile", license=ALL)
    gallery.add(
        [*sorted(pictures.glob("[0-9]*")), *pictures.glob("broken*")], metadata=[*rows, {"label": ALL}]
    )
    for _ in range(2):
        evaluate_and_keep(gallery)
    return gallery


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, gallery: Gallery) -> Iterator[Server]:
    command = [*SERVE, str(gallery.folder), "--allow-changes", "--show", f"odd {TAG}", "--show", "link"]
    with serving(command, tmp_path_factory.mktemp("scratch"), forked=True) as running:
        view = {"name": TAG, "old": None, "address": f"?tab=gallery&where={quote(TAG)}"}
        answer = httpx.post(f"{running.url}/v1/views", json=view, timeout=30)
        assert answer.is_success, answer.text
        images = [{"id": 1, "old": None, "label": TAG}]  # known under another label by now
        assert httpx.post(f"{running.url}/v1/items:label", json={"images": images}, timeout=30).is_success
        assert httpx.patch(f"{running.url}/v1/items/2", json={"label": TAG}, timeout=30).is_success
        yield running


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    with browser.new_context() as context:
        context.add_init_script(_WATCH)
        yield context


@pytest.fixture
def page(context: BrowserContext, server: Server) -> Iterator[Page]:
    page = noting(context.new_page(), server)
    opened(page, server)
    yield page
    assert [found for frame in page.frames for found in frame.evaluate(_MARKUP)] == []
    assert page.foreign == page.broken == []  # type: ignore[attr-defined]


def _see(page: Page, query: str) -> None:
    page.goto(urljoin(page.url, query), wait_until="domcontentloaded")


def test_hits_and_their_facts(page: Page, gallery: Gallery) -> None:
    _see(page, "?like=5&marks=")
    expect(page.get_by_test_id("hit").first).to_contain_text("data-hacked")
    page.get_by_test_id("hit").nth(1).locator("[data-act=open]").click()
    expect(page.get_by_role("dialog")).to_contain_text("javascript:window.hacked=1")
    page.keyboard.press("Escape")
    for summary in page.get_by_test_id("filter").locator("summary").all():
        summary.click()
    expect(page.get_by_test_id("filter").get_by_role("checkbox").first).to_be_visible()


def test_hits_in_groups(page: Page) -> None:
    _see(page, "?like=5&group=label")
    expect(page.get_by_test_id("hit").first).to_contain_text("data-hacked")


def test_name_and_words_of_a_query(page: Page, tmp_path: Path) -> None:
    path = tmp_path / f"{TAG}.png"
    draw(3).save(path)
    upload(page, path)
    expect(page.get_by_test_id("hit").first).to_be_visible()
    (tmp_path / f"bad {TAG}.png").write_bytes(b"no picture")
    upload(page, tmp_path / f"bad {TAG}.png")
    expect(page.locator("#status.trouble")).to_contain_text("cannot be used")


@pytest.mark.parametrize("part", ["like", "where", "filter", "tab", "view", "sort", "group", "marks", "text"])
def test_every_part_of_an_address(page: Page, part: str) -> None:
    _see(page, f"?like=5&{part}={quote(ALL)}")
    expect(page.locator("#search")).to_be_attached()
    page.wait_for_load_state("networkidle")
    _see(page, f"?tab=gallery&{part}={quote(TAG)}#{quote(TAG)}")
    page.wait_for_load_state("networkidle")


def test_collection_and_views(page: Page) -> None:
    page.get_by_role("tab", name="Gallery").click()
    expect(page.locator("#collection .pictures li").first).to_contain_text("data-hacked")
    page.locator("#collection .pictures .open").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("data-hacked")


@pytest.mark.parametrize(
    ("view", "button", "found"),
    [
        ("duplicates", "Find near-duplicates", "#collection .group"),
        ("suspects", "Find suspected labels", "[data-testid=suspects-status]"),
    ],
)
def test_curation(page: Page, view: str, button: str, found: str) -> None:
    _see(page, f"?tab=gallery&view={view}")
    page.get_by_role("button", name=button).click()
    expect(page.locator(found).first).to_contain_text(re.compile("[a-z]"))
    more = page.get_by_role("button", name="Look at more")
    if view == "suspects":
        expect(page.get_by_test_id("suspects-status")).to_contain_text(re.compile("suspected|likely wrong"))
        if more.is_visible():
            more.click()
        expect(page.locator("#collection .suspect").first).to_contain_text("data-hacked")


def test_decisions(page: Page) -> None:
    _see(page, "?tab=gallery&view=decisions")
    expect(page.locator("#collection")).to_contain_text("data-hacked")


def test_facts_of_the_gallery(page: Page) -> None:
    _see(page, "?tab=gallery&view=about")
    expect(page.locator("#stock dl")).to_be_visible()
    expect(page.locator("#statistics summary")).to_be_visible()
    for summary in page.locator("#stock summary, #statistics summary").all():
        summary.click()
    expect(page.locator("#stock")).to_contain_text("data-hacked")  # licence and unusable files


def test_map(page: Page) -> None:
    page.get_by_role("tab", name="Map").click()
    enclose(page)
    expect(page.get_by_test_id("selection")).to_be_visible()
    expect(page.locator("#map")).to_contain_text("data-hacked")


def test_reports(page: Page) -> None:
    page.get_by_role("tab", name="Evaluation").click()
    expect(page.locator("#report h2")).to_be_visible()
    expect(page.get_by_test_id("classes")).to_contain_text("data-hacked")
    page.get_by_label("Compare with").select_option(index=1)
    expect(page.locator("#report")).to_contain_text("difference to")
    page.get_by_role("button", name="Triplet diagram").click()
    expect(page.get_by_role("img", name="Triplet diagram")).to_be_visible()


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory, gallery: Gallery) -> dict[str, Path]:
    """Every kind of page that a command writes."""
    folder = tmp_path_factory.mktemp("documents")
    report = next(gallery.folder.glob("reports/*/report.html"))
    lookalike_here(
        "compare", f"<b data-hacked>={report.parent}", f"two={report.parent}", "--out", str(folder)
    )
    picture = folder / f"{TAG}.png"
    draw(3).save(picture)
    lookalike_here("search", str(gallery.folder), str(picture), "--sheet", str(folder / "sheet.html"))
    lookalike_here("analyze", "tsne", str(gallery.folder), "--out", str(folder / "map.svg"))
    return {"report": report, **{file.stem: file for file in folder.glob("*.html")}}


@pytest.mark.parametrize("name", ["report", "compare", "sheet", "map"])
def test_files_of_commands(context: BrowserContext, documents: dict[str, Path], name: str) -> None:
    """They are opened from the disk, where no server sends a policy."""
    page = context.new_page()
    page.goto(documents[name].as_uri())
    for summary in page.locator("summary").all():
        summary.click()
    page.mouse.move(200, 200)
    assert "data-hacked" in page.content()  # as text
    assert page.evaluate(_MARKUP) == []
