"""Recording of searches in a real browser: what the visitor is told, and what is recorded of a visit."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from retrieval import Gallery
from retrieval.evaluation.coverage import measure_coverage
from retrieval.evaluation.preference import measure_preference
from retrieval.storage.query_log import (
    LoggedSearch,
    QueryLog,
    Search,
    new_id,
    read_mixed_searches,
    read_searches,
)
from tests.conftest import draw, lookalike_here, wait_until
from tests.e2e.accessibility import violations
from tests.e2e.page_driver import in_a_tab, opened, search_with, upload
from tests.serve.serving import SERVE, Server, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def recording(gallery: Gallery, log: Path, tmp_path: Path) -> Iterator[Server]:
    words = [*SERVE, str(gallery.folder), "--query-log", str(log)]
    with serving(words, tmp_path / "scratch", forked=True) as running:
        yield running


def recorded(gallery: Gallery, log: Path) -> list[Search]:
    name, width = gallery.folder.name, gallery.manifest.dim
    return read_searches(log, name, gallery.fingerprint, width).each


def hit(page: Page, place: int) -> int:
    return int(str(page.get_by_test_id("hit").nth(place).get_attribute("data-item")))


def test_visit_is_recorded_and_told(browser: Browser, recording: Server, gallery: Gallery, log: Path) -> None:
    with in_a_tab(browser, recording) as page:
        search_with(page, recording, "?like=5")
        expect(page.get_by_test_id("recorded")).to_contain_text("Searches are recorded")
        assert violations(page) == []
        first, second, third = (hit(page, place) for place in range(3))
        page.get_by_test_id("hit").nth(0).get_by_role("button").first.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("ArrowRight")  # the next hit
        expect(page.locator("dialog [data-part=rank]")).to_contain_text("2. result")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        wait_until(lambda: recorded(gallery, log)[0].opened == {first, second})
        page.locator(f"#results [data-item='{third}']").hover()
        page.locator(f"#results [data-item='{third}'] [data-act=unlike]").click()
        wait_until(lambda: len(recorded(gallery, log)) == 2)
        expect(page.locator(f"#results [data-item='{third}']")).to_have_count(0)  # it is in the query now
        page.go_back()
        wait_until(lambda: len(recorded(gallery, log)) == 3)
    one, two, again = recorded(gallery, log)
    assert (one.kind, one.items, one.right, one.wrong) == ("item", (5,), set(), {third})
    assert (two.kind, two.items) == ("several", (5, third))
    assert (again.items, again.opened) == ((5,), set())
    assert len({one.id, two.id, again.id}) == 3


def test_visitor_who_objects_is_not_recorded(browser: Browser, recording: Server, log: Path) -> None:
    with in_a_tab(browser, recording, extra_http_headers={"Sec-GPC": "1"}) as page:
        search_with(page, recording, "?like=5")
        expect(page.get_by_test_id("recorded")).to_contain_text("if your browser asks not to be tracked")
        page.get_by_test_id("hit").nth(0).get_by_role("button").first.click()
        expect(page.get_by_role("dialog")).to_be_visible()
    assert not [*log.iterdir()]


def test_keeper_sees_what_is_missing(browser: Browser, gallery: Gallery, log: Path, tmp_path: Path) -> None:
    """The nearest images of each group, images that nobody finds and images to label open in the dialog."""
    stored = gallery.embeddings()
    away = np.random.default_rng(0).normal(size=stored.vectors.shape).astype(np.float32)
    away = -stored.vectors.mean(0) + 0.01 * away  # unlike all images, and like each other
    queries = np.concatenate([stored.vectors, away / np.linalg.norm(away, axis=1, keepdims=True)])
    queries = queries[np.random.default_rng(0).permutation(len(queries))]
    searches = [LoggedSearch(new_id(), "image", one, (), None, []) for one in queries]
    QueryLog(log).append(gallery.folder.name, gallery.fingerprint, searches)
    folder = shutil.copytree(gallery.folder, tmp_path / gallery.folder.name)
    words = [*SERVE, str(folder), "--query-log", str(log), "--allow-changes"]
    with serving(words, tmp_path / "scratch", forked=True) as server, in_a_tab(browser, server) as page:
        page.goto(f"{server.url}/?tab=evaluation", wait_until="domcontentloaded")
        section = page.locator("#coverage")
        section.get_by_role("button", name="Look at the searches").click()
        expect(section).to_contain_text("Certain to be missing: 1 group of 24 searches together.")
        expected = measure_coverage(gallery, log, limit=24)
        assert [len(group.searches) for group in expected.groups] == [24]
        nearest = section.locator("ol > li").first.locator("[data-item]")
        expect(nearest).to_have_count(4)
        shown = [int(str(one.get_attribute("data-item"))) for one in nearest.all()]
        assert shown == [item for item, _ in expected.groups[0].nearest[:4]]
        assert violations(page) == []
        nearest.first.get_by_role("button").click()
        expect(page.get_by_role("dialog")).to_contain_text(gallery.item(shown[0]).key)
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        page.wait_for_function("!history.state?.opened")  # a reload would end the way back
        page.reload(wait_until="domcontentloaded")
        expect(section).to_contain_text("Certain to be missing")  # kept by the server
        assert page.broken == page.foreign == []  # type: ignore[attr-defined]


def test_hits_of_two_galleries_show_no_numbers(
    browser: Browser, gallery: Gallery, second_model_file: Path, log: Path, tmp_path: Path
) -> None:
    """A picture of the visitor is searched with in both; what is opened counts for the one that found it."""
    copy = shutil.copytree(gallery.folder, tmp_path / "second.gallery")
    lookalike_here("index", "rebuild", str(copy), "--model", str(second_model_file), "--force")
    second = Gallery(copy)
    picture = tmp_path / "query.png"
    draw(77).save(picture)
    words = [*SERVE, str(gallery.folder), "--query-log", str(log), "--against", str(second.folder)]
    models = gallery.fingerprint, second.fingerprint
    with serving(words, tmp_path / "scratch", forked=True) as server, in_a_tab(browser, server) as page:
        opened(page, server)
        upload(page, picture)
        hits = page.get_by_test_id("hit")
        expect(hits.nth(3)).to_be_visible()
        assert recorded(gallery, log)[0].kind == "image"
        against = recorded(gallery, log)[0].against
        assert against is not None
        assert against.model == second.fingerprint
        assert {*against.first, *against.second} <= {hit(page, place) for place in range(hits.count())}
        status = page.get_by_test_id("status")
        expect(status).to_have_text(re.compile(r"^24 results · [\d.]+ s$"))
        page.get_by_test_id("recorded").locator("summary").click()
        expect(page.get_by_test_id("recorded")).to_contain_text("results of two models are mixed")
        assert {*page.locator("#results [data-part=score]").all_inner_texts()} == {""}
        chosen = against.second[0]
        page.locator(f"#results [data-item='{chosen}'] [data-act=open]").first.click()
        expect(page.locator("dialog [data-part=rank]")).to_have_text(re.compile(r"^\d+\. result$"))
        assert violations(page) == []
        wait_until(lambda: read_mixed_searches(log, gallery.folder.name, models).chosen)
        assert page.broken == page.foreign == []  # type: ignore[attr-defined]
    found = measure_preference(gallery, second, log)
    assert (found.searches, found.first, found.second) == (1, 0, 1)


def test_visitors_do_not_see_the_searches_of_others(browser: Browser, recording: Server) -> None:
    with in_a_tab(browser, recording) as page:
        page.goto(f"{recording.url}/?tab=evaluation", wait_until="domcontentloaded")
        expect(page.locator("#measure [data-part=status]")).not_to_be_empty()
        expect(page.locator("#coverage")).to_be_hidden()


def test_nothing_is_said_where_nothing_is_recorded(page: Page) -> None:
    expect(page.get_by_test_id("recorded")).to_have_count(0)
