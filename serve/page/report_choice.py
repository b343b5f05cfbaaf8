"""The reports that a gallery keeps: which there are, and one of them or two side by side as HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from retrieval.errors import InputError
from retrieval.evaluation.comparison import TESTED, Contender, compare_reports
from retrieval.evaluation.gallery import state_of
from retrieval.evaluation.report import Report, kept_reports
from retrieval.reports.comparison import render_comparison
from retrieval.reports.report import render_report
from retrieval.reports.text_tables import percent
from serve.core.service import SearchService
from serve.page import evaluation_view, views

_SUMMARIES = 256
_DRAWN = 4  # of some hundred kilobytes each


@dataclass(frozen=True)
class Kept:
    """A report in a line.

    Attributes:
        name: of its folder.
        title: when (UTC) it was made, Recall@1, and of what.
        state: of the gallery that was measured by itself; `None`: on other images.
    """

    name: str
    title: str
    state: str | None


@dataclass(frozen=True)
class Choice:
    """What a visitor has chosen: the names of a report and of one to compare it with; empty: none.

    Attributes:
        titles: name and title of the reports that there were to choose from.
    """

    report: str = ""
    against: str = ""
    titles: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, value: Any) -> Choice:
        """Read what a browser sends; a choice stays what it is."""
        if isinstance(value, Choice):
            return value
        fields = value if isinstance(value, Mapping) else {}
        given = fields.get("reports")
        pairs = given if isinstance(given, list) else []
        titles = tuple((str(p[0]), str(p[1])) for p in pairs if isinstance(p, list) and len(p) == 2)
        return cls(str(fields.get("report", "")), str(fields.get("against", "")), titles)

    @property
    def form(self) -> dict[str, Any]:
        """As a browser gets it, and sends it back."""
        reports = [list(pair) for pair in self.titles]
        return {"reports": reports, "report": self.report, "against": self.against}


class Reports:
    """What the gallery keeps, newest first."""

    def __init__(self, service: SearchService) -> None:
        self._service = service
        self._draw = lru_cache(_DRAWN)(self._drawn)  # it takes seconds

    def listed(self) -> list[Kept]:
        """All reports, newest first."""
        return [_summary(folder, _written(folder)) for folder in reversed(kept_reports(self._service.folder))]

    def among(self, choice: Choice) -> Choice:
        """The choice among the reports that there are now: the newest where the one chosen is gone."""
        titles = {report.name: report.title for report in self.listed()}
        report = choice.report if choice.report in titles else next(iter(titles), "")
        against = choice.against if choice.against in titles and choice.against != report else ""
        return Choice(report, against, tuple(titles.items()))

    def shown(self, choice: Choice) -> str:
        """One report, or it and another side by side.

        Raises:
            InputError: one that is not there or not readable, or two that cannot be compared.
        """
        if not choice.report:
            how = "`lookalike evaluate GALLERY --data DATA` makes one with other images"
            return views.note(f"There is no evaluation yet. {how}.")
        folders = {folder.name: folder for folder in kept_reports(self._service.folder)}
        try:
            chosen = [folders[name] for name in (choice.report, choice.against) if name]
        except KeyError:
            raise InputError("this report is not there any more: open the tab again") from None
        return self._draw(
            tuple((folder, _written(folder)) for folder in chosen), state_of(self._service.gallery)
        )

    def _drawn(self, places: tuple[tuple[Path, int], ...], _: str) -> str:
        reports = [Report.load(folder) for folder, _ in places]
        gallery = self._service.gallery
        found: dict[Path, int | None] = {}

        def pick(path: Path) -> int | None:
            if path not in found:
                found[path] = gallery.item_at(path)
            return found[path]

        page = render_report(reports[0], pick) if len(reports) == 1 else _side_by_side(reports, pick)
        return evaluation_view.on_pictures(list(found.values())) + page


def _side_by_side(reports: list[Report], pick: Callable[[Path], int | None]) -> str:
    """The second is what the first is compared with."""
    names = [report.created[:19].replace("T", " ") for report in reports]
    if names[0] == names[1]:
        names = [f"{name} ({which})" for name, which in zip(names, ("this", "the other"), strict=True)]
    this, other = (Contender(name, (report,)) for name, report in zip(names, reports, strict=True))
    return render_comparison(compare_reports([other, this]), pick)


def _written(folder: Path) -> int:
    return (folder / "report.json").stat().st_mtime_ns


@lru_cache(_SUMMARIES)
def _summary(folder: Path, _: int) -> Kept:
    try:
        report = Report.load(folder)
    except InputError:
        return Kept(folder.name, f"{folder.name}: not readable", None)
    recall = percent(report.headline.values.get(TESTED)) if report.results else "-"
    when = report.created[:16].replace("T", " ")
    return Kept(folder.name, f"{when} · Recall@1 {recall}% · {report.data}", report.gallery_state)
