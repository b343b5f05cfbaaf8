"""Reports: every number kept, nothing from outside, and no name can break the page."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import re
from pathlib import Path

import pytest

from retrieval import InputError, report
from retrieval.evaluation import CURVE_KS, Result
from retrieval.report import Report


def result(name: str, base: float) -> Result:
    return Result(name, {k: min(1.0, base + 0.01 * i) for i, k in enumerate(CURVE_KS)}, base / 2, base / 3)


@pytest.fixture
def ours() -> Report:
    return Report(
        data="folder:<b>shop</b>",
        protocol="each searched for among all the others",
        images=30,
        classes=3,
        fingerprint="ab" * 32,
        results=[result("raw pixels", 0.5), result("<script>x</script>", 0.75)],
        bad_files=[("a<i>.png", "the file is empty")],
    )


def test_numbers_survive(ours: Report, tmp_path: Path) -> None:
    ours.save(tmp_path)
    assert Report.load(tmp_path) == ours
    kept = json.loads((tmp_path / "report.json").read_text())
    assert kept["results"][1]["recall"]["1"] == 0.75


def test_page_is_self_contained_and_safe(ours: Report, tmp_path: Path) -> None:
    ours.save(tmp_path)
    page = (tmp_path / "report.html").read_text()
    tags, links = set(), []

    class Reader(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.add(tag)
            links.extend(v for k, v in attrs if k in ("src", "href", "xlink:href") and v and v[0] != "#")

    Reader().feed(page)
    assert "script" not in tags
    assert {"table", "svg", "figure"} <= tags
    assert links == []
    assert "75.0" in page
    assert "&lt;b&gt;shop" in page


def test_same_report_gives_the_same_page(ours: Report) -> None:
    assert report.render(ours) == report.render(ours)


def test_table_is_in_percent(ours: Report) -> None:
    lines = report.table(ours).splitlines()
    assert lines[0].split() == ["R@1", "R@2", "R@4", "R@8", "NMI", "F1"]
    assert lines[1].split()[-6:] == ["50.0", "51.0", "52.0", "53.0", "25.0", "16.7"]


@pytest.fixture
def beside_theirs() -> Report:
    """Published numbers with gaps, and a row that asks something else."""
    return Report(
        data="sop:x",
        protocol="each searched for among all the others",
        images=30,
        classes=3,
        fingerprint=None,
        results=[
            Result("published (a paper)", {1: 0.819, 10: 0.926}, nmi=0.9),
            Result("after training", {1: 0.7, 10: 0.95, 1000: 1.0}, nmi=0.8, f1=0.3),
            Result("after training", {1: 0.8, 10: 0.99, 1000: 1.0}, nmi=0.85, f1=0.4, by="chain"),
        ],
        ks=(1, 10, 1000),
        notes=("They crop <b>.",),
    )


def test_what_is_not_known_is_a_gap(beside_theirs: Report, tmp_path: Path) -> None:
    lines = report.table(beside_theirs).splitlines()
    assert lines[0].split() == ["R@1", "R@10", "R@1000", "NMI", "F1"]
    assert lines[1].split()[-5:] == ["81.9", "92.6", "-", "90.0", "-"]
    assert lines[3].startswith("after training, by chain")
    assert lines[4] == "They crop <b>."
    beside_theirs.save(tmp_path)
    assert Report.load(tmp_path) == beside_theirs


def test_best_is_bold_among_those_that_ask_the_same(beside_theirs: Report) -> None:
    rows = re.findall(r"<tr><th scope='row'>.*?</tr>", report.render(beside_theirs))
    bold = [re.findall(r"<td class=best>([^<]*)", row) for row in rows]
    assert bold == [["81.9", "90.0"], ["95.0", "100.0", "30.0"], []]
    assert "They crop &lt;b&gt;." in report.render(beside_theirs)


def test_curve_of_gaps_and_of_nothing(beside_theirs: Report) -> None:
    nothing = dataclasses.replace(beside_theirs, results=[Result("published (a paper)", nmi=0.5)])
    assert "<svg" in report.render(nothing)
    assert "<svg" in report.render(beside_theirs)


def test_report_from_before_there_were_columns_and_notes(ours: Report, tmp_path: Path) -> None:
    values = json.loads(json.dumps(ours.to_dict()))
    del values["ks"], values["notes"]
    for kept in values["results"]:
        del kept["by"]
    (tmp_path / "report.json").write_text(json.dumps(values))
    assert Report.load(tmp_path) == ours


def test_newest_report_of_a_gallery(ours: Report, tmp_path: Path) -> None:
    assert report.latest(tmp_path) is None
    for name in ("2026-02-01", "2026-01-01"):
        ours.save(tmp_path / "reports" / name)
    (tmp_path / "reports" / "2026-02-01" / "report.json").write_text(
        json.dumps({**ours.to_dict(), "data": "newest"})
    )
    newest = report.latest(tmp_path)
    assert newest is not None
    assert newest.data == "newest"


@pytest.mark.parametrize("content", ["", "{}", '{"format": 9}', '{"format": 1, "what": 2}'])
def test_unreadable_report_says_so(tmp_path: Path, content: str) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(InputError, match="evaluate again"):
        Report.load(tmp_path)
