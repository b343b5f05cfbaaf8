"""Jobs by HTTP and by the client, compared with the same work done directly."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from retrieval import Gallery
from retrieval.curation.suspects import find_suspects
from retrieval.curation.thinning import plan_thinning
from retrieval.evaluation.calibration_fit import calibrate
from retrieval.evaluation.coverage import measure_coverage
from retrieval.evaluation.report import Report, kept_reports
from retrieval.files import now
from retrieval.reports.folder import keep_report
from retrieval.storage.query_log import LoggedSearch, QueryLog, new_id
from retrieval.storage.records import Change
from serve.app import create_app
from serve.client import ApiError, Client
from serve.core.background import Background
from serve.core.errors import BusyError
from serve.core.permissions import Permissions
from serve.core.service import SearchService
from tests.conftest import wait_until
from tests.serve.asgi_server import answering


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, shop_gallery: Path) -> Path:
    return shutil.copytree(shop_gallery, tmp_path_factory.mktemp("jobs") / "shop.gallery")


def done(client: Client, kind: str, **options: object) -> Any:
    """Return the result of a job; the slot is free a moment after the job before has ended."""
    started: list[str] = []

    def is_started() -> bool:
        with suppress(ApiError):
            started.append(client.start_job(kind, **options).id)
        return bool(started)

    wait_until(is_started)
    return client.wait(started[0], every=0.02)


def test_evaluation_is_returned_and_kept(client: Client, folder: Path) -> None:
    found = done(client, "evaluation")
    (kept,) = kept_reports(folder)
    report = Report.load(kept)
    assert found["results"][-1]["values"] == report.results[-1].values
    assert client.evaluation().created == found["created"] == report.created
    assert done(client, "evaluation")["created"] == found["created"]
    assert kept_reports(folder) == [kept], "visitors cannot fill the disk with reports"
    other = keep_report(replace(report, data="other images", gallery_state=None, created=now()), folder)
    assert done(client, "evaluation")["created"] == found["created"], "a newer report of other images"
    assert kept_reports(folder) == [kept, other]
    shutil.rmtree(other)


def test_duplicates_are_those_of_the_gallery(client: Client, folder: Path) -> None:
    expected = Gallery(folder).duplicates(0.9).groups
    assert len(expected) > 1
    found = done(client, "duplicates", min_score=0.9)
    groups = [([one["id"] for one in group["images"]], group["identical"]) for group in found["groups"]]
    assert groups == [([item.id for item in group.members], group.identical) for group in expected]
    assert found["total"] == len(expected)
    first = done(client, "duplicates", min_score=0.9, limit=1)
    assert (first["total"], first["groups"]) == (len(expected), found["groups"][:1])


def test_duplicates_can_name_the_surplus_ones(client: Client, folder: Path) -> None:
    gallery = Gallery(folder)
    expected = plan_thinning(gallery, gallery.duplicates(0.9).groups, "oldest", 0.9).surplus
    found = done(client, "duplicates", min_score=0.9, keep="oldest")["groups"]
    surplus = [number for group in found for number in group["surplus"]]
    assert sorted(surplus) == sorted(one.item.id for one in expected)
    assert surplus
    assert all(set(group["surplus"]) < {one["id"] for one in group["images"]} for group in found)


def test_suspects_are_those_of_the_gallery(client: Client, folder: Path) -> None:
    store = Gallery(folder).store
    right = store.items([1, 2])
    with store.writing():
        store.amend([Change(item.id, item.stamp("of another")) for item in right])
    expected = find_suspects(Gallery(folder), k=3, limit=50)
    likely = find_suspects(Gallery(folder), k=3)
    assert {1, 2} <= {one.item.id for one in expected.suspects}
    found, cut = done(client, "suspects", k=3, limit=50), done(client, "suspects", k=3)
    assert len(cut["suspects"]) == cut["likely"] == likely.likely
    assert [one["precision"] for one in found["suspects"]] == [one.precision for one in expected.suspects]
    client.update(1, label=right[0].label)
    client.update(2, label=right[1].label)
    assert done(client, "suspects", k=3, limit=50)["suspects"] == []
    assert (found["total"], found["labelled"]) == (expected.total, expected.labelled)
    assert [(one["image"]["id"], one["suggested"]) for one in found["suspects"]] == [
        (one.item.id, one.suggested) for one in expected.suspects
    ]
    for name in ("neighbours", "own_neighbours"):
        assert [[near["image"]["id"] for near in one[name]] for one in found["suspects"]] == [
            [near.item.id for near in getattr(one, name)] for one in expected.suspects
        ]


def test_map_places_every_image_near_its_class(client: Client, folder: Path) -> None:
    found = done(client, "map")
    gallery = Gallery(folder)
    items = gallery.items(found["ids"])
    labels = np.array([items[number].label for number in found["ids"]])
    assert len({*found["ids"]}) == found["total"] == 24
    assert [found["labels"][position] for position in found["label"]] == labels.tolist()
    places = np.array([found["x"], found["y"]]).T
    assert np.ptp(places, axis=0).max() == pytest.approx(2, abs=1e-3)
    distances = np.linalg.norm(places[:, None] - places[None], axis=2) + 1e9 * np.eye(len(places))
    assert (labels[distances.argmin(1)] == labels).mean() > 0.6  # a third by chance
    vectors = np.stack([*gallery.vectors(found["ids"]).values()])
    similar = vectors @ vectors.T - 9 * np.eye(len(vectors))
    assert found["right"] == (labels[similar.argmax(1)] == labels).tolist()
    assert len(done(client, "map", limit=10)["ids"]) == 10


def test_calibration_gives_hits_probabilities(tmp_path: Path) -> None:
    """40 classes of 8 vectors around their means."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(40), 8)
    np.save(tmp_path / "v.npy", random.normal(size=(40, 16))[labels] + 0.7 * random.normal(size=(320, 16)))
    (tmp_path / "v.csv").write_text("\n".join(["label", *(f"class {label}" for label in labels)]) + "\n")
    folder = tmp_path / "g"
    Gallery.import_vectors(folder, tmp_path / "v.npy", name="ours")
    with answering(create_app(SearchService(folder), page=False)) as url, Client(url) as client:
        with pytest.raises(ApiError) as refused:
            client.start_job("calibration")
        assert (refused.value.status, refused.value.code) == (403, "changes-not-allowed")
        assert client.search(id=1)[0].probability is None
    service = SearchService(folder, permissions=Permissions(changes=True))
    with answering(create_app(service, page=False)) as url, Client(url) as client:
        found = done(client, "calibration", absent=0.25)
        hits = client.search(id=1)
        described = client.gallery().calibration
    expected, quality = calibrate(Gallery(folder), absent=0.25)
    assert (found["queries"], found["classes"], found["error"]) == (320, 40, quality.ece)
    assert (found["error_of_folds"], found["error_of_best"]) == (quality.ece_of_folds, quality.ece_of_best)
    assert found["error_by_chance"] == quality.ece_by_chance
    assert described is not None
    assert (described.images, described.reliable) == (320, quality.ece <= 0.05)
    assert described.error == pytest.approx(quality.ece, abs=1e-5)
    assert found["thresholds"] == [asdict(one) for one in quality.thresholds]
    kept = Gallery(folder).calibration
    assert kept is not None
    assert (kept.weights, kept.absent) == (expected.weights, 0.25)
    direct = Gallery(folder).search_id(1)
    assert [hit.probability for hit in hits] == pytest.approx([hit.probability for hit in direct])
    assert (hits[0].probability or 0) > (hits[-1].probability or 1)


def test_jobs_are_listed_and_removed(client: Client) -> None:
    done(client, "duplicates")
    newest = client.jobs()[0]
    assert (newest.kind, newest.state, newest.result) == ("duplicates", "done", None)
    client.remove_job(newest.id)
    assert newest.id not in [job.id for job in client.jobs()]
    for call in (client.job, client.remove_job):
        with pytest.raises(ApiError) as error:
            call(newest.id)
        assert (error.value.status, error.value.code) == (404, "no-such-job")


def test_failed_job_has_a_problem_without_paths(tmp_path: Path, model_file: Path, shop: Path) -> None:
    (tmp_path / "images").mkdir()
    shutil.copy(shop / "red" / "1.png", tmp_path / "images")
    Gallery.create(tmp_path / "g", model_file).add([tmp_path / "images"])
    app = create_app(SearchService(tmp_path / "g", name="flat"), page=False)
    with answering(app) as url, Client(url) as client:
        with pytest.raises(ApiError) as error:
            done(client, "evaluation")
        (job,) = client.jobs()
    assert (error.value.status, error.value.code, job.state) == (422, "invalid-request", "failed")
    assert error.value.detail.startswith("flat: none of its images has a label")
    assert str(tmp_path) not in error.value.detail


def test_requests_are_checked_at_once(http: httpx.Client) -> None:
    cases = (
        ({}, "#/kind"),
        ({"kind": "duplicate"}, "#/kind"),
        ({"kind": "duplicates", "min_score": 0.5}, "#/min_score"),
        ({"kind": "evaluation", "min_score": 0.9}, "#/min_score"),
        ({"kind": "map", "limit": 1e9}, "#/limit"),
    )
    for body, pointer in cases:
        answer = http.post("/v1/jobs", json=body)
        assert answer.status_code == 422
        assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]
    assert "did you mean" in http.post("/v1/jobs", json={"kind": "duplicate"}).json()["detail"]


def test_second_job_is_refused_while_other_work_is_running(http: httpx.Client) -> None:
    blocking, go = Background[bool](), threading.Event()

    def is_started() -> bool:
        with suppress(BusyError):
            blocking.start("long", lambda: go.wait(30))
        return blocking.status().running

    wait_until(is_started)
    answer = http.post("/v1/jobs", json={"kind": "map"})
    go.set()
    assert (answer.status_code, answer.json()["code"]) == (503, "busy")
    assert answer.headers["retry-after"]
    wait_until(lambda: not blocking.status().running)
    started = http.post("/v1/jobs", json={"kind": "map"})
    assert started.status_code == 202
    assert http.get(started.headers["location"]).json()["id"] == started.json()["id"]
    wait_until(lambda: http.get(started.headers["location"]).json()["state"] == "done")


def test_coverage_is_that_of_the_log(folder: Path, tmp_path: Path) -> None:
    """For those who may change the gallery, on a server that records searches."""
    log, gallery = QueryLog(tmp_path / "log"), Gallery(folder)
    stored = gallery.embeddings()
    queries = np.concatenate([stored.vectors, -stored.vectors])
    searches = [LoggedSearch(new_id(), "image", one, (), None, [(1, 0.5, None)]) for one in queries]
    log.append(folder.name, gallery.fingerprint, searches)
    allowing = SearchService(folder, permissions=Permissions(changes=True), query_log=log)
    with answering(create_app(allowing, page=False)) as url, Client(url) as client:
        found, images = done(client, "coverage", limit=7), {image.id: image for image in client.items()}
        for wrong in ({"since": "yesterday"}, {"limit": 0}):
            with pytest.raises(ApiError) as error:
                client.start_job("coverage", **wrong)
            assert error.value.status == 422
        with pytest.raises(ApiError, match="no search of") as error:
            done(client, "coverage", since="2100-01-01")
        assert str(tmp_path) not in str(error.value)
    expected = measure_coverage(gallery, tmp_path / "log", limit=7)
    for name in ("searches", "pictures", "lost", "unopened", "never", "never_by_chance", "notes"):
        assert found[name] == getattr(expected, name)
    assert [one["searches"] for one in found["groups"]] == [len(one.searches) for one in expected.groups]
    assert [one["image"]["id"] for one in found["wanted"]] == [one.item for one in expected.wanted]
    assert found["wanted"][0]["image"]["key"] == images[expected.wanted[0].item].key
    assert [image["id"] for image in found["unseen"]] == expected.unseen
    assert expected.drift is not None or found["drift"] is None
    for service, code in (
        (SearchService(folder, query_log=log), "changes-not-allowed"),
        (SearchService(folder, permissions=Permissions(changes=True)), "not-recorded"),
    ):
        with answering(create_app(service, page=False)) as url, Client(url) as client:
            with pytest.raises(ApiError) as error:
                done(client, "coverage") if code == "not-recorded" else client.start_job("coverage")
            assert error.value.code == code
