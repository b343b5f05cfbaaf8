"""Curves of a sweep: Recall@1 of watched images over training, of all seeds (Symm figs. 4 and 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval.reports.figures import COLOURS, axes_svg, caption
from train.loop.tracking import WATCHED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLES = ("-", "--", ":")


@dataclass(frozen=True)
class WatchedCurve:
    """Recall@1 of the watched images of one variant.

    Attributes:
        variant: Name of the variant.
        split: Split that was watched: "train", "held-out" or "test".
        steps: Steps, ascending, [n].
        runs: Number of runs with a record at each step, [n]; less than all if some run failed or ended early.
        mean: Mean Recall@1 over these runs, in 0..1, [n].
        std: Standard deviation over them, [n]; 0 for a single run.
    """

    variant: str
    split: str
    steps: list[int]
    runs: list[int]
    mean: list[float]
    std: list[float]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def watched_curves(records: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> list[WatchedCurve]:
    """Summarize the records of watched images over the seeds, one curve per variant and split.

    Args:
        records: Variant -> records of each of its runs, as `Run.watched` returns them.
    """
    curves = []
    for variant, runs in records.items():
        values: dict[str, dict[int, list[float]]] = {}
        for record in (record for run in runs for record in run):
            of_split = values.setdefault(record["watched"], {})
            of_split.setdefault(record["step"], []).append(record["recall_at_1"])
        for split, of_step in values.items():
            steps = sorted(of_step)
            found = [np.array(of_step[step]) for step in steps]
            deviations = [float(each.std(ddof=1)) if len(each) > 1 else 0.0 for each in found]
            means = [float(each.mean()) for each in found]
            curves.append(WatchedCurve(variant, split, steps, [len(e) for e in found], means, deviations))
    return curves


def watched_figure(curves: Sequence[WatchedCurve]) -> str:
    """Return an SVG of the curves: a line for the mean over the seeds and a band of one deviation."""
    return axes_svg(partial(_plot, curves), 8, 4.8)


def _plot(curves: Sequence[WatchedCurve], axes: Axes) -> None:
    splits = list(dict.fromkeys(curve.split for curve in curves))
    for number, curve in enumerate(curves):
        mean, std = (100 * np.array(values) for values in (curve.mean, curve.std))
        colour = COLOURS[number % len(COLOURS)]
        style = _STYLES[number // len(COLOURS) % len(_STYLES)]
        label = caption(curve.variant if len(splits) == 1 else f"{curve.variant}, {curve.split}")
        axes.plot(curve.steps, mean, color=colour, linestyle=style, label=label)
        axes.fill_between(curve.steps, mean - std, mean + std, color=colour, alpha=0.18, linewidth=0)
    axes.set_xlabel("step")
    axes.set_ylabel("Recall@1 (%)")
    titles = "; ".join(WATCHED[split] for split in splits)
    axes.set_title(
        f"Recall@1 of {titles}\nLines: means over the seeds. Bands: one standard deviation", fontsize=11
    )
    axes.legend(frameon=False, fontsize=10)
    axes.grid(alpha=0.3)
    axes.margins(x=0.02)
