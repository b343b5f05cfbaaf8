"""The gallery tab in a real browser: its views, selection, decisions, and changes."""

from __future__ import annotations

import csv
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Dialog, Locator, Page, Route, expect

from retrieval import Gallery
from retrieval.curation.suspects import find_suspects
from retrieval.storage.decisions import DecisionLog
from serve.client import Added, Client
from tests.e2e.page_driver import below, list_suspects, search_with, visiting, watched
from tests.e2e.page_gallery import ODD, colourful
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
def page(context: BrowserContext, server: Server) -> Iterator[Page]:
    with visiting(context, server) as page:
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


@pytest.fixture
def free(context: BrowserContext, changed: Server) -> Iterator[Page]:
    """The page of the gallery that may be changed."""
    with visiting(context, changed) as page:
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


def on_its_tab(page: Page, view: str = "") -> Page:
    page.get_by_role("tab", name="Gallery").click()
    if view:
        page.get_by_role("navigation", name="Views of the gallery").get_by_role("button", name=view).click()
    else:
        expect(cards(page).first).to_be_visible()
    return page


def cards(page: Page) -> Locator:
    return page.locator("#collection .pictures li")


def shown(page: Page) -> list[int]:
    """The items of the grid."""
    return [int(str(card.get_attribute("data-item"))) for card in cards(page).all()]


def select(page: Page, item: int, **how: Any) -> None:
    page.get_by_role("checkbox", name=f"Select item {item}", exact=True).click(**how)


def folder_of(server: Server) -> Path:
    return server.scratch.parent / "shop.gallery"


# ---- reading


def test_pictures_are_filtered_and_sorted_and_the_address_keeps_it(page: Page, home: Path) -> None:
    gallery = Gallery(home)
    status = page.get_by_test_id("gallery-status")
    expect(status).to_have_text(f"{len(gallery)} images")
    ids = item_ids(gallery).tolist()
    assert shown(page)[:60] == ids[:60]
    cards(page).last.scroll_into_view_if_needed()  # the rest comes
    expect(cards(page)).to_have_count(len(ids))
    page.locator("#collection summary", has_text="label").click()
    page.locator("#collection .facet li", has_text="red").get_by_role("checkbox").check()
    red = [number for number, item in gallery.items(ids).items() if item.label == "red"]
    expect(cards(page)).to_have_count(len(red))
    page.locator("#collection").get_by_label("Order").select_option("id desc")
    expect(cards(page).first).to_have_attribute("data-item", str(red[-1]))
    assert shown(page) == red[::-1]
    expect(page).to_have_url(re.compile(r"tab=gallery.*order=id\+desc.*filter=label(=|%3D)red"))
    page.reload(wait_until="domcontentloaded")
    expect(cards(page).first).to_have_attribute("data-item", str(red[-1]))
    page.locator("#collection").get_by_label("Order").select_option("price")
    expect(cards(page).first).to_have_attribute("data-item", str(red[0]))
    page.go_back()
    expect(cards(page).first).to_have_attribute("data-item", str(red[-1]))
    page.locator("#collection summary", has_text="Advanced").click()
    condition = page.locator("#collection").get_by_label("Condition")
    condition.fill("price <> red <")
    condition.press("Enter")
    expect(page.locator("#collection [data-part=fault]")).to_contain_text("At character 10")
    assert shown(page) == red[::-1]


def test_facts_and_statistics_match_the_images(page: Page, home: Path) -> None:
    page.get_by_role("button", name="About").click()
    gallery = Gallery(home)
    expect(page.locator("#stock")).to_contain_text(f"{len(gallery)}")
    expect(page.locator("#stock")).to_contain_text("1 file could not be read")
    part = page.locator("#statistics")
    part.locator("summary").first.press("Enter")
    counts = Counter(item.label or "no label" for item in gallery.items(item_ids(gallery)).values())
    expect(part.locator(".bars li")).to_have_count(len(counts))
    rows = {
        row.locator("button").inner_text(): row.locator("span").inner_text()
        for row in part.locator(".bars li").all()
    }
    assert {name: int(count) for name, count in rows.items()} == counts
    part.get_by_role("button", name=ODD).click()
    expect(cards(page)).to_have_count(counts[ODD])


def test_near_duplicates_match_the_command(page: Page, home: Path) -> None:
    on_its_tab(page, "Near-duplicates")
    page.get_by_role("button", name="Find near-duplicates").click()
    groups = Gallery(home).duplicates(0.95).groups
    expect(page.get_by_test_id("duplicates-status")).to_contain_text(f"{len(groups)} groups")
    listed = page.locator("#collection .group")
    found = [
        {int(str(one.get_attribute("data-item"))) for one in group.locator("[data-item]").all()}
        for group in listed.all()
    ]
    assert found == [{item.id for item in group.members} for group in groups[:50]]
    expect(listed.first.get_by_role("button", name="Remove the others")).to_be_hidden()  # without changes
    page.locator("#collection").get_by_label("Lowest similarity").fill("0.5")
    page.get_by_role("button", name="Find near-duplicates").click()
    expect(page.get_by_test_id("duplicates-status")).to_contain_text("greater than or equal to 0.8")
    expect(page.get_by_role("button", name="Add images")).to_be_hidden()


# ---- changing


def test_selection_by_range_is_labelled_exported_and_removed(free: Page, changed: Server) -> None:
    ids = shown(free)
    select(free, ids[1])
    select(free, ids[4], modifiers=["Shift"])
    bar = free.get_by_test_id("selection").locator("visible=true")
    expect(bar).to_contain_text("4 images selected")
    with free.expect_download() as waiting:
        bar.get_by_role("button", name="Export CSV").click()
    with open(waiting.value.path(), newline="") as file:
        assert [int(row["Item"]) for row in csv.DictReader(file)] == ids[1:5]
    bar.get_by_role("button", name="Label").click()
    bar.get_by_label("Label of all of them").fill("checked")
    bar.get_by_role("button", name="Save").click()
    expect(bar).to_contain_text("4 images labelled checked")
    gallery = Gallery(folder_of(changed))
    assert {gallery.item(number).label for number in ids[1:5]} == {"checked"}
    select(free, ids[1])
    bar.get_by_role("button", name="Remove").click()
    expect(bar).to_contain_text("Remove 3 images from the gallery?")
    bar.get_by_role("button", name="Remove", exact=True).click()
    expect(bar).to_contain_text("3 images removed")
    expect(free.locator(f"#collection .pictures [data-item='{ids[2]}']")).to_have_count(0)
    assert not Gallery(folder_of(changed)).items(ids[2:5])
    free.keyboard.press("Escape")
    select(free, ids[0])
    select(free, ids[1])
    bar.get_by_role("button", name="Search with these").click()
    expect(free).to_have_url(re.compile(rf"like={ids[0]}&like={ids[1]}$"))
    expect(free.get_by_test_id("hit").first).to_be_visible()


def test_one_of_each_group_stays(free: Page, changed: Server) -> None:
    gallery = Gallery(folder_of(changed))
    groups = gallery.duplicates(0.95).groups
    on_its_tab(free, "Near-duplicates")
    free.get_by_label("Keep of each group").select_option("first")
    free.get_by_role("button", name="Find near-duplicates").click()
    status = free.get_by_test_id("duplicates-status")
    expect(status).to_contain_text(f"{len(groups)} groups")
    agreeing = [group for group in groups if len({item.label for item in group.members}) == 1]
    first, second = agreeing[0].members[:2]
    group = free.locator("#collection .group", has=free.locator(f"[data-item='{first.id}']"))
    group.locator(f"[data-item='{second.id}']").get_by_role("button", name="keep this one").click()
    group.get_by_role("button", name="Remove the others").click()
    expect(status).to_contain_text(re.compile(rf" {len(groups) - 1} groups left"))
    assert set(Gallery(folder_of(changed)).items([first.id, second.id])) == {second.id}
    free.locator("#collection [data-part=all]").click()
    free.locator("#collection [data-part=asking]").get_by_role("button", name="Remove").click()
    expect(status).to_contain_text(re.compile(rf" {len(groups) - len(agreeing)} groups left"))
    left = Gallery(folder_of(changed))
    for one in agreeing[1:]:
        assert set(left.items([item.id for item in one.members])) == {one.members[0].id}


def test_suspects_are_decided_on_and_undone(free: Page, changed: Server) -> None:
    gallery = Gallery(folder_of(changed))
    expected = find_suspects(gallery, limit=500).suspects
    on_its_tab(free, "Suspected labels")
    list_suspects(free)
    status, cases = free.get_by_test_id("suspects-status"), free.locator("#collection .suspect")
    expect(status).to_contain_text(f"{len(expected)} suspected labels.")
    first, second = expected[:2]
    card = cases.first
    for part, near in (("own", first.own_neighbours), ("others", first.neighbours)):
        items = card.locator(f"[data-part={part}] button").evaluate_all("all => all.map(e => e.dataset.item)")
        assert items == [str(one.item.id) for one in near[:4]]
    expect(card.locator("[data-part=present]")).to_have_text(str(first.item.label))
    expect(card.locator("[data-part=suggested]")).to_have_text(str(first.suggested))
    free.keyboard.press("a")
    expect(status).to_contain_text(f"{len(expected)} suspected labels, 1 done. 1 label changed.")
    expect(card).to_contain_text(f"is {first.suggested} now")
    assert Gallery(folder_of(changed)).item(first.item.id).label == first.suggested
    free.keyboard.press("z")
    expect(status).to_contain_text("1 decision undone.")
    assert Gallery(folder_of(changed)).item(first.item.id).label == first.item.label
    card.get_by_role("button", name="Keep").click()
    expect(card).to_contain_text("stays as it is")
    cases.nth(1).get_by_role("checkbox").check()
    free.get_by_label("Another label of these").fill("mine")
    free.get_by_role("button", name="Save").click()
    expect(cases.nth(1)).to_contain_text("is mine now")
    on_its_tab(free, "Decisions")
    rows = free.locator("#collection tbody tr")
    expect(rows).to_have_count(3)
    for place, words in enumerate(("mine", "right as it is", "undone")):
        expect(rows.nth(place).get_by_text(words)).to_be_visible()
    rows.nth(0).get_by_role("button", name="Undo").click()
    expect(rows.nth(0).get_by_text("undone")).to_be_visible()
    assert Gallery(folder_of(changed)).item(second.item.id).label == second.item.label


def test_many_suggestions_are_accepted_and_undone_at_once(free: Page, changed: Server) -> None:
    expected = find_suspects(Gallery(folder_of(changed)), limit=500).suspects[:24]
    assert len(expected) > 3
    on_its_tab(free, "Suspected labels")
    list_suspects(free)
    status, cases = free.get_by_test_id("suspects-status"), free.locator("#collection .suspect")
    expect(cases).to_have_count(len(expected))
    free.get_by_role("button", name=f"Choose all {len(expected)} shown").click()
    cases.nth(2).get_by_role("checkbox").uncheck()
    free.get_by_role("button", name=f"Accept {len(expected) - 1} suggestions").click()
    expect(status).to_contain_text(f"{len(expected) - 1} labels changed.")
    now, spared = Gallery(folder_of(changed)), expected[2]
    for one in expected:
        assert now.item(one.item.id).label == (one.item.label if one is spared else one.suggested)
    free.get_by_role("button", name=f"Undo {len(expected) - 1}").click()
    expect(status).to_contain_text(f"{len(expected) - 1} decisions undone.")
    now = Gallery(folder_of(changed))
    assert [now.item(one.item.id).label for one in expected] == [one.item.label for one in expected]
    assert all(one.undone for one in DecisionLog(folder_of(changed)).read())


def test_near_duplicates_are_several_groups_a_screen(page: Page, home: Path) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    on_its_tab(page, "Near-duplicates")
    page.locator("#collection").get_by_label("Lowest similarity").fill("0.999")  # pairs
    page.get_by_role("button", name="Find near-duplicates").click()
    groups = page.locator("#collection .group")
    expect(groups).to_have_count(len(Gallery(home).duplicates(0.999).groups))
    expect(groups.locator("li:nth-child(7)")).to_have_count(0)  # those of another test are gone
    inside = groups.evaluate_all(
        "all => all.filter(e => e.getBoundingClientRect().bottom <= innerHeight).length"
    )
    assert inside >= 8


def test_added_images_are_told_apart(free: Page, changed: Server, tmp_path: Path, shop: Path) -> None:
    before = len(Gallery(folder_of(changed)))
    colourful(900).save(tmp_path / "new.png")
    (tmp_path / "text.png").write_text("not an image")
    shutil.copy(shop / "red" / "0.png", tmp_path / "known.png")
    on_its_tab(free, "Add images")
    form = free.locator("#collection .adding-images")
    form.get_by_label("Images", exact=True).set_input_files(
        [tmp_path / f"{name}.png" for name in ("new", "text", "known")]
    )
    form.get_by_label("Label of all of them").fill("fresh")
    form.get_by_role("button", name="Add").click()
    expect(free.get_by_test_id("add-status")).to_have_text("1 image added.")
    outcomes = free.locator("#collection .outcomes")
    expect(outcomes).to_contain_text("text.png: not added")
    expect(outcomes).to_contain_text("known.png: is in the gallery already")
    expect(outcomes).to_contain_text("with the label red, which stays")
    gallery = Gallery(folder_of(changed))
    assert len(gallery) == before + 1
    assert gallery.item(item_ids(gallery)[-1]).label == "fresh"


def test_leaving_while_images_are_added_is_asked_about(free: Page, changed: Server, tmp_path: Path) -> None:
    files = [tmp_path / f"{seed}.png" for seed in (930, 931)]
    for seed, file in zip((930, 931), files, strict=True):
        colourful(seed).save(file)
    before = len(Gallery(folder_of(changed)))
    held: list[Route] = []
    asked: list[str] = []
    free.route("**/items", lambda route: route.continue_() if asked else held.append(route))
    on_its_tab(free, "Add images")
    form = free.locator("#collection .adding-images")
    form.get_by_label("Images", exact=True).set_input_files(files)
    form.get_by_role("button", name="Add").click()

    def stay(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.dismiss()

    free.on("dialog", stay)
    with free.expect_event("dialog"):
        free.close(run_before_unload=True)
    for route in held:
        route.continue_()
    expect(free.get_by_test_id("add-status")).to_have_text("2 images added.")
    assert asked == ["beforeunload"]
    assert len(Gallery(folder_of(changed))) == before + 2


def test_cancelled_work_leaves_the_focus_at_what_it_says(free: Page) -> None:
    def lasting(route: Route) -> None:
        """Let a job that is done look as if it were not."""
        if route.request.method == "GET":
            answer = route.fetch()
            route.fulfill(response=answer, json={**answer.json(), "state": "running"})
        else:
            route.continue_()

    free.route("**/jobs/*", lasting)
    on_its_tab(free, "Near-duplicates")
    free.get_by_role("button", name="Find near-duplicates").press("Enter")
    free.locator("#collection").get_by_role("button", name="Cancel").press("Enter")
    status = free.get_by_test_id("duplicates-status")
    expect(status).to_have_text("Cancelled.")
    expect(status).to_be_focused()


def test_near_duplicates_are_left_out_and_shown(free: Page, changed: Server, tmp_path: Path) -> None:
    """The picture that is there stands beside the sentence, and opens its dialog."""
    first, like = tmp_path / "first.png", tmp_path / "like.jpg"
    colourful(910).save(first)
    Image.open(first).convert("RGB").save(like, quality=95)
    sent = httpx.post(f"{changed.url}/v1/items", files={"images": (first.name, first.read_bytes())})
    number = sent.json()["results"][0]["image"]["id"]
    gallery = Gallery(folder_of(changed))
    before = len(gallery)
    on_its_tab(free, "Add images")
    form = free.locator("#collection .adding-images")
    form.locator("input[type=file]").set_input_files(like)
    form.get_by_label("Leave out images that look like another one").check()
    form.get_by_role("button", name="Add").click()
    outcomes = free.locator("#collection .outcomes")
    expect(outcomes).to_contain_text(f"like.jpg: left out: looks like item {number} (similarity ")
    expect(free.get_by_test_id("add-status")).to_have_text("0 images added.")
    outcomes.get_by_role("button", name="Show first.png").click()
    expect(free.get_by_role("dialog")).to_be_visible()
    expect(free).to_have_url(re.compile(f"open={number}"))
    gallery.refresh()
    assert len(gallery) == before


def test_removal_needs_a_second_click(free: Page, changed: Server) -> None:
    before = len(Gallery(folder_of(changed)))
    cards(free).nth(2).get_by_role("button").press("Enter")
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
    assert len(Gallery(folder_of(changed))) == before
    button.press("Enter")
    expect(dialog).to_have_count(0)
    expect(free.locator(f"#collection .pictures [data-item='{number}']")).to_have_count(0)
    assert number not in Gallery(folder_of(changed)).items([number])


def test_focus_and_selection_follow_a_removal(free: Page, changed: Server) -> None:
    """The keyboard goes on where it was, at the image in its place; what is gone is not selected."""
    ids = shown(free)
    card = free.locator(f"#collection .pictures [data-item='{ids[2]}']").get_by_role("button")
    for item in ids[1:3]:
        select(free, item)
    bar = free.get_by_test_id("selection").locator("visible=true")
    expect(bar).to_contain_text("2 images selected")
    card.press("Enter")
    button = free.get_by_role("dialog").locator("button.remove")
    button.press("Enter")
    free.wait_for_timeout(600)
    button.press("Enter")
    expect(cards(free).nth(2)).to_have_attribute("data-item", str(ids[3]))
    expect(cards(free).nth(2).get_by_role("button")).to_be_focused()
    expect(bar).to_contain_text("1 image selected")
    assert ids[2] not in Gallery(folder_of(changed)).items(ids)


def test_focus_returns_to_an_image_with_a_new_label(free: Page, changed: Server) -> None:
    for number, view in enumerate(("the gallery", "a search")):
        if view == "a search":
            search_with(free, changed, "?like=9")
        card = (cards(free) if view == "the gallery" else free.get_by_test_id("hit")).nth(1)
        item = str(card.get_attribute("data-item"))
        card.locator("[data-part=open]").press("Enter")
        dialog = free.get_by_role("dialog")
        dialog.get_by_label("Label").fill(f"new {number}")
        dialog.get_by_label("Label").press("Enter")
        expect(dialog.get_by_role("status")).to_have_text("Saved.")
        expect(card).to_contain_text(f"new {number}")
        free.keyboard.press("Escape")
        expect(card.locator("[data-part=open]")).to_be_focused()
        expect(card).to_have_attribute("data-item", item)


def test_undone_removal_says_how_the_image_comes_back(free: Page, changed: Server, tmp_path: Path) -> None:
    """That of an upload, whose file is gone, is not offered."""
    before = len(Gallery(folder_of(changed)))
    colourful(920).save(tmp_path / "sent.png")
    with Client(changed.url) as client:
        (added,) = client.add([tmp_path / "sent.png"])
        assert isinstance(added, Added)
        client.remove(added.id)
        client.remove(1)
    on_its_tab(free, "Decisions")
    rows, status = free.locator("#collection tbody tr"), free.get_by_test_id("decisions-status")
    expect(rows.nth(1)).to_contain_text("removed for good")
    expect(rows.nth(1).get_by_role("button", name="Undo")).to_be_hidden()
    rows.nth(0).get_by_role("button", name="Undo").click()
    expect(status).to_have_text(re.compile("^Undone. The image comes back when its folder is indexed again"))
    gallery = Gallery(folder_of(changed))
    assert len(gallery) == before - 1
    gallery.add([Path(decision.root) / decision.path for decision in DecisionLog(gallery.folder).read()[-1:]])
    assert len(gallery) == before


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


def test_label_is_corrected_in_the_dialog(free: Page, changed: Server) -> None:
    free.locator("#collection .pictures li button").first.click()
    dialog = free.get_by_role("dialog")
    number = int(free.url.rpartition("open=")[2])
    dialog.get_by_label("Label").fill("corrected")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("status")).to_have_text("Saved.")
    expect(dialog.get_by_role("heading")).to_contain_text("corrected")
    assert Gallery(folder_of(changed)).item(number).label == "corrected"
    dialog.get_by_role("button", name="Close").click()
    expect(free.locator("#collection .pictures li").first).to_contain_text("corrected")


def test_failed_removal_is_shown_in_the_dialog(free: Page, changed: Server) -> None:
    """The server's refusal, and the event that tells of the other removal, may come in any order."""
    free.locator("#collection .pictures li button").first.click()
    dialog = free.get_by_role("dialog")
    button, status = dialog.locator("button.remove"), dialog.get_by_role("status")
    expect(button).to_be_visible()
    number = int(free.url.rpartition("open=")[2])
    held: list[Route] = []
    free.route(
        f"**/items/{number}",
        lambda route: held.append(route) if route.request.method == "GET" else route.continue_(),
    )
    with free.expect_request(f"**/items/{number}"):  # what the event makes the page read; its answer waits
        Gallery(folder_of(changed)).remove([number])  # by another process
    button.click()
    free.wait_for_timeout(600)
    button.click()
    expect(status).to_have_text("Somebody else has removed this image.")
    with free.expect_response(f"**/items/{number}"):
        for route in held:
            route.continue_()
    free.wait_for_timeout(200)
    expect(status).to_have_text("Somebody else has removed this image.")
    dialog.get_by_role("button", name="Close").click()


def test_an_empty_gallery_says_so(
    context: BrowserContext, allowing: Server, tmp_path: Path, home: Path
) -> None:
    put(allowing, Gallery.create(tmp_path / "g", home / "model" / "model.onnx").folder)
    page = context.new_page()
    page.goto(f"{allowing.url}/?tab=gallery", wait_until="domcontentloaded")
    expect(page.get_by_test_id("gallery-status")).to_have_text("There are no images yet.")
    on_its_tab(page, "Near-duplicates")
    page.get_by_role("button", name="Find near-duplicates").click()
    expect(page.get_by_test_id("duplicates-status")).to_have_text("No two images are that similar.")
    page.get_by_role("tab", name="Search").click()
    expect(page.get_by_role("button", name="Choose a picture")).to_be_attached()
    expect(page.get_by_text("Or start with one of these")).to_be_hidden()
    page.get_by_role("tab", name="Map").click()
    expect(page.get_by_test_id("map-status")).to_have_text("There are no images yet.")
    expect(page.get_by_role("button", name="Draw the map")).to_be_hidden()
    page.get_by_role("tab", name="Evaluation").click()
    expect(page.locator("#measure")).to_contain_text("it has no images")


def test_every_view_fits_a_phone(browser: Browser, changed: Server) -> None:
    with browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True) as context:
        page = on_its_tab(watched(context.new_page(), changed))
        for view in ("Pictures", "Near-duplicates", "Suspected labels", "Decisions", "Add images", "About"):
            on_its_tab(page, view)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            small = page.locator("#collection button:visible").evaluate_all(
                "all => all.filter(e => e.offsetHeight < 44).map(e => e.outerHTML)"
            )
            assert small == []
        assert page.foreign == page.broken == []  # type: ignore[attr-defined]
