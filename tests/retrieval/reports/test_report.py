"""Reports: complete JSON, and self-contained, safe HTML."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from retrieval import InputError, text
from retrieval.evaluation.comparison import Contender, compare_reports
from retrieval.evaluation.findings import (
    Classes,
    Findings,
    ImageSet,
    Queries,
    SimilarityHistogram,
    find_mistakes,
)
from retrieval.evaluation.report import Report, kept_reports
from retrieval.evaluation.score import CURVE_KS, Result, evaluate
from retrieval.reports.folder import save_report, set_aside
from retrieval.reports.report import data_title, render_report, summary_sentence
from retrieval.reports.text_tables import report_table
from tests.conftest import draw


def result(name: str, base: float) -> Result:
    recalls = {f"recall_at_{k}": min(1.0, base + 0.01 * i) for i, k in enumerate(CURVE_KS)}
    return Result(name, {**recalls, "nmi": base / 2, "f1": base / 3})


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


def test_report_survives_json(ours: Report, tmp_path: Path) -> None:
    save_report(ours, tmp_path)
    assert Report.load(tmp_path) == ours
    kept = json.loads((tmp_path / "report.json").read_text())
    assert kept["results"][1]["values"]["recall_at_1"] == 0.75


def read(page: str) -> tuple[set[str], list[str]]:
    """Return the tags of a page and all its external references."""
    tags, links = set(), []

    class Reader(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.add(tag)
            links.extend(v for k, v in attrs if k in ("src", "href", "xlink:href") and v and v[0] != "#")

    Reader().feed(page)
    return tags, links


def test_page_is_self_contained_and_safe(ours: Report, tmp_path: Path) -> None:
    save_report(ours, tmp_path)
    page = (tmp_path / "report.html").read_text()
    tags, links = read(page)
    assert "script" not in tags
    assert {"table", "svg", "figure"} <= tags
    assert links == []
    assert "75.0" in page
    assert "&lt;b&gt;shop" in page


def test_same_report_gives_the_same_page(ours: Report) -> None:
    assert render_report(ours) == render_report(ours)


def test_table_is_in_percent(ours: Report) -> None:
    lines = report_table(ours).splitlines()
    assert lines[0].split() == ["R@1", "R@2", "R@4", "R@8", "NMI", "F1"]
    assert lines[1].split()[-6:] == ["50.0", "51.0", "52.0", "53.0", "25.0", "16.7"]


def _trained(recall_at_1: float, recall_at_10: float, by: str | None = None, **values: float) -> Result:
    recalls = {"recall_at_1": recall_at_1, "recall_at_10": recall_at_10, "recall_at_1000": 1.0}
    return Result("after training", {**recalls, **values}, by)


@pytest.fixture
def with_published() -> Report:
    """Published results with gaps, and a result by other labels."""
    return Report(
        data="sop:x",
        protocol="each searched for among all the others",
        images=30,
        classes=3,
        fingerprint=None,
        results=[
            Result("published (a paper)", {"recall_at_1": 0.819, "recall_at_10": 0.926, "nmi": 0.9}),
            _trained(0.7, 0.95, nmi=0.8, f1=0.3),
            _trained(0.8, 0.99, nmi=0.85, f1=0.4, by="chain"),
        ],
        ks=(1, 10, 1000),
        notes=("They crop <b>.",),
    )


def test_missing_values_are_gaps(with_published: Report, tmp_path: Path) -> None:
    lines = report_table(with_published).splitlines()
    assert lines[0].split() == ["R@1", "R@10", "R@1000", "NMI", "F1"]
    assert lines[1].split()[-5:] == ["81.9", "92.6", "-", "90.0", "-"]
    assert lines[3].startswith("after training, by chain")
    assert lines[4] == "They crop <b>."
    save_report(with_published, tmp_path)
    assert Report.load(tmp_path) == with_published


def test_published_values_are_not_rounded(with_published: Report) -> None:
    first, *others = with_published.results
    first = dataclasses.replace(first, values={"recall_at_1": 0.6685, "recall_at_10": 0.7}, as_printed=True)
    report = dataclasses.replace(with_published, results=[first, *others])
    assert report_table(report).splitlines()[1].split()[-6:-2] == ["paper)", "66.85", "70.0", "-"]
    cell = re.search(r">Recall@1<.*?<td[^>]*>([\d.]+)", render_report(report))
    assert cell is not None
    assert cell[1] == "66.85"


@pytest.mark.parametrize(
    ("percents", "expected"),
    [(66.85, "66.85"), (100 * 0.6685, "66.85"), (70, "70.0"), (57.5, "57.5"), (55.03, "55.03"), (0.0, "0.0")],
)
def test_published_value_has_all_its_digits(percents: float, expected: str) -> None:
    assert text.printed(percents) == expected


def test_best_result_with_the_same_labels_is_bold(with_published: Report) -> None:
    rows = re.findall(r"<tr><th scope='row'>.*?</tr>", render_report(with_published))
    bold = {row[20:].partition("<")[0]: re.findall(r"<td class='best'>([^<]*)", row) for row in rows}
    assert bold == {
        "Recall@1": ["81.9"],
        "Recall@10": ["95.0"],
        "Recall@1000": ["100.0"],
        "NMI": ["90.0"],
        "F1": ["30.0"],
    }
    assert "They crop &lt;b&gt;." in render_report(with_published)


def test_recall_figure_with_gaps_and_without_values(with_published: Report) -> None:
    nothing = dataclasses.replace(with_published, results=[Result("published (a paper)", {"nmi": 0.5})])
    assert "<svg" in render_report(nothing)
    assert "<svg" in render_report(with_published)


def test_reports_of_a_gallery_are_listed_oldest_first(ours: Report, tmp_path: Path) -> None:
    assert kept_reports(tmp_path) == []
    for name in ("2026-02-01", "2026-01-01"):
        save_report(ours, tmp_path / "reports" / name)
    assert [folder.name for folder in kept_reports(tmp_path)] == ["2026-01-01", "2026-02-01"]


@pytest.mark.parametrize("content", ["", "{}", '{"format": 9}', '{"format": 1, "what": 2}'])
def test_unreadable_report_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(InputError, match="evaluate again"):
        Report.load(tmp_path)


# ---- mistakes


@pytest.fixture
def with_findings(tmp_path: Path) -> Report:
    """A report on four confused classes, some with names that must be escaped."""
    labels, paths = [], []
    for label, name in enumerate(("cat", "<script>alert(1)</script>", 'it\'s a "dog"', "$x_1$ & co")):
        folder = tmp_path / "data" / f"class{label}"
        folder.mkdir(parents=True)
        for seed in range(6):
            paths.append(folder / f"{seed}'&.png")
            draw(seed, hue=label).save(paths[-1])
            labels.append(name)
    random = np.random.default_rng(0)
    numbers = np.unique(labels, return_inverse=True)[1]
    vectors = random.normal(size=(24, 8)) + random.normal(size=(4, 8))[numbers] / 2
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    evaluation = evaluate("ours", vectors, numbers)
    side = ImageSet(paths, labels, [f"{number:064x}" for number in range(24)])
    findings = find_mistakes(evaluation, side, side)
    return Report("folder:data", "each among the others", 24, 4, None, [evaluation.result], findings=findings)


def test_findings_survive_json_and_are_shown(with_findings: Report, tmp_path: Path) -> None:
    save_report(with_findings, tmp_path / "report")
    assert Report.load(tmp_path / "report") == with_findings
    page = (tmp_path / "report" / "report.html").read_text()
    tags, links = read(page)
    assert "script" not in tags
    assert all(link.startswith("data:image/webp;base64,") for link in links)
    assert with_findings.findings is not None
    assert len(links) >= 6 * len(with_findings.findings.hardest) > 0
    for title in ("How similar", "Classes taken for each other", "The hardest queries", "Class by class"):
        assert f"<h3>{title}" in page
    for name in with_findings.findings.classes.name:
        assert html.escape(name) in page.replace("<wbr>", "")


def test_right_and_wrong_differ_in_more_than_colour(with_findings: Report) -> None:
    page = render_report(with_findings)
    assert with_findings.findings is not None
    hardest = [[n.right for n in hard.neighbours] for hard in with_findings.findings.hardest]
    right = sum(max(1, sum(rights)) for rights in hardest)  # the one that should be first, if no other
    found, opened = with_findings.findings, page.count("<details>")
    assert opened == sum(recall is not None and recall < 1 for recall in found.classes.recall_at_1)
    pairs = page.partition("<details>")[2].partition("report-similarities")[0]
    right += pairs.count("\u2713 right")
    assert page.count("<li class='right'>") == page.count("\u2713 right") == right
    mistakes = len(found.confusions[:12]) + sum(rights.count(False) for rights in hardest)
    mistakes += pairs.count("\u2717 wrong")
    assert page.count("<li class='wrong'>") == page.count("\u2717 wrong") == mistakes


def test_classes_show_what_their_queries_find(with_findings: Report) -> None:
    found = with_findings.findings
    assert found is not None
    page = render_report(with_findings)
    recall = found.classes.recall_at_1
    worst = min((value, at) for at, value in enumerate(recall) if value is not None)[1]
    first = page.partition("<details>")[2].partition("</details>")[0]
    queries = [at for at, label in enumerate(found.queries.label) if label == worst]
    right = sum(found.queries.first_right[at] == 1 for at in queries)
    assert f"{right} of {len(queries)} right" in first
    shown = sorted(queries, key=lambda at: found.queries.first_right[at] == 1)[:6]
    scores = [f"{found.nearest(at).score:.3f}" for at in shown if found.nearest(at)]  # type: ignore[union-attr]
    assert re.findall(r"(?:right|wrong)</b> (\d\.\d{3})", first) == scores


def test_summary_says_the_result_in_words(ours: Report) -> None:
    assert summary_sentence(ours) == (
        "75 of 100 queries find an image of their own class first; raw pixels: 50."
    )
    assert [data_title(name) for name in ("folder:photos/birds", "birds.gallery", "digits")] == [
        "birds",
        "birds",
        "digits",
    ]


def test_missing_images_are_grey_tiles(with_findings: Report, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "data")
    _, links = read(render_report(with_findings))
    assert len(set(links)) == 1
    assert links[0].startswith("data:image/svg+xml;base64,")


def test_report_without_mistakes() -> None:
    vectors = np.repeat(np.eye(2, 4, dtype=np.float32), 3, axis=0)
    labels = np.repeat([0, 1], 3)
    evaluation = evaluate("ours", vectors, labels)
    side = ImageSet([Path(f"/nowhere/{i}.png") for i in range(6)], [str(x) for x in labels], ["0"] * 6)
    perfect = Report(
        "x", "y", 6, 2, None, [evaluation.result], findings=find_mistakes(evaluation, side, side)
    )
    page = render_report(perfect)
    assert "Every query finds its own class first." in page
    assert "<img" not in page
    assert "taken for each other" not in page


def test_intervals_are_shown(with_findings: Report) -> None:
    low, high = (f"{100 * end:.1f}" for end in with_findings.results[0].intervals["recall_at_1"])
    assert f"{low} to {high}" in render_report(with_findings)
    lines = report_table(with_findings).splitlines()
    assert lines[3].split()[:6] == ["for", "other", "classes", "like", "these", "-"]
    assert lines[4].split()[:6] == ["for", "these", "classes", low, "to", high]
    assert "4 classes are too few for an interval for other classes like these" in lines[6]


def test_report_of_many_queries_stays_small(tmp_path: Path) -> None:
    """60,502 queries, as many as in Stanford Online Products, take a few megabytes."""
    count = 60_502
    names = [f"class {number}" for number in range(11_316)]
    queries = Queries(
        [f"bicycle_final/{number:012}_{number % 10}.JPG" for number in range(count)],
        ["0123456789ab"] * count,
        [number % len(names) for number in range(count)],
        [7] * count,
        [0.123456] * count,
    )
    classes = Classes(names, [5] * len(names), [0.6] * len(names), [None] * len(names))
    histogram = SimilarityHistogram([0.0, 1.0], [1], [1], 1.0)
    findings = Findings("ours", "/data", 64, queries, classes, histogram)
    save_report(
        Report("sop:x", "y", count, len(names), None, [result("ours", 0.5)], findings=findings), tmp_path
    )
    assert (tmp_path / "report.json").stat().st_size < 7e6
    assert (tmp_path / "report.html").stat().st_size < 5e5


def test_undefined_values_are_dashes_and_null(ours: Report, tmp_path: Path) -> None:
    one = dataclasses.replace(ours.results[-1], values={**ours.results[-1].values, "nmi": None, "f1": None})
    report = dataclasses.replace(ours, results=[one])
    assert report_table(report).splitlines()[1].split()[-2:] == ["-", "-"]
    assert re.search(r"NMI<small>[^<]*</small></th><td>-</td>", render_report(report))
    save_report(report, tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["results"][0]["values"]["nmi"] is None
    assert Report.load(tmp_path) == report


def test_reports_of_the_format_before_are_readable(with_findings: Report, tmp_path: Path) -> None:
    """They have no intervals over classes, no spreads, no verdict, and no MAP@R of single queries."""
    fields = with_findings.to_dict() | {"format": 3}
    del fields["verdict"], fields["findings"]["queries"]["map_at_r"]
    for one in fields["results"]:
        del one["class_intervals"], one["spreads"]
    (tmp_path / "report.json").write_text(json.dumps(fields))
    old = Report.load(tmp_path)
    assert old.results[0].intervals == with_findings.results[0].intervals
    assert (old.results[0].class_intervals, old.verdict) == ({}, None)
    wide = dataclasses.replace(old, classes=20)
    assert "the report is of an older version" in render_report(wide)
    (pair,) = compare_reports([Contender("old", (old,)), Contender("new", (with_findings,))]).pairs
    assert pair.verdict is not None
    assert "map_at_r" not in pair.verdict.changes
    fields["format"] = 2
    (tmp_path / "report.json").write_text(json.dumps(fields))
    with pytest.raises(InputError, match="another format"):
        Report.load(tmp_path)


def test_another_report_in_the_folder_is_set_aside(
    ours: Report, with_published: Report, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    assert set_aside(ours, out) is None
    save_report(ours, out)
    again = dataclasses.replace(ours, created="2030-01-01T00:00:00Z")
    assert set_aside(again, out) is None  # the same evaluation, repeated
    (out / "mine.txt").touch()
    (tmp_path / "report-1").mkdir()
    assert set_aside(with_published, out) == tmp_path / "report-2"
    assert Report.load(tmp_path / "report-2") == ours
    assert sorted(path.name for path in out.iterdir()) == ["mine.txt"]
    (out / "report.json").write_text("{")  # damaged: kept all the same
    assert set_aside(ours, out) == tmp_path / "report-3"
