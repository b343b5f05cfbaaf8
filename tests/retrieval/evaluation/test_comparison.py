"""Comparison of reports against counting by hand; reports of different data are refused."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_rel

from retrieval import InputError
from retrieval.evaluation.comparison import Comparison, Contender, compare_reports, load_contenders
from retrieval.evaluation.findings import ImageSet, find_mistakes
from retrieval.evaluation.report import OFF_THE_SHELF, Report, trained_note
from retrieval.evaluation.score import Result, evaluate
from retrieval.metrics.statistics import holm, mcnemar
from retrieval.model.training_images import UNKNOWN
from retrieval.reports.comparison import render_comparison
from retrieval.reports.folder import save_comparison, save_report
from retrieval.reports.text_tables import comparison_table
from tests.conftest import draw, lookalike_here

NAMES = ("cat", "dog", "<i>cow</i>", "hen")


def report(
    root: Path, seed: int, *, noise: float = 0.7, kept: Sequence[int] = range(40), data: str = "folder:zoo"
) -> Report:
    """Report of a model of four classes, worse with more noise, on some of 40 images."""
    random = np.random.default_rng(seed)
    labels = np.arange(40) % 4
    vectors = (np.eye(4, 8)[labels] + noise * random.normal(size=(40, 8)))[list(kept)]
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    numbers = labels[list(kept)]
    paths = [root / f"class{labels[i]}" / f"{i}.png" for i in kept]
    side = ImageSet(paths, [NAMES[number] for number in numbers], [f"{i:064x}" for i in kept])
    evaluation = evaluate("after training", vectors, numbers)
    return Report(
        data=data,
        protocol="each searched for among all the others",
        images=len(numbers),
        classes=4,
        fingerprint=None,
        results=[evaluation.result],
        seed=seed,
        findings=find_mistakes(evaluation, side, side),
    )


def right(report: Report) -> np.ndarray:
    """Whether each query finds its class first, bool [N]."""
    assert report.findings is not None
    return np.array(report.findings.queries.first_right) == 1


def side_by_side(**reports: Report | Sequence[Report]) -> Comparison:
    return compare_reports(
        [Contender(name, (r,) if isinstance(r, Report) else tuple(r)) for name, r in reports.items()]
    )


def test_two_models_are_compared_query_by_query(tmp_path: Path) -> None:
    poor, good = report(tmp_path, 1, noise=1.0), report(tmp_path, 2, noise=0.5)
    found = side_by_side(poor=poor, good=good)
    first, other = found.rows
    assert first.differences == {}
    assert other.differences["recall_at_1"] == pytest.approx(right(good).mean() - right(poor).mean())
    assert other.differences["nmi"] == pytest.approx(
        good.results[0].values["nmi"] - poor.results[0].values["nmi"]
    )
    assert other.tests == {}
    (pair,) = found.pairs
    gained, lost = right(good) & ~right(poor), right(poor) & ~right(good)
    assert (pair.queries, pair.gained, pair.lost) == (40, gained.sum(), lost.sum())
    assert pair.mcnemar is not None
    assert (pair.mcnemar.only_ours, pair.mcnemar.only_theirs) == (gained.sum(), lost.sum())
    assert poor.findings is not None
    paths = np.array(poor.findings.queries.path)
    assert {query.path for query in pair.gained_queries} == set(paths[gained])
    assert {query.path for query in pair.lost_queries} == set(paths[lost])
    assert all((query.first, query.other) == (0, 1) for query in pair.gained_queries)
    changes = {change.name: change for change in pair.classes}
    labels = np.array([NAMES[i % 4] for i in range(40)])
    for name in NAMES:
        assert changes[name].queries == 10
        assert changes[name].first == pytest.approx(right(poor)[labels == name].mean())
        assert changes[name].other == pytest.approx(right(good)[labels == name].mean())
    differences = [change.other - change.first for change in pair.classes]
    assert differences == sorted(differences, reverse=True)
    assert found.notes == []


def test_groups_are_compared_over_their_runs(tmp_path: Path) -> None:
    poor = [report(tmp_path, seed, noise=1.0) for seed in (1, 2, 3)]
    good = [report(tmp_path, seed, noise=0.6) for seed in (4, 5, 6)]
    found = side_by_side(poor=poor, good=good)
    first, other = found.rows
    recalls = [[r.results[0].values["recall_at_1"] for r in group] for group in (poor, good)]
    assert first.numbers["recall_at_1"].mean == pytest.approx(statistics.mean(recalls[0]))
    assert first.numbers["recall_at_1"].std == pytest.approx(statistics.stdev(recalls[0]))
    assert (first.runs, first.seeds, other.seeds) == (3, [1, 2, 3], [4, 5, 6])
    spread = sum(statistics.variance(group) / 3 for group in recalls) ** 0.5
    assert other.tests["recall_at_1"].t == pytest.approx(
        (statistics.mean(recalls[1]) - statistics.mean(recalls[0])) / spread
    )
    (pair,) = found.pairs
    assert pair.mcnemar is None
    share = np.mean([right(r) for r in good], 0) - np.mean([right(r) for r in poor], 0)
    assert (pair.gained, pair.lost) == ((share > 1e-9).sum(), (share < -1e-9).sum())
    clearest = pair.gained_queries[0]
    assert clearest.other - clearest.first == pytest.approx(share.max())


def test_groups_with_the_same_seeds_are_compared_in_pairs(tmp_path: Path) -> None:
    poor = [report(tmp_path, seed, noise=1.0) for seed in (1, 2, 3)]
    good = [report(tmp_path, seed, noise=0.6) for seed in (3, 1, 2)]
    found = side_by_side(poor=poor, good=good)
    other = found.rows[1]
    recalls = [[r.results[0].values["recall_at_1"] for r in group] for group in (poor, [*good[1:], good[0]])]
    expected = ttest_rel(recalls[1], recalls[0])
    assert other.tests == {}
    pair = other.paired["recall_at_1"]
    assert (pair.n, pair.t, pair.p) == (3, pytest.approx(expected.statistic), pytest.approx(expected.pvalue))
    assert pair.difference == pytest.approx(other.differences["recall_at_1"])
    shown = comparison_table(found)
    assert shown.splitlines()[2].split()[-1] == f"{pair.p:.3f}"
    assert "paired t-test (same seeds), two-sided" in shown


def test_off_the_shelf_backbones_are_shown_once_each(tmp_path: Path) -> None:
    """Two contenders share one, the third has another, the fourth none."""

    def with_backbone(seed: int, recall: float) -> Report:
        found = report(tmp_path, seed)
        coarse = Result(OFF_THE_SHELF, {"recall_at_1": 1.0}, by="group")
        ours = [Result(OFF_THE_SHELF, {"recall_at_1": recall}), coarse, *found.results]
        return dataclasses.replace(found, results=ours)

    one, two = with_backbone(0, 0.25), with_backbone(1, 0.25)
    same = side_by_side(a=one, b=[two, with_backbone(2, 0.25)], plain=report(tmp_path, 3))
    assert [row.name for row in same.rows] == ["a", "b", "plain", OFF_THE_SHELF]
    row = same.rows[-1]
    assert (row.runs, row.numbers["recall_at_1"].mean) == (1, 0.25)
    assert row.differences["recall_at_1"] == pytest.approx(0.25 - one.headline.values["recall_at_1"])
    assert OFF_THE_SHELF in comparison_table(same)
    several = side_by_side(a=one, b=two, c=with_backbone(3, 0.5))
    assert [row.name for row in several.rows[3:]] == [f"{OFF_THE_SHELF} of a, b", f"{OFF_THE_SHELF} of c"]
    save_comparison(several, tmp_path / "out")
    assert f"{OFF_THE_SHELF} of a, b" in (tmp_path / "out" / "compare.html").read_text()


def test_group_and_single_report_have_no_test(tmp_path: Path) -> None:
    found = side_by_side(one=report(tmp_path, 1), many=[report(tmp_path, 2), report(tmp_path, 3)])
    assert (found.rows[1].tests, found.pairs[0].mcnemar) == ({}, None)
    assert comparison_table(found).splitlines()[2].split()[-1] == "-"


def test_reports_without_shared_queries_are_refused(tmp_path: Path) -> None:
    ours = report(tmp_path, 1)
    elsewhere = report(tmp_path, 2, data="folder:farm")
    assert ours.findings is not None
    assert elsewhere.findings is not None
    other_queries = dataclasses.replace(elsewhere.findings.queries, content=["ffffffffffff"] * 40)
    other_files = dataclasses.replace(
        elsewhere, findings=dataclasses.replace(elsewhere.findings, queries=other_queries)
    )
    with pytest.raises(InputError, match="data 'folder:farm', not 'folder:zoo'"):
        side_by_side(ours=ours, theirs=other_files)
    with pytest.raises(InputError, match="files of other names or contents"):
        side_by_side(ours=ours, theirs=dataclasses.replace(other_files, data=ours.data))
    found = side_by_side(ours=ours, theirs=elsewhere)
    assert found.pairs[0].queries == 40
    assert found.notes == ["theirs differs from ours: data 'folder:farm', not 'folder:zoo'."]


def test_only_shared_queries_are_compared(tmp_path: Path) -> None:
    found = side_by_side(all=report(tmp_path, 1), some=report(tmp_path, 2, kept=range(8, 40)))
    assert found.pairs[0].queries == 32
    assert "images '32', not '40'; that alone changes what is found." in found.notes[0]


def test_reports_without_findings_are_compared_by_their_numbers(tmp_path: Path) -> None:
    old = dataclasses.replace(report(tmp_path, 1), findings=None)
    found = side_by_side(old=old, new=report(tmp_path, 2))
    assert found.pairs == []
    assert "recall_at_1" in found.rows[1].differences
    assert "queries of old are unknown" in found.notes[0]
    with pytest.raises(InputError, match="not evaluated on the same data"):
        side_by_side(old=old, new=report(tmp_path, 2, kept=range(8, 40)))


def test_single_report_is_refused_and_repeated_seeds_are_noted(tmp_path: Path) -> None:
    ours = report(tmp_path, 1)
    with pytest.raises(InputError, match="at least two reports"):
        side_by_side(ours=ours)
    found = side_by_side(twice=[ours, ours], other=report(tmp_path, 2))
    assert "twice has several runs of one seed" in found.notes[0]


def test_contender_that_may_have_been_trained_on_the_images_is_named(tmp_path: Path) -> None:
    trained = dataclasses.replace(report(tmp_path, 1), notes=(trained_note(UNKNOWN),))
    found = side_by_side(plain=report(tmp_path, 2), trained=trained)
    assert found.notes == ["trained may have been trained on these images, which flatters it."]


def test_page_escapes_names_and_has_thumbnails(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"class{number % 4}").mkdir(exist_ok=True)
        draw(number, hue=number % 4).save(tmp_path / f"class{number % 4}" / f"{number}.png")
    models = {"<b>poor</b>": report(tmp_path, 1, noise=1.0), "good $x_1$": report(tmp_path, 2, noise=0.5)}
    found = side_by_side(**models)
    save_comparison(found, tmp_path / "out")
    page = (tmp_path / "out" / "compare.html").read_text()
    assert "&lt;b&gt;poor&lt;/b&gt;" in page
    assert "<b>poor" not in page
    assert "<i>cow" not in page
    assert "<script" not in page
    (pair,) = found.pairs
    shown = min(14, pair.gained) + min(14, pair.lost)
    assert page.count("src='data:image/webp;base64,") == 3 * shown  # the query and two answers
    kept = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert kept["rows"][1]["differences"]["recall_at_1"] == found.rows[1].differences["recall_at_1"]
    assert kept == json.loads(json.dumps(found.to_dict()))


def test_answers_and_tests_by_class_are_those_of_the_models(tmp_path: Path) -> None:
    poor, good = report(tmp_path, 1, noise=1.0), report(tmp_path, 2, noise=0.5)
    (pair,) = side_by_side(poor=poor, good=good).pairs
    assert pair.identical is False
    assert poor.findings is not None
    assert good.findings is not None
    places = {path: at for at, path in enumerate(poor.findings.queries.path)}
    for change in (*pair.gained_queries, *pair.lost_queries):
        at = places[change.path]
        assert (change.first_answer, change.other_answer) == (
            poor.findings.nearest(at),
            good.findings.nearest(at),
        )
        assert change.other_answer is not None
        assert change.other_answer.right == (change.other == 1)
    labels = np.array(poor.findings.queries.label)
    names = [poor.findings.classes.name[number] for number in range(4)]
    alone = [mcnemar(right(good)[labels == n], right(poor)[labels == n]).p for n in range(4)]
    assert {one.name: one.p for one in pair.classes} == pytest.approx(
        dict(zip(names, holm(alone), strict=True))
    )


def test_same_embeddings_are_said_to_be_the_same(tmp_path: Path) -> None:
    found = side_by_side(one=report(tmp_path, 1), two=report(tmp_path, 1))
    assert found.pairs[0].identical is True
    assert "they have the same embeddings" in render_comparison(found)
    assert "+0.0" not in render_comparison(found).partition("All numbers")[0]


def test_the_same_protocol_in_other_words_is_no_difference(tmp_path: Path) -> None:
    ours = report(tmp_path, 1)
    theirs = dataclasses.replace(
        report(tmp_path, 2), protocol="each searched for in a gallery of 40 images, itself left out"
    )
    assert side_by_side(ours=ours, theirs=theirs).notes == []
    more = dataclasses.replace(
        theirs, protocol="each searched for in a gallery of 41 images, itself left out"
    )
    assert "protocol" in side_by_side(ours=ours, more=more).notes[0]


def test_table_has_differences_and_p(tmp_path: Path) -> None:
    found = side_by_side(poor=report(tmp_path, 1, noise=1.5), good=report(tmp_path, 2, noise=0.3))
    head, poor, good, verdict, *notes = comparison_table(found).splitlines()
    assert head.split()[:5] == ["runs", "R@1", "R@2", "R@4", "R@8"]
    assert poor.split()[-2:] == ["-", "-"]
    assert good.split()[-2] == f"{100 * found.rows[1].differences['recall_at_1']:+.1f}"
    assert found.pairs[0].verdict is not None
    assert verdict == found.pairs[0].verdict.sentence
    assert "for these 4 classes, too few to speak for others" in verdict
    assert "McNemar" in notes[0]


# ---- arguments


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of reports as written by the commands."""
    folder = tmp_path_factory.mktemp("runs")
    places = ("a/report", "b/report", "sweep/sct/seed-0", "sweep/sct/seed-1", "sweep/raw/seed-0", "lr=1")
    for seed, place in enumerate(places):
        save_report(report(folder / "pictures", seed), folder / place)
    (folder / "sweep" / "results.json").write_text("{}")
    (folder / "zoo").mkdir()
    return folder


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a/report", "b/report"], {"a": [0], "b": [1]}),
        (["a/report", "b/report/report.json"], {"a": [0], "b": [1]}),
        (["a", "sweep/sct"], {"a": [0], "sct": [2, 3]}),
        (["sweep/sct/seed-0", "sweep/raw/seed-0"], {"sct": [2], "raw": [4]}),
        (["sweep/sct/seed-0", "sweep/sct/seed-1", "a"], {"seed-0": [2], "seed-1": [3], "a": [0]}),
        (
            ["sweep/sct/seed-0", "sweep/raw/seed-0", "sweep/sct/seed-1"],
            {"sct/seed-0": [2], "raw/seed-0": [4], "sct/seed-1": [3]},
        ),
        (["sweep/sct/", "sweep/raw/"], {"sct": [2, 3], "raw": [4]}),
        (["old=a/report", "new=b/report,sweep/raw/seed-0"], {"old": [0], "new": [1, 4]}),
        (["sct=sweep/sct/seed-*", "a/report"], {"sct": [2, 3], "report": [0]}),
        (["x=sweep/sct,sweep/sct/seed-1", "b/report"], {"x": [2, 3], "report": [1]}),
    ],
)
def test_arguments_select_and_name_reports(
    runs: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: dict[str, list[int]]
) -> None:
    monkeypatch.chdir(runs)
    found = load_contenders(words)
    assert {c.name: [report.seed for report in c.reports] for c in found} == expected


def test_path_may_contain_an_equals_sign(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    assert [contender.name for contender in load_contenders(["lr=1", "b"])] == ["lr=1", "b"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("nowhere", "nowhere: no such report"),
        ("x=a/report,nowhere-*", "nowhere-.*: no such report"),
        ("zoo", "zoo: no report.json here"),
        ("sweep/results.json", "no report.json here"),
        ("x=", "NAME=REPORT"),
        ("=a", "NAME=REPORT"),
        ("a/report,b/report", "'a/report,b/report': several reports need a name; write NAME=REPORT,REPORT"),
    ],
)
def test_argument_without_a_report_is_refused(
    runs: Path, monkeypatch: pytest.MonkeyPatch, word: str, message: str
) -> None:
    monkeypatch.chdir(runs)
    with pytest.raises(InputError, match=message):
        load_contenders([word, "b/report"])


def test_repeated_name_is_refused(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    with pytest.raises(InputError, match="x: named twice"):
        load_contenders(["x=a", "x=b"])
    with pytest.raises(InputError, match=r"^a: named twice"):
        load_contenders(["a", "a"])


def test_command_prints_and_writes_the_comparison(runs: Path, tmp_path: Path) -> None:
    words = ["compare", "old=a/report", "sweep/sct/", "--out", str(tmp_path / "c"), "--json"]
    printed = json.loads(lookalike_here(*words, cwd=runs).stdout)
    assert [(row["name"], row["runs"]) for row in printed["rows"]] == [("old", 1), ("sct", 2)]
    assert json.loads((tmp_path / "c" / "compare.json").read_text()) == printed
    assert (tmp_path / "c" / "compare.html").is_file()
    assert "no such report" in lookalike_here("compare", "a", "nowhere", code=2, cwd=runs).stderr
