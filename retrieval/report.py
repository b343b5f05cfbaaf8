"""An evaluation as people read it: report.json with every number, report.html with table and figure."""

from __future__ import annotations

import dataclasses
import html
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrieval.errors import InputError
from retrieval.evaluation import KS, Result
from retrieval.store import now, replacing

FORMAT_VERSION = 1
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe-Ito: safe for all eyes
_STYLE = """
.lookalike-report { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 0 auto; }
.lookalike-report table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
.lookalike-report th, .lookalike-report td { padding: .35rem .6rem; text-align: right;
  border-bottom: 1px solid #8884; }
.lookalike-report th:first-child, .lookalike-report td:first-child { text-align: left; }
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
        results: baselines first, the model itself last.
        bad_files: (path, reason) of images that could not be read and were left out.
    """

    data: str
    protocol: str
    images: int
    classes: int
    fingerprint: str | None
    results: list[Result]
    bad_files: list[tuple[str, str]] = field(default_factory=list)
    created: str = field(default_factory=now)

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
            return cls(**values)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a readable report ({error}); evaluate again") from error


def latest(gallery: Path) -> Report | None:
    """The newest report kept in a gallery, or `None`."""
    folders = sorted(path.parent for path in (gallery / "reports").glob("*/report.json"))
    return Report.load(folders[-1]) if folders else None


def table(report: Report) -> str:
    """The numbers as plain text, one result a line, in percent."""
    columns = [f"R@{k}" for k in KS] + ["NMI", "F1"]
    width = max(len(result.name) for result in report.results)
    lines = [" " * width + "".join(f"{column:>8}" for column in columns)]
    lines += [f"{r.name:<{width}}" + "".join(f"{100 * v:8.1f}" for v in _values(r)) for r in report.results]
    return "\n".join(lines)


def render(report: Report) -> str:
    """The report as a fragment of HTML that needs nothing from outside."""
    columns = [f"Recall@{k}" for k in KS] + ["NMI", "F1"]
    head = "".join(f"<th scope='col'>{column}</th>" for column in columns)
    values = [_values(result) for result in report.results]
    best = [max(column) for column in zip(*values, strict=True)]
    rows = "".join(_row(result.name, row, best) for result, row in zip(report.results, values, strict=True))
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
        f"<tbody>{rows}</tbody></table></div>"
        f"<figure>{_recall_curve(report)}</figure>"
        f"{bad}{f'<details><summary>List</summary><ul>{items}</ul></details>' if items else ''}"
        f"<p><small>{model}Evaluated {html.escape(report.created)}.</small></p></article>"
    )


def _values(result: Result) -> list[float]:
    return [*(result.recall[k] for k in KS), result.nmi, result.f1]


def _row(name: str, values: list[float], best: list[float]) -> str:
    cells = "".join(
        f"<td{' class=best' if value == top else ''}>{100 * value:.1f}</td>"
        for value, top in zip(values, best, strict=True)
    )
    return f"<tr><th scope='row'>{html.escape(name)}</th>{cells}</tr>"


def _recall_curve(report: Report) -> str:
    """Recall against K, one line a result, as SVG."""
    import matplotlib as mpl  # slow to import, and only reports need it
    from matplotlib.figure import Figure

    # Fixed ids and no date: the same numbers give the same file.
    with mpl.rc_context({"svg.hashsalt": "lookalike", "font.size": 11}):
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.add_subplot()
        for result, colour in zip(report.results, _COLOURS * len(report.results), strict=False):
            ks = sorted(result.recall)
            axes.plot(ks, [100 * result.recall[k] for k in ks], "o-", color=colour, label=result.name)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ks, [str(k) for k in ks])
        axes.set_xlabel("K, nearest images looked at")
        axes.set_ylabel("Recall@K (%)")
        axes.set_title("Queries with an image of their class among the K nearest", fontsize=12)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="lower right")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    label = "Recall at K for every result in the table above"
    return svg[svg.index("<svg") :].replace("<svg", f"<svg role='img' aria-label='{label}'", 1)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>body {{ margin: 1.5rem; color-scheme: light dark; }}</style></head>
<body>{body}</body></html>
"""
