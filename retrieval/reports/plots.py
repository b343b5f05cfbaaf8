"""Figures of reports and comparisons: Recall@K curves and histograms, as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from retrieval.evaluation.comparison import Comparison, GroupSummary
from retrieval.evaluation.findings import Findings, SimilarityHistogram
from retrieval.evaluation.report import Report
from retrieval.metrics.table import by_k
from retrieval.reports.figures import COLOURS, MARKERS, axes_svg, caption
from retrieval.reports.pages import inline_svg

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes

_WIDTH = 5.2  # inches


def report_recall_figure(report: Report) -> Markup:
    """Return the Recall@K curves of all results of a report."""
    label = "Recall at K for every result in the table above"
    return _recall_figure(partial(_plot_results, report), label, len(report.results))


def comparison_recall_figure(comparison: Comparison) -> Markup:
    """Return the Recall@K curves of all contenders."""
    names = ", ".join(row.name for row in comparison.rows)
    return _recall_figure(
        partial(_plot_groups, comparison.rows), f"Recall at K of {names}", len(comparison.rows)
    )


def similarity_figure(findings: Findings) -> Markup:
    """Return the histograms of the similarities of pairs of one class and of two."""
    label = "Similarities of pairs of one class and of two"
    return _figure(partial(_plot_similarities, findings.similarities), label, 3.2)


def class_recall_figure(recalls: Sequence[float]) -> Markup:
    """Return the histogram of Recall@1 over the classes."""
    return _figure(partial(_plot_class_recalls, recalls), "Recall at 1 of classes", 2.6)


def _figure(plot: Callable[[Axes], object], label: str, height: float) -> Markup:
    return inline_svg(axes_svg(plot, _WIDTH, height), label)


def _recall_figure(plot: Callable[[Axes], object], label: str, lines: int) -> Markup:
    """Return a Recall@K figure with room for a legend of `lines` entries below the curves."""
    return _figure(plot, label, 3.1 + 0.2 * math.ceil(lines / 2))


def _plot_results(report: Report, axes: Axes) -> None:
    """Plot recall against K, one line per result, with intervals as bands: over classes if known."""
    ks: set[int] = set()
    for number, (result, colour, marker) in enumerate(
        zip(report.results, cycle(COLOURS), cycle(MARKERS), strict=False)
    ):
        recalls = dict(sorted(by_k(result.values).items()))
        ks |= recalls.keys()
        percents = [100 * recall for recall in recalls.values()]
        # The first is on top: published results may be a single point.
        label, order = caption(result.title), 9 - number
        axes.plot([*recalls], percents, f"{marker}-", color=colour, label=label, zorder=order)
        intervals = result.class_intervals or result.intervals
        known = [k for k in recalls if f"recall_at_{k}" in intervals]
        if known:
            ends = 100 * np.array([intervals[f"recall_at_{k}"] for k in known])  # [K, 2]
            axes.fill_between(known, *ends.T, color=colour, alpha=0.2, lw=0)
    _finish_recall_axes(axes, ks)


def _plot_groups(rows: Sequence[GroupSummary], axes: Axes) -> None:
    """Plot recall against K; several runs as their mean in a band of one standard deviation."""
    ks: set[int] = set()
    for row, colour, marker in zip(rows, cycle(COLOURS), cycle(MARKERS), strict=False):
        means = by_k({key: 100 * summary.mean for key, summary in row.numbers.items()})
        spreads = by_k({key: 100 * (summary.std or 0.0) for key, summary in row.numbers.items()})
        ours = sorted(means)
        ks |= means.keys()
        line = [means[k] for k in ours]
        axes.plot(ours, line, f"{marker}-", color=colour, label=caption(row.name))
        low, high = ([means[k] + sign * spreads[k] for k in ours] for sign in (-1, 1))
        axes.fill_between(ours, low, high, color=colour, alpha=0.2, lw=0)
    _finish_recall_axes(axes, ks)


def _finish_recall_axes(axes: Axes, ks: set[int]) -> None:
    ticks = sorted(ks)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.set_xlabel("K, number of nearest images")
    axes.set_ylabel("Recall@K (%)")
    axes.set_title("Queries with an image of their class among the K nearest", fontsize=11)
    axes.grid(alpha=0.3)
    axes.figure.legend(frameon=False, loc="outside lower center", ncols=2, fontsize=10)


def _plot_similarities(histogram: SimilarityHistogram, axes: Axes) -> None:
    edges = np.array(histogram.edges)
    counts = {"one class": np.array(histogram.positive), "two classes": np.array(histogram.negative)}
    for (name, values), colour, line in zip(counts.items(), COLOURS, ("-", "--"), strict=False):
        if values.sum():
            density = values / (values.sum() * np.diff(edges))
            label = f"{name} ({values.sum():,} pairs)"
            axes.stairs(density, edges, fill=True, color=colour, alpha=0.25)
            axes.stairs(density, edges, color=colour, ls=line, lw=1.5, label=label)
    filled = np.flatnonzero(sum(counts.values()))
    if len(filled):
        axes.set_xlim(edges[filled[0]], edges[filled[-1] + 1])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("cosine similarity")
    axes.set_ylabel("density of pairs")
    axes.set_title(f"Similarities: {100 * histogram.overlap:.1f}% overlap", fontsize=11)
    axes.figure.legend(frameon=False, loc="outside lower center", ncols=2, fontsize=10)


def _plot_class_recalls(recalls: Sequence[float], axes: Axes) -> None:
    percents = 100 * np.array(recalls)
    axes.hist(percents, np.linspace(0, 100, 21).tolist(), color=COLOURS[0], alpha=0.75, edgecolor="white")
    axes.axvline(float(np.median(percents)), color=COLOURS[1], ls="--", lw=1.5, label="median class")
    axes.set_xlim(0, 100)
    axes.set_xlabel("Recall@1 of a class (%)")
    axes.set_ylabel("classes")
    axes.locator_params(axis="y", integer=True)
    axes.set_title("Distribution of Recall@1 over the classes", fontsize=11)
    axes.legend(frameon=False, fontsize=10)
