"""The evaluation tab without a browser: evaluations, reports, figures and failures."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval import Gallery
from retrieval.analysis.embeddings import Embeddings
from retrieval.analysis.triplets import triplets
from retrieval.evaluation.report import Report, kept_reports
from retrieval.reports.folder import evaluate_and_keep, save_report
from serve.core.background import Background
from serve.core.reports import report_summaries
from serve.core.service import SearchService
from serve.page.evaluation import EvaluationTab
from serve.page.figures import Figures
from serve.page.reports import ReportChoice, Reports
from tests.conftest import draw
from tests.retrieval.filling import bare_gallery, commit, new_items, unit_vectors
from tests.retrieval.reports.html_page import Page
from tests.serve.page.page_events import send_event
from tests.serve.serving import SERVE, serving

_NASTY = "<img src=x onerror=alert(1)>'\"&"


@pytest.fixture
def service(shop_gallery: Path, tmp_path: Path) -> SearchService:
    """A copy of the shop that tests may change."""
    shutil.copytree(shop_gallery, tmp_path / "shop.gallery")
    return SearchService(tmp_path / "shop.gallery")


@pytest.fixture
def confused(shop: Path, model_file: Path, tmp_path: Path) -> SearchService:
    """The shop with labels unrelated to the images."""
    gallery = Gallery.create(tmp_path / "shop.gallery", model_file)
    paths = sorted(shop.glob("*/*.png"))
    gallery.add(paths, metadata=[{"label": str(number % 5)} for number in range(len(paths))])
    return SearchService(tmp_path / "shop.gallery")


def until(look: Callable[[], str], *, running: bool = False) -> str:
    """Wait until work has ended, or, with `running`, started, and return what is shown."""
    for _ in range(600):
        if ("data-running" in (text := look())) == running:
            return text
        time.sleep(0.05)
    raise AssertionError(text)


def opened(service: SearchService, choice: ReportChoice | None = None) -> tuple[str, dict[str, object], str]:
    return EvaluationTab(service).open(choice or ReportChoice())


def searching(page: Page) -> list[tuple[int, str | None]]:
    """The item of each search button, and the file name of its image."""
    return [
        (int(str(attributes["data-search"])), inside.get("alt"))
        for (tag, attributes), (_, inside) in pairwise(page.tags)
        if tag == "button" and "data-search" in attributes
    ]


# ---- measuring


def test_evaluation_runs_once_for_each_state(service: SearchService) -> None:
    tab = EvaluationTab(service)
    measure, _, report = tab.open(ReportChoice())
    assert "data-evaluate" in measure
    assert "no evaluation yet" in report
    tab.start()
    until(lambda: tab.poll()[0])
    measure, form, report = tab.open(ReportChoice())
    assert "data-evaluate" not in measure
    assert "in its current state" in measure
    (folder,) = kept_reports(service.folder)
    assert form["report"] == folder.name
    assert "Recall@1" in report
    tab.start()
    assert kept_reports(service.folder) == [folder], "what is known is not measured again"
    assert "in its current state" in opened(service)[0], "nor by who comes later"
    service.gallery.remove([1])
    assert "data-evaluate" in opened(service)[0]
    tab.start()
    until(lambda: tab.open(ReportChoice())[0])
    assert len(kept_reports(service.folder)) == 2


def test_second_start_joins_the_running_evaluation(service: SearchService, tmp_path: Path) -> None:
    """No other background work starts in the process meanwhile."""
    tab, other, go = EvaluationTab(service), Background[str](), threading.Event()
    other.start("long", lambda: "done" if go.wait(30) else "")
    message = tab.start()
    assert "other long work is running" in message
    assert "data-evaluate" in message
    figures = Figures(service)
    assert "Waiting" in figures.open(SimpleNamespace(of="triplets"))  # type: ignore[arg-type]
    go.set()
    while other.status().running:
        time.sleep(0.01)
    assert other.status().result == "done"
    shown = [tab.start() for _ in range(5)]
    assert all("data-running" in one or "in its current state" in one for one in shown)
    until(lambda: tab.open(ReportChoice())[0])
    assert len(kept_reports(service.folder)) == 1
    assert "<figure>" in until(lambda: figures.poll(SimpleNamespace(of="triplets")))  # type: ignore[arg-type]


def test_gallery_without_labels_cannot_be_evaluated(tmp_path: Path, model_file: Path) -> None:
    (tmp_path / "flat").mkdir()
    for seed in range(3):
        draw(seed).save(tmp_path / "flat" / f"{seed}.png")
    Gallery.create(tmp_path / "g", model_file).add([tmp_path / "flat"])
    measure, _, _ = opened(SearchService(tmp_path / "g", name="flat"))
    assert "flat: none of its images has a label" in measure
    assert "button" not in measure
    assert str(tmp_path) not in measure


def test_failed_evaluation_hides_paths_and_can_be_retried(service: SearchService, tmp_path: Path) -> None:
    shutil.rmtree(service.folder / "reports")
    (service.folder / "reports").touch()
    tab = EvaluationTab(service)
    tab.start()
    said = until(lambda: tab._measure())
    assert "cannot keep a report" in said
    assert "data-evaluate" in said, "it can be tried again"
    assert str(tmp_path) not in said
    (service.folder / "reports").unlink()
    tab.start()
    assert "in its current state" in until(lambda: tab._measure())


@pytest.mark.slow
def test_shutdown_does_not_wait_for_an_evaluation(tmp_path: Path) -> None:
    gallery = bare_gallery(tmp_path / "g")
    with gallery.store.writing():
        items = new_items([f"{n % 9}{n}" for n in range(25_000)])
        gallery.store.commit(unit_vectors(25_000), items)
    with serving([*SERVE, str(tmp_path / "g")], tmp_path / "scratch", forked=True) as server:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            until(lambda: str(send_event(client, "submit", [], "measure")["output"]["data"]), running=True)
        begun = time.monotonic()
        code, said = server.stop()
        assert time.monotonic() - begun < 25
    assert code == 0
    assert "Traceback" not in said
    assert kept_reports(tmp_path / "g") == []
    assert len(Gallery.open(tmp_path / "g")) == 25_000


# ---- reports


def test_reports_are_chosen_and_compared(service: SearchService) -> None:
    for _ in range(2):
        evaluate_and_keep(service.gallery)
        service.gallery.remove([service.gallery.embeddings().ids[-1].item()])
    old, new = kept_reports(service.folder)
    reports = Reports(service)
    listed = report_summaries(service.folder)
    assert [report.folder for report in listed] == [new, old], "newest first"
    recall = Report.load(new).headline.values["recall_at_1"]
    assert f"Recall@1 {100 * recall:.1f}%" in listed[0].title
    titles = tuple((report.folder.name, report.title) for report in listed)
    assert reports.current(ReportChoice()) == ReportChoice(new.name, "", titles)
    assert reports.current(ReportChoice(old.name, new.name)) == ReportChoice(old.name, new.name, titles)
    assert reports.current(ReportChoice("gone", new.name)) == ReportChoice(new.name, "", titles)
    tab = EvaluationTab(service)
    alone, both = tab.show_report(ReportChoice(old.name)), tab.show_report(ReportChoice(new.name, old.name))
    assert "24 query images" in alone
    assert "23 query images" in tab.show_report(ReportChoice(new.name))
    assert "difference to" in both
    assert "difference to" not in alone
    assert " differs from " in both
    assert tab.show_report(ReportChoice(old.name)) is alone, "it is drawn once"


def test_unusable_reports_give_the_reason(service: SearchService, tmp_path: Path) -> None:
    ours = evaluate_and_keep(service.gallery)
    other = Report("folder:other", "each searches the others", 3, 2, None, ours.results)
    strange = Report(**{**vars(ours), "data": "y", "findings": None})
    for name, report in (("other", other), ("strange", strange)):
        save_report(report, service.folder / "reports" / name)
    (service.folder / "reports" / "broken").mkdir()
    (service.folder / "reports" / "broken" / "report.json").write_text("{}")
    tab, name = EvaluationTab(service), kept_reports(service.folder)[0].name
    assert "not evaluated on the same data" in tab.show_report(ReportChoice("other", name))
    assert "evaluate again" in tab.show_report(ReportChoice("broken"))
    assert str(tmp_path) not in tab.show_report(ReportChoice("broken"))
    titles = [title for _, title in opened(service)[1]["reports"]]  # type: ignore[misc]
    assert "broken: not readable" in titles


def test_report_names_cannot_be_paths(service: SearchService) -> None:
    save_report(evaluate_and_keep(service.gallery), service.folder.parent / "shop")
    (folder,) = kept_reports(service.folder)
    tab = EvaluationTab(service)
    for name in ("../../shop", "/etc", "..", "nowhere", "\0"):
        for choice in (ReportChoice(name), ReportChoice(folder.name, name)):
            _, form, _ = tab.open(choice)
            assert (form["report"], form["against"]) == (folder.name, "")
            assert "no longer exists" in tab.show_report(choice)


def test_invalid_choices_are_ignored() -> None:
    sent = {"report": "a", "against": None, "more": 1, "reports": [["x"], 7, [1, "title"], ["a", "b"]]}
    assert ReportChoice.parse(sent) == ReportChoice("a", "None", (("1", "title"), ("a", "b")))
    for value in (None, "x", [], {}, {"reports": 5}):
        assert ReportChoice.parse(value) == ReportChoice()


@given(st.builds(ReportChoice, st.text(), st.text(), st.lists(st.tuples(st.text(), st.text())).map(tuple)))
def test_choice_round_trip(choice: ReportChoice) -> None:
    assert ReportChoice.parse(json.loads(json.dumps(choice.fields()))) == choice


def test_report_images_search_with_their_items(confused: SearchService) -> None:
    service = confused
    evaluate_and_keep(service.gallery)
    (folder,) = kept_reports(service.folder)
    findings = Report.load(folder).findings
    assert findings is not None
    page = EvaluationTab(service).show_report(ReportChoice(folder.name))
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
    page = EvaluationTab(service).show_report(ReportChoice(folder.name))
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
    page = EvaluationTab(service).show_report(ReportChoice("others"))
    assert "<img" in page
    assert searching(Page(page)) == []
    assert "are not in this gallery, so they cannot" in page


# ---- figures


def figure(figures: Figures, name: str) -> str:
    event = SimpleNamespace(of=name)
    figures.open(event)  # type: ignore[arg-type]
    return until(lambda: figures.poll(event))  # type: ignore[arg-type]


def test_triplet_diagram_shows_the_labelled_images(service: SearchService) -> None:
    stored = service.gallery.embeddings()
    vectors, labels = stored.vectors, stored.labels
    share = triplets(Embeddings("shop", vectors, np.array(labels))).hard_share
    shown = figure(Figures(service), "triplets")
    assert f"of {100 * share:.1f}% of the images another class is nearer" in shown
    assert "24 labelled images" in shown
    assert 'data-figure="triplets" aria-pressed="true"' in shown


def test_figure_is_computed_once_for_each_state(service: SearchService) -> None:
    figures = Figures(service)
    figure(figures, "triplets")
    made = figures._works["triplets"].status().result
    assert figure(figures, "triplets").endswith(str(made))
    assert figures._works["triplets"].status().result is made
    service.gallery.remove([1])
    assert "23 labelled images" in figure(figures, "triplets")
    assert 'aria-pressed="true"' not in figures.open(SimpleNamespace(of=""))  # type: ignore[arg-type]
    assert 'aria-pressed="true"' not in figures.open(SimpleNamespace(of="other"))  # type: ignore[arg-type]


def test_figure_of_too_few_images_gives_the_reason(tmp_path: Path) -> None:
    gallery = bare_gallery(tmp_path / "g")
    commit(gallery, ["a1", "b1"])
    service = SearchService(tmp_path / "g", name="tiny")
    assert "tiny: no two of its images share a label" in figure(Figures(service), "triplets")
