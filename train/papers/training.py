"""Curves of the metrics recorded during training (SCT fig. 6; Symm figs. 4, 5 and 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval.errors import InputError
from retrieval.reports.figures import COLOURS, caption
from train.loop.run_folder import Run
from train.loop.tracking import WATCHED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Metrics in the order of their panels: key in metrics.jsonl -> title and unit (shares are shown in %).
_PANELS = {
    "loss": ("Loss", "value"),
    "recall_at_1": ("Recall@1 of held-out images", "%"),
    **{f"watched_{split}": (f"Recall@1 of {title}", "%") for split, title in WATCHED.items()},
    "hard_anchor_share": ("Hard triplets: negative closer", "% of anchors"),
    "hard_share": ("Hard among what the loss compares", "%"),
    "active_share": ("Active terms of the loss", "%"),
    "synthetic_share": ("Synthetic among the selected points", "%"),
    "gradient_ratio": ("Gradient: regularizers / loss", "ratio of norms"),
    "kernel_active": ("Kernel of the nearest sample", "0 to 1"),
    "mean_positive": ("Mean similarity of positive pairs", "cosine"),
    "mean_negative": ("Mean similarity of negative pairs", "cosine"),
    "lr": ("Learning rate", "value"),
}
_AS_RECORDED = {"recall_at_1", "lr", *(f"watched_{split}" for split in WATCHED)}  # never running means
_STYLES = ("-", "--", ":")
MOST = len(COLOURS) * len(_STYLES)
_POINTS = 100  # curves of more than twice as many records are running means


@dataclass(frozen=True, eq=False)
class History:
    """Recorded metrics of one run.

    Attributes:
        name: Name of the run.
        series: Metric -> steps int64 [n] and values float64 [n].
    """

    name: str
    series: dict[str, tuple[np.ndarray, np.ndarray]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        plain = {
            key: {"steps": steps.tolist(), "values": values.tolist()}
            for key, (steps, values) in self.series.items()
        }
        return {"name": self.name, "series": plain}


def read_history(folder: Path, name: str) -> History:
    """Read the metrics of a run that have a panel.

    Args:
        folder: Folder of the run.
        name: Name of the run in the figure.

    Raises:
        InputError: No run, or one without records.
    """
    try:
        run = Run.open(folder)
        watched = [
            {"step": record["step"], f"watched_{record['watched']}": record["recall_at_1"]}
            for record in run.watched()
        ]
        records = [*run.metrics(), *watched]
    except ValueError as error:
        raise InputError(f"{folder / 'metrics.jsonl'}: damaged ({error}); train the run again") from error
    series = {}
    for key in _PANELS:
        pairs = [(record["step"], record[key]) for record in records if key in record]
        if pairs:
            steps, values = np.array(pairs, np.float64).T
            series[key] = (steps.astype(np.int64), values)
    if not series:
        raise InputError(f"{folder}: no metrics recorded yet; `lookalike train` writes metrics.jsonl")
    return History(name, series)


def running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Return the running mean over an odd window; the window shrinks symmetrically at both ends."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    place = np.arange(len(values))
    reach = np.minimum(width // 2, np.minimum(place, place[::-1]))
    means: np.ndarray = (total[place + reach + 1] - total[place - reach]) / (2 * reach + 1)
    return means


def running_mean_width(histories: Sequence[History]) -> int:
    """Return the window of the running mean in records: 1 for short runs, and odd."""
    longest = max(len(steps) for found in histories for steps, _ in found.series.values())
    return 1 if longest <= 2 * _POINTS else 2 * (longest // _POINTS // 2) + 1


def recorded_metrics(histories: Sequence[History]) -> list[str]:
    """Return the metrics that at least one run recorded, in the order of their panels."""
    return [key for key in _PANELS if any(key in found.series for found in histories)]


def figure_size(histories: Sequence[History]) -> tuple[float, float]:
    """Return width and height of the figure in inches."""
    number = len(recorded_metrics(histories))
    return 4.2 * min(number, 3), 2.9 * -(-number // 3) + 0.7 + 0.25 * -(-len(histories) // 3)


def training_figure(histories: Sequence[History], figure: Figure) -> None:
    """Plot one panel per recorded metric, with one line per run.

    Raises:
        InputError: More runs than there are distinct line styles.
    """
    if len(histories) > MOST:
        raise InputError(f"{len(histories)} runs are too many for one figure; give at most {MOST}")
    keys, width = recorded_metrics(histories), running_mean_width(histories)
    columns = min(len(keys), 3)
    grid = figure.subplots(-(-len(keys) // columns), columns, squeeze=False)
    for axes, key in zip(grid.flat, keys, strict=False):
        _plot_panel(histories, key, width, axes)
    for axes in grid.flat[len(keys) :]:
        axes.remove()
    for axes in grid.flat[max(0, len(keys) - columns) : len(keys)]:
        axes.set_xlabel("step")
    handles = {line.get_label(): line for axes in grid.flat for line in axes.get_lines()}
    shown = [handles[caption(found.name)] for found in histories]
    figure.legend(handles=shown, loc="outside lower center", frameon=False, ncols=3)
    means = "as recorded" if width == 1 else f"running means over {width} records"
    figure.suptitle(f"Training ({means})", fontsize=13)


def _plot_panel(histories: Sequence[History], key: str, width: int, axes: Axes) -> None:
    title, unit = _PANELS[key]
    for number, found in enumerate(histories):
        if key not in found.series:
            continue
        steps, values = found.series[key]
        values = 100 * values if unit.startswith("%") else values
        look: dict[str, Any] = {
            "color": COLOURS[number % len(COLOURS)],
            "linestyle": _STYLES[number // len(COLOURS)],
            "marker": "o" if len(steps) <= 12 else "",
            "markersize": 4,
        }
        drawn = values if key in _AS_RECORDED else running_mean(values, width)
        axes.plot(steps, drawn, label=caption(found.name), **look)
    axes.set_title(title, fontsize=11)
    axes.set_ylabel(unit)
    if key == "gradient_ratio":
        axes.set_yscale("log")  # 1e-6 to 1e4 in one run
    else:
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 5))
    axes.margins(x=0.02)
    axes.grid(alpha=0.3)
