"""The map in a real browser: selection by pointer, touch and keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from retrieval.analysis.embeddings import Embeddings
from retrieval.analysis.map_page import map_page
from retrieval.analysis.tsne import tsne_map

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> Path:
    paths = sorted(map(str, shop.glob("*/*.png")))
    labels = np.array([Path(path).parent.name for path in paths])
    random = np.random.default_rng(0)
    vectors = np.eye(3)[np.unique(labels, return_inverse=True)[1]] + 0.1 * random.normal(size=(24, 3))
    made = tmp_path_factory.mktemp("map") / "map.html"
    made.write_text(map_page(tsne_map(Embeddings("shop", vectors, labels, np.array(paths)))))
    return made


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    with browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, offline=True) as context:
        page = context.new_page()
        broken: list[object] = []
        page.on("pageerror", lambda error: broken.append(error))
        page.on("console", lambda message: broken.append(message.text))
        page.goto(file.as_uri())
        yield page
        assert broken == []


def label_at(page: Page) -> str:
    """Return the class of the outlined mark."""
    data = json.loads(page.locator("#data").text_content() or "")
    number = page.evaluate("marks.findIndex(mark => mark.classList.contains('at'))")
    return str(data["classes"][data["labels"][number]])


def test_pointer_and_touch_select_the_nearest(page: Page) -> None:
    card = page.locator("#card")
    expect(card).to_have_text("No point is selected.")
    page.locator("#marks path").nth(3).hover(force=True)
    expect(card.locator("img")).to_have_js_property("naturalWidth", 96)  # 48 x 40, twice as large
    expect(card).to_contain_text(label_at(page))
    page.mouse.move(1, 1)
    expect(card).to_have_text("No point is selected.")
    box = page.locator("#marks path").nth(20).bounding_box()
    assert box is not None
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(card).to_contain_text(label_at(page))


def test_arrow_keys_move_and_escape_deselects(page: Page) -> None:
    page.focus("#map")
    seen = set()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
        seen.add(page.locator("#card small").text_content())
        expect(page.locator("#card strong")).to_have_text(label_at(page))
    assert len(seen) > 2
    page.keyboard.press("Escape")
    expect(page.locator("#card")).to_have_text("No point is selected.")


def test_a_class_is_highlighted(page: Page) -> None:
    page.select_option("#class", label="green")
    expect(page.locator("#marks")).to_have_class(re.compile("lit"))
    expect(page.locator("#marks .on")).to_have_count(8)
    page.select_option("#class", label="none")
    expect(page.locator("#marks .on")).to_have_count(0)


def test_it_fits_a_phone(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
