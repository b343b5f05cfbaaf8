"""The evaluation tab: the newest report of the gallery."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from retrieval.errors import InputError
from retrieval.report import Report, latest, render
from serve.page import views
from serve.service import SearchService


def evaluation(service: SearchService) -> str:
    """The newest report, or how to make one."""
    folder = latest(service.folder)
    if folder is None:
        return views.note(
            f"No evaluation yet. `lookalike evaluate {service.folder} --data DATA` makes one; "
            "it shows here the next time this tab is opened."
        )
    try:
        return _rendered(folder, (folder / "report.json").stat().st_mtime_ns)
    except (InputError, OSError) as error:
        return views.trouble(str(error))


@lru_cache(2)  # drawing takes seconds
def _rendered(folder: Path, _written: int) -> str:
    return render(Report.load(folder))
