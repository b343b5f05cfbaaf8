"""The evaluation tab without a browser: its reports and figures, over the API."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient

from retrieval import Gallery
from retrieval.analysis.embeddings import Embeddings
from retrieval.analysis.triplets import triplets
from retrieval.errors import InputError
from retrieval.evaluation.report import Report, kept_reports
from retrieval.reports.folder import evaluate_and_keep, save_report
from serve.app import create_app
from serve.core.background import Background
from serve.core.service import SearchService
from serve.page.reports import Reports
from tests.conftest import draw
from tests.retrieval.filling import bare_gallery, commit, new_items, unit_vectors
from tests.retrieval.reports.html_page import Page
from tests.serve.serving import SERVE, serving


@pytest.fixture
def service(shop_gallery: Path, tmp_path: Path) -> SearchService:
    """A copy of the shop that tests may change."""
    shutil.copytree(shop_gallery, tmp_path / "shop.gallery")
    return SearchService(tmp_path / "shop.gallery")


@pytest.fixture
def client(service: SearchService) -> Iterator[httpx.Client]:
    with TestClient(create_app(service)) as client:
        yield client


@pytest.fixture
def confused(shop: Path, model_file: Path, tmp_path: Path) -> SearchService:
    """The shop with labels unrelated to the images."""
    gallery = Gallery.create(tmp_path / "shop.gallery", model_file)
    paths = sorted(shop.glob("*/*.png"))
    gallery.add(paths, metadata=[{"label": str(number % 5)} for number in range(len(paths))])
    return SearchService(tmp_path / "shop.gallery")


def work(client: httpx.Client, kind: str) -> dict[str, Any]:
    """Do a job; return it when it has ended."""
    started = client.post("/v1/jobs", json={"kind": kind})
    assert started.status_code == 202, started.text
    for _ in range(600):
        job = client.get(f"/v1/jobs/{started.json()['id']}").json()
        if job["state"] != "running":
            return dict(job)
        time.sleep(0.05)
    raise AssertionError(job)


def listed(client: httpx.Client) -> dict[str, Any]:
    return dict(client.get("/v1/evaluation/reports").json())


def searching(page: Page) -> list[tuple[int, str | None]]:
    """The item of each search button, and the file name of its image."""
    return [
        (int(str(attributes["data-search"])), inside.get("alt"))
        for (tag, attributes), (_, inside) in pairwise(page.tags)
        if tag == "button" and "data-search" in attributes
    ]


# ---- measuring


def test_evaluation_runs_once_for_each_state(service: SearchService, client: httpx.Client) -> None:
    before = listed(client)
    assert before == {**before, "reports": [], "current": None, "obstacle": None}
    assert work(client, "evaluation")["state"] == "done"
    (folder,) = kept_reports(service.folder)
    after = listed(client)
    assert [one["name"] for one in after["reports"]] == [folder.name]
    assert (after["current"], after["state"]) == (folder.name, before["state"])
    assert "Recall@1" in client.get("/parts/report", params={"report": folder.name}).text
    work(client, "evaluation")
    assert kept_reports(service.folder) == [folder], "what is known is not measured again"
    service.gallery.remove([1])
    changed = listed(client)
    assert changed["current"] is None
    assert changed["state"] != before["state"]
    work(client, "evaluation")
    assert len(kept_reports(service.folder)) == 2


def test_long_work_is_done_one_at_a_time(client: httpx.Client) -> None:
    other, go = Background[str](), threading.Event()
    other.start("long", lambda: "done" if go.wait(30) else "")
    for kind in ("evaluation", "triplets"):
        refused = client.post("/v1/jobs", json={"kind": kind})
        assert refused.status_code == 503
        assert "other long work is running" in refused.json()["detail"]
    go.set()
    while other.status().running:
        time.sleep(0.01)
    assert work(client, "triplets")["state"] == "done"


def test_gallery_without_labels_cannot_be_evaluated(tmp_path: Path, model_file: Path) -> None:
    (tmp_path / "flat").mkdir()
    for seed in range(3):
        draw(seed).save(tmp_path / "flat" / f"{seed}.png")
    Gallery.create(tmp_path / "g", model_file).add([tmp_path / "flat"])
    with TestClient(create_app(SearchService(tmp_path / "g", name="flat"))) as client:
        obstacle = listed(client)["obstacle"]
    assert "flat: none of its images has a label" in obstacle
    assert str(tmp_path) not in obstacle


def test_failed_evaluation_hides_paths_and_can_be_retried(
    service: SearchService, client: httpx.Client, tmp_path: Path
) -> None:
    shutil.rmtree(service.folder / "reports")
    (service.folder / "reports").touch()
    failed = work(client, "evaluation")
    assert "cannot keep a report" in failed["problem"]["detail"]
    assert str(tmp_path) not in str(failed)
    (service.folder / "reports").unlink()
    assert work(client, "evaluation")["state"] == "done"


@pytest.mark.slow
def test_shutdown_does_not_wait_for_an_evaluation(tmp_path: Path) -> None:
    gallery = bare_gallery(tmp_path / "g")
    with gallery.store.writing():
        items = new_items([f"{n % 9}{n}" for n in range(25_000)])
        gallery.store.commit(unit_vectors(25_000), items)
    with serving([*SERVE, str(tmp_path / "g")], tmp_path / "scratch", forked=True) as server:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            assert client.post("/v1/jobs", json={"kind": "evaluation"}).json()["state"] == "running"
        begun = time.monotonic()
        code, said = server.stop()
        assert time.monotonic() - begun < 25
    assert code == 0
    assert "Traceback" not in said
    assert kept_reports(tmp_path / "g") == []
    assert len(Gallery.open(tmp_path / "g")) == 25_000


# ---- reports


def test_reports_are_listed_and_compared(service: SearchService, client: httpx.Client) -> None:
    for _ in range(2):
        evaluate_and_keep(service.gallery)
        service.gallery.remove([service.gallery.embeddings().ids[-1].item()])
    old, new = kept_reports(service.folder)
    found = listed(client)["reports"]
    assert [one["name"] for one in found] == [new.name, old.name], "newest first"
    recall = Report.load(new).headline.values["recall_at_1"]
    assert f"Recall@1 {100 * recall:.1f}%" in found[0]["title"]
    reports = Reports(service)
    alone, both = reports.view(old.name), reports.view(new.name, old.name)
    assert "24 query images" in alone
    assert "23 query images" in reports.view(new.name)
    assert "difference to" in both
    assert "difference to" not in alone
    assert " differs from " in both
    assert reports.view(old.name) is alone, "it is drawn once"
    shown = client.get("/parts/report", params={"report": new.name, "against": old.name})
    assert "difference to" in shown.text


def test_unusable_reports_give_the_reason(
    service: SearchService, client: httpx.Client, tmp_path: Path
) -> None:
    ours = evaluate_and_keep(service.gallery)
    other = Report("folder:other", "each searches the others", 3, 2, None, ours.results)
    save_report(other, service.folder / "reports" / "other")
    (service.folder / "reports" / "broken").mkdir()
    (service.folder / "reports" / "broken" / "report.json").write_text("{}")
    name = kept_reports(service.folder)[0].name
    refused = client.get("/parts/report", params={"report": "other", "against": name})
    assert refused.status_code >= 400
    assert "not evaluated on the same data" in refused.json()["detail"]
    broken = client.get("/parts/report", params={"report": "broken"})
    assert "evaluate again" in broken.json()["detail"]
    assert str(tmp_path) not in broken.text
    assert "broken: not readable" in [one["title"] for one in listed(client)["reports"]]


def test_report_names_cannot_be_paths(service: SearchService) -> None:
    save_report(evaluate_and_keep(service.gallery), service.folder.parent / "shop")
    (folder,) = kept_reports(service.folder)
    for name in ("../../shop", "/etc", "..", "nowhere", "\0"):
        for choice in ((name, ""), (folder.name, name)):
            with pytest.raises(InputError, match="no longer exists"):
                Reports(service).view(*choice)


def test_report_images_search_with_their_items(confused: SearchService) -> None:
    service = confused
    evaluate_and_keep(service.gallery)
    (folder,) = kept_reports(service.folder)
    findings = Report.load(folder).findings
    assert findings is not None
    page = Reports(service).view(folder.name)
    found = searching(Page(page))
    assert len(found) == page.count("<img")
    for item, name in found:
        assert Path(service.item(item).path).name == name
    hardest = [findings.queries.path[hard.query] for hard in findings.hardest]
    assert set(hardest) <= {
        Path(service.item(item).path).relative_to(findings.root).as_posix() for item, _ in found
    }
    assert "A click on an image" in page
    item = found[0][0]
    service.gallery.remove([item])
    page = Reports(service).view(folder.name)
    assert item not in [one for one, _ in searching(Page(page))]
    assert "not in this gallery" in page


def test_report_images_missing_from_the_gallery_are_no_buttons(
    service: SearchService, model_file: Path, tmp_path: Path
) -> None:
    for label in "ab":
        (tmp_path / "others" / label).mkdir(parents=True)
        for seed in range(3):
            draw(seed, hue=seed).save(tmp_path / "others" / label / f"{seed}.png")
    others = Gallery.create(tmp_path / "others.gallery", model_file)
    others.add([tmp_path / "others"])
    save_report(evaluate_and_keep(others), service.folder / "reports" / "others")
    page = Reports(service).view("others")
    assert "<img" in page
    assert searching(Page(page)) == []
    assert "are not in this gallery, so they cannot" in page


# ---- figures


def test_triplet_diagram_shows_the_labelled_images(service: SearchService, client: httpx.Client) -> None:
    stored = service.gallery.embeddings()
    share = triplets(Embeddings("shop", stored.vectors, np.array(stored.labels))).hard_share
    found = work(client, "triplets")["result"]
    assert found["hard_share"] == pytest.approx(share)
    assert f"of {100 * share:.1f}% of the images another class is nearer" in found["html"]
    assert (found["images"], found["total"], found["left_out"]) == (24, 24, 0)
    assert "<svg" in found["html"]


def test_figure_is_drawn_once_for_each_state(service: SearchService, client: httpx.Client) -> None:
    first = work(client, "triplets")["result"]
    assert first["state"] == listed(client)["state"]
    assert work(client, "triplets")["result"] == first
    service.gallery.remove([1])
    changed = work(client, "triplets")["result"]
    assert changed["images"] == 23
    assert changed["state"] == listed(client)["state"] != first["state"]


def test_figure_of_too_few_images_gives_the_reason(tmp_path: Path) -> None:
    commit(bare_gallery(tmp_path / "g"), ["a1", "b1"])
    with TestClient(create_app(SearchService(tmp_path / "g", name="tiny"))) as client:
        problem = work(client, "triplets")["problem"]
    assert "tiny: no two of its images share a label" in problem["detail"]
