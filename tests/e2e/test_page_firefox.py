"""The page in Firefox: what differs between browsers is pictures, files, WebGL, dialogs and styles."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from retrieval import Gallery
from tests.e2e.firefox import Firefox
from tests.e2e.page_driver import Fragile, caption
from tests.serve.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]

_PROGRAMS = ("firefox-esr", "firefox")
ENTER, ESCAPE = "\ue007", "\ue00c"
STATUS = "document.getElementById('status').textContent"
HITS = "document.querySelectorAll('#results .hits li').length"
FIRST = "document.querySelector('#results .hits img')?.alt"
LOADED = "[...document.querySelectorAll('#results .hits img')].slice(0, 8).every(one => one.naturalWidth > 0)"


@pytest.fixture(scope="module")
def program() -> str:
    found = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if found is None:
        pytest.skip("needs Firefox on the PATH")
    return found


@pytest.fixture(scope="module")
def started(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    firefox = Firefox(program, tmp_path_factory.mktemp("firefox") / "profile")
    yield firefox
    firefox.close()


@pytest.fixture
def firefox(started: Firefox, server: Server) -> Iterator[Firefox]:
    """Firefox at the page of the shop; its scripts must have no error.

    Firefox calls it one that the stream of events ends when the page is left.
    """
    started.errors.clear()
    started.open(server.url)
    started.expect(STATUS, "24 images in the gallery.")
    yield started
    assert [text for text in started.errors if "/v1/events" not in text] == []


def test_a_picture_and_its_region_are_searched_with(firefox: Firefox, shop: Path) -> None:
    firefox.choose("#search [data-part=choose]", [shop / "green" / "5.png"])
    firefox.expect(HITS, 24)
    firefox.expect(FIRST, "1 · similarity 1.0000 · green")
    firefox.expect(LOADED)
    firefox.evaluate("document.querySelector('#search .region').focus()")
    for key in ("\ue012", "\ue012", ENTER):  # the left arrow
        firefox.press(key)
    firefox.expect("location.search.includes('@')")
    firefox.expect(f"{STATUS}.startsWith('24 results') && !{FIRST}.includes('1.0000')")
    found = firefox.evaluate(FIRST)
    firefox.evaluate("document.querySelector('#results .hits [data-rank=\"2\"] .open').focus()")
    firefox.press("+")  # it has no mouse, so that there are no buttons over pictures
    firefox.expect(HITS, 23)
    firefox.evaluate("history.back()")
    firefox.expect(FIRST, found)
    firefox.reload()
    firefox.expect(FIRST, found)


def test_filters_panels_and_the_order(firefox: Firefox, server: Server) -> None:
    firefox.open(f"{server.url}/?like=3")
    firefox.expect(HITS, 23)
    firefox.click("#search .facet:nth-child(1) summary")
    firefox.click("#search .facet[open] li:nth-child(1) input")
    firefox.expect(f"{HITS} < 23")
    inside = "(({left, right}) => left >= 0 && right <= innerWidth)"
    firefox.expect(f"{inside}(document.querySelector('#search .facet[open] > div').getBoundingClientRect())")
    firefox.press(ESCAPE)
    firefox.expect("document.querySelector('#search .facet[open]') === null")


def test_the_dialog_and_its_colours(firefox: Firefox, server: Server, gallery: Gallery) -> None:
    firefox.open(f"{server.url}/?like=3")
    firefox.expect(FIRST, caption(1, gallery.search_id(3, 1)[0]))
    firefox.click("#results .hits [data-rank='1'] [data-act=open]")
    firefox.expect("document.getElementById('dialog').open")
    firefox.click("#dialog [data-act=compare]")
    firefox.expect("document.querySelector('#dialog [data-act=compare]').ariaPressed", "true")
    firefox.press(ESCAPE)
    firefox.expect("document.getElementById('dialog').open", False)


def test_the_gallery_the_map_and_the_evaluation(firefox: Firefox) -> None:
    firefox.click("#gallery-tab-button")
    firefox.expect("document.querySelectorAll('#collection .pictures li').length", 24)
    firefox.click("#map-tab-button")
    said = "document.querySelector('#map [role=application]').ariaBusy === 'false'"
    without = "document.querySelector('#map [data-testid=map-status]').textContent.includes('WebGL')"
    firefox.expect(f"{said} || {without}")
    firefox.click("#evaluation-tab-button")
    firefox.expect("document.querySelectorAll('#report h3').length > 2")
    firefox.expect("document.querySelectorAll('#classes tbody tr').length", 3)


def test_a_vast_picture_is_shrunk(firefox: Firefox, vast: Path) -> None:
    firefox.choose("#search [data-part=choose]", [vast])
    firefox.expect(HITS, 24)
    assert "red" in str(firefox.evaluate(FIRST))


def test_it_goes_on_when_the_server_is_back(started: Firefox, fragile: Fragile, shop: Path) -> None:
    started.errors.clear()
    started.open(fragile.server.url)
    started.expect(STATUS, "24 images in the gallery.")
    started.choose("#search [data-part=choose]", [shop / "green" / "5.png"])
    started.expect(HITS, 24)
    fragile.kill()
    started.choose("#search [data-part=choose]", [shop / "red" / "5.png"])
    started.expect("document.querySelector('#status.trouble') !== null")
    started.expect("document.querySelector('[data-testid=notice]').checkVisibility()")
    fragile.revive()
    started.expect(FIRST, "1 · similarity 1.0000 · red")
    started.expect("document.querySelector('[data-testid=notice]').checkVisibility()", False)
    started.open("about:blank")
