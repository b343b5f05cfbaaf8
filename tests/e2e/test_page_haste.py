"""Quick visitors on a slow connection: the latest event wins."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e.page_driver import expect_results, rest, settle
from tests.serve.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LATENCY = 200  # milliseconds added to every request


@pytest.fixture
def far(page: Page) -> Iterator[Page]:
    """The page on a slow connection."""
    line = page.context.new_cdp_session(page)
    line.send("Network.enable")
    rest = {"offline": False, "downloadThroughput": -1, "uploadThroughput": -1}
    line.send("Network.emulateNetworkConditions", {"latency": LATENCY, **rest})
    yield page
    line.send("Network.emulateNetworkConditions", {"latency": 0, **rest})


def visit(page: Page, server: Server, *items: int) -> None:
    """Search with one item after the other, each a step of the browser's history."""
    for item in items:
        page.evaluate("item => history.pushState(null, '', '?id=' + item)", item)
    page.goto(f"{server.url}/?id={items[-1]}", wait_until="domcontentloaded")
    expect(page.locator("#status")).to_contain_text(f"similar to item {items[-1]},")


def test_latest_filter_wins(far: Page) -> None:
    far.get_by_role("tab", name="Gallery").click()
    expect(far.locator("#browse li")).to_have_count(24)
    field = far.locator("#browse").get_by_label("Filter")
    for label in ("red", "green", "blue"):
        field.fill(f"label = '{label}'")
        field.press("Enter")
    field.fill("label = ")  # the next filter is being typed already
    expect(far.locator("#browse [data-where=\"label = 'blue'\"]")).to_be_visible()
    expect(far.locator("#browse li span", has_text="blue")).to_have_count(8)
    expect(field).to_have_value("label = ")


def test_gallery_tab_reopens_at_its_filter(far: Page) -> None:
    far.get_by_role("tab", name="Gallery").click()
    field = far.locator("#browse").get_by_label("Filter")
    field.fill("label = 'green'")
    field.press("Enter")
    expect(far.locator("#browse li")).to_have_count(8)
    far.locator("#browse .grid button").first.click()
    far.get_by_role("button", name="Search with this image").click()
    expect_results(far, 10)
    far.get_by_role("tab", name="Gallery").click()
    rest(far)
    expect(far.locator("#browse li")).to_have_count(8)
    expect(field).to_have_value("label = 'green'")


def test_late_answer_of_the_opening_tab_does_not_undo_a_filter(page: Page) -> None:
    held: list[Route] = []

    def hold_first(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    page.route("**/queue/join*", hold_first)
    page.get_by_role("tab", name="Gallery").click()
    field = page.locator("#browse").get_by_label("Filter")
    field.fill("label = 'green'")
    field.press("Enter")
    expect(page.locator("#browse li")).to_have_count(8)
    (opening,) = held
    opening.continue_()
    expect(page.locator("#stock")).to_contain_text("24")
    rest(page)
    expect(page.locator("#browse li")).to_have_count(8)
    page.unroute("**/queue/join*")


def test_latest_example_wins(far: Page) -> None:
    buttons = far.locator("#trail .examples button")
    last = buttons.nth(2).get_attribute("data-item")
    far.evaluate("[0, 1, 2].map(n => document.querySelectorAll('#trail .examples button')[n].click())")
    expect(far.locator("#status")).to_contain_text(f"similar to item {last},")
    settle(far)
    expect(far.locator("#status")).to_contain_text(f"similar to item {last},")


def test_latest_region_wins(far: Page, server: Server) -> None:
    far.goto(f"{server.url}/?id=5", wait_until="domcontentloaded")
    expect_results(far, 10)
    settle(far)
    box = far.locator("#asked .cropping").bounding_box()
    assert box is not None
    x, y, width, height = box["x"], box["y"], box["width"], box["height"]
    for left, right in ((0.1, 0.3), (0.4, 0.9)):
        far.mouse.move(x + left * width, y + 0.1 * height)
        far.mouse.down()
        far.mouse.move(x + right * width, y + 0.9 * height, steps=3)
        far.mouse.up()
    chosen = re.compile(r"region=0\.(4|39)")
    expect(far).to_have_url(chosen)
    settle(far)
    expect(far).to_have_url(chosen)
    region = str(far.locator("#asked .region").get_attribute("data-region"))
    assert [round(float(edge), 1) for edge in region.split(",")] == [0.4, 0.1, 0.9, 0.9]


def test_quick_back_keeps_the_forward_history(far: Page, server: Server) -> None:
    visit(far, server, 3, 4, 5, 6)
    for _ in range(3):
        far.evaluate("history.back()")
        far.wait_for_timeout(LATENCY // 2)
    for back in (3, 4, 5, 6):
        expect(far.locator("#status")).to_contain_text(f"similar to item {back},")
        expect(far).to_have_url(re.compile(rf"id={back}\b"))
        settle(far)
        far.evaluate("history.forward()")


def test_closed_dialog_stays_closed(far: Page, server: Server) -> None:
    far.goto(f"{server.url}/?id=5", wait_until="domcontentloaded")
    expect_results(far, 10)
    settle(far)
    far.locator("#results .grid button").first.click()
    name = "Where they look alike"
    far.get_by_role("button", name=name).click()
    far.keyboard.press("Escape")
    expect(far.get_by_role("dialog")).to_have_count(0)
    settle(far)
    expect(far.get_by_role("dialog")).to_have_count(0)
    far.locator("#results .grid button").first.click()
    far.get_by_role("button", name=name).click()
    expect(far.get_by_role("button", name=name, pressed=True)).to_be_visible()
    expect(far.get_by_role("dialog").get_by_role("button", name="Add to the query")).to_be_visible()


def test_k_field_shows_the_value_used(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/?id=5", wait_until="domcontentloaded")
    expect_results(page, 10)
    field = page.get_by_label("Results (K)")
    for typed, k in (("500", "100"), ("-3", "1"), ("2.7", "2"), ("", "10")):
        field.fill(typed)
        field.press("Tab")
        expect(field).to_have_value(k)
        expect(page).to_have_url(f"{server.url}/?id=5&k={k}")


def test_form_error_keeps_the_address(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/?id=5&k=4", wait_until="domcontentloaded")
    expect_results(page, 4)
    field = page.locator("#form").get_by_label("Filter")
    field.fill("nonsense")
    field.press("Enter")
    expect(page.locator("#status .trouble")).to_be_visible()
    expect(page).to_have_url(f"{server.url}/?id=5&k=4")
    page.reload(wait_until="domcontentloaded")
    expect_results(page, 4)


def test_refused_camera_gives_an_error(page: Page) -> None:
    page.get_by_label("Capture from camera").click()
    page.get_by_text("Click to Access Webcam").click()
    expect(page.locator("#status .trouble")).to_contain_text(re.compile("camera"))
