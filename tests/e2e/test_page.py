"""The search tab in a real browser: pictures from everywhere, results, and the address."""

from __future__ import annotations

import base64
import csv
import io
import re
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from retrieval import Gallery
from serve.page.assets import files_path
from tests.e2e.page_driver import (
    below,
    caption,
    captions,
    expect_pictures_loaded,
    expect_results,
    in_a_tab,
    search_with,
    upload,
    watched,
)
from tests.e2e.page_gallery import BRANDS
from tests.serve.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# Puts a file into a transfer object, as a browser does for a drop or a paste.
_TRANSFER = """
([name, text]) => {
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  window.transfer = new DataTransfer();
  window.transfer.items.add(new File([bytes], name, {type: 'image/png'}));
}
"""


def carry(page: Page, path: Path) -> None:
    page.evaluate(_TRANSFER, [path.name, base64.b64encode(path.read_bytes()).decode()])


def test_results_match_the_gallery(page: Page, gallery: Gallery, shop: Path) -> None:
    path = shop / "red" / "2.png"
    upload(page, path)
    expect_results(page, 24)
    hits = gallery.search(path, k=24)
    assert captions(page) == [caption(rank, hit) for rank, hit in enumerate(hits, 1)]
    assert captions(page)[0] == "1 · similarity 1.0000 · red"
    expect(page.get_by_test_id("hit").first).to_contain_text("1.00")
    expect_pictures_loaded(page)


def test_whole_window_takes_a_drop(page: Page, shop: Path) -> None:
    carry(page, shop / "green" / "5.png")
    page.evaluate(
        "document.body.dispatchEvent(new DragEvent('dragenter', {bubbles: true, dataTransfer: transfer}))"
    )
    expect(page.get_by_text("Drop to search")).to_be_visible()
    refused = page.evaluate(
        "document.querySelector('#header').dispatchEvent("
        "new DragEvent('drop', {bubbles: true, cancelable: true, dataTransfer: transfer}))"
    )
    assert refused is False, "the browser opens the file"
    expect(page.get_by_text("Drop to search")).to_be_hidden()
    expect_results(page, 24)
    assert captions(page)[0] == "1 · similarity 1.0000 · green"


def test_picture_is_pasted_anywhere_but_into_fields(page: Page, shop: Path) -> None:
    carry(page, shop / "blue" / "5.png")
    paste = "e => e.dispatchEvent(new ClipboardEvent('paste', {bubbles: true, clipboardData: transfer}))"
    page.locator("body").evaluate(paste)
    expect_results(page, 24)
    assert captions(page)[0] == "1 · similarity 1.0000 · blue"
    address = page.url
    carry(page, shop / "red" / "5.png")
    page.locator("#search [data-part=where]").evaluate(paste)
    page.wait_for_timeout(300)
    assert page.url == address


def test_example_is_searched(page: Page, gallery: Gallery) -> None:
    example = page.locator("#search .examples button").nth(2)
    example.click()
    expect_results(page, 23)
    number = int(re.search(r"like=(\d+)$", page.url).group(1))  # type: ignore[union-attr]
    assert captions(page)[0] == caption(1, gallery.search_id(number, 1)[0])


def test_large_picture_is_shrunk_before_it_is_sent(page: Page, tmp_path: Path, shop: Path) -> None:
    photo = tmp_path / "photo.png"
    noise = Image.effect_noise((2400, 1600), 80).convert("RGB")
    noise.paste(Image.open(shop / "red" / "5.png").resize((2000, 1400)), (200, 100))
    noise.save(photo)
    upload(page, photo)
    expect_results(page, 24)
    width, height, size = page.evaluate(
        """async ([path, id]) => {
            const pictures = await import(path);
            const sent = await pictures.shrink(await pictures.find(id), null);
            const bitmap = await createImageBitmap(sent);
            return [bitmap.width, bitmap.height, sent.size];
        }""",
        [f"{files_path()}/pictures.js", page.url.rpartition(":")[2]],
    )
    assert (width, height) == (1024, 683)
    assert size < photo.stat().st_size / 4


def test_picture_that_browsers_cannot_decode_is_shown(
    page: Page, gallery: Gallery, tmp_path: Path, shop: Path
) -> None:
    """The server encodes it: HEIC and TIFF are shown, cropped and kept like others."""
    Image.open(shop / "red" / "3.png").convert("RGB").resize((400, 200)).save(tmp_path / "3.tiff")
    upload(page, tmp_path / "3.tiff")
    expect_results(page, len(gallery))
    query = page.get_by_role("img", name="The query image")
    assert query.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [400, 200]
    page.reload(wait_until="domcontentloaded")
    expect_results(page, len(gallery))
    assert query.evaluate("image => image.naturalWidth") == 400


def test_upload_survives_a_reload(page: Page, gallery: Gallery, shop: Path) -> None:
    upload(page, shop / "red" / "2.png")
    expect_results(page, 24)
    found = captions(page)
    page.reload(wait_until="domcontentloaded")
    expect_results(page, 24)
    assert captions(page) == found
    expect(page.get_by_role("img", name="The query image")).to_be_visible()


def test_link_to_a_picture_of_another_browser_says_so(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/?like=picture:0123456789abcdef", wait_until="domcontentloaded")
    expect(page.locator("#status.trouble")).to_contain_text("Drop the picture here")


def test_address_runs_and_follows_the_search(page: Page, server: Server, gallery: Gallery) -> None:
    search_with(page, server, "?like=5")
    expect_results(page, 23)
    assert captions(page) == [caption(rank, hit) for rank, hit in enumerate(gallery.search_id(5, 23), 1)]
    page.get_by_test_id("hit").nth(1).locator("[data-act=open]").click()
    page.get_by_role("button", name="Search with this image").click()
    second = gallery.search_id(5, 2)[1].id
    expect(page).to_have_url(re.compile(rf"\?like={second}$"))
    page.go_back()
    page.go_back()
    expect(page).to_have_url(re.compile(r"\?like=5$"))
    expect(page.locator("#results .hits img").first).to_have_attribute(
        "alt", caption(1, gallery.search_id(5, 1)[0])
    )


def test_address_of_a_missing_item_gives_an_error(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/?like=999", wait_until="domcontentloaded")
    expect(page.locator("#status.trouble")).to_contain_text("no item 999")


def test_values_ranges_and_words_filter_the_results(page: Page, server: Server, gallery: Gallery) -> None:
    search_with(page, server, "?like=5")
    bar = page.get_by_test_id("filter")
    bar.locator("summary", has_text="brand").click()
    bar.get_by_role("checkbox", name=BRANDS[1]).check()
    where = f"brand = '{BRANDS[1]}'"
    expected = gallery.search_id(5, 24, where=where)
    expect_results(page, len(expected))
    page.keyboard.press("Escape")
    bar.locator("summary", has_text="price").click()
    high = bar.get_by_role("spinbutton", name="To")
    high.fill("12")
    high.press("Enter")
    expected = gallery.search_id(5, 24, where=f"{where} and price <= 12")
    expect_results(page, len(expected))
    assert captions(page) == [caption(rank, hit) for rank, hit in enumerate(expected, 1)]
    page.reload(wait_until="domcontentloaded")
    expect_results(page, len(expected))
    page.get_by_role("button", name=f"Remove the filter brand: {BRANDS[1]}").click()
    expect_results(page, len(gallery.search_id(5, 24, where="price <= 12")))
    page.get_by_role("button", name="Remove the filter price: up to 12").click()
    expect_results(page, 23)
    bar.get_by_text("Advanced").click()
    field = bar.get_by_label("Condition")
    field.fill("gre")  # words: part of the label
    field.press("Enter")
    expect_results(page, len(gallery.search_id(5, 24, where="label like '%gre%'")))


def test_wrong_condition_is_marked_at_its_field_and_results_stay(page: Page, server: Server) -> None:
    search_with(page, server, "?like=5")
    bar = page.get_by_test_id("filter")
    bar.get_by_text("Advanced").click()
    field = bar.get_by_label("Condition")
    field.fill("price >")
    field.press("Enter")
    expect(bar.get_by_role("alert")).to_contain_text("At character 8, expected a value")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_test_id("hit")).to_have_count(23)
    field.fill("pric > 20")
    field.press("Enter")
    expect(bar.get_by_role("alert")).to_contain_text("did you mean 'price'?")
    field.fill("price > 20")
    field.press("Enter")
    expect_results(page, 4)


def test_lowest_similarity_says_the_best_one(page: Page, server: Server, gallery: Gallery) -> None:
    best = gallery.search_id(5, 1)[0].score
    page.goto(f"{server.url}/?like=5&min_score=1", wait_until="domcontentloaded")
    expect(page.get_by_test_id("status")).to_contain_text(f"the best similarity is {best:.4f}")
    expect(page.get_by_test_id("hit")).to_have_count(0)


def test_labels_are_compared_on_demand(page: Page, server: Server, gallery: Gallery) -> None:
    search_with(page, server, "?like=5")
    assert not any("same label" in text for text in captions(page))
    page.get_by_role("checkbox", name="Compare labels").check()
    own = gallery.item(5).label
    words = {True: "same label", False: "other label"}
    expected = [
        f"{caption(rank, hit)} · {words[hit.label == own]}"
        for rank, hit in enumerate(gallery.search_id(5, 23), 1)
    ]
    expect(page.locator("#results .hits img").first).to_have_attribute("alt", expected[0])
    assert captions(page) == expected


def test_more_results_come_as_the_page_is_scrolled(
    browser: Browser, site: Server, galleries: dict[str, Gallery]
) -> None:
    total = len(galleries["twice"])
    with in_a_tab(browser, site, viewport={"width": 420, "height": 400}) as page:
        search_with(page, below(site, "twice"), "?like=3")
        expect(page.get_by_test_id("status")).to_contain_text(f"of {total} images")
        page.get_by_test_id("hit").last.scroll_into_view_if_needed()
        expect_results(page, total - 1)
        ranks = page.get_by_test_id("hit").evaluate_all("all => all.map(one => Number(one.dataset.rank))")
        assert ranks == list(range(1, total))


def test_uploads_in_quick_succession_are_all_answered(
    page: Page, gallery: Gallery, shop: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not a picture")
    for name in ("green", "red", "blue"):
        upload(page, shop / name / "5.png")
        hits = gallery.search(shop / name / "5.png", k=24)
        expect(page.locator("#results .hits img").first).to_have_attribute("alt", caption(1, hits[0]))
        assert captions(page) == [caption(rank, hit) for rank, hit in enumerate(hits, 1)]
        upload(page, broken)
        expect(page.locator("#status.trouble")).to_contain_text("This picture cannot be used: it is not")
        assert captions(page)[0] == caption(1, hits[0])  # those of the search before


def test_results_are_downloaded_as_csv(page: Page, site: Server, galleries: dict[str, Gallery]) -> None:
    search_with(page, below(site, "formulas"), "?like=6")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))
    hits = galleries["formulas"].search_id(6, 10)
    assert [int(row["Item"]) for row in rows] == [hit.id for hit in hits]
    for row, hit in zip(rows, hits, strict=True):
        assert hit.label is not None
        assert row["Label"] == ("'" + hit.label if hit.label[0] in "=+-@" else hit.label)
        assert float(row["change"]) == hit.metadata["change"]
        assert float(row["Similarity"]) == pytest.approx(hit.score, abs=1e-6)


def test_query_is_cleared(page: Page, shop: Path) -> None:
    upload(page, shop / "green" / "5.png")
    expect_results(page, 24)
    page.get_by_role("button", name="Clear").click()
    expect(page.get_by_test_id("hit")).to_have_count(0)
    expect(page.locator("#search .examples button").first).to_be_visible()


def test_link_is_copied_with_the_own_picture_if_the_visitor_agrees(
    browser: Browser, server: Server, shop: Path
) -> None:
    with browser.new_context(permissions=["clipboard-read", "clipboard-write"]) as context:
        page = watched(context.new_page(), server)
        status, copy = page.get_by_test_id("status"), page.get_by_role("button", name="Copy link")
        copied = "navigator.clipboard.readText()"
        search_with(page, server, "?like=5")
        copy.click()
        expect(status).to_contain_text("Link copied.")
        assert page.evaluate(copied) == f"{server.url}/?like=5"

        stored: list[str] = []
        page.on("request", lambda one: stored.append(one.url) if one.url.endswith("/pictures") else None)
        upload(page, shop / "green" / "5.png")
        expect(page).to_have_url(re.compile("like=picture:"))
        expect(status).to_contain_text("results ·")
        copy.click()
        expect(page.get_by_role("group", name="Copy link")).to_contain_text(
            "stored on the server for 2 hours"
        )
        page.get_by_role("button", name="Copy without the picture").click()
        expect(status).to_contain_text("without your picture")
        assert page.evaluate(copied).startswith(f"{page.url}#0=")
        copy.click()
        page.keyboard.press("Escape")
        expect(copy).to_be_focused()
        assert not stored
        copy.click()
        page.keyboard.press("Enter")  # the focus is on "Share and copy"
        expect(status).to_contain_text("It shows your picture for 2 hours.")
        link, own = page.evaluate(copied), captions(page)
        assert len(stored) == 1
    with in_a_tab(browser, server) as other:  # another visitor
        other.goto(link, wait_until="domcontentloaded")
        expect(other.get_by_test_id("hit").first).to_be_visible()
        assert captions(other) == own
        large = other.locator("#search [data-part=large]")
        expect(large).to_have_js_property("naturalWidth", Image.open(shop / "green" / "5.png").width)
        other.goto(
            re.sub("shared:.{4}", "shared:0000", link).partition("#")[0], wait_until="domcontentloaded"
        )
        expect(other.get_by_test_id("status")).to_contain_text("no longer shared")
