"""The gallery tab in a real browser: summary, near-duplicates, adding and removing images."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from retrieval import Gallery
from retrieval.upkeep.duplicates import find_duplicates
from tests.e2e.page_driver import below, in_a_tab, search_with, visiting, watched
from tests.e2e.page_gallery import BRANDS, ODD, colourful
from tests.retrieval.filling import item_ids
from tests.serve.serving import SERVE, Server, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def home(galleries: dict[str, Gallery]) -> Path:
    """A gallery with duplicated images with their own labels; tests must not change it."""
    return galleries["twice"].folder


@pytest.fixture(scope="module")
def server(site: Server) -> Server:
    """Its page, on a server without changes."""
    return below(site, "twice")


@pytest.fixture
def page(tab: Page, server: Server) -> Iterator[Page]:
    with visiting(tab, server) as page:
        yield on_its_tab(page)


@pytest.fixture(scope="module")
def allowing(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[Server]:
    """A server with --allow-changes, over a gallery that `put` replaces."""
    folder = tmp_path_factory.mktemp("changed")
    shutil.copytree(home, folder / "shop.gallery")
    with serving(
        [*SERVE, str(folder / "shop.gallery"), "--allow-changes"], folder / "scratch", forked=True
    ) as running:
        yield running


@pytest.fixture
def changed(allowing: Server, home: Path) -> Server:
    """The server over a fresh copy of the gallery."""
    put(allowing, home)
    return allowing


@pytest.fixture(scope="module")
def other_tab(browser: Browser, allowing: Server) -> Iterator[Page]:
    with in_a_tab(browser, allowing) as page:
        yield page


@pytest.fixture
def free(other_tab: Page, changed: Server) -> Iterator[Page]:
    """The page of the gallery that may be changed."""
    with visiting(other_tab, changed) as page:
        yield on_its_tab(page)


def put(server: Server, gallery: Path) -> None:
    """Replace the served gallery by a copy of another."""
    old = folder_of(server)
    new = shutil.copytree(gallery, old.with_name("new"))
    gone = old.rename(old.with_name("gone"))
    new.rename(old)
    images = httpx.get(f"{server.url}/v1/gallery", timeout=30).json()["images"]
    assert images == len(Gallery(gallery))
    shutil.rmtree(gone)


def on_its_tab(page: Page) -> Page:
    page.get_by_role("tab", name="Gallery").click()
    expect(page.locator("#browse li").first).to_be_visible()
    return page


def unfold(page: Page, part: str) -> Locator:
    """Open a part of the tab by keyboard."""
    found = page.locator(part)
    found.locator("summary").first.press("Enter")
    return found


def find(page: Page) -> Locator:
    """Open the section of near-duplicates, and start the search for them."""
    part = unfold(page, "#duplicates")
    part.get_by_role("button", name="Find").press("Enter")
    expect(part.locator(".groups")).to_be_visible()
    return part


def choose(page: Page, files: list[Path]) -> None:
    """Choose images to add, and wait until they are uploaded."""
    with page.expect_response(lambda answer: "/gradio_api/upload?" in answer.url) as answer:
        page.locator("#add-files input[type=file]").set_input_files(files)
    assert answer.value.ok
    expect(page.locator("#add-files tbody tr")).to_have_count(len(files))


def folder_of(server: Server) -> Path:
    return server.scratch.parent / "shop.gallery"


# ---- reading


def test_statistics_match_the_images(page: Page, home: Path) -> None:
    gallery = Gallery(home)
    items = gallery.items(item_ids(gallery).tolist()).values()
    part = unfold(page, "#statistics")
    labels = Counter(item.label for item in items if item.label)
    expect(part.get_by_role("heading", name=f"{len(labels)} labels")).to_be_visible()
    bars = part.locator(".bars li")
    assert {
        bar.get_by_role("button").inner_text(): bar.locator("span").inner_text() for bar in bars.all()
    } == {
        **{str(label): str(number) for label, number in labels.items()},
        "no label": str(sum(not item.label for item in items)),
    }
    prices = [float(item.metadata["price"]) for item in items if "price" in item.metadata]
    row = part.get_by_role("row").filter(has_text="price")
    for number in (len(prices), len(set(prices)), min(prices), float(np.median(prices)), max(prices)):
        expect(row.get_by_role("cell", name=f"{number:g}", exact=True).first).to_be_visible()
    expect(part.get_by_role("row").filter(has_text="brand")).to_contain_text(f"{min(BRANDS)} (12)")
    expect(part.locator("dl")).to_contain_text("48 × 40 pixels")
    expect(part.locator("dl")).to_contain_text("60 × 50 pixels")


@pytest.mark.parametrize("label", [ODD, "no label", "red"])
def test_label_filters_the_images(page: Page, home: Path, label: str) -> None:
    gallery = Gallery(home)
    items = gallery.items(item_ids(gallery).tolist()).values()
    number = sum((item.label or "no label") == label for item in items)
    part = unfold(page, "#statistics")
    part.get_by_role("button", name=label, exact=True).press("Enter")
    expect(page.locator("#browse nav")).to_contain_text(f"of {number} image")
    names = page.locator("#browse li span:not(.quiet)").all_inner_texts()
    assert set(names) == {label}
    expect(page.locator("#browse").get_by_label("Filter")).to_be_focused()


def test_near_duplicates_match_the_command(page: Page, home: Path) -> None:
    groups = find_duplicates(Gallery(home), 0.95).groups
    part = find(page)
    across = sum(len(group.labels) > 1 for group in groups)
    expect(part).to_contain_text(f"{len(groups)} groups")
    expect(part).to_contain_text(f"in {across} of them labels disagree")
    rows = part.locator(".groups > li")
    expect(rows).to_have_count(20)
    for row, group in zip(rows.all()[:4], groups, strict=False):
        ids = [int(str(one.get_attribute("data-item"))) for one in row.locator("[data-item]").all()]
        assert ids == [item.id for item in group.members]
        expect(row).to_contain_text(f"lowest similarity {group.lowest:.4f}")
        expect(row).to_contain_text("identical files" if group.identical else "different files")
        expect(row.locator(".disagree")).to_have_count(int(len(group.labels) > 1))
    part.get_by_role("button", name="Next").press("Enter")
    expect(part.locator("nav")).to_contain_text(f"21 to {len(groups)} of {len(groups)} groups")
    expect(part.get_by_role("button", name="Previous")).to_be_focused()
    rows.last.locator("[data-item]").last.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text(f"item{groups[-1].members[-1].id}")


def test_invalid_threshold_gives_an_error(page: Page) -> None:
    part = unfold(page, "#duplicates")
    for score in ("0.5", "", "2"):
        part.get_by_label("Minimum similarity").fill(score)
        part.get_by_role("button", name="Find").click()
        expect(part.locator(".trouble")).to_have_text("the minimum similarity has to be from 0.8 to 1")
        part.get_by_label("Minimum similarity").fill("1")
        part.get_by_role("button", name="Find").click()
        expect(part.locator(".groups")).to_be_visible()


def test_read_only_gallery_offers_no_changes(page: Page) -> None:
    expect(page.get_by_text("Add images")).to_have_count(0)
    part = find(page)
    expect(part.get_by_role("button", name="Remove")).to_have_count(0)
    page.locator("#browse button[data-item='3']").click()
    expect(page.get_by_role("dialog").get_by_role("button", name="Search with this image")).to_be_visible()
    expect(page.get_by_role("dialog").get_by_role("button", name="Remove")).to_have_count(0)


# ---- changes


def test_added_images_are_visible_at_once(free: Page, changed: Server, tmp_path: Path, shop: Path) -> None:
    gallery = Gallery(folder_of(changed))
    before = len(gallery)
    for name in ("a", "b"):
        colourful(ord(name)).save(tmp_path / f"{name}.png")
    (tmp_path / "<i>no.png").write_bytes(b"not a picture")
    free.get_by_role("button", name="Add images").press("Enter")
    outcome = free.locator("#add-outcome")
    free.get_by_role("button", name="Add", exact=True).click()
    expect(outcome.locator(".trouble")).to_have_text("choose images first")
    files = [*sorted(tmp_path.glob("*.png")), shop / "red" / "2.png"]
    choose(free, files)
    free.get_by_label("Label for all of them").fill(ODD)
    free.get_by_role("button", name="Add", exact=True).click()
    expect(outcome).to_contain_text("2 images added.")
    everything = gallery.items(item_ids(gallery).tolist()).values()
    known = next(item.id for item in everything if item.path == str(shop / "red" / "2.png"))
    expect(outcome.locator("li").filter(has_text="2.png")).to_contain_text(
        f"is in the gallery already, as item {known}, with the label 'red', which stays"
    )
    expect(outcome.locator("li").filter(has_text="no.png")).to_contain_text("not added: it is not a")
    expect(free.locator("#stock dl")).to_contain_text(f"{before + 2}")
    expect(free.locator("#browse nav")).to_contain_text(f"of {before + 2} images")
    newest = free.locator("#browse li").last
    expect(newest).to_contain_text("b.png")
    expect(newest).to_contain_text(ODD)
    gallery.refresh()
    assert len(gallery) == before + 2
    free.get_by_role("button", name="Add", exact=True).click()
    expect(outcome.locator(".trouble")).to_have_text("choose images first")


def test_expired_uploads_have_to_be_chosen_again(free: Page, changed: Server, tmp_path: Path) -> None:
    colourful(90).save(tmp_path / "late.png")
    free.get_by_role("button", name="Add images").click()
    choose(free, [tmp_path / "late.png"])
    for path in changed.scratch.rglob("late.png"):
        path.unlink()
    free.get_by_role("button", name="Add", exact=True).click()
    outcome = free.locator("#add-outcome")
    expect(outcome.locator(".trouble")).to_contain_text("choose the images again")
    choose(free, [tmp_path / "late.png"])
    free.get_by_role("button", name="Add", exact=True).click()
    expect(outcome).to_contain_text("1 image added.")


def test_removal_needs_a_second_click(free: Page, changed: Server) -> None:
    gallery = Gallery(folder_of(changed))
    before = len(gallery)
    box = free.locator("#browse").get_by_label("Filter")
    box.fill("label = 'red'")
    box.press("Enter")
    expect(free.locator("#browse li")).to_have_count(8)
    free.locator("#browse li button").nth(2).press("Enter")
    dialog = free.get_by_role("dialog")
    button = dialog.locator("button.remove")
    number = int(free.url.rpartition("open=")[2])
    button.dblclick()  # a double click does not confirm
    expect(button).to_have_text("Really remove it?")
    free.wait_for_timeout(600)
    dialog.get_by_role("button", name="Close").focus()  # cancel
    expect(button).to_have_text("Remove")
    button.press("Enter")
    expect(button).to_have_text("Really remove it?")
    free.wait_for_timeout(600)
    gallery.refresh()
    assert len(gallery) == before
    button.press("Enter")
    expect(dialog).to_have_count(0)
    expect(free.locator("#browse li")).to_have_count(7)
    expect(box).to_have_value("label = 'red'")
    gallery.refresh()
    assert len(gallery) == before - 1
    assert number not in gallery.items([number])


def test_removed_item_leaves_the_results(free: Page, changed: Server) -> None:
    gallery = Gallery(folder_of(changed))
    hits = [hit.id for hit in gallery.search_id(9, 11)]
    search_with(free, changed, "?like=9")
    cards = free.get_by_test_id("hit")
    expect(cards.first).to_have_attribute("data-item", str(hits[0]))
    cards.first.locator("[data-act=open]").click()
    button = free.get_by_role("dialog").locator("button.remove")
    button.click()
    free.wait_for_timeout(600)
    button.click()
    for place, hit in enumerate(hits[1:]):
        expect(cards.nth(place)).to_have_attribute("data-item", str(hit))


def test_all_but_the_first_of_a_group_are_removed(free: Page, changed: Server) -> None:
    gallery = Gallery(folder_of(changed))
    before = len(gallery)
    groups = find_duplicates(gallery, 0.95).groups
    part = find(free)
    for group in groups[:2]:
        button = part.locator("button.remove").first
        expect(button).to_have_text(f"Remove all but item {group.members[0].id}")
        button.click()
        free.wait_for_timeout(600)
        button.click()
        expect(part.locator(f"[data-item='{group.members[1].id}']")).to_have_count(0)
    expect(part).to_contain_text(f"{len(groups) - 2} groups")
    gone = [item.id for group in groups[:2] for item in group.members[1:]]
    gallery.refresh()
    assert len(gallery) == before - len(gone)
    assert not gallery.items(gone)


def test_label_is_corrected_in_the_dialog(free: Page, changed: Server) -> None:
    free.locator("#browse li button").first.click()
    dialog = free.get_by_role("dialog")
    number = int(free.url.rpartition("open=")[2])
    dialog.get_by_label("Label").fill("corrected")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("status")).to_have_text("Saved.")
    expect(dialog.get_by_role("heading")).to_contain_text("corrected")
    assert Gallery(folder_of(changed)).item(number).label == "corrected"
    dialog.get_by_role("button", name="Close").click()
    expect(free.locator("#browse li").first).to_contain_text("corrected")


def test_failed_removal_is_shown_in_the_dialog(free: Page, changed: Server) -> None:
    free.locator("#browse li button").first.click()
    dialog = free.get_by_role("dialog")
    button = dialog.locator("button.remove")
    number = int(free.url.rpartition("open=")[2])
    Gallery(folder_of(changed)).remove([number])  # by another process
    button.click()
    free.wait_for_timeout(600)
    button.click()
    expect(dialog.get_by_role("status")).to_contain_text(f"No item {number}; nothing was removed.")
    dialog.get_by_role("button", name="Close").click()


def test_last_image_can_be_removed_and_a_first_one_added(
    other_tab: Page, allowing: Server, tmp_path: Path, home: Path
) -> None:
    gallery = Gallery.create(tmp_path / "g", home / "model" / "model.onnx")
    for name in ("one", "two"):
        colourful(ord(name[0])).save(tmp_path / f"{name}.png")
    gallery.add([tmp_path / "one.png"])
    put(allowing, gallery.folder)
    with visiting(other_tab, allowing) as page:
        on_its_tab(page).locator("#browse li button").first.click()
        button = page.get_by_role("dialog").locator("button.remove")
        button.click()
        page.wait_for_timeout(600)
        button.click()
        expect(page.locator("#browse")).to_contain_text("There are no images yet.")
        unfold(page, "#statistics")
        expect(page.locator("#statistics")).to_contain_text("There are no images yet.")
        unfold(page, "#duplicates").get_by_role("button", name="Find").click()
        expect(page.locator("#duplicates")).to_contain_text("No two images are that similar.")
        page.get_by_role("button", name="Add images").click()
        choose(page, [tmp_path / "two.png"])
        page.get_by_role("button", name="Add", exact=True).click()
        expect(page.locator("#browse li")).to_have_count(1)


def test_gallery_tab_fits_a_phone(browser: Browser, changed: Server) -> None:
    with browser.new_context(viewport={"width": 390, "height": 844}) as context:
        page = on_its_tab(watched(context.new_page(), changed))
        unfold(page, "#statistics")
        find(page)
        page.get_by_role("button", name="Add images").click()
        expect(page.get_by_role("button", name="Add", exact=True)).to_be_visible()
        expect(page.locator("#statistics .bars")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for selector in ("#statistics .bars button", "#duplicates button.remove", "#duplicates form button"):
            box = page.locator(selector).first.bounding_box()
            assert box
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 390
        assert page.foreign == page.broken == []  # type: ignore[attr-defined]
