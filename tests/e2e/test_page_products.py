"""Products in a real browser: a hit for each, with the number of its views, which the dialog shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from retrieval import Gallery
from tests.e2e.accessibility import violations
from tests.e2e.page_driver import search_with, unbroken_page
from tests.e2e.page_gallery import create
from tests.serve.serving import SERVE, Server, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def gallery(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """The shop, whose images are in threes of one product; the last ones are of none."""
    made = create(tmp_path_factory.mktemp("products"), "products")
    paths = sorted(shop.glob("*/*.png"))
    skus = [f"it's {n // 3}" if n < len(paths) - 2 else None for n in range(len(paths))]
    made.add(paths, metadata=[{"sku": sku} for sku in skus])
    made.use_products("sku")
    return made


def test_each_product_is_a_hit_that_opens_its_views(unopened: Page, alone: Server, gallery: Gallery) -> None:
    search_with(unopened, alone, "?like=1")
    expected = gallery.search_id(1, 48)
    cards = unopened.get_by_test_id("hit")
    expect(cards).to_have_count(len(expected))
    assert len({hit.group or hit.key for hit in expected}) == len(expected), "one for each product"
    first = expected[0]
    assert cards.first.get_attribute("data-item") == str(first.id)
    assert cards.first.locator("[data-part=score]").get_attribute("data-views") == f"{first.view_count} views"
    assert cards.first.get_by_role("img").get_attribute("alt").endswith(" · 3 views")  # type: ignore[union-attr]
    cards.first.locator("[data-part=open]").click()
    views = unopened.get_by_test_id("views").get_by_role("button")
    expect(views).to_have_count(first.view_count)
    ids = gallery.select(where=f"sku = '{str(first.group).replace(chr(39), 2 * chr(39))}'")
    shown = ids.index(first.id)
    expect(views.nth(shown)).to_have_attribute("aria-current", "true")
    assert violations(unopened) == []
    other = (shown + 1) % len(ids)
    views.nth(other).click()
    alt = f"item {ids[other]}, no label"
    expect(unopened.locator("#dialog [data-part=image]")).to_have_attribute("alt", alt)
    expect(views.nth(other)).to_have_attribute("aria-current", "true")


def test_an_image_without_a_product_has_no_views(unopened: Page, alone: Server, gallery: Gallery) -> None:
    (single, *_) = gallery.select(where="sku is null")
    search_with(unopened, alone, f"?like=1&open={single}")
    expect(unopened.locator("#dialog [data-part=image]")).to_be_visible()
    expect(unopened.get_by_test_id("views")).to_be_hidden()


@pytest.fixture(scope="module")
def coloured(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """A product of nine images in three colours, one of eight in as many shades, and images of none."""
    made = create(tmp_path_factory.mktemp("coloured"), "coloured")
    paths = sorted(shop.glob("*/*.png"), key=lambda path: (path.name, path.parent.name))
    rows: list[dict[str, object]] = [{"price": n} for n in range(len(paths))]
    for n, path in enumerate(paths[:17]):
        rows[n] |= {"sku": n // 9, "colour": path.parent.name if n < 9 else f"shade {n}"}
    made.add(paths, metadata=rows)
    made.use_products("sku,colour")
    return made


def test_a_card_shows_the_variant_that_is_pressed(
    context: BrowserContext, coloured: Gallery, tmp_path: Path
) -> None:
    """The best variant is shown first; another one by its small picture, or by the key V."""
    asked = len(coloured)
    hits = [*enumerate(coloured.search_id(asked, 48, group_size=6), 1)]
    words = [*SERVE, str(coloured.folder), "--show", "price"]
    with serving(words, tmp_path / "scratch", forked=True) as server, unbroken_page(context, server) as page:
        search_with(page, server, f"?like={asked}")
        expect(page.get_by_test_id("hit")).to_have_count(len(hits))
        for rank, hit in hits:
            card, count = page.locator(f"[data-testid=hit][data-rank='{rank}']"), hit.variant_count
            variants = card.get_by_test_id("variants")
            small = variants.get_by_role("button")
            if hit.group is None:
                expect(variants).to_be_hidden()
                continue
            assert count == (3 if hit.group == 0 else 8)
            expect(small).to_have_count(min(count, 6))
            expect(variants).to_have_text("+2" if count == 8 else "")
            expect(card).to_have_attribute("data-item", str(hit.id))
            expect(small.nth(0)).to_have_attribute("aria-pressed", "true")
            small.nth(2).click()
            _shows(card, coloured, hit.views[2].id)
            expect(small.nth(2)).to_have_attribute("aria-pressed", "true")
            expect(small.nth(0)).to_have_attribute("aria-pressed", "false")
            card.locator("[data-part=open]").focus()
            page.keyboard.press("v")
            _shows(card, coloured, hit.views[3 % count].id)
            assert violations(page) == []
            card.locator("[data-part=open]").click()
            alt = f"item {hit.views[3 % count].id}, no label"
            expect(page.locator("#dialog [data-part=image]")).to_have_attribute("alt", alt)
            expect(page.locator("#dialog [data-part=rank]")).to_contain_text(f"{rank}. result")
            page.keyboard.press("Escape")
            expect(page.locator("#dialog")).to_be_hidden()


def _shows(card: Locator, gallery: Gallery, id: int) -> None:
    """Wait until a card shows an item: its picture, its variant and what is read of it."""
    item = gallery.item(id)
    expect(card).to_have_attribute("data-item", str(id))
    expect(card.locator("[data-part=facts]")).to_have_text(str(item.metadata["price"]))
    image = card.locator("[data-part=image]")
    expect(image).to_have_attribute("src", re.compile(f"/items/{id}/thumbnail"))
    expect(image).to_have_attribute("alt", re.compile(f" · {item.metadata['colour']} · "))
