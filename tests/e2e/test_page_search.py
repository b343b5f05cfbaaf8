"""The search tab in a real browser: regions, several images, camera, history and downloads."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from retrieval import Gallery
from retrieval.searchable import Hit
from tests.e2e.page_driver import below, expect_results, noting, settle, upload, watched
from tests.serve.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def _shown(page: Page) -> list[tuple[int, str]]:
    """Return the items of the results, and their scores as shown."""
    cards = page.locator("#results li button").all()
    return [
        (int(str(card.get_attribute("data-item"))), card.locator(".score b").inner_text()) for card in cards
    ]


def _pairs(hits: list[Hit]) -> list[tuple[int, str]]:
    return [(hit.id, f"{hit.score:.4f}") for hit in hits]


def _cut(path: str | Path, region: list[float]) -> Image.Image:
    image = Image.open(path)
    size = [*image.size, *image.size]
    left, top, right, bottom = (round(part * side) for part, side in zip(region, size, strict=True))
    return image.crop((left, top, right, bottom))


def _region(page: Page) -> list[float]:
    """Return the drawn rectangle, as the server received it."""
    expect(page.locator("#asked .region")).to_have_class("region chosen")
    return [
        float(part) for part in str(page.locator("#asked .region").get_attribute("data-region")).split(",")
    ]


def _drag(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drag from one point of the query image to another, in fractions of its size."""
    box = page.locator("#asked .cropping").bounding_box()
    assert box is not None
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end)]
    page.mouse.move(*places[0])
    page.mouse.down()
    page.mouse.move(*places[1], steps=4)
    page.mouse.up()


# ---- regions


def test_drawn_region_of_an_upload_is_searched(page: Page, gallery: Gallery, shop: Path) -> None:
    path = shop / "green" / "5.png"
    upload(page, path)
    expect_results(page, 10)
    _drag(page, (0.25, 0.2), (0.75, 0.8))
    expect(page.locator("#status")).to_contain_text("similar to a region of the image")
    region = _region(page)
    assert np.allclose(region, [0.25, 0.2, 0.75, 0.8], atol=0.02)
    assert _shown(page) == _pairs(gallery.search(_cut(path, region)))
    expect(page.locator("#status")).to_have_text(re.compile(r"embedding \d+\.\d ms.*search \d+\.\d ms"))
    _drag(page, (0.5, 0.5), (0.6, 0.5))  # a drag inside the rectangle moves it
    page.wait_for_function(f"document.querySelector('#asked .region').dataset.region !== '{region}'")
    expect(page).to_have_url(re.compile("q=3"))
    moved = _region(page)
    assert np.allclose(moved, np.add(region, [0.1, 0, 0.1, 0]), atol=0.02)
    assert _shown(page) == _pairs(gallery.search(_cut(path, moved)))
    page.get_by_role("button", name="Whole image", exact=True).click()
    expect(page.locator("#results img").first).to_have_attribute("alt", "1 · 1.0000 · green")
    expect(page.get_by_role("button", name="Whole image", exact=True)).to_have_count(0)


def test_region_of_an_item_has_a_link_and_excludes_the_item(
    page: Page, server: Server, gallery: Gallery
) -> None:
    page.goto(f"{server.url}/?id=5&k=24", wait_until="domcontentloaded")
    expect_results(page, 23)
    _drag(page, (0.1, 0.2), (0.6, 0.9))
    expect(page.locator("#status")).to_contain_text("similar to a region of item 5, which is left out")
    region = _region(page)
    item = gallery.item(5)
    hits = gallery.search(_cut(item.path, region), k=24, exclude=[5])
    assert _shown(page) == _pairs(hits)
    for card, hit in zip(page.locator("#results li button").all(), hits, strict=True):
        expect(card).to_have_class("right" if hit.label == item.label else "wrong")
    values = ",".join(f"{part:g}" for part in region)
    expect(page).to_have_url(f"{server.url}/?id=5&region={values}&k=24")
    page.goto(page.url, wait_until="domcontentloaded")  # as opened by another visitor
    expect(page.locator("#status")).to_contain_text("similar to a region of item 5")
    assert _region(page) == region
    assert _shown(page) == _pairs(hits)
    settle(page)
    page.locator("#results li button").first.click()
    shape = page.locator("#dialog img").first.evaluate(
        "image => image.decode().then(() => image.naturalWidth / image.naturalHeight)"
    )
    cut = _cut(item.path, region)
    assert shape == pytest.approx(cut.width / cut.height, rel=0.1)  # the query's thumbnail shows the region
    page.get_by_role("button", name="Where they look alike").click()
    expect(page.locator("#dialog img").first).to_have_attribute("alt", "where the query looks like the item")


def test_region_can_be_moved_and_resized_by_keyboard(page: Page, gallery: Gallery, shop: Path) -> None:
    path = shop / "red" / "2.png"
    upload(page, path)
    expect_results(page, 10)
    settle(page)
    rectangle = page.get_by_role("button", name="Region to search with")
    rectangle.focus()
    page.keyboard.press("ArrowDown")  # the first key creates a region
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Shift+ArrowUp")
    expect(page.locator("#status")).to_contain_text("similar to a region of the image")
    assert _region(page) == pytest.approx([0.1, 0.2, 0.7, 0.7])
    assert _shown(page) == _pairs(gallery.search(_cut(path, _region(page))))
    expect(rectangle).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#results img").first).to_have_attribute("alt", "1 · 1.0000 · red")
    expect(rectangle).to_be_focused()


def test_region_that_is_too_small_keeps_the_search(page: Page, shop: Path) -> None:
    upload(page, shop / "green" / "5.png")  # 48 x 40 pixels
    expect_results(page, 10)
    _drag(page, (0.3, 0.3), (0.35, 0.9))
    expect(page.locator("#status .trouble")).to_contain_text("of an image of 48 x 40")
    expect(page.locator("#results li")).to_have_count(10)
    expect(page.locator("#asked .region.chosen")).to_have_count(0)


def test_region_can_be_drawn_by_touch(browser: Browser, server: Server, shop: Path) -> None:
    with browser.new_context(
        viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True
    ) as context:
        page = watched(context.new_page(), server)
        upload(page, shop / "green" / "5.png")
        expect_results(page, 10)
        page.locator("#asked .cropping").scroll_into_view_if_needed()
        box = page.locator("#asked .cropping").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        session = context.new_cdp_session(page)
        x, y, width, height = (box[name] for name in ("x", "y", "width", "height"))
        for kind, part in (("touchStart", 0.2), ("touchMove", 0.5), ("touchMove", 0.8), ("touchEnd", None)):
            places: list[dict[str, Any]] = (
                [] if part is None else [{"x": x + part * width, "y": y + part * height}]
            )
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})
        expect(page.locator("#status")).to_contain_text("similar to a region of the image")
        assert np.allclose(_region(page), [0.2, 0.2, 0.8, 0.8], atol=0.03)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


# ---- several images


def test_query_of_several_images_and_their_removal(page: Page, gallery: Gallery, shop: Path) -> None:
    paths = [shop / "green" / "5.png", shop / "red" / "2.png", shop / "blue" / "1.png"]
    upload(page, paths[0])
    expect_results(page, 10)
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Add another image").click()
    chooser.value.set_files(paths[1:])
    expect(page.locator("#status")).to_contain_text("similar to the mean of 3 images")
    expect(page.locator("#asked .parts li")).to_have_count(3)
    mean = gallery.embedder.embed(paths).mean(0)
    (hits,) = gallery.search_vectors((mean / np.linalg.norm(mean))[None])
    assert _shown(page) == _pairs(hits)
    page.get_by_role("button", name="Show query image 1").click()
    expect(page.locator("#asked .frame img")).to_have_attribute("alt", "Query image 1")
    page.get_by_role("button", name="Remove query image 2").last.click()
    expect(page.locator("#status")).to_contain_text("similar to the mean of 2 images")
    page.get_by_role("button", name="Remove query image 2").last.click()
    expect(page.locator("#results img").first).to_have_attribute("alt", "1 · 1.0000 · green")
    expect(page.locator("#asked .parts")).to_have_count(0)


def test_items_can_be_added_to_the_query_and_its_link(page: Page, server: Server, gallery: Gallery) -> None:
    page.goto(f"{server.url}/?id=5&k=24", wait_until="domcontentloaded")
    expect_results(page, 23)
    settle(page)
    second = int(str(page.locator("#results li button").nth(4).get_attribute("data-item")))
    page.locator("#results li button").nth(4).click()
    page.get_by_role("button", name="Add to the query").click()
    expect(page.locator("#status")).to_contain_text(
        "similar to the mean of 2 images, 2 items of the query left out"
    )
    expect(page.locator("#status")).to_contain_text("stored embedding")
    expect(page).to_have_url(f"{server.url}/?id=5&id={second}&k=24")
    mean = np.stack([gallery.vector(5), gallery.vector(second)]).mean(0)
    (hits,) = gallery.search_vectors((mean / np.linalg.norm(mean))[None], k=24, exclude=[5, second])
    assert _shown(page) == _pairs(hits)
    page.goto(page.url, wait_until="domcontentloaded")
    expect_results(page, 22)
    assert _shown(page) == _pairs(hits)
    settle(page)
    page.locator("#results li button").first.click()
    expect(page.locator("#dialog figcaption").first).to_have_text("query image 1 of 2")


# ---- ways to start a search


def test_examples_cover_all_labels_and_start_a_search(page: Page, gallery: Gallery) -> None:
    expect(page.locator("#address")).to_have_count(0)  # the server does not fetch images by URL
    expect(page.locator("#trail")).to_contain_text("Or start with one of these")
    cards = page.locator("#trail .examples button")
    items = [gallery.item(int(str(card.get_attribute("data-item")))) for card in cards.all()]
    assert 4 <= len(items) <= 6
    assert {item.label for item in items} == {"red", "green", "blue"}
    cards.first.click()
    expect(page.locator("#status")).to_contain_text(f"similar to item {items[0].id}")
    expect(page.locator("#trail")).not_to_contain_text("Or start")


def test_history_can_be_repeated(page: Page, server: Server, shop: Path) -> None:
    upload(page, shop / "green" / "5.png")
    expect_results(page, 10)
    expect(page).to_have_url(f"{server.url}/?q=1&k=10")
    page.get_by_label("Results (K)").fill("4")
    page.get_by_label("Results (K)").press("Tab")
    expect_results(page, 4)
    expect(page).to_have_url(f"{server.url}/?q=1&k=4")
    upload(page, shop / "red" / "2.png")
    expect(page).to_have_url(f"{server.url}/?q=2&k=4")
    settle(page)
    page.locator("#results li button").nth(1).click()
    page.get_by_role("button", name="Search with this image").click()
    expect(page.locator("#status")).to_contain_text("similar to item")
    expect(page.locator("#trail .past button")).to_have_count(3)
    page.go_back()
    expect(page.locator("#results img").first).to_have_attribute("alt", "1 · 1.0000 · red")
    page.go_back()
    expect(page.locator("#results img").first).to_have_attribute("alt", "1 · 1.0000 · green")
    expect(page).to_have_url(f"{server.url}/?q=1&k=4")
    page.go_forward()
    expect(page.locator("#results img").first).to_have_attribute("alt", "1 · 1.0000 · red")
    page.go_back()
    expect(page.locator("#results img").first).to_have_attribute("alt", "1 · 1.0000 · green")
    page.go_back()
    expect(page.locator("#status")).to_contain_text("Drop, paste or choose an image")
    expect(page.locator("#results li")).to_have_count(0)
    entry = page.locator("#trail .past button").filter(has_text="image").last
    entry.click()
    expect_results(page, 4)
    expect(page.get_by_label("Results (K)")).to_have_value("4")
    page.reload(wait_until="domcontentloaded")  # a new visit
    expect(page.locator("#status")).to_contain_text("no longer kept")


def test_camera_image_is_searched(browser: Browser, server: Server) -> None:
    """The browser has no camera: a script provides a canvas as its stream."""
    with browser.new_context(permissions=["camera"]) as context:
        page = context.new_page()
        page.add_init_script(
            """
            const canvas = document.createElement('canvas');
            [canvas.width, canvas.height] = [64, 48];
            const pen = canvas.getContext('2d');
            setInterval(() => { pen.fillStyle = 'rgb(0, 160, 0)'; pen.fillRect(0, 0, 64, 48); }, 50);
            const camera = {kind: 'videoinput', deviceId: 'one', label: 'canvas', groupId: ''};
            navigator.mediaDevices.enumerateDevices = async () => [camera];
            navigator.mediaDevices.getUserMedia = async () => canvas.captureStream(20);
            """
        )
        watched(page, server)
        assert page.evaluate("document.featurePolicy.allowsFeature('camera')")
        assert not page.evaluate("document.featurePolicy.allowsFeature('microphone')")
        page.get_by_label("Capture from camera").click()
        page.get_by_text("Click to Access Webcam").click()
        page.get_by_label("capture photo").click()
        expect_results(page, 10)
        expect(page.locator("#asked img")).to_be_visible()


# ---- results as files


def test_results_are_downloaded_as_csv_and_json(browser: Browser, site: Server, tmp_path: Path) -> None:
    formulas = below(site, "formulas")
    with browser.new_context(accept_downloads=True) as context:
        page = noting(context.new_page(), formulas)
        page.goto(f"{formulas.url}/?id=6", wait_until="domcontentloaded")
        expect_results(page, 5)
        settle(page)
        page.get_by_text("Scores and keys").click()
        files = {}
        for kind in ("CSV", "JSON"):
            with page.expect_download() as download:
                page.get_by_role("button", name=f"Download {kind}").click()
            assert download.value.suggested_filename == f"results.{kind.lower()}"
            files[kind] = tmp_path / kind
            download.value.save_as(files[kind])
    hits = json.loads(files["JSON"].read_text())
    assert [hit["rank"] for hit in hits] == [1, 2, 3, 4, 5]
    assert {hit["label"] for hit in hits} == {"=1+1", "+2", "-3 apples", "@SUM(A1)", 'a "b", c'}
    assert {hit["metadata"]["change"] for hit in hits} == {-0.5, -1.5, -2.5, -3.5, -4.5}
    with files["CSV"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, hit in zip(rows, hits, strict=True):
        assert (int(row["Rank"]), int(row["Item"])) == (hit["rank"], hit["id"])
        assert float(row["Score"]) == pytest.approx(hit["score"], abs=1e-4)
        assert float(row["change"]) == hit["metadata"]["change"]  # numbers are not escaped as formulas
        guarded = hit["label"].startswith(("=", "+", "-", "@"))
        assert row["Label"] == ("'" if guarded else "") + hit["label"]
