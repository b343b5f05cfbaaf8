"""The evaluation reports that a gallery keeps, in one line each, and the one of its present state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from retrieval.errors import InputError
from retrieval.evaluation.comparison import TESTED
from retrieval.evaluation.report import REPORT_FILE, Report, kept_reports
from retrieval.galleries.searchable import SearchableGallery
from retrieval.reports.text_tables import percent

_SUMMARIES = 256  # cached: a report of a large gallery takes a second to read


@dataclass(frozen=True)
class ReportSummary:
    """A report in one line.

    Attributes:
        folder: Its folder.
        title: Its time (UTC), Recall@1 and data.
        state: State of the gallery, if its own images were evaluated; None for other images.
    """

    folder: Path
    title: str
    state: str | None


def report_summaries(gallery: Path) -> list[ReportSummary]:
    """Return all reports of a gallery, newest first."""
    return [_summary(folder, modified(folder)) for folder in reversed(kept_reports(gallery))]


def current_report(gallery: SearchableGallery) -> ReportSummary | None:
    """Return the newest report of the gallery in its present state; None if it has to be evaluated."""
    state = gallery.state_digest()
    return next((report for report in report_summaries(gallery.folder) if report.state == state), None)


def modified(folder: Path) -> int:
    """Return the time at which the report of a folder was modified, for keys of caches."""
    return (folder / REPORT_FILE).stat().st_mtime_ns


@lru_cache(_SUMMARIES)
def _summary(folder: Path, _modified: int) -> ReportSummary:
    try:
        report = Report.load(folder)
    except InputError:
        return ReportSummary(folder, f"{folder.name}: not readable", None)
    recall = percent(report.headline.values.get(TESTED)) if report.results else "-"
    when = report.created[:16].replace("T", " ")
    return ReportSummary(folder, f"{when} · Recall@1 {recall}% · {report.data}", report.gallery_state)
