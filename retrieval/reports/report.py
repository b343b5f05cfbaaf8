"""A report as HTML: a fragment that shows in any page and needs nothing from outside."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from retrieval.evaluation.numbers import keys, percent, shown, title, value
from retrieval.reports import page, sections
from retrieval.reports.figures import COLOURS, MARKERS, caption

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from retrieval.evaluation.report import Report


def render(report: Report, pick: page.Pick | None = None) -> str:
    """The report as a fragment of HTML; pictures of the data set that are gone show as grey tiles.

    `pick` says which pictures are buttons, as in `page.Tiles`.
    """
    findings = report.findings
    return page.fragment(
        f"<h2>{html.escape(report.data)}</h2>"
        + page.paragraph(
            f"{report.images:,} query images of {report.classes:,} classes; {report.protocol}. In percent."
        )
        + _numbers(report)
        + "".join(page.paragraph(note) for note in report.notes)
        + recall_figure(
            partial(_draw_recall, report),
            "Recall at K for every result in the table above",
            len(report.results),
        )
        + ("" if findings is None else sections.render(findings, pick))
        + _unreadable(report)
        + _origin(report)
    )


def _numbers(report: Report) -> str:
    """Metrics down, results across: published numbers, baselines, the model itself."""
    rows = [_row(key, report) for key in shown(keys(report.results), report.ks)]
    described = "Below a number: its 95% interval, had other queries been drawn. Bold: the best."
    return page.table(["Metric", *(result.title for result in report.results)], rows) + (
        f"<p><small>{described}</small></p>" if any(r.intervals for r in report.results) else ""
    )


def _row(key: str, report: Report) -> str:
    """One metric; what is best among all results that ask the same question is bold."""
    name, meaning = title(key)
    cells = ""
    for result in report.results:
        ours = value(result, key)
        rivals = [value(rival, key) for rival in report.results if rival.by == result.by]
        known = [v for v in rivals if v is not None]
        best = ours is not None and len(rivals) > 1 and ours == max(known)
        low, high = result.intervals.get(key, (None, None))
        interval = f"<small>{percent(low)} to {percent(high)}</small>" if low is not None else ""
        cells += f"<td{' class=best' if best else ''}>{percent(ours)}{interval}</td>"
    return f"<tr><th scope='row'>{name}<small>{meaning}</small></th>{cells}</tr>"


def _draw_recall(report: Report, axes: Axes) -> None:
    """Recall against K, one line a result."""
    for number, (result, colour, marker) in enumerate(
        zip(report.results, cycle(COLOURS), cycle(MARKERS), strict=False)
    ):
        ks = sorted(result.recall)
        percents = [100 * result.recall[k] for k in ks]
        # The first is on top: what is published may be a single point.
        axes.plot(ks, percents, f"{marker}-", color=colour, label=caption(result.title), zorder=9 - number)
        known = [k for k in ks if f"recall_at_{k}" in result.intervals]
        if known:
            ends = 100 * np.array([result.intervals[f"recall_at_{k}"] for k in known])  # [K, 2]
            axes.fill_between(known, *ends.T, color=colour, alpha=0.2, lw=0)
    draw_recall_axes(axes, {k for result in report.results for k in result.recall})


def recall_figure(draw: Callable[[Axes], object], label: str, lines: int) -> str:
    """A figure of Recall@K with room below for the names of its lines."""
    return page.figure(draw, label, 3.1 + 0.2 * math.ceil(lines / 2))


def draw_recall_axes(axes: Axes, ks: set[int]) -> None:
    """What every figure of Recall@K has around it."""
    ticks = sorted(ks)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.set_xlabel("K, nearest images looked at")
    axes.set_ylabel("Recall@K (%)")
    axes.set_title("Queries with an image of their class among the K nearest", fontsize=11)
    axes.grid(alpha=0.3)
    axes.figure.legend(frameon=False, loc="outside lower center", ncols=2, fontsize=10)


def _unreadable(report: Report) -> str:
    if not report.bad_files:
        return ""
    items = "".join(f"<li>{html.escape(path)}: {html.escape(why)}</li>" for path, why in report.bad_files)
    count = f"{len(report.bad_files)} files could not be read and were left out."
    return page.section(
        "Left out", page.paragraph(count), f"<details><summary>List</summary><ul>{items}</ul></details>"
    )


def _origin(report: Report) -> str:
    facts = [f"Model {report.fingerprint[:12]}."] if report.fingerprint else []
    facts += [f"Seed {report.seed}."] if report.seed is not None else []
    facts.append(f"Evaluated {report.created}.")
    return f"<p><small>{html.escape(' '.join(facts))}</small></p>"
