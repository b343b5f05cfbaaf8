"""The evaluation reports of a gallery as HTML: one of them, or two side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from markupsafe import Markup

from retrieval.errors import InputError
from retrieval.evaluation.comparison import Contender, compare_reports
from retrieval.evaluation.report import Report, kept_reports
from retrieval.reports.comparison import render_comparison
from retrieval.reports.report import render_report
from retrieval.text import pluralize
from serve.core.reports import modified
from serve.core.service import SearchService
from serve.page.assets import render

_RENDERED = 4  # cached: some hundred kilobytes each


class Reports:
    """The reports of one gallery."""

    def __init__(self, service: SearchService) -> None:
        self._service = service
        self._render = lru_cache(_RENDERED)(self._render_uncached)  # takes seconds

    def view(self, report: str, against: str = "") -> Markup:
        """Return one report, or two side by side.

        Args:
            report: Name of a report.
            against: Name of one to compare it with; empty for none.

        Raises:
            InputError: A report does not exist or is not readable, or the two cannot be compared.
        """
        folders = {folder.name: folder for folder in kept_reports(self._service.folder)}
        try:
            chosen = [folders[name] for name in (report, against) if name]
        except KeyError:
            raise InputError("this report no longer exists: open the tab again") from None
        return self._render(
            tuple((folder, modified(folder)) for folder in chosen), self._service.gallery.state_digest()
        )

    def _render_uncached(self, folders: tuple[tuple[Path, int], ...], _state: str) -> Markup:
        reports = [Report.load(folder) for folder, _ in folders]
        gallery = self._service.gallery
        found: dict[Path, int | None] = {}

        def find_item(path: Path) -> int | None:
            if path not in found:
                found[path] = gallery.item_at(path)
            return found[path]

        alone = len(reports) == 1
        html = render_report(reports[0], find_item) if alone else _side_by_side(reports, find_item)
        return _image_note(list(found.values())) + Markup(html)


def _side_by_side(reports: list[Report], find_item: Callable[[Path], int | None]) -> str:
    """Compare the first report with the second one."""
    models = {report.fingerprint for report in reports}
    names = [_column(report, names_model=len(models) > 1) for report in reports]
    if names[0] == names[1]:
        names = [f"{name} ({which})" for name, which in zip(names, ("this", "the other"), strict=True)]
    this, other = (Contender(name, (report,)) for name, report in zip(names, reports, strict=True))
    return render_comparison(compare_reports([other, this]), find_item)


def _column(report: Report, *, names_model: bool) -> str:
    """Return the name of a report's column: its time and, if they differ, its model."""
    when = report.created[:19].replace("T", " ")
    return f"model {(report.fingerprint or 'unknown')[:8]}, {when}" if names_model else when


def _image_note(items: Sequence[int | None]) -> Markup:
    """Return what a click on a report's images does; None stands for images that the gallery lacks."""
    if not items:
        return Markup()
    missing = sum(item is None for item in items)
    if missing == len(items):
        return render(
            "message", text="The images shown are not in this gallery, so they cannot be searched with."
        )
    rest = f" {pluralize(missing, 'image')} shown {'is' if missing == 1 else 'are'} not in this gallery."
    return render("message", text=f"A click on an image searches with it.{rest if missing else ''}")
