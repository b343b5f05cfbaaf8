"""Parts of pictures in a real browser: the card has the part, the dialog its picture with an outline."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from retrieval import Gallery
from tests.conftest import draw
from tests.e2e.accessibility import violations
from tests.e2e.page_driver import search_with
from tests.e2e.page_gallery import create
from tests.serve.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """A picture of 80 x 60 pixels, a part of it, and another picture."""
    folder = tmp_path_factory.mktemp("parts")
    made = create(folder, "parts")
    rows = ["path,label,box_x,box_y,box_width,box_height", "0.png,sofa,16,30,32,20", "1.png,room,,,,"]
    for seed in range(2):
        draw(seed, (80, 60)).save(folder / f"{seed}.png")
    (folder / "table.csv").write_text("\n".join(rows))
    made.add((), metadata=folder / "table.csv")
    return made


def test_the_outline_lies_on_the_part(unopened: Page, alone: Server, gallery: Gallery) -> None:
    (whole,) = gallery.select(where="label = 'room'")
    (part,) = gallery.select(where="label = 'sofa'")
    search_with(unopened, alone, f"?like={whole}&open={part}")
    context = unopened.get_by_test_id("context")
    picture, outline = context.get_by_role("img"), context.locator("[data-part=outline]")
    expect(picture).to_be_visible()
    expect(outline).to_be_visible()
    unopened.wait_for_function("one => one.naturalWidth === 80", arg=picture.element_handle())
    for width in (1200, 390):
        unopened.set_viewport_size({"width": width, "height": 800})
        around, box = picture.bounding_box(), outline.bounding_box()
        assert around is not None
        assert box is not None
        across, down = around["width"] / 80, around["height"] / 60
        assert across == pytest.approx(down, rel=0.02)
        assert (box["x"] - around["x"]) / across == pytest.approx(16, abs=0.6)
        assert (box["y"] - around["y"]) / down == pytest.approx(30, abs=0.6)
    expect(unopened.locator("#dialog [data-part=caption]")).to_have_text("0.png")
    # The card and the dialog show the part alone.
    shown = unopened.locator("#dialog [data-part=image]")
    unopened.wait_for_function("one => one.naturalWidth > 0", arg=shown.element_handle())
    shape = shown.evaluate("one => one.naturalWidth / one.naturalHeight")
    assert shape == pytest.approx(32 / 20, rel=0.02)
    assert violations(unopened) == []
    # An image that is a whole picture has no outline.
    unopened.goto(f"{alone.url}/?like={part}&open={whole}")
    expect(shown).to_have_attribute("alt", f"item {whole}, room")
    expect(context).to_be_hidden()
