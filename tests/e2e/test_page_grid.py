"""Long lists in a real browser: only what is near the window is in the document, and nobody notices."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from retrieval import Gallery
from serve.client import Client
from tests.conftest import draw, lookalike_here, wait_until
from tests.e2e.accessibility import violations
from tests.e2e.page_driver import search_with, visiting
from tests.e2e.page_modules import run
from tests.retrieval.filling import DIM
from tests.serve.model import write_model
from tests.serve.serving import SERVE, Server, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]

COUNT = 2500
SIZES = ((60, 40), (40, 60), (50, 50), (90, 30), (20, 70))
VIEWPORT = {"width": 1200, "height": 700}
# The cards that the window shows, with the place of their pictures in it.
SEEN = """
all => all.map(card => [Number(card.dataset.item), card.firstElementChild.getBoundingClientRect()])
  .filter(([, {bottom, top}]) => bottom > 0 && top < innerHeight)
  .map(([item, {left, top, width, height}]) => [item, left, top, width, height])
"""
HEIGHT = "document.documentElement.scrollHeight"


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """Many images of a few files, with labels of very different lengths."""
    folder = tmp_path_factory.mktemp("long")
    for number, size in enumerate(SIZES):
        draw(number, size, hue=number).save(folder / f"{number}.png")
    lines = ["path,label,price"]
    for number in range(COUNT):
        os.link(folder / f"{number % len(SIZES)}.png", folder / f"of-{number:04}.png")
        lines.append(f"of-{number:04}.png,{'long words ' * (number % 4)}kind {number % 7},{number % 90}")
    (folder / "vectors.csv").write_text("\n".join(lines) + "\n")
    np.save(folder / "vectors.npy", np.random.default_rng(0).normal(size=(COUNT, DIM)).astype(np.float32))
    model = write_model(folder / "model.onnx")
    made = [
        "index",
        "import",
        str(folder / "long.gallery"),
        str(folder / "vectors.npy"),
        "--model",
        str(model),
    ]
    lookalike_here(*made)
    return Gallery.open(folder / "long.gallery")


@pytest.fixture(scope="module")
def server(gallery: Gallery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    words = [*SERVE, str(gallery.folder), "--allow-changes"]
    with serving(words, tmp_path_factory.mktemp("scratch"), forked=True) as running:
        yield running


@pytest.fixture
def page(context: BrowserContext, server: Server) -> Iterator[Page]:
    with visiting(context, server) as page:
        page.set_viewport_size(VIEWPORT)  # type: ignore[arg-type]
        page.goto(f"{server.url}/?tab=gallery", wait_until="domcontentloaded")
        expect(cards(page).first).to_be_visible()
        yield page
        page.evaluate("localStorage.clear()")


def cards(page: Page) -> Locator:
    return page.locator("#collection .pictures li")


def seen(page: Page) -> dict[int, tuple[float, ...]]:
    """The items that the window shows: left, top, width and height of their pictures."""
    return {int(item): tuple(place) for item, *place in cards(page).evaluate_all(SEEN)}


def scroll(page: Page, top: float) -> None:
    page.evaluate("top => scrollTo(0, top)", top)
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def list_all(page: Page) -> None:
    """Scroll until all images are listed."""
    page.wait_for_function(
        f"""() => {{
          scrollTo(0, {HEIGHT});
          const last = document.querySelector('#collection .pictures li:last-of-type');
          return Number(last.dataset.item) === {COUNT};
        }}""",
        polling=50,
    )


# ---- rows


ratios = st.lists(st.one_of(st.just(0), st.floats(0.75, 2.2).map(lambda one: round(one, 3))), max_size=60)
rooms = st.fixed_dictionaries(
    {"width": st.integers(120, 1600), "side": st.integers(40, 320), "gap": st.integers(0, 20)}
)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
# Rows as the module breaks them, and as the browser does: the first entry and the height of each.
ROWS = """
const [ratios, room, parts] = a, rows = new m.Rows();
rows.fit({...room, between: 0});
for (let at = 0; at < ratios.length; at += parts) rows.add(ratios.slice(at, at + parts));
const mine = rows.of(0, ratios.length).map(one => [one.first, one.end, one.side]);
document.body.innerHTML = '<div style="display: flex; flex-wrap: wrap; align-items: start"></div>';
const list = document.body.firstElementChild;
Object.assign(list.style, {width: `${room.width}px`, columnGap: `${room.gap}px`});
ratios.forEach((ratio, at) => {
  const one = document.createElement('div');
  one.style.flex = ratio ? `${9 * ratio} 1 ${ratio * room.side}px` : '0 0 100%';
  one.style.minWidth = 0;
  one.style.height = '1px';
  list.append(one);
  if (ratio && !ratios[at + 1]) {  // nothing stretches the last row before a heading or the end
    const rest = document.createElement('div');
    rest.style.flex = '999999 1 0';
    rest.style.marginLeft = `-${room.gap}px`;
    list.append(rest);
  }
});
const boxes = [...list.children].filter(one => !one.style.flex.startsWith('999999'))
  .map(one => one.getBoundingClientRect());
const browser = [];
boxes.forEach((box, at) => {
  if (at && box.top === boxes[at - 1].top) browser.at(-1)[1] = at + 1;
  else browser.push([at, at + 1, ratios[at] && box.width / ratios[at]]);
});
return [mine, browser];
"""


@given(ratios=ratios, room=rooms, parts=st.integers(1, 60))
@quick
def test_rows_are_those_that_the_browser_makes(
    tab: Page, ratios: list[float], room: dict[str, int], parts: int
) -> None:
    mine, browsers = run(tab, "rows", ROWS, ratios, room, parts)
    assert [row[:2] for row in mine] == [row[:2] for row in browsers]
    assert [row[2] for row in mine] == pytest.approx([row[2] for row in browsers], abs=0.1)


# What is between two heights, and the card above or below another one, with what is known of all rows.
PLACES = """
const [ratios, room, [low, high], entry] = a, rows = new m.Rows();
rows.fit({...room, between: 7});
rows.add(ratios);
const all = rows.of(0, ratios.length);
rows.measured(all.slice(0, 3), all.slice(0, 3).map(one => one.side + 31));
const known = all.map(one => [one.first, one.end, one.side, rows.top(one.first)]);
const lefts = ratios.map((_, at) => rows.left(at));
return [known, rows.height, rows.between(low, high), lefts, rows.beside(entry, 1), rows.beside(entry, -1)];
"""


@given(data=st.data(), ratios=ratios.filter(any), room=rooms)
@quick
def test_places_in_the_rows_are_found(
    tab: Page, data: st.DataObject, ratios: list[float], room: dict[str, int]
) -> None:
    entry = data.draw(st.sampled_from([at for at, ratio in enumerate(ratios) if ratio]))
    window = sorted(data.draw(st.tuples(st.integers(-500, 9000), st.integers(-500, 9000))))
    rows, height, near, lefts, below, above = run(tab, "rows", PLACES, ratios, room, window, entry)
    tops = [row[3] for row in rows] + [height]
    assert tops == sorted(tops)
    inside = [at for at in range(len(rows)) if tops[at + 1] >= window[0] and tops[at] < window[1]]
    if inside:
        assert near[0] <= rows[inside[0]][0]
        assert near[1] >= rows[inside[-1]][1]
    assert near[0] < near[1], "there is always something to hold on to"
    mine = next(at for at, row in enumerate(rows) if row[0] <= entry < row[1])

    def middle(at: int) -> float:
        row = next(row for row in rows if row[0] <= at < row[1])
        assert lefts[at] == pytest.approx(sum(ratios[n] * row[2] + room["gap"] for n in range(row[0], at)))
        return float(lefts[at] + ratios[at] * row[2] / 2)

    for found, others in ((below, rows[mine + 1 :]), (above, rows[:mine][::-1])):
        row = next((one for one in others if one[2]), None)
        if row is None:
            assert found == -1
        else:
            best = min(abs(middle(at) - middle(entry)) for at in range(row[0], row[1]))
            assert row[0] <= found < row[1]
            assert abs(middle(found) - middle(entry)) == pytest.approx(best)


# ---- the window


def test_every_image_is_shown_once_and_few_are_in_the_document(page: Page) -> None:
    expect(page.get_by_test_id("gallery-status")).to_have_text(f"{COUNT:,} images")
    list_all(page)
    height = page.evaluate(HEIGHT)
    found: dict[int, float] = {}
    for top in range(0, height, VIEWPORT["height"] // 2):
        scroll(page, top)
        shown = seen(page)
        assert len(cards(page).all()) < 200
        for item, (_, y, *_) in shown.items():
            place = y + page.evaluate("scrollY")
            assert found.setdefault(item, place) == pytest.approx(place, abs=1), "it stays where it is"
    assert sorted(found) == [*range(1, COUNT + 1)]
    assert page.evaluate(HEIGHT) == pytest.approx(height, rel=1e-3)  # not all rows had been seen
    order = sorted(found, key=lambda item: (round(found[item]), item))
    assert order == sorted(found), "rows follow each other"


def test_cards_say_how_many_there_are_and_which_they_are(page: Page) -> None:
    expect(page.get_by_test_id("gallery-status")).to_have_text(f"{COUNT:,} images")
    scroll(page, 3000)
    # All at once: rows come and go while the page settles.
    numbered = cards(page).evaluate_all(
        "all => all.map(one => [one.ariaSetSize, one.ariaPosInSet, one.dataset.item])"
    )
    assert numbered
    for size, place, item in numbered:
        assert (size, place) == (str(COUNT), item)
    assert violations(page) == []


def test_nothing_moves_while_rows_of_unknown_height_come_from_above(page: Page) -> None:
    list_all(page)
    page.set_viewport_size({"width": 900, "height": 700})  # nothing is known of the rows above now
    scroll(page, page.evaluate("scrollY"))
    for _ in range(25):
        before = seen(page)
        page.mouse.move(450, 350)
        page.mouse.wheel(0, -150)
        page.wait_for_timeout(60)
        after = seen(page)
        moved = {round(after[item][1] - before[item][1]) for item in before if item in after}
        assert len(moved) == 1, moved
        assert 140 <= moved.pop() <= 160


@pytest.mark.parametrize("change", ["width", "size"])
def test_place_is_kept_when_all_rows_change(page: Page, change: str) -> None:
    list_all(page)
    page.locator("#collection [data-part=looks] summary").evaluate("one => one.scrollIntoView()")
    scroll(page, 20_000)
    before = {item: place for item, place in seen(page).items() if place[1] >= 0}
    first = min(before, key=lambda item: (before[item][1], before[item][0]))
    if change == "width":
        page.set_viewport_size({"width": 700, "height": 700})
    else:
        page.evaluate(
            """() => {
              const slider = document.querySelector('#collection [data-part=size]');
              slider.value = 15;
              slider.dispatchEvent(new Event('input', {bubbles: true}));
            }"""
        )
    _, top, _, height = before[first]
    # The page settles in frames of its own.
    wait_until(lambda: first in (now := seen(page)) and now[first][3] != pytest.approx(height, rel=0.01))
    wait_until(lambda: first in (now := seen(page)) and now[first][1] == pytest.approx(top, abs=2))


# ---- the keyboard, the selection, the dialog, paper


def test_focus_stays_with_a_card_that_is_far_from_the_window(page: Page) -> None:
    list_all(page)
    scroll(page, 0)
    page.locator("#collection .pictures [data-item='5'] .open").focus()
    scroll(page, 30_000)
    focused = "() => Number(document.activeElement.closest('li')?.dataset.item)"
    assert page.evaluate(focused) == 5
    assert 5 not in seen(page)
    expect(cards(page).locator(".open").first).to_have_count(1)
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == 6
    assert 6 in seen(page)
    scroll(page, 30_000)
    scroll(page, 0)
    assert page.evaluate(focused) == 6
    order = cards(page).evaluate_all("all => all.map(one => Number(one.dataset.item))")
    assert order == sorted(order)
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == 7


def test_arrow_keys_walk_through_rows_that_are_not_there_yet(page: Page) -> None:
    list_all(page)
    scroll(page, 0)
    page.locator("#collection .pictures [data-item='3'] .open").focus()
    focused = "() => Number(document.activeElement.closest('li')?.dataset.item)"
    before, tops = 3, []
    for _ in range(60):
        page.keyboard.press("ArrowDown")
        now = page.evaluate(focused)
        assert now > before
        before = now
        tops.append(page.evaluate("document.activeElement.getBoundingClientRect().top"))
    assert before > 200
    assert all(-1 <= top < VIEWPORT["height"] for top in tops)
    for _ in range(60):
        page.keyboard.press("ArrowUp")
    assert page.evaluate(focused) < 12


def select_range(page: Page, first: int, far: int) -> int:
    """Select the items from one to one that is so many pixels down the list, and return the last one."""
    list_all(page)
    scroll(page, 0)
    page.get_by_role("checkbox", name=f"Select item {first}", exact=True).check()
    scroll(page, far)
    last = sorted(seen(page))[3]
    page.get_by_role("checkbox", name=f"Select item {last}", exact=True).click(modifiers=["Shift"])
    return last


def test_selection_reaches_over_what_is_not_in_the_document(page: Page) -> None:
    last = select_range(page, 3, 40_000)
    bar = page.get_by_test_id("selection").locator("visible=true")
    expect(bar).to_contain_text(f"{last - 2:,} images selected")
    scroll(page, 15_000)
    expect(cards(page).get_by_role("checkbox", checked=True)).not_to_have_count(0)
    expect(cards(page).get_by_role("checkbox", checked=False)).to_have_count(0)
    scroll(page, 0)
    expect(page.get_by_role("checkbox", name="Select item 2", exact=True)).not_to_be_checked()
    page.locator("#collection .pictures [data-item='4'] .open").press("Control+a")
    expect(bar).to_contain_text(f"{COUNT:,} images selected")


def test_dialog_goes_on_behind_the_last_card_in_the_document(page: Page) -> None:
    list_all(page)
    scroll(page, 8000)
    last = int(str(cards(page).last.get_attribute("data-item")))
    page.locator(f"#collection .pictures [data-item='{last}'] .open").evaluate("one => one.click()")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"item{last}")
    page.keyboard.press("ArrowRight")
    expect(dialog).to_contain_text(f"item{last + 1}")


def test_all_that_is_listed_is_printed(page: Page) -> None:
    list_all(page)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    expect(cards(page)).to_have_count(COUNT)
    boxes = cards(page).evaluate_all("all => all.map(one => one.getBoundingClientRect().toJSON())")
    assert all(box["height"] > 60 for box in boxes)
    assert len({round(box["left"]) for box in boxes}) == 4
    assert boxes[0]["top"] < 400, "without the room of what is not in the document"
    page.emulate_media(media="screen")
    page.wait_for_function(
        f"() => document.querySelectorAll('#collection .pictures li').length < {COUNT // 4}"
    )


def test_hits_are_a_window_too(page: Page, server: Server, gallery: Gallery) -> None:
    search_with(page, server, "?like=5")
    expected = [hit.id for hit in gallery.search_id(5, 1000)]
    found: list[int] = []
    hits = page.locator("#results .hits li")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for item in hits.evaluate_all("all => all.map(one => Number(one.dataset.item))"):
            if item not in found:
                found.append(item)
        if len(found) == 1000:
            break
        page.evaluate("scrollBy(0, innerHeight)")
        page.wait_for_timeout(50)
    assert found == expected
    assert hits.count() < 200
    assert hits.last.get_attribute("aria-posinset") == hits.last.get_attribute("aria-setsize") == "1000"
    expect(hits.last).to_have_attribute("data-rank", "1000")
    hits.last.locator("[data-act=open]").click()
    expect(page.get_by_role("dialog")).to_contain_text("1000. result · similarity")


# ---- changes


def test_far_cards_are_brought_up_to_date_when_they_are_seen(page: Page, server: Server) -> None:
    list_all(page)
    scroll(page, 30_000)
    item = sorted(seen(page))[4]
    scroll(page, 0)
    expect(page.locator(f"#collection .pictures [data-item='{item}']")).to_have_count(0)
    with Client(server.url) as client:
        client.update(item, label="seen late")
        client.update(2, label="seen at once")
    expect(page.locator("#collection .pictures [data-item='2']")).to_contain_text("seen at once")
    scroll(page, 30_000)
    expect(page.locator(f"#collection .pictures [data-item='{item}']")).to_contain_text("seen late")


def test_own_change_keeps_the_place(page: Page, server: Server) -> None:
    list_all(page)
    scroll(page, 25_000)
    before = seen(page)
    item = sorted(before)[5]
    page.get_by_role("checkbox", name=f"Select item {item}", exact=True).check()
    bar = page.get_by_test_id("selection").locator("visible=true")
    bar.get_by_role("button", name="Label").click()
    bar.get_by_label("Label of all of them").fill("labelled here")
    bar.get_by_role("button", name="Save").click()
    card = page.locator(f"#collection .pictures [data-item='{item}']")
    expect(card).to_contain_text("labelled here")
    assert item in seen(page)
    assert abs(seen(page)[item][1] - before[item][1]) < 150


def test_thousands_are_collected_under_a_name(page: Page, server: Server, browser: Browser) -> None:
    last = select_range(page, 11, 60_000)
    page.get_by_role("checkbox", name=f"Select item {last - 1}", exact=True).uncheck()
    chosen = [*range(11, last - 1), last]
    assert len(chosen) > 1000
    bar = page.get_by_test_id("selection").locator("visible=true")
    expect(bar).to_be_in_viewport()

    def collect() -> None:
        bar.get_by_role("button", name="Collect …").click()
        bar.get_by_label("Name of the collection").fill("it's 100 % @ = ~")
        bar.get_by_role("button", name="Save").click()

    collect()
    expect(page.get_by_test_id("gallery-status")).to_have_text(f"{len(chosen):,} images")
    expect(cards(page).first).to_have_attribute("data-item", "11")
    expect(page.get_by_text("collection: it's 100 % @ = ~").locator("visible=true")).to_be_visible()
    assert len(page.url) < 200
    with Client(server.url) as client:
        assert [one.images for one in client.views()] == [len(chosen)]
        where = "id in collection 'it''s 100 % @ = ~'"
        assert [image.id for image in client.items(where=where)] == chosen
        with browser.new_context() as own:  # somebody else
            other = own.new_page()
            search_with(other, server, "?like=5")
            other.get_by_text("Views", exact=True).click()
            other.get_by_role("link", name=f"it's 100 % @ = ~ ({len(chosen):,} images)").click()
            expect(other.get_by_test_id("gallery-status")).to_have_text(f"{len(chosen):,} images")
            other.reload(wait_until="domcontentloaded")
            expect(other.get_by_test_id("gallery-status")).to_have_text(f"{len(chosen):,} images")
        page.get_by_role("checkbox", name="Select item 12", exact=True).check()
        collect()
        expect(bar).to_contain_text("There is a view it's 100 % @ = ~ already. Save again to replace it.")
        bar.get_by_role("button", name="Save").click()
        expect(page.get_by_test_id("gallery-status")).to_have_text("1 image")
        assert [image.id for image in client.items(where=where)] == [12]
        client.save_view("it's 100 % @ = ~", None, old=client.views()[0].address)
    assert violations(page) == []


@pytest.mark.parametrize("size", [{"width": 1440, "height": 900}, {"width": 390, "height": 844}])
def test_list_goes_on_when_it_is_scrolled_quickly(browser: Browser, server: Server, size: Any) -> None:
    """Its end stays near the window while further images are loaded."""
    with browser.new_context(viewport=size) as own:
        page = own.new_page()
        page.goto(f"{server.url}/?tab=gallery", wait_until="domcontentloaded")
        expect(cards(page).first).to_be_visible()
        for _ in range(40):
            page.evaluate("scrollBy(0, 4000)")
            page.wait_for_timeout(20)
        page.wait_for_timeout(300)
        list_all(page)
