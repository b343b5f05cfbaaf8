"""An evaluation as people read it: report.json with every number, report.html with table and figure."""

from __future__ import annotations

import dataclasses
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval.errors import InputError
from retrieval.evaluation import KS, Result
from retrieval.figures import COLOURS, svg
from retrieval.store import now, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT_VERSION = 1
_MARKERS = "Dosv^P"
_STYLE = """
.lookalike-report { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 0 auto; }
.lookalike-report table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
.lookalike-report th, .lookalike-report td { padding: .35rem .6rem; text-align: right;
  border-bottom: 1px solid #8884; }
.lookalike-report th:first-child, .lookalike-report td:first-child { text-align: left; }
.lookalike-report th[scope=row] { font-weight: 400; min-width: 9rem; }
.lookalike-report .best { font-weight: 700; }
.lookalike-report figure { margin: 1.5rem 0; background: #fff; border-radius: .5rem; }
.lookalike-report svg { width: 100%; height: auto; }
.lookalike-report .scroll { overflow-x: auto; }
.lookalike-report small { opacity: .75; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True)
class Report:
    """Everything an evaluation found.

    Attributes:
        data: the data set as it was named.
        protocol: what was searched for in what, in one line.
        images, classes: of the queries.
        fingerprint: SHA-256 of the model file, where there is one.
        results: published numbers first, then baselines, the model itself last.
        bad_files: (path, reason) of images that could not be read and were left out.
        ks: the K of the table's columns.
        notes: what to keep in mind when reading it, a sentence each.
    """

    data: str
    protocol: str
    images: int
    classes: int
    fingerprint: str | None
    results: list[Result]
    bad_files: list[tuple[str, str]] = field(default_factory=list)
    created: str = field(default_factory=now)
    ks: tuple[int, ...] = KS
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"format": FORMAT_VERSION, **dataclasses.asdict(self)}

    def save(self, folder: Path) -> None:
        """Write report.json and report.html into a folder, made if need be."""
        folder.mkdir(parents=True, exist_ok=True)
        page = _PAGE.format(title=html.escape(f"Lookalike: {self.data}"), body=render(self))
        for name, text in (("report.html", page), ("report.json", json.dumps(self.to_dict(), indent=2))):
            with replacing(folder / name) as draft:
                draft.write_text(text)

    @classmethod
    def load(cls, folder: Path) -> Report:
        """Read report.json back; an `InputError` where there is none of a known format."""
        path = folder / "report.json"
        try:
            values = json.loads(path.read_text())
            if values.pop("format") != FORMAT_VERSION:
                raise InputError(f"{path}: a report of another version; evaluate again")
            values["results"] = [Result.from_dict(result) for result in values["results"]]
            values["bad_files"] = [(path, reason) for path, reason in values["bad_files"]]
            values |= {name: tuple(values[name]) for name in ("ks", "notes") if name in values}
            return cls(**values)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a readable report ({error}); evaluate again") from error


def latest(gallery: Path) -> Report | None:
    """The newest report kept in a gallery, or `None`."""
    folders = sorted(path.parent for path in (gallery / "reports").glob("*/report.json"))
    return Report.load(folders[-1]) if folders else None


def table(report: Report) -> str:
    """The numbers as plain text, one result a line, in percent; the notes below."""
    columns = [f"R@{k}" for k in report.ks] + ["NMI", "F1"]
    width = max(len(result.title) for result in report.results)
    lines = [" " * width + "".join(f"{column:>8}" for column in columns)]
    for result in report.results:
        cells = "".join(f"{_percent(value):>8}" for value in _values(result, report.ks))
        lines.append(f"{result.title:<{width}}{cells}")
    return "\n".join([*lines, *report.notes])


def render(report: Report) -> str:
    """The report as a fragment of HTML that needs nothing from outside."""
    columns = [f"Recall@{k}" for k in report.ks] + ["NMI", "F1"]
    head = "".join(f"<th scope='col'>{column}</th>" for column in columns)
    rows = "".join(_row(result, report) for result in report.results)
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in report.notes)
    bad = (
        f"<p>{len(report.bad_files)} files could not be read and were left out.</p>"
        if report.bad_files
        else ""
    )
    items = "".join(f"<li>{html.escape(path)}: {html.escape(why)}</li>" for path, why in report.bad_files)
    model = f"Model {report.fingerprint[:12]}. " if report.fingerprint else ""
    return (
        f"<style>{_STYLE}</style><article class='lookalike-report'>"
        f"<h2>{html.escape(report.data)}</h2>"
        f"<p>{report.images} query images of {report.classes} classes; {html.escape(report.protocol)}. "
        "In percent.</p>"
        f"<div class='scroll'><table><thead><tr><th scope='col'></th>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>{notes}"
        f"<figure>{_recall_curve(report)}</figure>"
        f"{bad}{f'<details><summary>List</summary><ul>{items}</ul></details>' if items else ''}"
        f"<p><small>{model}Evaluated {html.escape(report.created)}.</small></p></article>"
    )


def _values(result: Result, ks: Sequence[int]) -> list[float | None]:
    return [*(result.recall.get(k) for k in ks), result.nmi, result.f1]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _row(result: Result, report: Report) -> str:
    """A row of the table; what is best of its column among all that ask the same question is bold."""
    rivals = [_values(rival, report.ks) for rival in report.results if rival.by == result.by]
    cells = ""
    for value, column in zip(_values(result, report.ks), zip(*rivals, strict=True), strict=True):
        best = value is not None and len(rivals) > 1 and value == max(v for v in column if v is not None)
        cells += f"<td{' class=best' if best else ''}>{_percent(value)}</td>"
    return f"<tr><th scope='row'>{html.escape(result.title)}</th>{cells}</tr>"


def _recall_curve(report: Report) -> str:
    """Recall against K, one line a result, as SVG."""
    page = svg(partial(_draw_recall_curve, report), 7.2, 4.6)
    label = "Recall at K for every result in the table above"
    return page[page.index("<svg") :].replace("<svg", f"<svg role='img' aria-label='{label}'", 1)


def _draw_recall_curve(report: Report, axes: Axes) -> None:
    for number, (result, colour, marker) in enumerate(
        zip(report.results, cycle(COLOURS), cycle(_MARKERS), strict=False)
    ):
        ks = sorted(result.recall)
        percents = [100 * result.recall[k] for k in ks]
        # The first is on top: what is published may be a single point.
        axes.plot(ks, percents, f"{marker}-", color=colour, label=result.title, zorder=9 - number)
    ticks = sorted({k for result in report.results for k in result.recall})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.set_xlabel("K, nearest images looked at")
    axes.set_ylabel("Recall@K (%)")
    axes.set_title("Queries with an image of their class among the K nearest", fontsize=12)
    axes.grid(alpha=0.3)
    axes.figure.legend(frameon=False, loc="outside lower center", ncols=2, fontsize=10)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>body {{ margin: 1.5rem; color-scheme: light dark; }}</style></head>
<body>{body}</body></html>
"""
