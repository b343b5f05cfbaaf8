"""Figures of the page, from the committed results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.experiments import divisions
from benchmarks.experiments.catalogue import Setup, Table
from benchmarks.experiments.divisions import Stratified
from benchmarks.experiments.verdicts import values_of
from retrieval.metrics.statistics import summarize
from retrieval.reports.figures import COLOURS, GREY, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BASELINES = {"features": "the features", "network": "the network before training"}
_TITLES = {
    "hard_anchor_share": "Anchors with a hard triplet (%)",
    "synthetic_share": "Synthetic among the selected points (%)",
}


def draw_table(
    table: Table, setups: Mapping[str, Setup], results: Mapping[str, Any], folder: Path
) -> list[Path]:
    """Write the figures of a table as SVG; return the files."""
    found = results["setups"]
    metric = main_metric(table)
    rows = max((len(one["variants"]) for one in found.values()), default=0)
    size = (1.6 + 4.2 * len(found), 1.6 + 0.27 * rows)
    files = save_figure(
        partial(_draw_dots, table, setups, found, metric), *size, folder / f"{table.name}.svg"
    )
    curves = {
        setup: {name: one["curve"] for name, one in values["variants"].items() if one.get("curve")}
        for setup, values in found.items()
    }
    if table.figure is not None and any(curves.values()):
        draw = partial(_draw_curves, table, setups, curves)
        files += save_figure(draw, 0.6 + 4.6 * len(curves), 4.2, folder / f"{table.name}-curves.svg")
    return files


def draw_divisions(table: Table, results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the figure of a table with divisions as SVG: all methods against the first baseline."""
    first, *others = table.untrained
    names = [*others, *table.variants]
    found = {name: divisions.compare(table, results, name, first, "recall_at_1") for name in names}
    draw = partial(_draw_divisions, table, found)
    size = (1.6 + 3.2 * len(table.sets), 1.6 + 0.27 * len(names))
    return save_figure(draw, *size, folder / f"{table.name}.svg")


def draw_sizes(table: Table, results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the figure of a table with sizes as SVG: MAP@R against the features in each group of sizes."""
    from benchmarks.experiments.sizes import view  # imports torch

    assert table.sizes is not None
    first, *others = table.untrained
    views = [view(table, results, group) for group in table.sizes.groups]
    found = {
        name: [divisions.compare(table, seen, name, first, "map_at_r") for seen in views]
        for name in (*others, *table.variants)
    }
    draw = partial(_draw_sizes, table, found)
    return save_figure(draw, 1.8 + 3.4 * len(table.sets), 4.2, folder / f"{table.name}.svg")


def _draw_sizes(table: Table, found: Mapping[str, Sequence[Stratified | None]], figure: Figure) -> None:
    assert table.sizes is not None
    panels = figure.subplots(1, len(table.sets), squeeze=False)[0]
    titles = [title.replace(" images", "\nimages") for title in table.sizes.groups]
    for axes, title in zip(panels, table.sets, strict=True):
        axes.axhline(0, color=GREY, ls=":", lw=1.2)
        for place, (method, groups) in enumerate(found.items()):
            values = [one.of_set.get(title) if one is not None else None for one in groups]
            means = [100 * summarize(each).mean if each else float("nan") for each in values]
            style = "--" if method in table.untrained else "-" if place < len(COLOURS) else "-."
            axes.plot(means, style, marker=".", color=COLOURS[place % len(COLOURS)], lw=1.4, label=method)
        axes.set_xticks(range(len(titles)), titles, fontsize=9)
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("MAP@R minus that of the features (points)")
    panels[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))


def _draw_divisions(table: Table, found: Mapping[str, Stratified | None], figure: Figure) -> None:
    panels = figure.subplots(1, len(table.sets), sharey=True, squeeze=False)[0]
    for axes, title in zip(panels, table.sets, strict=True):
        axes.axvline(0, color=GREY, ls=":", lw=1.2)
        for place, one in enumerate(found.values()):
            values = [100 * value for value in one.of_set.get(title, [])] if one is not None else []
            if values:
                axes.plot(values, [place] * len(values), "o", color=COLOURS[0], ms=3.5, alpha=0.5, mew=0)
                axes.plot(summarize(values).mean, place, "D", color=COLOURS[1], ms=4.5)
        axes.set_title(title, fontsize=10)
        axes.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(found)), list(found))
    panels[0].set_ylim(len(found) - 0.5, -0.5)
    figure.supxlabel(
        f"Recall@1 minus that of {_BASELINES[table.untrained[0]]} (points)\nDots: divisions; diamond: mean",
        fontsize=10,
    )


def main_metric(table: Table) -> str:
    """Return the metric that a table is about."""
    return "probe_noisy" if table.probes else "recall_at_1"


def _draw_dots(
    table: Table, setups: Mapping[str, Setup], found: Mapping[str, Any], metric: str, figure: Figure
) -> None:
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    names = [name for name in table.variants if any(name in one["variants"] for one in found.values())]
    for axes, (setup, values) in zip(panels, found.items(), strict=True):
        _dots(axes, names, values, metric)
        axes.set_title(setups[setup].title.replace(", ", "\n", 1), fontsize=10)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    what = "Linear probe from the labels of training" if table.probes else "Recall@1"
    figure.supxlabel(f"{what} (%)\nDots: runs; diamond: mean, 95% interval; dotted: no head", fontsize=10)


def _dots(axes: Axes, names: list[str], values: Mapping[str, Any], metric: str) -> None:
    features = values.get("untrained", {}).get("features", {}).get(metric)
    if features is not None:
        axes.axvline(100 * features, color=GREY, ls=":", lw=1.2)
    for place, name in enumerate(names):
        variant = values["variants"].get(name)
        numbers = [100 * value for value in values_of(variant, metric)] if variant else []
        if not numbers:
            continue
        one = summarize(numbers)
        axes.plot(numbers, [place] * len(numbers), "o", color=COLOURS[0], ms=3.5, alpha=0.35, mew=0)
        if one.low is not None and one.high is not None:
            axes.plot([one.low, one.high], [place, place], color=COLOURS[1], lw=2)
        axes.plot(one.mean, place, "D", color=COLOURS[1], ms=4.5)
    axes.grid(axis="x", alpha=0.3)


def _draw_curves(
    table: Table, setups: Mapping[str, Setup], curves: Mapping[str, Mapping[str, Any]], figure: Figure
) -> None:
    panels = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    assert table.figure is not None
    for axes, (setup, lines) in zip(panels, curves.items(), strict=True):
        for place, (name, curve) in enumerate(lines.items()):
            colour, style = COLOURS[place % len(COLOURS)], "-" if place < len(COLOURS) else "--"
            shares = [100 * value for value in curve["value"]]
            axes.plot(curve["step"], shares, style, color=colour, lw=1.8, label=name)
        axes.set_title(setups[setup].title.replace(", ", "\n", 1), fontsize=10)
        axes.set_xlabel("Step")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(_TITLES.get(table.figure, table.figure))
    panels[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
