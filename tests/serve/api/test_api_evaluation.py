"""The newest evaluation by HTTP and by the client."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from retrieval import Gallery
from retrieval.evaluation.report import Report, kept_reports
from retrieval.evaluation.score import Result
from retrieval.reports.folder import evaluate_and_keep, keep_report
from serve.app import create_app
from serve.client import ApiError, Client
from serve.core.service import SearchService
from tests.serve.asgi_server import answering


@pytest.fixture
def folder(shop_gallery: Path, tmp_path: Path) -> Path:
    return shutil.copytree(shop_gallery, tmp_path / "shop.gallery")


@pytest.fixture
def server(folder: Path) -> Iterator[str]:
    with answering(create_app(SearchService(folder), page=False)) as url:
        yield url


@pytest.fixture
def client(server: str) -> Iterator[Client]:
    with Client(server) as client:
        yield client


def test_newest_report_is_returned(client: Client, folder: Path) -> None:
    report = evaluate_and_keep(Gallery(folder))
    found = client.evaluation()
    (result,) = report.results
    assert (found.created, found.data, found.protocol) == (report.created, "shop.gallery", report.protocol)
    assert (found.images, found.classes) == (24, 3)
    (ours,) = found.results
    assert (ours.title, ours.by, ours.values) == (result.title, None, result.values)
    assert {key: tuple(ends) for key, ends in ours.intervals.items()} == result.intervals
    titles = {metric.key: metric.title for metric in found.metrics}
    assert titles.keys() == result.values.keys()
    assert (titles["recall_at_4"], titles["map_at_r"]) == ("Recall@4", "MAP@R")
    newer = Report("csv:x", "p", 3, 2, None, [Result("a", {"nmi": 0.5}, by="chain")], created="9999-01-01")
    keep_report(newer, folder)
    found = client.evaluation()
    assert found.created == "9999-01-01"
    assert [(one.title, one.by, one.values) for one in found.results] == [
        ("a, by chain", "chain", {"nmi": 0.5})
    ]


def test_classes_and_their_queries_are_those_of_the_report(server: str, folder: Path) -> None:
    findings = evaluate_and_keep(Gallery(folder)).findings
    assert findings
    (name,) = (report.name for report in kept_reports(folder))
    numbers = {one.name: one for one in findings.class_results()}
    http = httpx.Client(base_url=f"{server}/v1/evaluation")
    found = http.get("classes").json()
    assert (found["report"], found["total"]) == (name, 3)
    recalls = [one["recall_at_1"] for one in found["classes"]]
    assert recalls == sorted(recalls)
    for one in found["classes"]:
        expected = numbers[one["name"]]
        assert (one["queries"], one["right"]) == (expected.queries, expected.right)
        assert one["interval"][0] <= one["recall_at_1"] <= one["interval"][1]
    rest = http.get("classes", params={"offset": 1, "limit": 1, "report": name}).json()
    assert rest["classes"] == found["classes"][1:2]
    assert [one["name"] for one in http.get("classes?find=RE").json()["classes"]] == [
        one["name"] for one in found["classes"] if "re" in one["name"]
    ]
    labels = {id: item.label for id, item in Gallery(folder).items(range(1, 25)).items()}
    for label in numbers:
        answered = http.get("queries", params={"label": label}).json()
        assert answered["total"] == len(answered["queries"]) == 8
        assert [one["right"] for one in answered["queries"]] == sorted(
            one["right"] for one in answered["queries"]
        )
        for one in answered["queries"]:
            assert labels[one["query"]["id"]] == one["query"]["label"] == label
            assert one["right"] == (labels[one["answer"]["id"]] == label) == (one["first_right"] == 1)
            assert Gallery(folder).search_id(one["query"]["id"], 1)[0].id == one["answer"]["id"]
            assert "/" not in one["query"]["file"]
    refused = http.get("queries?label=rd").json()
    assert refused["detail"].endswith("there is no class 'rd' in this report; did you mean 'red'?")
    assert http.get("classes?report=other").json()["code"] == "no-evaluation"


def test_paths_of_the_server_are_hidden(client: Client, folder: Path) -> None:
    cases = (
        (f"folder:{folder}/images/", "folder:images"),
        ("csv:/secret/list.csv", "csv:list.csv"),
        ("cub200:/secret/CUB", "cub200:CUB"),
        ("/secret/shop", "shop"),
        ("folder:a:b/c", "folder:c"),
        ("/secret/a:b", "a:b"),
        ("digits", "digits"),
    )
    for number, (data, shown) in enumerate(cases):
        shutil.rmtree(folder / "reports", ignore_errors=True)
        bad_files = [(f"{folder}/bad.png", "damaged")]
        keep_report(Report(data, "p", 3, 2, None, [Result("a")], bad_files, created=f"{number}"), folder)
        assert client.evaluation().data == shown


def test_gallery_without_a_readable_report_has_a_problem(client: Client, folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(ApiError) as error:
            client.evaluation()
        assert (error.value.status, error.value.code) == (404, "no-evaluation")
        assert str(folder) not in error.value.detail
        (folder / "reports" / "2026").mkdir(parents=True, exist_ok=True)
        (folder / "reports" / "2026" / "report.json").write_text("{}")


def test_damaged_newest_report_is_skipped(client: Client, folder: Path) -> None:
    evaluate_and_keep(Gallery(folder))
    (kept,) = kept_reports(folder)
    shutil.copytree(kept, folder / "reports" / "9999")
    fields = json.loads((kept / "report.json").read_text())
    (folder / "reports" / "9999" / "report.json").write_text(json.dumps(fields | {"format": 1}))
    assert client.evaluation().created == fields["created"]
