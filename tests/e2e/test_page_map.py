"""The map of the page in a browser: points, classes, selection, and what is done with it."""

from __future__ import annotations

import csv
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from retrieval import Gallery
from tests.e2e.page_driver import below, enclose, in_a_tab, watched
from tests.e2e.page_gallery import large
from tests.serve.serving import SERVE, Server, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, galleries: dict[str, Gallery]) -> Gallery:
    """A copy of the shop, which may be changed."""
    target = tmp_path_factory.mktemp("map") / "shop.gallery"
    return Gallery.open(shutil.copytree(galleries["shop"].folder, target))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, gallery: Gallery, shop: Path) -> Iterator[Server]:
    """A server over it and over a larger one."""
    folder = tmp_path_factory.mktemp("scratch")
    folders = [str(one.folder) for one in (gallery, large(folder, shop, 126))]
    with serving([*SERVE, *folders, "--allow-changes"], folder / "server", forked=True) as running:
        yield running


@pytest.fixture
def page(page: Page) -> Page:
    """The page with the map, which a visitor of a small gallery need not ask for."""
    page.get_by_role("tab", name="Map").click()
    expect(page.get_by_role("application")).to_have_attribute("aria-busy", "false")
    return page


def counts(page: Page) -> dict[str, int]:
    """The legend: names and numbers."""
    rows = page.locator("#map .classes li").all_inner_texts()
    return {name: int(count) for name, count in (re.split(r"\s+(?=\d+$)", row.strip()) for row in rows)}


@pytest.mark.parametrize("size", [{"width": 390, "height": 844}, {"width": 1280, "height": 900}])
def test_all_points_are_in_view(page: Page, gallery: Gallery, size: ViewportSize) -> None:
    page.set_viewport_size(size)
    page.get_by_role("button", name="Show all").click()
    enclose(page)
    expect(page.get_by_test_id("selection")).to_contain_text(f"{len(gallery)} images selected")


def test_few_points_have_thumbnails_and_of_many_those_that_do_not_touch(page: Page, server: Server) -> None:
    shown = page.locator("#map .thumbnails img")
    expect(shown).to_have_count(24)
    page.goto(f"{below(server, 'large').url}/?tab=map", wait_until="domcontentloaded")
    expect(shown.first).to_be_visible()
    boxes = "images => images.map(image => (({x, y, width}) => [x, y, width])(image.getBoundingClientRect()))"
    *places, width = np.array(shown.evaluate_all(boxes)).T
    assert 3 < len(width) < 120
    apart = np.hypot(*(np.subtract.outer(place, place) for place in places))
    assert (apart + 1000 * np.eye(len(width)) > width).all()


def test_legend_counts_and_finds_classes(page: Page, gallery: Gallery, server: Server) -> None:
    expect(page.get_by_test_id("map")).to_contain_text(f"{len(gallery)} images")
    labels = Counter(item.label for item in gallery.items(range(1, 25)).values())
    assert counts(page) == labels
    page.locator("#map").get_by_label("Find a class").fill("ree")
    assert counts(page) == {"green": 8}
    page.get_by_role("checkbox", name="green").check()
    expect(page).to_have_url(re.compile(r"highlight=green"))

    enclose(page)  # only what is lit can be selected

    expect(page.get_by_test_id("selection")).to_contain_text("8 images selected")
    page.reload(wait_until="domcontentloaded")
    expect(page.get_by_role("checkbox", name="green")).to_be_checked()
    page.get_by_label("Colour").select_option("right")
    expect(page).to_have_url(re.compile(r"colour=right(?!.*highlight)"))
    stored = gallery.embeddings()
    similar = stored.vectors @ stored.vectors.T
    similar[range(24), range(24)] = -1
    right = sum(stored.labels[row] == stored.labels[near] for row, near in enumerate(similar.argmax(1)))
    expected = {"wrong": 24 - right, "right": right}
    assert counts(page) == {name: count for name, count in expected.items() if count}


def test_columns_of_text_and_numbers_colour_the_map(page: Page, gallery: Gallery, server: Server) -> None:
    items = gallery.items(range(1, 25)).values()
    page.get_by_label("Colour").select_option("by brand")
    expect(page.locator("#map .classes li")).to_have_count(2)
    assert counts(page) == Counter(item.metadata["brand"] for item in items)
    page.get_by_label("Colour").select_option("by price")
    expect(page).to_have_url(re.compile("colour=column:price"))
    expect(page.locator("#map .classes li").first).to_contain_text("0 to 5")
    prices = [item.metadata["price"] for item in items]
    edges = range(0, 30, 5)  # of prices from 0.5 to 23.5
    assert counts(page) == {
        f"{low} to {low + 5}": n for low, n in zip(edges, np.histogram(prices, edges)[0], strict=False) if n
    }
    page.get_by_role("checkbox", name="10 to 15").check()
    enclose(page)
    expect(page.get_by_test_id("selection")).to_contain_text("5 images selected")
    page.reload(wait_until="domcontentloaded")
    expect(page.get_by_role("checkbox", name="10 to 15")).to_be_checked()
    page.get_by_role("application").focus()
    for key in ("ArrowRight", "ArrowLeft"):  # one of the sides has an image
        page.keyboard.press(key)
    expect(page.locator("#map .point")).to_contain_text("price: 1")


def test_points_are_reached_by_keyboard_and_opened(page: Page, gallery: Gallery) -> None:
    page.get_by_role("application").focus()
    page.keyboard.press("ArrowRight")
    spoken = page.locator("#map .spoken")
    expect(spoken).to_have_text(re.compile(r"(red|green|blue), item \d+"))
    item = int(spoken.inner_text().split()[-1])
    expect(page.locator("#map .point img")).to_have_attribute("src", re.compile(rf"/items/{item}/thumbnail"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text(str(gallery.item(item).label))
    expect(page).to_have_url(re.compile(rf"tab=map.*open={item}$"))
    page.keyboard.press("Escape")
    expect(page.get_by_role("application")).to_be_visible()


def test_table_has_places_and_labels(page: Page, gallery: Gallery) -> None:
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download CSV").click()
    with open(waiting.value.path(), newline="") as file:
        rows = list(csv.DictReader(file))
    assert {int(row["Item"]): row["Label"] for row in rows} == {
        number: item.label for number, item in gallery.items(range(1, 25)).items()
    }
    assert all(-1 <= float(row[axis]) <= 1 for row in rows for axis in ("map_x", "map_y"))
    assert {row["brand"] for row in rows} == {"acme", "<b>zeta</b> & co"}


def test_selection_is_labelled_and_removed(page: Page, gallery: Gallery) -> None:
    page.get_by_role("checkbox", name="blue").check()
    enclose(page)
    selection = page.get_by_test_id("selection")
    selection.get_by_role("button", name="Label").click()
    selection.get_by_label("Label of all of them").fill("sky")
    selection.get_by_role("button", name="Save").click()
    expect(selection).to_contain_text("8 images labelled sky")
    assert Counter(label for label, _ in gallery.contents.label_counts()) == Counter(["red", "green", "sky"])
    expect(page.get_by_test_id("map-status")).to_contain_text("has changed")
    selection.get_by_role("button", name="Remove").click()
    expect(selection).to_contain_text("Remove 8 images from the gallery?")
    selection.get_by_role("button", name="Keep them").click()
    assert len(gallery) == 24
    selection.get_by_role("button", name="Remove").click()
    selection.get_by_role("button", name="Remove", exact=True).click()
    expect(page.get_by_test_id("map-status")).to_contain_text("has changed")
    expect(selection).to_contain_text("8 images removed")
    assert len(Gallery.open(gallery.folder)) == 16
    page.get_by_role("button", name="Draw again").click()
    expect(page.get_by_test_id("map")).to_contain_text("16 images")


def test_search_with_too_many_says_why_not(page: Page, server: Server) -> None:
    page.goto(f"{below(server, 'large').url}/?tab=map", wait_until="domcontentloaded")
    enclose(page)
    bar = page.get_by_test_id("selection").locator("visible=true")
    expect(bar.get_by_role("button", name="Search with these")).to_be_disabled()
    expect(bar).to_contain_text("A search takes at most 16 images: select fewer to search with them.")


def test_without_webgl_the_rest_is_there(browser: Browser, server: Server) -> None:
    with in_a_tab(browser, server) as page:
        page.add_init_script("HTMLCanvasElement.prototype.getContext = () => null")
        watched(page, server).get_by_role("tab", name="Map").click()
        expect(page.get_by_test_id("map-status")).to_contain_text("does not draw with WebGL")
        expect(page.get_by_role("checkbox", name="red")).to_be_visible()
        expect(page.get_by_role("button", name="Download CSV")).to_be_visible()


def _places(page: Page) -> dict[str, tuple[float, float]]:
    """Thumbnail -> its place on the screen, once they are drawn."""
    page.wait_for_timeout(400)
    shown = page.locator("#map .thumbnails img")
    expect(shown.first).to_be_visible()
    found = shown.evaluate_all(
        "all => all.map(i => [i.src, i.getBoundingClientRect()])"
        ".map(([source, box]) => [source, box.x + box.width / 2, box.y + box.height / 2])"
    )
    return {source: (x, y) for source, x, y in found}


def test_wheel_zooms_around_the_pointer_and_a_drag_moves(page: Page) -> None:
    stage = page.get_by_role("application").bounding_box()
    assert stage
    centre = (stage["x"] + stage["width"] / 2, stage["y"] + stage["height"] / 2)
    before = _places(page)
    page.mouse.move(*centre)
    page.mouse.wheel(0, 300)
    zoomed = _places(page)
    times = {
        round(float(np.hypot(*np.subtract(zoomed[one], centre)) / np.hypot(*np.subtract(place, centre))), 2)
        for one, place in before.items()
        if one in zoomed and np.hypot(*np.subtract(place, centre)) > 20
    }
    assert len(zoomed) > 2
    assert max(times) - min(times) < 0.1, "all by the same factor, seen from the pointer"
    assert 0.3 < min(times) < 0.8
    page.mouse.down()
    page.mouse.move(centre[0] + 60, centre[1] - 40, steps=5)
    page.mouse.up()
    moved = _places(page)
    shifts = [np.subtract(moved[one], place) for one, place in zoomed.items() if one in moved]
    assert np.allclose(shifts, (60, -40), atol=1.5)
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Show all").click()
    after = _places(page)
    assert all(np.allclose(after[one], place, atol=1.5) for one, place in before.items())


def test_point_under_the_pointer_is_shown_and_opened(page: Page, gallery: Gallery) -> None:
    source, place = next(iter(_places(page).items()))
    item = int(str(re.search(r"/items/(\d+)/", source)[1]))  # type: ignore[index]
    page.mouse.move(*place)
    expect(page.locator("#map .point img")).to_have_attribute("src", re.compile(rf"/items/{item}/thumbnail"))
    page.mouse.click(*place)
    expect(page).to_have_url(re.compile(rf"open={item}$"))
    expect(page.get_by_role("dialog")).to_be_visible()


def test_two_fingers_zoom(browser: Browser, server: Server) -> None:
    with browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True) as context:
        page = watched(context.new_page(), server)
        page.get_by_role("tab", name="Map").click()
        expect(page.get_by_role("application")).to_have_attribute("aria-busy", "false")
        before = _places(page)
        stage = page.get_by_role("application").bounding_box()
        assert stage
        x, y = stage["x"] + stage["width"] / 2, stage["y"] + stage["height"] / 2
        touch = context.new_cdp_session(page)

        def send(kind: str, apart: float) -> None:
            points = [] if kind == "touchEnd" else [{"x": x + s * apart, "y": y, "id": s} for s in (-1, 1)]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        send("touchStart", 80)
        for apart in range(75, 35, -5):
            send("touchMove", apart)
        send("touchEnd", 0)
        after = _places(page)
        both = [one for one in before if one in after]
        spread = [np.ptp([places[one] for one in both], axis=0).max() for places in (before, after)]
        assert spread[1] / spread[0] == pytest.approx(0.5, rel=0.15)
        assert page.foreign == page.broken == []  # type: ignore[attr-defined]
