"""Learning curves of a sweep: loss and Recall@1 over training, over all seeds (Symm figs. 4 and 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval.reports.figures import COLOURS, caption, render_figure
from train.loop.tracking import WATCHED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Quantities in the order of their panels, with their titles.
_TITLES = {
    "loss": "Loss of a batch",
    "held-out": "Recall@1 of held-out images",
    **{f"watched {split}": f"Recall@1 of {title}" for split, title in WATCHED.items()},
}
_STYLES = ("-", "--", ":", "-.")
_POINTS = 100  # of a curve of the loss; more records are averaged
_WIDE = 20.0  # ratio of the largest to the smallest mean loss that takes a logarithmic axis


@dataclass(frozen=True)
class LearningCurve:
    """A quantity of one variant over training.

    Attributes:
        variant: Name of the variant.
        quantity: "loss"; "held-out" for Recall@1 of the images that select the best epoch; "watched train",
            "watched held-out" or "watched test" for Recall@1 of watched images.
        steps: Steps, ascending, [n].
        runs: Number of runs with a record at each step, [n]; less than all if some run failed or ended early.
        mean: Mean over these runs, [n]; Recall@1 in 0..1.
        std: Standard deviation over them, [n]; 0 for a single run.
    """

    variant: str
    quantity: str
    steps: list[int]
    runs: list[int]
    mean: list[float]
    std: list[float]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def learning_curves(records: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> list[LearningCurve]:
    """Summarize the records of training over the seeds, one curve per variant and quantity.

    Long runs have a point for every hundredth of their steps, the mean of the losses recorded in it.

    Args:
        records: Variant -> records of each of its runs, in the form of metrics.jsonl.
    """
    longest = max((r["step"] for runs in records.values() for run in runs for r in run), default=0)
    width = max(1, longest // _POINTS)
    curves = []
    for variant, runs in records.items():
        values: dict[str, dict[int, list[float]]] = {}
        for run in runs:
            of_run: dict[tuple[str, int], list[float]] = {}
            for quantity, step, value in _values(run):
                place = min(-(-step // width) * width, longest) if quantity == "loss" else step
                of_run.setdefault((quantity, place), []).append(value)
            for (quantity, place), found in of_run.items():
                values.setdefault(quantity, {}).setdefault(place, []).append(float(np.mean(found)))
        curves += [_curve(variant, quantity, values[quantity]) for quantity in _TITLES if quantity in values]
    return curves


def _values(records: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int, float]]:
    """Yield quantity, step and value of each record that has one."""
    for record in records:
        if "loss" in record:
            yield "loss", record["step"], record["loss"]
        if "recall_at_1" in record:
            quantity = f"watched {record['watched']}" if "watched" in record else "held-out"
            yield quantity, record["step"], record["recall_at_1"]


def _curve(variant: str, quantity: str, of_step: Mapping[int, Sequence[float]]) -> LearningCurve:
    steps = sorted(of_step)
    found = [np.array(of_step[step]) for step in steps]
    deviations = [float(each.std(ddof=1)) if len(each) > 1 else 0.0 for each in found]
    means = [float(each.mean()) for each in found]
    return LearningCurve(variant, quantity, steps, [len(each) for each in found], means, deviations)


def curves_figure(curves: Sequence[LearningCurve]) -> str:
    """Return an SVG with a panel per quantity: lines for the means over the seeds, bands of one deviation."""
    panels = len({curve.quantity for curve in curves})
    variants = len({curve.variant for curve in curves})
    columns = min(panels, 2)
    height = 3.6 * -(-panels // columns) + 0.5 + 0.25 * -(-variants // (2 * columns))
    return render_figure(partial(draw_curves, curves), 6.0 * columns, height).decode()


def draw_curves(curves: Sequence[LearningCurve], figure: Figure) -> None:
    """Draw a panel per quantity, and one legend of the variants below."""
    quantities = [quantity for quantity in _TITLES if any(c.quantity == quantity for c in curves)]
    columns = min(len(quantities), 2)
    panels = figure.subplots(-(-len(quantities) // columns), columns, squeeze=False).ravel()
    variants = list(dict.fromkeys(curve.variant for curve in curves))
    for quantity, axes in zip(quantities, panels, strict=False):
        shown = {curve.variant: curve for curve in curves if curve.quantity == quantity}
        _plot(quantity, shown, variants, axes)
    for axes in panels[len(quantities) :]:
        axes.set_axis_off()
    lines = {line.get_label(): line for axes in panels for line in axes.get_lines()}
    names = [caption(variant) for variant in variants]
    figure.legend(
        [lines[name] for name in names], names, loc="outside lower center", ncols=2 * columns, frameon=False
    )
    figure.suptitle("Lines: means over the seeds. Bands: one standard deviation", fontsize=10)


def _plot(quantity: str, shown: Mapping[str, LearningCurve], variants: Sequence[str], axes: Axes) -> None:
    scale = 1 if quantity == "loss" else 100
    for variant, curve in shown.items():
        number = variants.index(variant)
        mean, std = (scale * np.array(values) for values in (curve.mean, curve.std))
        colour = COLOURS[number % len(COLOURS)]
        style = _STYLES[number // len(COLOURS) % len(_STYLES)]
        axes.plot(curve.steps, mean, color=colour, linestyle=style, label=caption(variant))
        axes.fill_between(curve.steps, mean - std, mean + std, color=colour, alpha=0.18, linewidth=0)
    if quantity == "loss":
        means = [value for curve in shown.values() for value in curve.mean]
        if min(means) > 0 and max(means) > _WIDE * min(means):
            axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("loss" if quantity == "loss" else "Recall@1 (%)")
    axes.set_title(_TITLES[quantity], fontsize=11)
    axes.grid(alpha=0.3)
    axes.margins(x=0.02)
