"""Folders of reports and comparisons: JSON and HTML side by side, alone or kept in a gallery."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

from retrieval.errors import InputError
from retrieval.evaluation.comparison import Comparison, judge_reports
from retrieval.evaluation.gallery import check_labels, evaluate_gallery
from retrieval.evaluation.report import REPORT_FILE, REPORTS_FOLDER, Report, json_lines, kept_reports
from retrieval.files import file_lock, write_texts
from retrieval.galleries.searchable import SearchableGallery
from retrieval.progress import Progress
from retrieval.reports.comparison import render_comparison
from retrieval.reports.pages import document
from retrieval.reports.report import render_report
from retrieval.system import fsync_folder

REPORT_PAGE = "report.html"
_DRAFTS, _LOCK = "drafts", "LOCK"  # in the folder of reports that a gallery keeps


def save_report(report: Report, folder: Path) -> None:
    """Write report.html and report.json into a folder, created if missing; report.json comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    page = document(f"Lookalike: {report.data}", render_report(report))
    write_texts(folder, {REPORT_PAGE: page})
    report.save(folder)


def set_aside(report: Report, folder: Path) -> Path | None:
    """Move another report out of a folder that is to get this one, into FOLDER-1 or the next free number.

    Args:
        report: The new report.
        folder: Its folder, which may not exist.

    Returns:
        Folder of the earlier report; `None` if there was none, or it differs by its time alone.

    Raises:
        InputError: The earlier report cannot be moved.
    """
    if not (folder / REPORT_FILE).is_file():
        return None
    with suppress(InputError):  # not readable: kept all the same
        if replace(Report.load(folder), created=report.created) == report:
            return None
    place = folder.resolve()
    aside = next(
        path for number in count(1) if not (path := place.with_name(f"{place.name}-{number}")).exists()
    )
    try:
        aside.mkdir()
        for name in (REPORT_FILE, REPORT_PAGE):
            if (folder / name).exists():
                shutil.move(folder / name, aside / name)
    except OSError as error:
        what = f"{folder}: its earlier report cannot be moved to {aside} ({error.strerror})"
        raise InputError(f"{what}; choose another --out") from error
    return folder.with_name(aside.name)


def save_comparison(comparison: Comparison, folder: Path) -> None:
    """Write compare.html and compare.json into a folder, created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ", ".join(row.name for row in comparison.rows)
    page = document(f"Lookalike: {names}", render_comparison(comparison))
    write_texts(folder, {"compare.html": page, "compare.json": json_lines(comparison.to_dict())})


def evaluate_and_keep(
    gallery: SearchableGallery, *, limit: int | None = None, show_progress: bool = False
) -> Report:
    """Evaluate a gallery on its own labelled images and keep the report in it.

    If the gallery has been evaluated with another model, on the same images, it says which finds more.

    Args and errors as for `retrieval.evaluation.gallery.evaluate_gallery`; also:

    Raises:
        InputError: The gallery is not writable.
    """
    check_labels(gallery)
    _check_writable(gallery.folder)
    report = evaluate_gallery(gallery, limit=limit, show_progress=show_progress)
    report = judge_by_kept(report, gallery.folder)
    with Progress("writing the report", 2, "files", show=show_progress) as progress:
        keep_report(report, gallery.folder)
        progress.update(2)
    return report


def judge_by_kept(report: Report, gallery: Path) -> Report:
    """Return a report with its verdict against the newest one in the gallery of another model, if any."""
    for folder in reversed(kept_reports(gallery)):
        with suppress(InputError):  # not readable
            if verdict := judge_reports(report, Report.load(folder)):
                return replace(report, verdict=verdict)
    return report


def keep_report(report: Report, gallery: Path) -> Path:
    """Save a report in a gallery, named by its time, as a whole or not at all; return its folder."""
    reports = gallery / REPORTS_FOLDER
    drafts, name = reports / _DRAFTS, report.created.replace(":", "")
    reports.mkdir(exist_ok=True)
    with file_lock(reports / _LOCK, lambda _: None):
        if drafts.exists():  # of a writer that was killed
            shutil.rmtree(drafts)
        save_report(report, drafts / name)
        numbered = (reports / (name if number == 1 else f"{name}-{number}") for number in count(1))
        folder = next(path for path in numbered if not path.exists())
        (drafts / name).rename(folder)
        fsync_folder(reports)
        drafts.rmdir()
    return folder


def _check_writable(gallery: Path) -> None:
    """Check before long work that the gallery can keep a report."""
    try:
        (gallery / REPORTS_FOLDER).mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=gallery / REPORTS_FOLDER):
            pass
    except OSError as error:
        what = f"{gallery}: it cannot keep a report ({error.strerror})"
        raise InputError(f"{what}; make its folder writable, or evaluate a copy of it") from error
