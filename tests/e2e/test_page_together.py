"""Two people on the page of one gallery: what one changes, the other sees, and cannot undo unknowingly."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from retrieval import Gallery
from retrieval.curation.suspects import find_suspects
from retrieval.reports.folder import evaluate_and_keep
from serve.client import Added, Client
from tests.e2e.accessibility import cut_off, violations
from tests.e2e.page_driver import list_suspects, watched
from tests.e2e.page_gallery import colourful
from tests.serve.serving import SERVE, Server, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Opens = Callable[..., Page]
# Keeps the event sources of a page, and lets a test hide the page.
_SPY = """
window.sources = [];
window.EventSource = class extends EventSource {
  constructor(...given) {
    super(...given);
    sources.push(this);
    this.addEventListener('gallery', () => { window.heard = true; });
  }
};
Object.defineProperty(document, 'hidden', {get: () => window.unseen ?? false});
"""


@pytest.fixture
def server(tmp_path: Path, galleries: dict[str, Gallery]) -> Iterator[Server]:
    """A server with --allow-changes over a copy of the gallery with duplicates and wrong labels."""
    folder = shutil.copytree(galleries["twice"].folder, tmp_path / "shop.gallery")
    with serving([*SERVE, str(folder), "--allow-changes"], tmp_path / "scratch", forked=True) as running:
        yield running


@pytest.fixture
def gallery(server: Server) -> Gallery:
    return Gallery(server.scratch.parent / "shop.gallery")


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """The other person, who uses the API."""
    with Client(server.url) as client:
        yield client


@pytest.fixture
def opens(browser: Browser, server: Server) -> Iterator[Opens]:
    """Opens an address of the page in a browser of its own; one that is deaf hears of no changes."""
    with ExitStack() as stack:
        pages = []

        def visit(address: str = "", *, deaf: bool = False) -> Page:
            page = stack.enter_context(browser.new_context()).new_page()
            page.add_init_script(_SPY)
            if deaf:
                page.route("**/events", lambda route: route.abort())
            pages.append(watched(page, server))
            if address:
                page.goto(f"{server.url}/{address}", wait_until="domcontentloaded")
            return page

        yield visit
        assert [(page.foreign, page.broken) for page in pages] == [([], [])] * len(pages)  # type: ignore[attr-defined]


def pictures(page: Page) -> Locator:
    return page.locator("#collection .pictures li")


def hears(page: Page) -> None:
    """Wait until the page listens and has received the present state."""
    page.wait_for_function("() => window.heard && sources.at(-1).readyState === 1")


def test_label_that_two_write_is_not_lost(opens: Opens, gallery: Gallery) -> None:
    one, other = opens("?tab=gallery&open=1"), opens("?tab=gallery&open=1", deaf=True)
    for page, label in ((one, "first"), (other, "second")):
        page.get_by_role("dialog").get_by_label("Label").fill(label)
    one.get_by_role("button", name="Save").click()
    said = other.get_by_role("dialog").get_by_role("status")
    expect(one.get_by_role("dialog").get_by_role("status")).to_have_text("Saved.")

    other.get_by_role("button", name="Save").click()

    expect(said).to_have_text(
        "Somebody else has changed this image: its label is first now. Nothing was saved. "
        "Save again to replace it."
    )
    expect(other.get_by_role("dialog").get_by_role("heading")).to_contain_text("first")
    expect(other.get_by_role("dialog").get_by_label("Label")).to_have_value("second")
    assert Gallery(gallery.folder).item(1).label == "first"
    other.get_by_role("button", name="Save").click()
    expect(said).to_have_text("Saved.")
    assert Gallery(gallery.folder).item(1).label == "second"


def test_image_that_somebody_else_changed_is_not_removed(opens: Opens, client: Client) -> None:
    page = opens("?tab=gallery&open=1", deaf=True)
    button = page.get_by_role("dialog").locator("button.remove")
    button.click()
    client.update(1, label="precious")
    page.wait_for_timeout(600)
    button.click()
    expect(page.get_by_role("dialog").get_by_role("status")).to_have_text(
        "Somebody else has changed this image: its label is precious now. It was not removed. "
        "Remove it again if you still want to."
    )
    assert client.image(1).label == "precious"


def test_open_dialog_tells_of_a_change_and_keeps_what_is_written(opens: Opens, client: Client) -> None:
    page = opens("?tab=gallery&open=1")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Label").fill("half writ")
    hears(page)
    client.update(1, label="theirs", metadata={"price": 77})
    expect(dialog.get_by_role("status")).to_have_text(
        "Somebody else has changed this image: its label is theirs now."
    )
    expect(dialog.get_by_label("Label")).to_have_value("half writ")
    expect(dialog.locator("dl")).to_contain_text("77")
    client.remove(1)
    expect(dialog.get_by_role("status")).to_have_text("Somebody else has removed this image.")


def test_list_is_brought_up_to_date_where_it_is(
    opens: Opens, client: Client, gallery: Gallery, tmp_path: Path
) -> None:
    page = opens("?tab=gallery&order=id+desc")
    status, news = page.get_by_test_id("gallery-status"), page.locator("#collection [data-part=view-] .news")
    total = len(gallery)
    expect(status).to_have_text(f"{total} images")
    pictures(page).last.scroll_into_view_if_needed()  # the rest comes
    expect(pictures(page)).to_have_count(total)
    page.evaluate("scrollTo(0, 0)")
    hears(page)
    before = [card.bounding_box() for card in pictures(page).all()[:8]]
    shown = [int(str(card.get_attribute("data-item"))) for card in pictures(page).all()[:3]]
    client.update(shown[0], label="theirs")
    client.remove(shown[1])
    expect(pictures(page).nth(0)).to_contain_text("theirs")
    expect(pictures(page).nth(1)).to_contain_text("removed")
    expect(pictures(page).nth(0).locator("img")).to_have_attribute("alt", f"item {shown[0]} · theirs")
    expect(status).to_have_text(f"{total - 1} images")
    expect(news).to_have_text("")
    for seed in (900, 901):
        colourful(seed).save(tmp_path / f"{seed}.png")
    added = [
        one.id for one in client.add([tmp_path / "900.png", tmp_path / "901.png"]) if isinstance(one, Added)
    ]
    expect(news).to_have_text("2 images were added: show them")
    assert violations(page) == []
    expect(status).to_have_text(f"{total + 1} images")
    assert [card.bounding_box() for card in pictures(page).all()[:8]] == before

    news.get_by_role("button").click()

    expect(pictures(page).first).to_have_attribute("data-item", str(added[-1]))
    expect(pictures(page).nth(2)).to_have_attribute("data-item", str(shown[0]))
    expect(news).to_have_text("")


def test_page_of_a_rebuilt_gallery_is_loaded_again(
    opens: Opens, gallery: Gallery, galleries: dict[str, Gallery]
) -> None:
    """Its ids are those of other images: none may be removed in their place, or lend them its label."""
    page = opens("?tab=gallery")
    selected = page.get_by_test_id("selection").locator("visible=true")
    page.get_by_role("checkbox", name="Select item 1", exact=True).click()
    expect(selected).to_contain_text("1 image selected")
    hears(page)
    rebuilt = Gallery.create(gallery.folder.with_name("new"), gallery.folder / "model" / "model.onnx")
    rebuilt.add([item.path for item in galleries["twice"].items([3, 4, 5]).values()])
    before = gallery.folder.rename(gallery.folder.with_name("gone"))
    rebuilt.folder.rename(gallery.folder)
    shutil.rmtree(before)
    expect(page.get_by_test_id("gallery-status")).to_have_text("3 images")
    expect(selected).to_have_count(0)
    keys = [Path(item.path).name for item in Gallery(gallery.folder).items([1, 2, 3]).values()]
    names = pictures(page).locator("[data-part=open]").evaluate_all("all => all.map(one => one.title)")
    assert names == keys


def test_own_changes_are_no_news(opens: Opens, gallery: Gallery, tmp_path: Path) -> None:
    page = opens("?tab=gallery&view=add")
    hears(page)
    colourful(902).save(tmp_path / "902.png")
    page.locator("#collection .adding-images").get_by_label("Images", exact=True).set_input_files(
        tmp_path / "902.png"
    )
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_test_id("add-status")).to_have_text("1 image added.")
    page.get_by_role("button", name="Pictures").click()
    expect(page.get_by_test_id("gallery-status")).to_have_text(f"{len(gallery) + 1} images")
    page.wait_for_timeout(2500)  # the server has sent the event by now
    expect(page.locator("#collection [data-part=view-] .news")).to_have_text("")


def test_results_that_others_add_are_offered(
    opens: Opens, client: Client, gallery: Gallery, tmp_path: Path
) -> None:
    page = opens("?like=1")
    hits = page.get_by_test_id("hit")
    expect(hits.first).to_be_visible()
    hears(page)
    first = int(str(hits.first.get_attribute("data-item")))
    client.update(first, label="theirs")
    expect(hits.first.locator("[data-part=label]")).to_have_text("theirs")
    copy = tmp_path / "copy.png"
    copy.write_bytes(Path(gallery.item(1).path).read_bytes() + b"\0")  # other bytes, the same picture
    (added,) = client.add([copy])
    assert isinstance(added, Added)
    news = page.locator("#results .news")
    expect(news).to_have_text("1 other result would be found now: show it")
    expect(page.locator(f"#results [data-item='{added.id}']")).to_have_count(0)
    news.get_by_role("button").click()
    expect(page.locator(f"#results [data-item='{added.id}']")).to_have_count(1)
    expect(news).to_have_text("")


def test_number_of_images_is_counted_as_it_changes(opens: Opens, client: Client, gallery: Gallery) -> None:
    page = opens()
    hears(page)
    client.remove(1)
    expect(page.get_by_test_id("status")).to_have_text(f"{len(gallery) - 1} images in the gallery.")


def test_evaluation_of_what_others_changed_is_offered_again(
    opens: Opens, client: Client, gallery: Gallery
) -> None:
    evaluate_and_keep(gallery)
    page = opens("?tab=evaluation")
    offer = page.get_by_role("button", name="Evaluate this gallery")
    expect(page.locator("#measure")).to_contain_text("has been evaluated in its current state")
    expect(offer).to_be_hidden()
    hears(page)
    client.update(1, label="theirs")
    expect(offer).to_be_visible()
    expect(page.locator("#measure")).not_to_contain_text("in its current state")


def test_suspects_of_somebody_else_are_left_alone(opens: Opens, client: Client, gallery: Gallery) -> None:
    expected = find_suspects(gallery, limit=500).suspects[:24]
    first, second, third, fourth = expected[:4]
    page, other = opens("?tab=gallery&view=suspects"), opens("?tab=gallery&view=suspects", deaf=True)
    for one in (page, other):
        list_suspects(one)
        expect(one.locator("#collection .suspect")).to_have_count(len(expected))
    hears(page)
    other.get_by_role("button", name="Choose all").click()
    client.update(first.item.id, label="theirs")
    client.remove(second.item.id)
    for item, words in ((first.item, "labelled it theirs"), (second.item, "removed it")):
        expect(page.locator(f".suspect[data-item='{item.id}']")).to_contain_text(f"somebody else has {words}")

    other.get_by_role("button", name=f"Accept {len(expected)} suggestions").click()

    expect(other.get_by_test_id("suspects-status")).to_contain_text(
        "Somebody else has labelled 1 image and removed 1 image in the meantime: left as they are."
    )
    now = Gallery(gallery.folder)
    labels = [now.item(one.item.id).label for one in (first, third, fourth)]
    assert labels == ["theirs", third.suggested, fourth.suggested]


def test_own_label_is_not_called_that_of_others(opens: Opens, client: Client, gallery: Gallery) -> None:
    first, second = find_suspects(gallery, limit=500).suspects[:2]
    page = opens("?tab=gallery&view=suspects")
    late: list[Route] = []
    list_suspects(page)
    hears(page)
    present = re.compile(r"/items\?limit=200")
    page.route(present, lambda route: late.append(route), times=1)
    with page.expect_request(present):  # is answered after the visitor's own change
        client.update(second.item.id, label="theirs")
    mine, other = (page.locator(f".suspect[data-item='{one.item.id}']") for one in (first, second))
    mine.get_by_role("button", name="Accept").click()
    expect(mine).to_contain_text(f"is {first.suggested} now")
    expect(other).to_contain_text("somebody else has labelled it theirs")
    with page.expect_response(present):
        late.pop().continue_()
    page.evaluate("() => new Promise(done => setTimeout(done, 200))")
    expect(mine).to_contain_text(f"is {first.suggested} now")


def test_last_of_a_group_is_not_removed_by_two(opens: Opens, client: Client, gallery: Gallery) -> None:
    group = next(
        one for one in gallery.duplicates(0.95).groups if len({item.label for item in one.members}) == 1
    )
    first, *others = group.members
    page, other = opens("?tab=gallery&view=duplicates"), opens("?tab=gallery&view=duplicates", deaf=True)
    for one in (page, other):
        one.get_by_label("Keep of each group").select_option("first")
        one.get_by_role("button", name="Find near-duplicates").click()
        expect(one.locator("#collection .group").first).to_be_visible()
    hears(page)
    mine, theirs = (
        one.locator(".group", has=one.locator(f"[data-item='{first.id}']")) for one in (page, other)
    )
    client.remove(first.id)
    expect(mine).to_have_count(0)  # of the page that hears of it
    theirs.get_by_role("button", name="Remove the others").click()
    expect(other.get_by_test_id("duplicates-status")).to_contain_text("Somebody else has changed 1 group")
    assert len(Gallery(gallery.folder).items([item.id for item in others])) == len(others)


def test_decision_is_undone_once(opens: Opens, client: Client) -> None:
    label = client.image(1).label
    for name in ("one", "two"):
        client.update(1, label=name)
    page, other = opens("?tab=gallery&view=decisions"), opens("?tab=gallery&view=decisions", deaf=True)
    rows, theirs = (one.locator("#collection tbody tr") for one in (page, other))
    expect(rows).to_have_count(2)
    expect(theirs).to_have_count(2)
    hears(page)
    client.undo_decision(client.decisions()[0].n)
    expect(rows.nth(0).get_by_text("undone")).to_be_visible()
    client.update(2, label="more")
    expect(page.locator("#collection [data-part=view-decisions] .news")).to_have_text(
        "1 newer decision: show it"
    )
    expect(rows).to_have_count(2)
    said = other.get_by_test_id("decisions-status")
    theirs.nth(0).get_by_role("button", name="Undo").click()
    expect(said).to_have_text("Somebody else has undone this already.")
    client.update(1, label="three")
    theirs.nth(2).get_by_role("button", name="Undo").click()
    expect(said).to_have_text("Undone, but somebody else has changed the label since: it stays three.")
    assert client.image(1).label == "three" != label


def test_views_are_saved_for_everybody(opens: Opens, client: Client) -> None:
    one = opens("?tab=gallery&filter=label=red&order=price+desc")
    expect(pictures(one).first).to_be_visible()
    shown = [card.get_attribute("data-item") for card in pictures(one).all()]
    other = opens()

    def menu(page: Page) -> Locator:
        found = page.get_by_test_id("saved")
        if found.get_attribute("open") is None:
            found.locator("summary").click()
        return found

    menu(one).get_by_label("Save this view as").fill("red ones")
    menu(one).get_by_role("button", name="Save").click()
    expect(menu(one).get_by_role("status")).to_have_text("Saved as red ones.")
    assert [*violations(one), *cut_off(one)] == []
    menu(other).get_by_role("link", name="red ones").click()
    expect(other).to_have_url(re.compile(r"tab=gallery&order=price\+desc&filter=label(=|%3D)red$"))
    expect(pictures(other)).to_have_count(len(shown))
    assert [card.get_attribute("data-item") for card in pictures(other).all()] == shown
    menu(other).get_by_label("Save this view as").fill("red ones")
    menu(other).get_by_role("button", name="Save").click()
    said = menu(other).get_by_role("status")
    expect(said).to_have_text("There is a view red ones already. Save again to replace it.")
    (view,) = client.views()
    client.save_view("red ones", "?like=1", old=view.address)
    menu(other).get_by_role("button", name="Save").click()
    expect(said).to_have_text(
        "Somebody else has changed the view red ones in the meantime: nothing was changed."
    )
    assert [one.address for one in client.views()] == ["?like=1"]
    delete = menu(other).get_by_role("list").get_by_role("button")
    delete.click()
    expect(delete).to_have_text("Delete?")
    delete.click()
    expect(menu(other).get_by_text("No view is saved yet.")).to_be_visible()
    assert client.views() == []


def test_selection_becomes_a_collection(opens: Opens, client: Client) -> None:
    page = opens("?tab=gallery")
    for item in (2, 3, 4, 9):
        page.get_by_role("checkbox", name=f"Select item {item}", exact=True).click()
    page.get_by_test_id("selection").locator("visible=true").get_by_role("button", name="Show alone").click()
    expect(pictures(page)).to_have_count(4)
    expect(page.locator("#collection .chips")).to_contain_text("4 chosen images")
    page.get_by_test_id("saved").locator("summary").click()
    page.get_by_label("Save this view as").fill("mine")
    page.get_by_test_id("saved").get_by_role("button", name="Save").click()
    expect(page.get_by_test_id("saved").get_by_role("status")).to_have_text("Saved as mine.")
    other = opens(client.views()[0].address)
    expect(pictures(other)).to_have_count(4)
    shown = [card.get_attribute("data-item") for card in pictures(other).all()]
    assert shown == ["2", "3", "4", "9"]


def test_page_listens_while_it_is_in_sight(opens: Opens, client: Client, gallery: Gallery) -> None:
    page = opens()
    hears(page)
    turn = "unseen => { window.unseen = unseen; document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(turn, True)
    states = "sources.map(source => source.readyState)"
    assert set(page.evaluate(states)) == {2}
    client.remove(1)
    page.wait_for_timeout(1500)
    expect(page.get_by_test_id("status")).to_have_text(f"{len(gallery)} images in the gallery.")
    page.evaluate(turn, False)
    expect(page.get_by_test_id("status")).to_have_text(f"{len(gallery) - 1} images in the gallery.")
    assert page.evaluate(states)[-1] == 1
    page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide'))")
    assert set(page.evaluate(states)) == {2}


def test_stream_needs_no_more_than_the_sign_in_of_the_page(
    browser: Browser, tmp_path: Path, galleries: dict[str, Gallery]
) -> None:
    folder = shutil.copytree(galleries["shop"].folder, tmp_path / "shop.gallery")
    (tmp_path / "password").write_text("open sesame, please")
    (tmp_path / "password").chmod(0o600)
    words = [*SERVE, str(folder), "--user", "ann", "--password-file", str(tmp_path / "password")]
    signed_in = {"username": "ann", "password": "open sesame, please"}
    with (
        serving(words, tmp_path / "scratch", forked=True) as running,
        browser.new_context(http_credentials=signed_in) as context,  # type: ignore[arg-type]
    ):
        page = context.new_page()
        page.add_init_script(_SPY)
        watched(page, running)
        hears(page)
        Gallery.open(folder).remove([1])
        expect(page.get_by_test_id("status")).to_have_text("23 images in the gallery.")
