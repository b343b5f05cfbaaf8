"""Triplet diagram: triplets by the cosines of the anchor with its positive and with its negative."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retrieval.analysis.embeddings import Embeddings
from retrieval.analysis.selection import NegativeRule, PositiveRule, select_triplets
from retrieval.errors import InputError
from retrieval.metrics.all_pairs import similarities
from retrieval.reports.figures import COLOURS, GREY, RASTERIZE_ABOVE, caption

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ARROWS = 120  # more of them would overlap
_AFTER, _BEFORE = COLOURS[0], COLOURS[4]
_SIDE = 5.0  # inches of a panel

# Mining strategies of SCT, section 3: name -> positive, negative, mark and colour.
_STRATEGIES: dict[str, tuple[PositiveRule, NegativeRule, str, str]] = {
    "random": ("random", "random", "o", GREY),
    "hard negative": ("random", "hard", "^", COLOURS[1]),
    "semi-hard negative": ("random", "semi-hard", "v", COLOURS[0]),
    "easy positive": ("easy", "random", "s", COLOURS[2]),
    "easy positive, hard negative": ("easy", "hard", "*", COLOURS[3]),
}
_SAMPLE = 150  # anchors of a diagram of strategies


@dataclass(frozen=True, eq=False)
class Triplets:
    """Points of a triplet diagram (SCT, figures 1 and 7).

    Attributes:
        name: Name of the embeddings, or of the mining strategy.
        positive: Cosine of each anchor with its positive, float32 [N]: of all images, with the most similar
            other image of the class (easiest positive).
        negative: Cosine with its negative, float32 [N]: of all images, with the most similar image of another
            class (hardest negative).
        left_out: Number of anchors without a triplet, such as images that are alone in their class.
    """

    name: str
    positive: np.ndarray
    negative: np.ndarray
    left_out: int

    @property
    def hard_share(self) -> float:
        """Share of hard triplets, in 0..1: the negative is more similar than the positive."""
        return float((self.negative > self.positive).mean())

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return {
            "name": self.name,
            "images": len(self.positive),
            "left_out": self.left_out,
            "hard_share": self.hard_share,
            "mean_positive": float(self.positive.mean()),
            "deviation_positive": float(self.positive.std()),
            "mean_negative": float(self.negative.mean()),
        }


def triplets(embeddings: Embeddings, *, show_progress: bool = False) -> Triplets:
    """Compare each image with all others, in blocks; synthetic points are left out.

    Raises:
        InputError: There is a single class, or no class has two images.
    """
    images = embeddings.take(~embeddings.synthetic)
    _check_classes(images)
    found = similarities(images.vectors, images.classes, show_progress=show_progress)
    known = ~np.isnan(found.easiest_positive)
    positive, negative = found.easiest_positive[known], found.hardest_negative[known]
    return Triplets(images.name, positive, negative, int((~known).sum()))


def strategy_triplets(embeddings: Embeddings, *, seed: int = 0) -> list[Triplets]:
    """Select the triplets of five mining strategies for up to 150 random anchors (SCT, section 3, figure 1).

    The strategies combine a random or the easy (most similar) positive with a random negative, the hard (most
    similar) one, or the semi-hard one (most similar of those less similar than the positive). Positives and
    negatives are any of the images; synthetic points are left out.

    Raises:
        InputError: There is a single class, or no class has two images.
    """
    images = embeddings.take(~embeddings.synthetic)
    _check_classes(images)
    anchors = np.sort(np.random.default_rng(seed).permutation(len(images))[:_SAMPLE])
    found = []
    for name, (positive, negative, *_) in _STRATEGIES.items():
        chosen = select_triplets(
            images.vectors, images.classes, positive, negative, anchors=anchors, seed=seed
        )
        left_out = len(anchors) - len(chosen.anchor)
        found.append(Triplets(name, *chosen.cosines(images.vectors), left_out))
    return found


def _check_classes(images: Embeddings) -> None:
    labels, counts = np.unique(images.labels, return_counts=True)
    if len(labels) < 2:
        raise InputError(f"{images.name}: all images are of one class, so none has a negative")
    if counts.max() < 2:
        raise InputError(f"{images.name}: no class has two images, so none has a positive")


def same_images(before: Embeddings, after: Embeddings) -> bool:
    """Return whether two sets of embeddings are of the same images, row by row, as far as known."""
    if not np.array_equal(before.labels, after.labels):
        return False
    return before.paths is None or after.paths is None or np.array_equal(before.paths, after.paths)


@dataclass(frozen=True)
class Panel:
    """Panel of a figure of triplet diagrams.

    Attributes:
        title: What the panel shows, such as the split.
        states: One set of triplets; two of the same images, before and after; or those of the strategies.
    """

    title: str
    states: Sequence[Triplets]


def diagram_size(rows: Sequence[Sequence[Panel]]) -> tuple[float, float]:
    """Return width and height of a figure of triplet diagrams, in inches."""
    return _SIDE * len(rows[0]) + 0.3, _SIDE * len(rows) + 1.0


def draw_triplet_diagram(rows: Sequence[Sequence[Panel]], figure: Figure) -> None:
    """Draw the embeddings of all images, with arrows from before to after if there are few images.

    Args:
        rows: Panels, in rows of the same length; all have the same axes.
        figure: Figure to draw on.
    """
    figure.suptitle("Is the nearest image of the same class or of another?", fontsize=13)
    low = _corner(t for panels in rows for panel in panels for t in panel.states)
    grid = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for line, panels in zip(grid, rows, strict=True):
        for axes, panel in zip(line, panels, strict=True):
            _draw_panel(axes, panel.states, low)
            shares = " → ".join(f"{100 * t.hard_share:.1f}%" for t in panel.states)
            last = panel.states[-1].positive
            spread = f"cosine with the positive {last.mean():.3f} ± {last.std():.3f}"
            _finish_panel(axes, panel, low, f"{shares} hard; {spread}")
            axes.set_xlabel("cosine with the easiest positive (nearest of its class)")
            axes.set_ylabel("cosine with the hardest negative (nearest of another)")
    _draw_legend(figure, grid[0, 0])


def draw_strategies(rows: Sequence[Sequence[Panel]], figure: Figure) -> None:
    """Draw the triplets of the mining strategies, each with its own mark; see `strategy_triplets`."""
    figure.suptitle("Triplets of five mining strategies", fontsize=13)
    low = _corner(t for panels in rows for panel in panels for t in panel.states)
    grid = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for line, panels in zip(grid, rows, strict=True):
        for axes, panel in zip(line, panels, strict=True):
            _draw_background(axes, low)
            for found in panel.states:
                *_, marker, colour = _STRATEGIES[found.name]
                look = {"s": 26 if marker == "*" else 14, "alpha": 0.8, "linewidths": 0, "zorder": 3}
                axes.scatter(
                    found.positive, found.negative, marker=marker, color=colour, label=found.name, **look
                )
            _finish_panel(axes, panel, low, f"{len(panel.states[0].positive)} random anchors")
            axes.set_xlabel("cosine of anchor and positive")
            axes.set_ylabel("cosine of anchor and negative")
    _draw_legend(figure, grid[0, 0])


def _corner(states: Iterable[Triplets]) -> float:
    """Return the lower limit of the axes: of each set, all but a few outliers are in the frame."""
    lows = [np.quantile(np.minimum(t.positive, t.negative), 0.002, method="lower") for t in states]
    return float(np.floor(10 * min(lows) - 0.2) / 10)


def _draw_background(axes: Axes, low: float) -> None:
    high = _high(low)
    axes.fill_between([low, high], [low, high], high, color="#000000", alpha=0.06, lw=0)
    axes.plot([low, high], [low, high], color="#333333", lw=1, label="equally near")


def _draw_panel(axes: Axes, states: Sequence[Triplets], low: float) -> None:
    _draw_background(axes, low)
    looks = [(_BEFORE, "D"), (_AFTER, "o")][-len(states) :]
    for number, (found, (colour, marker)) in enumerate(zip(states, looks, strict=True)):
        count = len(found.positive)
        axes.scatter(
            *(found.positive, found.negative),
            s=float(np.clip(20_000 / count, 3, 14)),
            marker=marker,
            color=colour,
            alpha=float(np.clip(500 / count, 0.1, 0.7)),
            linewidths=0,
            label=caption(found.name) if len(states) == 2 else "image",
            rasterized=count > RASTERIZE_ABOVE,
            zorder=2 + number,
        )
    if len(states) == 2 and len(states[0].positive) <= _ARROWS:
        (x, y), (u, v) = ((t.positive, t.negative) for t in states)
        arrows = axes.quiver(x, y, u - x, v - y, angles="xy", scale_units="xy", scale=1, width=0.003)
        arrows.set(color="#333333", alpha=0.5, zorder=5)


def _finish_panel(axes: Axes, panel: Panel, low: float, facts: str) -> None:
    high = _high(low)
    outside = sum(int((np.minimum(t.positive, t.negative) < low).sum()) for t in panel.states)
    rest = f"\n({outside:,} points are outside the frame)" if outside else ""
    axes.set_title(f"{panel.title}\n{facts}{rest}", fontsize=10)
    axes.text(0.03, 0.97, "hard: another class is nearer", va="top", transform=axes.transAxes)
    axes.text(0.97, 0.03, "easy: its own class is nearer", ha="right", transform=axes.transAxes)
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    axes.grid(alpha=0.3)


def _draw_legend(figure: Figure, axes: Axes) -> None:
    from matplotlib.collections import PathCollection

    known = axes.get_legend_handles_labels()
    columns = 3 if figure.get_figwidth() > 1.5 * _SIDE else 2
    legend = figure.legend(*known, loc="outside lower center", frameon=False, ncols=columns)
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):  # marks of large sets are too faint for a legend
            handle.set(alpha=1, sizes=[40])


def _high(low: float) -> float:
    return 1.0 + 0.02 * (1 - low)
