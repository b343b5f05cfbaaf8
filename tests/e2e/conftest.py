"""One Chromium, and one server over galleries of several kinds, for all tests of the page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from retrieval import Gallery
from retrieval.reports.folder import evaluate_and_keep
from tests.e2e.page_driver import Fragile, unbroken_page, visiting
from tests.e2e.page_gallery import catalogue, confused, formulas, stock, twice
from tests.e2e.page_modules import HOME, serve_module
from tests.serve.serving import SERVE, Server, serving

_QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
    "--enable-unsafe-swiftshader",  # WebGL without a GPU
    "--process-per-site",  # otherwise each tab compiles the scripts of the page again
)


# The shell needs a fifth less CPU time than the whole browser.
_PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests; LOOKALIKE_REQUIRE_BROWSER=1 makes its absence a failure."""
    chromium = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if chromium is None:
        reason = "needs Chromium on the PATH to drive the page"
        if os.environ.get("LOOKALIKE_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(_QUIET))
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def galleries(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> dict[str, Gallery]:
    """The galleries of `site` by name; tests must not change them.

    The shop has one report; `mixed` has one of 30 images and one of 29, after a removal; `fresh` has none.
    """
    folder = tmp_path_factory.mktemp("site")
    made = {"shop": stock(folder, shop), "twice": twice(folder, shop), "formulas": formulas(folder)}
    made |= {name: confused(folder, name) for name in ("mixed", "fresh")}
    made["catalogue"] = catalogue(folder)
    evaluate_and_keep(made["shop"])
    evaluate_and_keep(made["mixed"])
    made["mixed"].remove([1])
    evaluate_and_keep(made["mixed"])
    return made


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory, galleries: dict[str, Gallery]) -> Iterator[Server]:
    """A server over all of them, without changes, that keeps shared pictures."""
    folders = [str(gallery.folder) for gallery in galleries.values()]
    words = [*SERVE, *folders, "--share-pictures", "2"]
    with serving(words, tmp_path_factory.mktemp("scratch"), forked=True) as running:
        yield running


@pytest.fixture(scope="package")
def gallery(galleries: dict[str, Gallery]) -> Gallery:
    """The shop."""
    return galleries["shop"]


@pytest.fixture(scope="package")
def server(site: Server) -> Server:
    """The server; its root is the page of the shop."""
    return site


@pytest.fixture(scope="package")
def context(browser: Browser, site: Server) -> Iterator[BrowserContext]:
    """One browser context for all tests, with a warm cache and a tab that stays.

    Without that tab, each test would open a window, and end the process that has compiled the scripts.
    """
    with browser.new_context() as context:
        context.new_page().goto(f"{site.url}/healthz")
        yield context


@pytest.fixture
def page(context: BrowserContext, server: Server) -> Iterator[Page]:
    """The page in a new tab, ready; it must send no request to another host."""
    with visiting(context, server) as page:
        yield page


@pytest.fixture(scope="module")
def alone(gallery: Gallery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server over a module's own gallery, without changes."""
    with serving([*SERVE, str(gallery.folder)], tmp_path_factory.mktemp("scratch"), forked=True) as running:
        yield running


@pytest.fixture
def unopened(context: BrowserContext, alone: Server) -> Iterator[Page]:
    """A new tab for the page of that server; its scripts must have no error."""
    with unbroken_page(context, alone) as page:
        yield page


@pytest.fixture
def fragile(tmp_path: Path, gallery: Gallery) -> Iterator[Fragile]:
    made = Fragile(gallery, tmp_path / "scratch")
    yield made
    made.kill()


@pytest.fixture(scope="package")
def vast(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> Path:
    """An image of the shop as a PNG of 81 megapixels and few bytes."""
    path = tmp_path_factory.mktemp("vast") / "vast.png"
    with Image.open(shop / "red" / "5.png") as image:
        image.resize((9000, 9000), Image.Resampling.NEAREST).save(path, compress_level=9)
    assert path.stat().st_size < 300_000
    return path


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    """A page without content, on which the modules can be imported; all its requests are answered here."""
    with browser.new_context() as context:
        tab = context.new_page()
        tab.route(f"{HOME}/**", serve_module)
        tab.goto(f"{HOME}/")
        yield tab
