"""Figure of a sweep: Recall@1 of every run, and a curve over the number that the variants differ in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from retrieval.evaluation.comparison import TESTED
from retrieval.metrics.statistics import summarize
from retrieval.reports.figures import COLOURS, render_figure
from train.experiments.references import Reference
from train.experiments.sweep_comparison import VariantSummary
from train.experiments.sweep_plan import SweptNumber

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BASELINE, _OTHERS = "#555555", COLOURS[0]


def results_figure(
    rows: Sequence[VariantSummary],
    baseline: str,
    swept: SweptNumber | None = None,
    references: Sequence[Reference] = (),
) -> str:
    """Return an SVG of Recall@1 of every run, with mean and 95% interval of each variant.

    Args:
        rows: Variants; those without finished runs are left out, some must have one.
        baseline: Name of the variant that the others are compared with.
        swept: The number that the variants differ in, for a curve over it.
        references: Results without training.
    """
    height = 1.5 + 0.5 * (sum(bool(row.recalls) for row in rows) + len(references))
    size = (7.2, height) if swept is None else (13, max(4.0, height))
    return render_figure(partial(draw_results, rows, baseline, swept, references), *size).decode()


def draw_results(
    rows: Sequence[VariantSummary],
    baseline: str,
    swept: SweptNumber | None,
    references: Sequence[Reference],
    figure: Figure,
) -> None:
    """Draw a dot plot and, if the variants differ in one number, a curve over it beside the plot."""
    rows = [row for row in rows if row.recalls]
    panels = figure.subplots(1, 1 if swept is None else 2, squeeze=False)[0]
    _plot_dots(rows, baseline, references, panels[0])
    if swept is not None:
        _plot_curve([row for row in rows if row.name in swept.values], baseline, swept, panels[1])


def _plot_curve(rows: Sequence[VariantSummary], baseline: str, swept: SweptNumber, axes: Axes) -> None:
    rows = sorted(rows, key=lambda row: swept.values[row.name])
    places, found = [swept.values[row.name] for row in rows], [summarize(row.recalls) for row in rows]
    means = [100 * one.mean for one in found]
    axes.plot(places, means, color=_OTHERS, lw=1.5, zorder=1)
    for place, row, one in zip(places, rows, found, strict=True):
        colour = _BASELINE if row.name == baseline else _OTHERS
        if one.low is not None and one.high is not None:
            axes.plot([place, place], [100 * one.low, 100 * one.high], color=colour, lw=2)
        axes.plot(place, 100 * one.mean, "D", color=colour, ms=7)
        dots = [100 * recall for recall in row.recalls]
        axes.plot([place] * len(dots), dots, "o", color=colour, ms=5, alpha=0.6, mew=0)
    if _is_geometric(places):
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_ylim(*_limits([100 * recall for row in rows for recall in row.recalls]))
    axes.set_xlabel(swept.setting)
    axes.set_ylabel("Recall@1 on the test split (%)")
    axes.set_title("Mean and its 95% interval", fontsize=11)
    axes.grid(alpha=0.3)


def _is_geometric(numbers: Sequence[float]) -> bool:
    """Return whether increasing numbers are spaced more evenly on a logarithmic axis."""

    def unevenness(values: np.ndarray) -> float:
        steps = np.diff(values)
        return float(steps.std() / steps.mean())

    values = np.unique(numbers)
    return len(values) > 2 and values[0] > 0 and unevenness(np.log(values)) < unevenness(values)


def _limits(recalls: Sequence[float]) -> tuple[float, float]:
    """Return the limits of an axis of Recall@1: the interval of two runs can be as wide as the page."""
    margin = max(1.0, 0.6 * (max(recalls) - min(recalls)))
    return max(0.0, min(recalls) - margin), min(100.0, max(recalls) + margin)


def _plot_dots(
    rows: Sequence[VariantSummary], baseline: str, references: Sequence[Reference], axes: Axes
) -> None:
    untrained = [100 * reference.values[TESTED] for reference in references]
    every = [*(100 * recall for row in rows for recall in row.recalls), *untrained]
    for place, row in enumerate(rows):
        found, colour = summarize(row.recalls), _OTHERS
        if row.name == baseline:
            colour = _BASELINE
            axes.axvline(100 * found.mean, color=colour, lw=1, ls=":", zorder=0)
        if found.low is not None and found.high is not None:
            axes.plot([100 * found.low, 100 * found.high], [place, place], color=colour, lw=2)
        axes.plot(100 * found.mean, place, "D", color=colour, ms=7)
        dots = [100 * recall for recall in row.recalls]
        axes.plot(dots, [place - 0.25] * len(dots), "o", color=colour, ms=6, alpha=0.6, mew=0)
    for place, recall in enumerate(untrained, len(rows)):
        axes.plot(recall, place, "D", mfc="white", mec=_BASELINE, ms=7)
    names = [*(row.name for row in rows), *(reference.name for reference in references)]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.6)
    axes.set_xlim(*_limits(every))
    axes.set_xlabel("Recall@1 on the test split (%)")
    hollow = "\nHollow: without training" if references else ""
    axes.set_title(f"Dots: runs. Diamonds and lines: their mean and its 95% interval{hollow}", fontsize=11)
    axes.grid(axis="x", alpha=0.3)
