"""Page of a calibration: its quality, the reliability diagram, and what each lowest probability does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from retrieval.evaluation.calibration_fit import Quality
from retrieval.metrics.reliability import BINS, Bin
from retrieval.reports.figures import COLOURS, GREY, axes_svg
from retrieval.reports.pages import inline_svg, render_template
from retrieval.search.calibration import Calibration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

_SIDE = 4.2  # inches


def render_calibration(calibration: Calibration, quality: Quality) -> str:
    """Render a calibration as an HTML fragment."""
    svg = axes_svg(partial(plot_reliability, quality.reliability), _SIDE, _SIDE)
    return render_template(
        "calibration.html",
        calibration=calibration,
        quality=quality,
        bins=BINS,
        folds=(min(quality.ece_of_folds), max(quality.ece_of_folds)),
        figure=inline_svg(svg, "Share of right hits against their probability"),
    )


def plot_reliability(bins: Sequence[Bin], axes: Axes) -> None:
    """Plot the share of right hits against the mean probability of each bin, and the diagonal."""
    axes.plot([0, 1], [0, 1], color=GREY, lw=1, label="perfect")
    axes.plot(
        [one.probability for one in bins],
        [one.right for one in bins],
        "o-",
        color=COLOURS[0],
        ms=4,
        label="held-out classes",
    )
    axes.set(xlabel="probability", ylabel="share of right hits", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False)
