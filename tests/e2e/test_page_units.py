"""Modules of the page that watch, read and draw: with a clock turned by hand, and compared with Pillow."""

from __future__ import annotations

import base64
import io
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from playwright.sync_api import Page, Route

from tests.e2e.page_modules import HOME, run, serve_module

pytestmark = pytest.mark.browser

examples = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class Health:
    """The answers to /healthz, which are counted."""

    def __init__(self, tab: Page, well: bool) -> None:
        self.well, self.asked = well, 0
        tab.route(f"{HOME}/healthz", self._answer)

    def _answer(self, route: Route) -> None:
        self.asked += 1
        if self.well:
            serve_module(route)
        else:
            route.abort()


def stop_clock(tab: Page) -> None:
    tab.clock.install(time=0)
    tab.clock.pause_at(1000)


def until(tab: Page, holds: Callable[[], bool]) -> None:
    """Wait until something holds; the page's own clock may stand."""
    for _ in range(600):
        tab.evaluate("0")  # events of the browser are handled meanwhile
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it does not come")


def test_a_lost_server_is_asked_less_and_less_often_until_it_is_back(tab: Page) -> None:
    health = Health(tab, well=False)
    stop_clock(tab)
    run(
        tab,
        "connection",
        "window.connection = m.connection; window.told = [];"
        "for (const name of ['change', 'back']) connection.addEventListener(name, () => told.push(name));"
        "connection.here.then(() => told.push('here at first'));"
        "await connection.check(); connection.here.then(() => told.push('here again'));",
    )
    assert tab.evaluate("[connection.away, told]") == [True, ["here at first", "change"]]
    for pause in (1000, 2000, 4000, 8000, 15_000, 30_000, 30_000):
        asked, told = health.asked, tab.evaluate("told.length")
        tab.clock.run_for(pause - 1)
        assert health.asked == asked
        tab.clock.run_for(1)
        until(tab, lambda told=told: tab.evaluate("told.length") == told + 1)  # type: ignore[misc]
        assert health.asked == asked + 1
    health.well = True
    tab.clock.run_for(30_000)
    until(tab, lambda: not tab.evaluate("connection.away"))
    assert tab.evaluate("told.slice(-3)") == ["change", "back", "here again"]
    asked = health.asked
    tab.clock.run_for(600_000)
    assert health.asked == asked, "a server that answers is not asked"


def test_a_request_is_slow_after_five_seconds_without_progress(tab: Page) -> None:
    stop_clock(tab)
    run(
        tab,
        "connection",
        "window.connection = m.connection; window.told = []; window.cancelled = [];"
        "connection.addEventListener('change', () => told.push(connection.slow));"
        "for (const name of ['one', 'other']) {"
        "  window[name] = connection.watch(() => { cancelled.push(name); window[name].ended(); });"
        "}",
    )
    tab.clock.run_for(4999)
    tab.evaluate("one.moved()")
    tab.clock.run_for(1)
    assert tab.evaluate("told") == [True]
    tab.evaluate("connection.cancel()")
    assert tab.evaluate("[told, cancelled]") == [[True, False], ["other"]], "the one that moves goes on"
    tab.clock.run_for(4999)
    assert tab.evaluate("connection.slow")
    tab.evaluate("one.ended()")
    assert not tab.evaluate("connection.slow")
    tab.clock.run_for(60_000)
    assert tab.evaluate("told") == [True, False, True, False]


@pytest.mark.parametrize("well", [True, False])
def test_a_request_without_progress_waits_only_for_a_server_that_is_there(tab: Page, well: bool) -> None:
    health = Health(tab, well)
    tab.route(f"{HOME}/v1/never", lambda route: None)
    stop_clock(tab)
    asked = "window.failed = ''; new m.Api('/v1').get('/never').catch(error => { failed = error.message })"
    run(tab, "api", asked)
    for periods in range(1, 5 if well else 2):
        assert tab.evaluate("failed") == ""
        tab.clock.run_for(29_999)
        assert health.asked == periods - 1
        tab.clock.run_for(1)
        until(tab, lambda periods=periods: health.asked == periods)  # type: ignore[misc]
        tab.evaluate("fetch('/settled').then(() => null)")
    expected = "The connection was interrupted." if well else "The server cannot be reached."
    until(tab, lambda: tab.evaluate("failed").startswith(expected))


def test_a_job_goes_on_when_the_server_is_back(tab: Page) -> None:
    health = Health(tab, well=False)

    def job(route: Route) -> None:
        if health.well:
            route.fulfill(json={"state": "done", "result": 7})
        else:
            route.abort()

    tab.route(f"{HOME}/v1/jobs/5", job)
    run(
        tab,
        "jobs",
        f"const {{Api}} = await import('{HOME}/api.js'); window.said = []; window.ended = null;"
        "new m.Jobs(new Api('/v1')).follow({id: 5}, text => said.push(text))"
        ".then(result => { ended = result; }, error => { ended = error.message; });",
    )
    until(tab, lambda: tab.evaluate("said.includes('waiting for the server')"))
    assert tab.evaluate("ended") is None
    health.well = True
    until(tab, lambda: tab.evaluate("ended") == 7)


# ---- pictures

SHRINK = """
const file = new File([Uint8Array.from(atob(a[0]), one => one.charCodeAt(0))], 'a', {type: a[1]});
const picture = await m.keep(file, null);
const sent = await m.shrink(picture, a[2]);
const bytes = Array.from(new Uint8Array(await sent.arrayBuffer()), one => String.fromCharCode(one));
return [picture.width, picture.height, sent === file, btoa(bytes.join(''))];
"""


def shrunk(tab: Page, image: Image.Image, region: list[float] | None, **how: Any) -> tuple[Any, ...]:
    """Return width and height as the page reads them, whether the file is sent as it is, and what is sent."""
    file = io.BytesIO()
    image.save(file, **({"format": "png"} | how))
    kind = f"image/{how.get('format', 'png')}"
    width, height, same, sent = run(
        tab, "pictures", SHRINK, base64.b64encode(file.getvalue()).decode(), kind, region
    )
    return width, height, same, Image.open(io.BytesIO(base64.b64decode(sent)))


def gradient(width: int, height: int) -> Image.Image:
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([across, down, 255 - across], -1).astype(np.uint8))


@pytest.mark.parametrize(
    ("size", "region", "expected"),
    [
        ((1024, 700), None, (1024, 700)),
        ((1025, 700), None, (1024, 699)),
        ((3000, 2000), None, (1024, 683)),
        ((400, 5000), None, (82, 1024)),
        ((1, 5000), None, (1, 1024)),
        ((3000, 2000), [0.1, 0.2, 0.3, 0.4], (600, 400)),
        ((3000, 2000), [0, 0, 1, 0.5], (1024, 341)),
        ((10, 10), [0.5, 0.5, 0.51, 0.51], (1, 1)),
    ],
)
def test_what_is_sent_is_the_region_of_at_most_1024_pixels(
    tab: Page, size: tuple[int, int], region: list[float] | None, expected: tuple[int, int]
) -> None:
    """Also of files of few bytes: a gradient is one."""
    image = gradient(*size)
    width, height, same, sent = shrunk(tab, image, region)
    assert (width, height) == size
    assert sent.size == expected
    assert same == (region is None and max(size) <= 1024)
    left, top, right, bottom = region or [0, 0, 1, 1]
    box = (left * width, top * height, right * width, bottom * height)
    wanted = image.resize(expected, Image.Resampling.BOX, box=tuple(map(round, box)))
    assert np.abs(np.asarray(sent.convert("RGB"), float) - np.asarray(wanted, float)).mean() < 2


def test_transparent_pixels_are_sent_white_and_photos_upright(tab: Page) -> None:
    *_, sent = shrunk(tab, Image.new("RGBA", (1200, 600), (255, 0, 0, 0)), None)
    assert np.asarray(sent.convert("RGB")).min() > 250
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held upright
    image = gradient(1200, 600)
    width, height, same, sent = shrunk(tab, image, None, format="jpeg", exif=turned, quality=95)
    assert (width, height, same, sent.size) == (600, 1200, False, (512, 1024))
    wanted = image.transpose(Image.Transpose.ROTATE_270).resize((512, 1024), Image.Resampling.BOX)
    assert np.abs(np.asarray(sent.convert("RGB"), float) - np.asarray(wanted, float)).mean() < 3


# ---- taking pictures

INTAKE = """
document.body.innerHTML = '<input id=words><div id=root><b id=inner>x</b><input type=file data-part=choose>'
  + '<input type=file data-part=camera><p data-part=overlay hidden></p></div>';
const taken = [], at = id => document.getElementById(id), overlay = at('root').querySelector('p');
let wanted = true;
m.takePictures(at('root'), files => taken.push(files.map(file => file.name)), () => wanted);
const given = new DataTransfer(), words = new DataTransfer();
given.items.add(new File(['x'], 'a.png', {type: 'image/png'}));
words.setData('text/plain', 'x');
const how = {bubbles: true, cancelable: true};
const drag = (name, id, dataTransfer) => at(id).dispatchEvent(new DragEvent(name, {...how, dataTransfer}));
const paste = (id, clipboardData) =>
  at(id).dispatchEvent(new ClipboardEvent('paste', {...how, clipboardData}));
const seen = [];
const note = () => seen.push(!overlay.hidden);
drag('dragenter', 'root', given); note();
drag('dragenter', 'inner', given); drag('dragleave', 'root', given); note();
drag('dragleave', 'inner', given); note();
drag('dragenter', 'root', words); note();
const left = [drag('dragover', 'root', words), drag('drop', 'root', words)];
left.push(paste('words', given), paste('root', words));
drag('dragenter', 'root', given); const mine = [drag('drop', 'root', given), paste('root', given)]; note();
wanted = false;
left.push(drag('drop', 'root', given), paste('root', given));
return [taken, seen, left, mine];
"""


def test_files_are_taken_from_anywhere_and_nothing_else_is(tab: Page) -> None:
    taken, overlay, left, mine = run(tab, "intake", INTAKE)
    assert taken == [["a.png"], ["a.png"]]
    assert overlay == [True, True, False, False, False]
    assert left == [True] * 6, "the browser does with these what it always does"
    assert mine == [False, False]


# ---- words

names = st.text("aB_-/. é9", max_size=30)


@given(names)
@examples
def test_names_break_after_separators_and_stay_whole(tab: Page, name: str) -> None:
    pieces = run(tab, "dom", "return m.breakable(a[0]).map(one => one instanceof Element ? null : one)", name)
    assert "".join(piece for piece in pieces if piece is not None) == name
    for before, after in zip(pieces, pieces[2:], strict=False):
        if before is not None and after is not None:
            assert before[-1] in "_/.-"
            assert after[0] not in "_/.- "


def test_counts_have_their_nouns(tab: Page) -> None:
    words = run(tab, "dom", "return a.map(count => m.plural(count, 'image'))", 0, 1, 2, 1335)
    assert words == ["0 images", "1 image", "2 images", "1,335 images"]


def test_shares_are_in_percent_without_a_break_before_the_sign(tab: Page) -> None:
    words = run(tab, "dom", "return [m.percent(a[0]), m.percent(a[0], 1), m.percent(a[1])]", 0.4149, 1)
    assert words == ["41\u00a0%", "41.5\u00a0%", "100\u00a0%"]


@pytest.mark.parametrize(
    ("scores", "probabilities", "said"),
    [
        ([0.7012, 0.65, 0.6349], None, ["similarity 0.63 to 0.70"]),
        ([0.651, 0.649], None, ["similarity 0.65"]),
        ([0.3, -0.12], None, ["similarity -0.12 to 0.30"]),
        ([0.9, 0.5], [0.983, 0.306], ["31 to 98\u00a0% likely the same"]),
        ([0.9, 0.5, 0.4], [0.312, 0.305, 0.31], ["31\u00a0% likely the same"]),
        ([0.9], [0.983], []),
        ([0.9], None, []),
    ],
)
def test_numbers_of_a_search_are_said_from_low_to_high(
    tab: Page, scores: list[float], probabilities: list[float] | None, said: list[str]
) -> None:
    hits = [{"score": score, "probability": None} for score in scores]
    for hit, probability in zip(hits, probabilities or [], strict=False):
        hit["probability"] = probability  # type: ignore[assignment]
    assert run(tab, "results", "return m.range(a[0])", hits) == said


# ---- the map

VIEW = """
document.body.innerHTML = '<div id=stage style="width: 400px; height: 300px"></div>';
const stage = document.getElementById('stage');
const press = place => { window.pressed = place; };
window.view = new m.View(stage, {change: () => {}, press, point: () => {}, takes: () => false});
view.size = [400, 300];
view.fit(a[0], a[1]);
"""
numbers = st.floats(-50, 50)
boxes = st.tuples(numbers, numbers, st.floats(0.01, 50), st.floats(0.01, 50))


@given(box=boxes, margin=st.floats(0, 0.3))
@examples
def test_all_points_fit_into_the_view(
    tab: Page, box: tuple[float, float, float, float], margin: float
) -> None:
    left, bottom, width, height = box
    corners = run(
        tab,
        "view",
        VIEW + "const [l, b, r, t] = a[0]; return [[l, b], [r, t]].map(corner => view.place(...corner))",
        [left, bottom, left + width, bottom + height],
        margin,
    )
    (x0, y0), (x1, y1) = corners
    room = [(1 - 2 * margin) * 400, (1 - 2 * margin) * 300]
    assert x1 - x0 <= room[0] + 1e-6
    assert y0 - y1 <= room[1] + 1e-6, "what is high in the plane is high on the screen"
    assert math.isclose(x1 - x0, room[0], rel_tol=1e-6) or math.isclose(y0 - y1, room[1], rel_tol=1e-6)
    assert [(x0 + x1) / 2, (y0 + y1) / 2] == pytest.approx([200, 150], abs=1e-6)


@given(turns=st.lists(st.tuples(st.integers(0, 399), st.integers(0, 299), st.floats(-900, 900)), max_size=6))
@examples
def test_zooming_keeps_what_is_under_the_pointer(tab: Page, turns: list[tuple[int, int, float]]) -> None:
    moved = run(
        tab,
        "view",
        VIEW
        + """
        const {left, top} = stage.getBoundingClientRect(), moved = [];
        for (const [x, y, deltaY] of a[2]) {
          const under = [view.x + (x - 200) / view.scale, view.y - (y - 150) / view.scale];
          const at = {clientX: left + x, clientY: top + y};
          stage.dispatchEvent(new WheelEvent('wheel', {...at, deltaY, cancelable: true}));
          moved.push([view.scale, ...view.place(...under)]);
        }
        return moved;
        """,
        [-1, -1, 1, 1],
        0.1,
        turns,
    )
    for (x, y, _), (scale, *place) in zip(turns, moved, strict=True):
        assert place == pytest.approx([x, y], abs=1e-6)
        assert scale * 1.000001 >= 0.3 * 120
        assert scale <= 2000 * 120 * 1.000001


def test_dragging_moves_the_map_and_a_click_does_not(tab: Page) -> None:
    run(tab, "view", VIEW, [-1, -1, 1, 1], 0.1)
    box = tab.locator("#stage").bounding_box()
    assert box
    tab.mouse.move(box["x"] + 100, box["y"] + 100)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 130, box["y"] + 80, steps=3)
    tab.mouse.up()
    assert tab.evaluate("view.place(0, 0)") == pytest.approx([230, 130])
    assert tab.evaluate("window.pressed") is None
    tab.mouse.click(box["x"] + 50, box["y"] + 60)
    assert tab.evaluate("window.pressed") == pytest.approx([50, 60])
    assert tab.evaluate("view.place(0, 0)") == pytest.approx([230, 130])


def test_points_are_drawn_where_they_are_in_their_colours(tab: Page) -> None:
    pixels = run(
        tab,
        "points",
        """
        const size = {width: 100, height: 100};
        const canvas = Object.assign(document.createElement('canvas'), size);
        const points = new m.Points(canvas);
        const colours = Uint8Array.of(255, 0, 0, 255, 0, 0, 255, 255);
        points.layers = [{places: Float32Array.of(0.5, 0.5, -0.5, 0), colours, extra: 0}];
        points.draw({zoom: [1, 1], shift: [0, 0.2]}, 10);
        const copy = Object.assign(document.createElement('canvas'), size).getContext('2d');
        copy.drawImage(canvas, 0, 0);
        return Array.from(copy.getImageData(0, 0, 100, 100).data);
        """,
    )
    drawn = np.array(pixels).reshape(100, 100, 4)
    for colour, (x, y) in {0: (75, 15), 2: (25, 40)}.items():
        down, across = np.nonzero(drawn[:, :, colour] > 128)
        assert [across.mean() + 0.5, down.mean() + 0.5] == pytest.approx([x, y], abs=0.5)
        assert len(across) == pytest.approx(math.pi * 25, rel=0.2), "a disc of ten pixels"
    assert drawn[90, 90, 3] == 0
