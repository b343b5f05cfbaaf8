"""Evaluation of a gallery on its own labelled images, against brute force; kept reports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval import Gallery, InputError
from retrieval.evaluation.gallery import check_labels, evaluate_gallery
from retrieval.evaluation.report import Report, kept_reports
from retrieval.progress import Progress, Stage, progress_listener
from retrieval.reports.folder import evaluate_and_keep
from retrieval.storage.records import UPLOADS, Change, FileStamp, IndexSpec, NewItem
from tests.conftest import draw, lookalike_here
from tests.retrieval.filling import bare_gallery, small_gallery, unit_vectors


def filled(folder: Path, labels: Sequence[str | None], seed: int = 0) -> Gallery:
    """A gallery of random vectors with these labels and without files."""
    gallery = bare_gallery(folder)
    items = [
        NewItem(FileStamp("/pictures", f"{n}.jpg", 1, 1, label), f"{n:064x}", 4, 3)
        for n, label in enumerate(labels)
    ]
    with gallery.store.writing():
        gallery.store.commit(unit_vectors(len(labels), seed), items)
    gallery.refresh()
    return gallery


def recall_at(k: int, vectors: np.ndarray, labels: Sequence[str | None], asked: Sequence[int]) -> float:
    """Recall@k by a loop over the queries that have another image of their label."""
    found = []
    for query in asked:
        others = [row for row in range(len(labels)) if row != query]
        right = [labels[row] == labels[query] for row in others]
        if any(right):
            nearest = np.argsort(-(vectors[others] @ vectors[query]), kind="stable")[:k]
            found.append(any(right[n] for n in nearest))
    return float(np.mean(found))


@given(
    labels=st.lists(st.sampled_from(["a", "b", "c", None]), min_size=6, max_size=40), seed=st.integers(0, 9)
)
@settings(max_examples=15)
def test_each_labelled_image_searches_all_others(
    tmp_path_factory: pytest.TempPathFactory, labels: list[str | None], seed: int
) -> None:
    labels = ["a", "a", "b", *labels]
    gallery = filled(tmp_path_factory.mktemp("g") / "g", labels, seed)
    report = evaluate_gallery(gallery)
    asked = [row for row, label in enumerate(labels) if label]
    (result,) = report.results
    for k in (1, 2, 8):
        expected = recall_at(k, unit_vectors(len(labels), seed), labels, asked)
        assert result.values[f"recall_at_{k}"] == pytest.approx(expected)
    assert (report.images, report.classes) == (len(asked), len(set(labels) - {None}))
    assert report.fingerprint == gallery.fingerprint
    assert any("without a label" in note for note in report.notes) == (None in labels)
    assert report.findings is not None
    assert report.findings.queries.content == [f"{row:064x}"[:12] for row in asked]


def test_gallery_keeps_its_reports(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g", ["a", "a", "b", "b", None])
    reports = [evaluate_and_keep(gallery) for _ in range(3)]
    places = kept_reports(gallery.folder)
    assert [Report.load(place) for place in places] == reports, "also reports of the same second"
    assert {report.gallery_state for report in reports} == {gallery.state_digest()}
    (gallery.folder / "reports" / "9999").mkdir()
    (gallery.folder / "reports" / "9999" / "report.html").touch()
    assert kept_reports(gallery.folder) == places, "incomplete reports are ignored"


def test_what_an_evaluation_that_ended_has_left_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object) -> None:
        raise KeyboardInterrupt

    gallery = filled(tmp_path / "g", ["a", "a", "b", "b"])
    with monkeypatch.context() as patch:
        patch.setattr(Report, "save", end)
        with pytest.raises(KeyboardInterrupt):
            evaluate_and_keep(gallery)
    assert [*gallery.folder.glob("reports/**/report.html")]
    assert kept_reports(gallery.folder) == []
    evaluate_and_keep(gallery)
    (kept,) = kept_reports(gallery.folder)
    assert {path.name for path in kept.parent.iterdir()} == {kept.name, "LOCK"}
    assert {path.name for path in kept.iterdir()} == {"report.html", "report.json"}


def test_beyond_the_limit_a_sample_searches_the_whole_gallery(tmp_path: Path) -> None:
    labels = [None if n % 5 == 0 else "ab"[n % 2] for n in range(60)]
    gallery = filled(tmp_path / "g", labels)
    report = evaluate_gallery(gallery, limit=20)
    assert report == Report(**{**vars(evaluate_gallery(gallery, limit=20)), "created": report.created})
    assert (report.images, len(report.notes)) == (20, 2)
    assert "sample of the 48" in report.notes[0]
    assert report.findings is not None
    asked = [int(Path(path).stem) for path in report.findings.queries.path]
    assert all(labels[row] for row in asked)
    expected = recall_at(1, unit_vectors(60), labels, asked)
    assert report.results[0].values["recall_at_1"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ([], "it has no images"),
        ([None, None, ""], "none of its images has a label"),
        (["a", "a", None], "of one class"),
        (["a", "b", None], "no two of its images share a label"),
    ],
)
def test_insufficient_labels_are_refused(tmp_path: Path, labels: list[str | None], why: str) -> None:
    gallery = filled(tmp_path / "g", labels)
    for function in (check_labels, evaluate_gallery, evaluate_and_keep):
        with pytest.raises(InputError, match=why):
            function(gallery)
    assert kept_reports(gallery.folder) == []


def test_state_changes_with_the_content(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g", ["a", "a", "b", "b"])
    states = [gallery.state_digest()]
    evaluate_and_keep(gallery)
    with gallery.store.writing():
        gallery.build_index(IndexSpec("hnsw"))
    assert Gallery.open(gallery.folder).state_digest() == states[0], (
        "neither a report nor an index is a change"
    )
    with gallery.store.writing():
        gallery.store.amend([Change(4, stamp=FileStamp("/pictures", "3.jpg", 1, 1, "a"))])
    states.append(gallery.state_digest())
    gallery.remove([1])
    states.append(gallery.state_digest())
    states.append(filled(tmp_path / "h", ["a", "a", "b", "b"]).state_digest())
    assert len(set(states)) == 4


def test_unwritable_gallery_is_refused_before_any_work(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g", ["a", "a", "b"])
    (gallery.folder / "reports").rmdir()
    (gallery.folder / "reports").touch()
    stages: list[Stage] = []
    with progress_listener(stages.append), pytest.raises(InputError, match="cannot keep a report"):
        evaluate_and_keep(gallery)
    assert stages == [], "before any work"


def test_progress_is_reported_and_can_be_cancelled(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g", ["a", "b"] * 20)
    stages: list[Stage] = []
    with progress_listener(stages.append):
        evaluate_and_keep(gallery)
    assert list(dict.fromkeys(stage.what for stage in stages)) == [
        *("reading", "searching", "comparing all pairs", "clustering", "writing the report"),
    ]
    for what in {stage.what for stage in stages}:
        done = [stage.done for stage in stages if stage.what == what]
        assert done == sorted(done)
        assert (done[0], done[-1]) == (0, {"clustering": 5, "writing the report": 2}.get(what, 40))

    def end(stage: Stage) -> None:
        if stage.what == "clustering":
            raise TimeoutError

    with progress_listener(end), pytest.raises(TimeoutError):
        evaluate_and_keep(gallery)
    assert len(kept_reports(gallery.folder)) == 1
    with Progress("without a listener", 1, show=False) as progress:
        progress.update()
    assert stages[-1].what == "writing the report"


def test_items_are_found_by_their_paths(tmp_path: Path, shop: Path) -> None:
    """Files of a folder, files kept by the gallery, and items without a file."""
    gallery = small_gallery(tmp_path)
    gallery.add([shop])
    (gallery.folder / UPLOADS).mkdir()
    draw(77).save(gallery.folder / UPLOADS / "kept.png")
    stamps = [FileStamp(UPLOADS, "kept.png", 1, 1), FileStamp("", "", 0, 0), FileStamp("", "", 0, 0)]
    items = [NewItem(stamp, "", 0, 0, key=key) for stamp, key in zip(stamps, "kxy", strict=True)]
    with gallery.store.writing():
        gallery.store.commit(unit_vectors(3), items)
    gallery.refresh()
    ids = gallery.embeddings().ids.tolist()
    assert len(ids) == 27
    places = list(gallery.paths.lazy(ids))
    assert [gallery.item_at(place) for place in places] == ids
    assert sum(place.is_file() for place in places) == 25
    assert [gallery.item_at(place) for place in (shop, shop / "red" / "9.png", tmp_path / "elsewhere")] == [
        None
    ] * 3
    gallery.remove([ids[0], ids[-1]])
    assert [gallery.item_at(places[n]) for n in (0, 1, -1)] == [None, ids[1], None]


def test_command_needs_no_data_set_and_no_torch(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g", ["a", "a", "b", "b"])
    program = (
        "import sys; sys.modules['torch'] = sys.modules['yaml'] = None\n"
        f"from retrieval.cli import main; main(['evaluate', {str(gallery.folder)!r}, '--json'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (folder,) = kept_reports(gallery.folder)
    assert json.loads(done.stdout) == json.loads((folder / "report.json").read_text())
    assert "no such run" in lookalike_here("evaluate", str(tmp_path / "nowhere"), code=2).stderr
    assert "--data" in lookalike_here("evaluate", str(tmp_path), code=2).stderr
    refused = lookalike_here("evaluate", str(gallery.folder), "--baseline", "pixels", code=2)
    assert "--data" in refused.stderr
