"""Cards of images in a real browser: what they say, how the keyboard and the mouse use them, phones."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from retrieval import Gallery
from retrieval.galleries.writer import FileWriter
from retrieval.ingest.editor import Editor
from retrieval.search.options import SearchOptions
from tests.e2e.page_driver import in_a_tab, search_with, unbroken_page
from tests.serve.serving import SERVE, Server, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]

_CUT = "b => b.scrollHeight > b.clientHeight + 1"


@pytest.fixture(scope="module")
def gallery(galleries: dict[str, Gallery], tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """The catalogue, with numbers before its labels."""
    folder = tmp_path_factory.mktemp("cards") / "catalogue.gallery"
    gallery = Gallery.open(shutil.copytree(galleries["catalogue"].folder, folder))
    editor = Editor(FileWriter(folder))
    with editor.writing():
        items = editor.stored_items([*range(1, len(gallery) + 1)])
        labels = sorted({str(item.label) for item in items})
        for item in items:
            number = labels.index(str(item.label)) + 1
            editor.amend(item, f"{number:03}.{item.label}_long-eared_owl", {})
    gallery.refresh()
    return gallery


@pytest.fixture(scope="module")
def server(gallery: Gallery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    words = [*SERVE, str(gallery.folder), "--show", "price", "--show", "seller", "--show", "nowhere"]
    with serving(words, tmp_path_factory.mktemp("scratch"), forked=True) as running:
        yield running


@pytest.fixture
def page(context: BrowserContext, server: Server) -> Iterator[Page]:
    with unbroken_page(context, server) as page:
        yield page


def test_captions_have_whole_labels_and_the_owners_columns(
    page: Page, server: Server, gallery: Gallery
) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    search_with(page, server, "?like=5")
    ((expected,),) = gallery.find(gallery.vector(5)[None], SearchOptions(1, exclude=[5]))
    card = page.get_by_test_id("hit").first
    label = str(gallery.items([expected.id])[expected.id].label)
    assert card.locator("[data-part=label]").inner_text() == label[4:], "without its number"
    facts = f"{expected.metadata['price']} · {expected.metadata['seller']}"
    expect(card.locator("[data-part=facts]")).to_have_text(facts)
    labels = page.get_by_test_id("hit").locator("[data-part=label]")
    assert not any(labels.nth(n).evaluate(_CUT) for n in range(20))


def test_visitor_chooses_columns_and_size(page: Page, server: Server) -> None:
    search_with(page, server, "?like=5")
    card = page.get_by_test_id("hit").first
    before = card.bounding_box()
    panel = page.locator("#search [data-part=looks]")
    panel.locator("summary").click()
    panel.get_by_role("checkbox", name="seller").uncheck()
    panel.get_by_role("checkbox", name="stock").check()
    expect(card.locator("[data-part=facts]")).to_have_text(re.compile(r"^[\d.]+ · \d+$"))
    panel.get_by_role("slider").fill("16")
    after = card.bounding_box()
    assert before is not None
    assert after is not None
    assert after["height"] > 1.3 * before["height"]
    page.reload(wait_until="domcontentloaded")
    expect(page.get_by_test_id("hit").first.locator("[data-part=facts]")).to_have_text(
        re.compile(r"^[\d.]+ · \d+$")
    )
    page.goto(f"{server.url}/?tab=gallery", wait_until="domcontentloaded")
    expect(page.locator("#collection .pictures [data-part=facts]").first).to_have_text(
        re.compile(r"^[\d.]+ · \d+$")
    )


def test_cards_are_one_stop_of_tab_each_and_arrows_move(page: Page, server: Server) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    search_with(page, server, "?like=5")
    cards = page.get_by_test_id("hit")
    cards.first.get_by_role("button").first.focus()
    focused = "() => Number(document.activeElement.closest('li')?.dataset.rank)"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == 2
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focused) == 1
    page.keyboard.press("ArrowDown")
    below = page.evaluate(focused)
    tops = cards.evaluate_all("all => all.map(one => one.offsetTop)")
    assert tops[below - 1] == sorted(set(tops))[1]
    page.keyboard.press("ArrowUp")
    assert page.evaluate(focused) == 1
    page.keyboard.press("+")
    expect(page).to_have_url(re.compile(r"like=5&like=\d+"))


def test_one_press_searches_with_a_hit(page: Page, server: Server) -> None:
    search_with(page, server, "?like=5")
    card = page.get_by_test_id("hit").nth(3)
    item = card.get_attribute("data-item")
    card.hover()
    card.get_by_role("button", name="Search with this").click()
    expect(page).to_have_url(re.compile(rf"\?like={item}$"))
    expect(page.locator(f"[data-testid=hit][data-item='{item}']")).to_have_count(0)  # these are its hits
    page.get_by_test_id("hit").nth(1).get_by_role("button").first.focus()
    other = page.get_by_test_id("hit").nth(1).get_attribute("data-item")
    page.keyboard.press("s")
    expect(page).to_have_url(re.compile(rf"\?like={other}$"))


def test_hit_is_dragged_to_the_query(page: Page, server: Server) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    search_with(page, server, "?like=5")
    card = page.get_by_test_id("hit").nth(2)
    item = card.get_attribute("data-item")
    card.drag_to(page.get_by_test_id("query"))
    expect(page).to_have_url(re.compile(rf"like=5&like={item}"))


def test_slash_leads_to_the_query(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/?tab=gallery", wait_until="domcontentloaded")
    expect(page.locator("#collection .pictures li").first).to_be_visible()
    page.keyboard.press("/")
    expect(page.locator("#search [data-part=choose]")).to_be_focused()


def test_counts_are_those_of_the_gallery(page: Page, server: Server, gallery: Gallery) -> None:
    matching = [one for one in gallery.items(range(1, 151)).values() if one.metadata["organic"] == "yes"]
    search_with(page, server, "?like=5&filter=organic=yes")
    expect(page.get_by_test_id("status")).to_contain_text(f"of {len(matching)} that match, of 150 images")


@pytest.mark.parametrize("dark", [False, True])
def test_phone_shows_a_hit_and_filters_in_a_sheet(browser: Browser, server: Server, dark: bool) -> None:
    how: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with in_a_tab(browser, server, color_scheme="dark" if dark else "light", **how) as page:
        search_with(page, server, "?like=5&filter=organic=yes&filter=price~2..80")
        first = page.get_by_test_id("hit").first.bounding_box()
        assert first is not None
        assert first["y"] + first["height"] < 844
        expect(page.locator("#search .acts").first).to_be_hidden()
        page.get_by_role("button", name="Filters (2)").click()
        sheet = page.locator("#search [data-part=controls]").bounding_box()
        assert sheet is not None
        assert sheet["y"] > 100
        assert sheet["y"] + sheet["height"] == pytest.approx(844, abs=1)
        page.get_by_role("button", name="Done").click()
        expect(page.get_by_role("button", name="Filters (2)")).to_be_focused()
        expect(page.locator("#search [data-part=controls]")).to_be_hidden()


def test_far_cards_are_not_drawn(page: Page, server: Server) -> None:
    """Below the window, the pictures of cards are not even laid out."""
    page.set_viewport_size({"width": 600, "height": 400})
    search_with(page, server, "?like=5")
    drawn = page.get_by_test_id("hit").evaluate_all(
        "all => all.map(one => one.querySelector('img').checkVisibility({contentVisibilityAuto: true}))"
    )
    assert drawn[0]
    assert not drawn[-1]
