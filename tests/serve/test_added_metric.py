"""A metric is one row of a table: adding a row shows it everywhere."""

from __future__ import annotations

import html
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from retrieval.evaluation.report import kept_reports
from retrieval.metrics import table
from retrieval.metrics.table import Evidence, Metric
from serve.app import create_app
from serve.core.service import SearchService
from serve.page.reports import Reports
from tests.conftest import lookalike_here
from tests.retrieval.reports.html_page import Page

KEY, TITLE, MEANING = "mrr", "Reciprocal <rank>", "1 / rank of the first image of the query's class"


def reciprocal_rank(evidence: Evidence) -> np.ndarray:
    """1 / rank of the first relevant image, 0 if it is not in the ranking; nan if there is none."""
    first = evidence.ranking.first_relevant
    found = np.where(first > 0, 1 / np.maximum(first, 1), 0.0)
    return np.where(evidence.ranking.answerable, found, np.nan)


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Metric(KEY, TITLE, MEANING, short="MRR", per_query=reciprocal_rank)
    monkeypatch.setattr(table, "METRICS", [*table.METRICS])
    table.METRICS.append(row)


@pytest.fixture
def gallery(shop_gallery: Path, tmp_path: Path) -> Iterator[Path]:
    return shutil.copytree(shop_gallery, tmp_path / "shop.gallery")


def test_added_metric_is_in_the_command_report_comparison_page_and_api(gallery: Path, tmp_path: Path) -> None:
    report = tmp_path / "report"
    printed = lookalike_here("evaluate", str(gallery), "--out", str(report)).stdout
    assert "MRR" in printed.splitlines()[0]
    as_json = json.loads(lookalike_here("evaluate", str(gallery), "--json").stdout)
    (result,) = as_json["results"]
    value, (low, high) = result["values"][KEY], result["intervals"][KEY]
    assert 0 < low <= value <= high <= 1
    shown = f"{100 * value:.1f}"

    (saved,) = json.loads((report / "report.json").read_text())["results"]
    assert (saved["values"][KEY], saved["intervals"][KEY]) == (value, [low, high])
    assert_shown(Page(report / "report.html").text, shown)
    assert html.escape(TITLE) in (report / "report.html").read_text()

    arguments = ["compare", f"old={report}", f"new={gallery}", "--out", str(tmp_path / "comparison")]
    assert "MRR" in lookalike_here(*arguments).stdout.splitlines()[0]
    compared = json.loads((tmp_path / "comparison" / "compare.json").read_text())
    assert [row["numbers"][KEY]["mean"] for row in compared["rows"]] == [value, value]
    assert compared["rows"][1]["differences"][KEY] == 0
    assert_shown(Page(tmp_path / "comparison" / "compare.html").text, shown)

    service = SearchService(gallery)
    newest = kept_reports(gallery)[-1]
    assert_shown(Page(Reports(service).view(newest.name)).text, shown)

    answer = TestClient(create_app(service, page=False)).get("/v1/evaluation").json()
    assert answer["results"][0]["values"][KEY] == value
    assert {"key": KEY, "title": TITLE, "meaning": MEANING} in answer["metrics"]


def assert_shown(text: str, value: str) -> None:
    """Its row has title, meaning and value."""
    row = text[text.index(TITLE) :][: len(TITLE) + len(MEANING) + len(value)]
    assert row == TITLE + MEANING + value
