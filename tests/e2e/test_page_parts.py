"""Parts of pictures in a real browser: the card has the part, the dialog its picture with the outlines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from retrieval import Gallery
from serve.client import Client
from tests.conftest import draw
from tests.e2e.accessibility import violations
from tests.e2e.page_driver import search_with, unbroken_page
from tests.e2e.page_gallery import create
from tests.serve.serving import SERVE, Server, serving

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


# ---- a gallery that divides pictures


@pytest.fixture
def divided(tmp_path: Path) -> Gallery:
    """Two pictures of 80 x 60 pixels with 12 tiles each."""
    made = create(tmp_path, "divided")
    made.use_objects()
    for seed in range(2):
        draw(seed, (80, 60)).save(tmp_path / f"{seed}.png")
    made.add([tmp_path / "0.png", tmp_path / "1.png"])
    return made


def places(page: Page) -> list[list[float]]:
    """Return where the outlines lie on their picture, as fractions: left, top, right and bottom."""
    found: list[list[float]] = page.get_by_test_id("context").evaluate(
        """context => {
          const frame = context.querySelector('img').getBoundingClientRect();
          return [...context.querySelectorAll('i')].map(one => {
            const box = one.getBoundingClientRect();
            return [(box.left - frame.left) / frame.width, (box.top - frame.top) / frame.height,
                    (box.right - frame.left) / frame.width, (box.bottom - frame.top) / frame.height];
          });
        }"""
    )
    return sorted(found)


def test_a_picture_has_the_outlines_of_its_parts(
    context: BrowserContext, divided: Gallery, tmp_path: Path
) -> None:
    words = [*SERVE, str(divided.folder), "--allow-changes"]
    every = divided.items(divided.select(where="picture = '0.png'")).values()
    boxes = sorted(list(item.part) for item in every if item.part)
    whole = next(item.id for item in every if item.part is None)
    part = next(item for item in every if item.part)
    assert len(boxes) == 12
    with (
        serving(words, tmp_path / "scratch", forked=True) as server,
        unbroken_page(context, server) as page,
        Client(server.url) as client,
    ):
        page.goto(f"{server.url}/?open={whole}", wait_until="domcontentloaded")
        figure = page.get_by_test_id("context")
        expect(figure.locator("figcaption")).to_have_text("The 12 parts of it in the gallery")
        expect(figure.locator("i")).to_have_count(12)
        page.wait_for_function("one => one.naturalWidth === 80", arg=figure.locator("img").element_handle())
        np.testing.assert_allclose(places(page), boxes, atol=0.01)
        assert violations(page) == []
        page.goto(f"{server.url}/?open={part.id}", wait_until="domcontentloaded")
        expect(figure.locator("figcaption")).to_have_text("The picture that it is a part of")
        expect(figure.locator("i")).to_have_count(12)
        expect(figure.locator("[data-part=outline]")).to_have_count(1)
        page.wait_for_function("one => one.naturalWidth === 80", arg=figure.locator("img").element_handle())
        np.testing.assert_allclose(places(page), boxes, atol=0.01)
        own = figure.locator("[data-part=outline]").evaluate("one => one.style.left")
        assert float(own.removesuffix("%")) == pytest.approx(100 * part.part[0], abs=0.01)
        # A picture that is added is divided, and found by a part of it.
        draw(2, (80, 60)).save(tmp_path / "2.png")
        page.goto(f"{server.url}/?tab=gallery", wait_until="domcontentloaded")
        page.get_by_text("Add images", exact=True).click()
        form = page.locator("#collection .adding-images")
        form.get_by_label("Images", exact=True).set_input_files(tmp_path / "2.png")
        form.get_by_role("button", name="Add", exact=True).click()
        expect(page.get_by_test_id("add-status")).to_contain_text("1 image added")
        assert client.gallery().images == 3 * 13
        crop = draw(2, (80, 60)).crop((0, 0, 24, 24)).convert("RGB")
        hit = client.search(crop, k=1)[0]
        assert (hit.group, hit.part) == ("2.png", pytest.approx((0, 0, 0.3, 0.4)))
        # One that is removed goes with its parts.
        page.goto(f"{server.url}/?open={whole}", wait_until="domcontentloaded")
        expect(figure.locator("i")).to_have_count(12)
        page.get_by_role("button", name="Remove", exact=True).click()
        button = page.get_by_role("button", name="Really remove it?")
        expect(button).to_be_focused()
        page.wait_for_timeout(600)  # a double click does not count
        button.click()
        expect(page.get_by_role("dialog")).to_be_hidden()
        assert client.gallery().images == 2 * 13
        assert {item.metadata["picture"] for item in client.items()} == {"1.png", "2.png"}


def test_pictures_are_listed_and_counted_without_their_parts(
    context: BrowserContext, divided: Gallery, tmp_path: Path
) -> None:
    editor = divided.editor()
    with editor.writing():  # each picture with its parts
        for picture, label in enumerate(("sofa", "lamp")):
            whole = divided.select(where=f"path = '{picture}.png'")
            editor.relabel(editor.stored_items(whole), [label])
    with (
        serving([*SERVE, str(divided.folder)], tmp_path / "scratch", forked=True) as server,
        unbroken_page(context, server) as page,
    ):
        page.goto(server.url, wait_until="domcontentloaded")
        expect(page.get_by_test_id("status")).to_have_text("26 pictures and parts of them in the gallery.")
        page.goto(f"{server.url}/?tab=gallery", wait_until="domcontentloaded")
        cards = page.locator("#collection .pictures li")
        expect(page.get_by_text("2 images", exact=True)).to_be_visible()
        expect(cards).to_have_count(2)
        page.get_by_test_id("collection").get_by_text("label", exact=True).click()
        for label in ("sofa", "lamp"):
            row = page.locator("#collection .facet[open] li", has_text=label)
            expect(row.locator("[data-part=count]")).to_have_text("1")
        page.locator("#collection .facet[open] li", has_text="lamp").get_by_role("checkbox").check()
        expect(cards).to_have_count(1)
        expect(page.get_by_text("1 image", exact=True)).to_be_visible()
        # What is written goes with it, and is pointed at if it is wrong.
        for where, words in (
            ("label = 'sofa' or label = 'lamp'", "2 images"),
            ("width > 1000", "No image passes the filters."),
        ):
            page.goto(f"{server.url}/?tab=gallery&where={where}", wait_until="domcontentloaded")
            expect(page.get_by_text(words, exact=True)).to_be_visible()
        page.goto(f"{server.url}/?tab=gallery&where=price+<+3", wait_until="domcontentloaded")
        expect(page.locator("#collection [data-part=fault]")).to_contain_text("price")
