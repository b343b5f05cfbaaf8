"""A catalogue with many columns in a real browser: filters, order, similarity, heatmaps, links."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from itertools import combinations, product
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, ViewportSize, expect

from retrieval import Gallery
from retrieval.search.options import SearchOptions
from tests.e2e.page_driver import below, in_a_tab, open_filters, search_with, upload, visiting
from tests.serve.serving import SERVE, Server, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WINDOWS = [(1440, 900), (1280, 800), (768, 1024), (390, 844), (844, 390)]
PANELS = ["label", "price", "date", "colour", "seller", "stock", "organic", "description", "Advanced"]
_TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
# Places of an element that the window cuts off or others hide: near its corners, and its middle.
_HIDDEN = """
panel => {
  const {left, top, right, bottom} = panel.getBoundingClientRect();
  const corners = [left + 16, right - 16].flatMap(x => [top + 16, bottom - 16].map(y => [x, y]));
  const places = [...corners, [(left + right) / 2, (top + bottom) / 2]];
  return places.filter(([x, y]) => !panel.contains(document.elementFromPoint(x, y)));
}
"""


@pytest.fixture(scope="module")
def gallery(galleries: dict[str, Gallery]) -> Gallery:
    return galleries["catalogue"]


@pytest.fixture(scope="module")
def server(site: Server) -> Server:
    """The server at the page of the catalogue."""
    return below(site, "catalogue")


@pytest.fixture
def page(context: BrowserContext, server: Server) -> Page:
    with visiting(context, server) as page:
        yield page


def box(element: Locator) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of an element, in pixels of the window."""
    found = element.bounding_box()
    assert found is not None
    return found["x"], found["y"], found["x"] + found["width"], found["y"] + found["height"]


def shown(page: Page) -> list[int]:
    """Return the ids of the results, in the order of the page."""
    found: list[int] = page.get_by_test_id("hit").evaluate_all(
        "all => all.map(one => Number(one.dataset.item))"
    )
    return found


# ---- filters


def test_panels_of_filters_are_inside_the_window(page: Page, server: Server) -> None:
    search_with(page, server, "?like=56")
    for (width, height), name in product(WINDOWS, PANELS):
        page.set_viewport_size({"width": width, "height": height})
        facet = page.locator("#search details.facet", has=page.locator("summary", has_text=name))
        open_filters(page)
        facet.locator("summary").click()
        panel = facet.locator("div").first
        if name != "Advanced":
            expect(panel.locator("input:visible").first).to_be_visible()
        page.evaluate(_TWO_FRAMES)  # it is placed by an event after that of the click
        left, top, right, bottom = box(panel)
        assert left >= 0, (name, left)
        assert right <= width, (name, right)
        assert top >= 0, (name, top)
        assert bottom <= height, (name, bottom)
        assert bottom - top > 80, (name, top, bottom)
        assert not panel.evaluate(_HIDDEN), name
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.keyboard.press("Escape")
        expect(panel).to_be_hidden()


def facet_of(page: Page, name: str) -> Locator:
    facet = page.locator("#search details.facet", has=page.locator("summary", has_text=name))
    facet.locator("summary").click()
    return facet


def test_free_text_is_filtered_by_words(page: Page, server: Server, gallery: Gallery) -> None:
    search_with(page, server, "?like=56")
    facet = facet_of(page, "description")
    expect(facet).to_contain_text("150 different texts")
    assert facet.get_by_role("checkbox").count() == 0
    field = facet.get_by_label("Contains")
    field.fill("long 14")
    field.press("Enter")
    expect(page).to_have_url(re.compile(r"filter=description(\^|%5E)long\+14"))
    texts = {item.id: item.metadata["description"] for item in gallery.items(range(1, 151)).values()}
    expected = {number for number, text in texts.items() if "long" in text and "14" in text} - {56}
    expect(page.get_by_test_id("hit")).to_have_count(len(expected))
    assert {*shown(page)} == expected
    page.get_by_role("button", name="Remove the filter description contains long 14").click()
    expect(page.get_by_test_id("hit")).to_have_count(48)
    expect(field).to_have_value("")


def test_ranges_have_histograms(page: Page, server: Server, gallery: Gallery) -> None:
    search_with(page, server, "?like=56")
    items = gallery.items(range(1, 151)).values()
    facet = facet_of(page, "price")
    bars = facet.locator(".histogram i")
    expect(bars).to_have_count(24)
    prices = [item.metadata["price"] for item in items]
    counted, edges = np.histogram(prices, 24)
    heights = bars.evaluate_all("all => all.map(bar => bar.getBoundingClientRect().height)")
    assert np.corrcoef(heights, np.sqrt(counted))[0, 1] > 0.99
    facet.get_by_label("From").fill(f"{edges[6] + 0.02:.2f}")
    facet.get_by_label("From").press("Enter")
    expect(facet.locator(".histogram i.outside")).to_have_count(6)
    page.keyboard.press("Escape")
    page.get_by_role("button", name=re.compile("Remove the filter price")).click()
    expect(facet.locator(".histogram i.outside")).to_have_count(0)
    expect(facet.get_by_label("From")).to_have_value("")
    dates = facet_of(page, "date").locator(".histogram i")
    expect(dates).to_have_count(24)


def test_wrong_condition_says_where_and_results_stay(page: Page, server: Server, gallery: Gallery) -> None:
    """The place counts in what was typed, whatever other filters there are; nothing waits for ever."""
    page.set_viewport_size({"width": 420, "height": 400})  # the first results only
    search_with(page, server, "?like=5&filter=organic=yes&filter=price~2..80")
    before = shown(page)
    bar, status = page.get_by_test_id("filter"), page.get_by_test_id("status")
    open_filters(page)
    bar.get_by_text("Advanced").click()
    field = bar.get_by_label("Condition")
    for typed, message in (
        ("stock > 3 and price >", "At character 22, expected a value"),
        ("stock > 3 and pric > 20", "No column 'pric' at character 15; did you mean 'price'?"),
    ):
        field.fill(typed)
        field.press("Enter")
        expect(bar.get_by_role("alert")).to_contain_text(message)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(status).to_have_text(
            'The condition under "Advanced" is not understood. These are still the images from before.'
        )
        assert shown(page) == before
        expect(page.locator(".hits.stale")).to_have_count(0)
        expect(
            page.get_by_text(re.compile("Searching …|Loading more …")).locator("visible=true")
        ).to_have_count(0)
        expect(bar.get_by_role("list", name="Filters in use").get_by_role("listitem")).to_have_count(2)
    field.fill("stock > 3")
    field.press("Enter")
    where = "organic = 'yes' and price between 2 and 80 and stock > 3"
    expected = [hit.id for hit in gallery.search_id(5, 48, where=where)]
    expect(bar.get_by_role("alert")).to_be_hidden()
    expect(status).to_contain_text("The 48 most similar of 72 that match, of 150 images")
    assert shown(page)[: len(expected)] == expected
    page.goto(f"{server.url}/?tab=gallery&filter=organic=yes&where=price >", wait_until="domcontentloaded")
    expect(page.locator("#collection [data-part=fault]")).to_contain_text("At character 8")
    expect(page.get_by_test_id("gallery-status")).to_contain_text("is not understood")


# ---- order


@pytest.mark.parametrize("way", ["ascending", "descending"])
def test_order_continues_below_what_is_shown(
    browser: Browser, server: Server, gallery: Gallery, way: str
) -> None:
    order = {"ascending": "price", "descending": "price desc"}[way]
    options = SearchOptions(150, exclude=[5], order=order)
    (expected,) = gallery.find(gallery.vector(5)[None], options)
    values = np.array([hit.metadata["price"] for hit in expected])
    assert (np.diff(values if way == "ascending" else -values) >= 0).all()
    ids = [hit.id for hit in expected]
    with in_a_tab(browser, server, viewport={"width": 420, "height": 500}) as page:
        search_with(page, server, "?like=5")
        open_filters(page)
        page.locator("#search").get_by_label("Order").select_option(f"by price, {way}")
        page.get_by_role("button", name="Done").click()
        status = page.get_by_test_id("status")
        expect(status).to_contain_text(f"The first 48 of 150 images · by price, {way}")
        assert shown(page) == ids[:48]
        card = page.get_by_test_id("hit").nth(40)
        card.scroll_into_view_if_needed()
        offset = "card => card.getBoundingClientRect().top + scrollY"
        place = card.evaluate(offset)
        expect(page.get_by_test_id("hit").nth(95)).to_be_attached()
        assert card.evaluate(offset) == place
        page.get_by_test_id("hit").last.scroll_into_view_if_needed()
        expect(status).to_contain_text(f"149 results · by price, {way}")
        assert shown(page) == ids
        page.reload(wait_until="domcontentloaded")
        expect(page.get_by_test_id("hit").first).to_have_attribute("data-item", str(ids[0]))
        expect(page.locator("#search").get_by_label("Order")).to_have_value(order)


# ---- similarity and probability


def test_only_probabilities_are_in_percent(
    page: Page, server: Server, gallery: Gallery, site: Server
) -> None:
    search_with(page, server, "?like=5")
    hits = gallery.search_id(5, 48)
    cards = page.get_by_test_id("hit")
    for rank, hit in enumerate(hits[:3]):
        assert hit.probability is not None
        same = f"{100 * hit.probability:.0f}\u00a0%"
        expect(cards.nth(rank).locator(".caption")).to_contain_text(same)
        words = f"similarity {hit.score:.4f}, similar: shows the same with a probability of {same}"
        expect(cards.nth(rank).locator("img")).to_have_attribute("alt", f"{rank + 1} · {words} · {hit.label}")
    cards.nth(1).locator("[data-act=open]").click()
    expect(page.get_by_role("dialog")).to_contain_text(f"2. result · similarity {hits[1].score:.4f}, ")
    search_with(page, server, "?like=5&filter=seller=shop+1")
    expect(cards).to_have_count(len(gallery.search_id(5, 150, where="seller = 'shop 1'")))
    shares = [int(one.removesuffix("\u00a0%")) for one in page.locator("#results .hits em").all_inner_texts()]
    expect(page.get_by_test_id("status")).to_contain_text(f"{min(shares)} to {max(shares)} % likely the same")
    search_with(page, site, "?like=5")  # the shop, which is not calibrated
    everything = page.locator("#results").inner_text() + page.locator("#results .hits").inner_html()
    assert not re.search(r"\d\s*%", everything)
    expect(page.get_by_test_id("status")).to_contain_text(re.compile(r"similarity -?\d\.\d\d to \d\.\d\d"))
    assert re.search(r"^-?\d\.\d\d$", cards.first.locator("em").inner_text())
    expect(cards.first.locator("[data-act=open]")).to_have_attribute(
        "title", re.compile(r"similarity \d\.\d{4}")
    )


# ---- the query and the dialog


def test_unwanted_image_is_small_and_marked(page: Page, server: Server) -> None:
    search_with(page, server, "?like=5")
    card = page.get_by_test_id("hit").nth(3)
    number = card.get_attribute("data-item")
    card.hover()
    card.get_by_role("button", name="Less like this").click()
    unwanted = page.locator("#search .views .unlike")
    expect(unwanted.locator("img")).to_have_attribute("src", re.compile(f"/items/{number}/thumbnail"))
    large = page.locator("#search [data-part=large]")
    for _ in range(2):
        expect(large).to_have_attribute("src", re.compile("/items/5/thumbnail"))
        expect(large).to_have_attribute("alt", "Query image 1")
        left, top, right, bottom = box(unwanted)
        wide = box(large)
        assert (right - left) * (bottom - top) < (wide[2] - wide[0]) * (wide[3] - wide[1]) / 4
        colour = unwanted.locator("button").first.evaluate("one => getComputedStyle(one).borderColor")
        red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
        assert red > 180 > 100 > max(green, blue)
        assert unwanted.evaluate("one => getComputedStyle(one, '::before').content").startswith('"−"')
        expect(unwanted.get_by_role("button", name="Show image 2, to move away from")).to_be_visible()
        page.reload(wait_until="domcontentloaded")
        expect(page.get_by_test_id("hit").first).to_be_visible()
    unwanted.locator("button").first.click()  # in large only if it is asked for, and marked there, too
    expect(page.locator("#search .frame.unlike")).to_be_visible()
    expect(large).to_have_attribute("alt", "Image 2, to move away from")


@pytest.mark.parametrize("size", [{"width": 1280, "height": 800}, {"width": 390, "height": 844}])
def test_heatmap_covers_the_picture_at_every_size(page: Page, server: Server, size: ViewportSize) -> None:
    """The canvas is where the picture is drawn: zoomed, moved, and after the window has another size."""
    page.set_viewport_size(size)
    search_with(page, server, "?like=5")
    page.get_by_test_id("hit").nth(2).locator("[data-act=open]").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("the query: item 5")
    expect(dialog).not_to_contain_text("your picture")
    dialog.get_by_role("button", name="Where they look alike").click()
    expect(dialog.locator("canvas:visible")).to_have_count(2)
    image, canvas = dialog.locator("[data-part=image]"), dialog.locator("[data-part=layers] canvas")

    def apart() -> float:
        """Return how far the canvas is from what the model has seen: the middle square of the picture."""
        # Zoomed, it is another file, which may still be on its way.
        page.wait_for_function("one => one.naturalWidth > 0", arg=image.element_handle())
        left, top, right, bottom = box(image)
        width, height = image.evaluate("one => [one.naturalWidth, one.naturalHeight]")
        side = min(width, height) * min((right - left) / width, (bottom - top) / height)
        x, y = (left + right) / 2, (top + bottom) / 2
        square = (x - side / 2, y - side / 2, x + side / 2, y + side / 2)
        return float(np.abs(np.subtract(box(canvas), square)).max())

    assert apart() < 1.5
    before = box(canvas)[2] - box(canvas)[0]
    dialog.get_by_role("button", name="Zoom").click()
    expect(dialog.locator(".pane.zoomed")).to_be_visible()
    assert box(canvas)[2] - box(canvas)[0] == pytest.approx(2.5 * before, rel=0.02)
    pane = dialog.locator("[data-part=pane]")
    for at in ({"x": 20, "y": 30}, {"x": 150, "y": 120}):
        pane.hover(position=at)  # type: ignore[arg-type]
        assert apart() < 3
    page.set_viewport_size({"width": size["width"] - 60, "height": size["height"] - 200})
    page.wait_for_timeout(200)
    assert apart() < 3


# ---- header, links and files


def test_nothing_in_the_header_overlaps(page: Page, server: Server) -> None:
    for width in (1440, 1280, 768):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(f"{server.url}/?tab=gallery&view=about", wait_until="domcontentloaded")
        expect(page.locator("#stock")).to_contain_text("apache-2.0, of the model's weights")
        parts = page.locator("#header .top > *, #header .extra > *, [role=tab]").locator("visible=true").all()
        boxes = [box(one) for one in parts]
        assert len(boxes) >= 7
        for (left, top, right, bottom), other in combinations(boxes, 2):
            aside = right <= other[0] + 1 or other[2] <= left + 1
            assert aside or bottom <= other[1] + 1 or other[3] <= top + 1, (width, boxes)


class _Head(HTMLParser):
    """The content of the meta elements by their property or name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.meta: dict[str, list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag == "meta" and (name := given.get("property") or given.get("name")):
            self.meta.setdefault(name, []).append(str(given.get("content")))


def test_link_previews_are_of_the_gallery(
    server: Server, site: Server, tmp_path: Path, gallery: Gallery
) -> None:
    query = "/?like=5@0.1,0.1,0.9,0.9&filter=seller=%22shop%22"
    text = httpx.get(server.url + query, timeout=30).text
    found = {name: one for name, one in _Head(text).meta.items() if name.startswith(("og:", "twitter:"))}
    assert all(len(one) == 1 for one in found.values()), found
    assert "radio" not in repr(found)
    assert found["og:title"] == ["catalogue: find images that look alike"]
    assert found["og:url"] == [server.url + query]
    picture = httpx.get(found["og:image"][0], timeout=30)
    assert (picture.status_code, picture.headers["content-type"]) == (200, "image/webp")
    assert _Head(httpx.get(site.url, timeout=30).text).meta["og:title"] == [
        "shop: find images that look alike"
    ]
    (tmp_path / "password").write_text("a secret word of the server\n")
    (tmp_path / "password").chmod(0o600)
    guarded = [*SERVE, str(gallery.folder), "--user", "anna", "--password-file", str(tmp_path / "password")]
    with serving(guarded, tmp_path / "scratch", forked=True) as running:
        refused = httpx.get(f"{running.url}/?like=5", timeout=30)
        assert refused.status_code == 401
        assert gallery.folder.stem not in refused.text


def test_csv_names_similarity_and_probability(page: Page, server: Server, gallery: Gallery) -> None:
    search_with(page, server, "?like=5")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    (first, *_) = csv.DictReader(io.StringIO(Path(download.value.path()).read_text()))
    hit = gallery.search_id(5, 1)[0]
    assert float(first["Similarity"]) == pytest.approx(hit.score, abs=1e-6)
    assert float(first["Probability"]) == pytest.approx(hit.probability, abs=1e-4)


def test_error_of_the_picture_before_does_not_stay(page: Page, tmp_path: Path, shop: Path) -> None:
    """While a picture is read, nothing says that it cannot be used."""
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    upload(page, tmp_path / "broken.png")
    status = page.get_by_test_id("status")
    expect(status).to_contain_text("cannot be used")
    page.evaluate(
        """() => {
          const open = URL.createObjectURL;
          URL.createObjectURL = file => {
            window.during ??= document.querySelector('#status').textContent;
            return open(file);
          };
        }"""
    )
    upload(page, shop / "red" / "2.png")
    page.wait_for_function("() => window.during")
    assert page.evaluate("during") == "Reading the picture …"
    expect(status).to_contain_text("likely the same")
    upload(page, shop / "red" / "2.png")  # nothing else to search
    expect(status).to_contain_text("likely the same")
