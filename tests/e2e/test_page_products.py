"""Products in a real browser: a hit for each, with the number of its views, which the dialog shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

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


@pytest.fixture(scope="module")
def server(gallery: Gallery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving([*SERVE, str(gallery.folder)], tmp_path_factory.mktemp("scratch"), forked=True) as running:
        yield running


@pytest.fixture
def page(context: BrowserContext, server: Server) -> Iterator[Page]:
    with unbroken_page(context, server) as page:
        yield page


def test_each_product_is_a_hit_that_opens_its_views(page: Page, server: Server, gallery: Gallery) -> None:
    search_with(page, server, "?like=1")
    expected = gallery.search_id(1, 48)
    cards = page.get_by_test_id("hit")
    expect(cards).to_have_count(len(expected))
    assert len({hit.group or hit.key for hit in expected}) == len(expected), "one for each product"
    first = expected[0]
    assert cards.first.get_attribute("data-item") == str(first.id)
    assert cards.first.locator("[data-part=score]").get_attribute("data-views") == f"{first.view_count} views"
    assert cards.first.get_by_role("img").get_attribute("alt").endswith(" · 3 views")  # type: ignore[union-attr]
    cards.first.locator("[data-part=open]").click()
    views = page.get_by_test_id("views").get_by_role("button")
    expect(views).to_have_count(first.view_count)
    ids = gallery.select(where=f"sku = '{str(first.group).replace(chr(39), 2 * chr(39))}'")
    shown = ids.index(first.id)
    expect(views.nth(shown)).to_have_attribute("aria-current", "true")
    assert violations(page) == []
    other = (shown + 1) % len(ids)
    views.nth(other).click()
    alt = f"item {ids[other]}, no label"
    expect(page.locator("#dialog [data-part=image]")).to_have_attribute("alt", alt)
    expect(views.nth(other)).to_have_attribute("aria-current", "true")


def test_an_image_without_a_product_has_no_views(page: Page, server: Server, gallery: Gallery) -> None:
    (alone, *_) = gallery.select(where="sku is null")
    search_with(page, server, f"?like=1&open={alone}")
    expect(page.locator("#dialog [data-part=image]")).to_be_visible()
    expect(page.get_by_test_id("views")).to_be_hidden()
