"""Triplet diagram: each image by its similarity to its nearest positive and nearest negative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retrieval.analysis.embeddings import Embeddings
from retrieval.errors import InputError
from retrieval.metrics.all_pairs import similarities
from retrieval.reports.figures import COLOURS, RASTERIZE_ABOVE, caption

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ARROWS = 120  # more of them would overlap
_AFTER, _BEFORE = COLOURS[0], COLOURS[4]
_SIDE = 5.0  # inches of a panel


@dataclass(frozen=True, eq=False)
class Triplets:
    """Points of a triplet diagram (SCT, figures 1, 5 and 7).

    Attributes:
        name: Name of the embeddings.
        positive: Cosine of each image with the most similar other image of its class (easiest positive),
            float32 [N].
        negative: Cosine with the most similar image of another class (hardest negative), float32 [N].
        left_out: Number of images that are alone in their class, which have no positive.
    """

    name: str
    positive: np.ndarray
    negative: np.ndarray
    left_out: int

    @property
    def hard_share(self) -> float:
        """Share of hard triplets, in 0..1: the hardest negative is more similar than the easiest positive."""
        return float((self.negative > self.positive).mean())

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return {
            "name": self.name,
            "images": len(self.positive),
            "left_out": self.left_out,
            "hard_share": self.hard_share,
            "mean_positive": float(self.positive.mean()),
            "mean_negative": float(self.negative.mean()),
        }


def triplets(embeddings: Embeddings, *, show_progress: bool = False) -> Triplets:
    """Compare each image with all others, in blocks; synthetic points are left out.

    Raises:
        InputError: There is a single class, or no class has two images.
    """
    images = embeddings.take(~embeddings.synthetic)
    labels, counts = np.unique(images.labels, return_counts=True)
    if len(labels) < 2:
        raise InputError(f"{images.name}: all images are of one class, so none has a negative")
    if counts.max() < 2:
        raise InputError(f"{images.name}: no class has two images, so none has a positive")
    found = similarities(images.vectors, images.classes, show_progress=show_progress)
    known = ~np.isnan(found.easiest_positive)
    positive, negative = found.easiest_positive[known], found.hardest_negative[known]
    return Triplets(images.name, positive, negative, int((~known).sum()))


def same_images(before: Embeddings, after: Embeddings) -> bool:
    """Return whether two sets of embeddings are of the same images, row by row, as far as known."""
    if not np.array_equal(before.labels, after.labels):
        return False
    return before.paths is None or after.paths is None or np.array_equal(before.paths, after.paths)


def diagram_size(panels: int) -> tuple[float, float]:
    """Return width and height of a figure with a number of panels, in inches."""
    return _SIDE * panels + 0.3, _SIDE + 1.0


def draw_triplet_diagram(panels: Mapping[str, Sequence[Triplets]], figure: Figure) -> None:
    """Draw one panel per split, with arrows from before to after if there are few images.

    Args:
        panels: Name of the split -> one set of triplets, or two of the same images, before and after.
        figure: Figure to draw on.
    """
    from matplotlib.collections import PathCollection

    figure.suptitle("Is the nearest image of the same class or of another?", fontsize=13)
    low = _corner([t for states in panels.values() for t in states])
    row = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (split, states) in zip(row, panels.items(), strict=True):
        _draw_panel(axes, states, low)
        shares = " → ".join(f"{100 * t.hard_share:.1f}%" for t in states)
        outside = sum(int((np.minimum(t.positive, t.negative) < low).sum()) for t in states)
        rest = f"\n({outside:,} points are outside the frame)" if outside else ""
        axes.set_title(f"{split} images: {shares} hard triplets{rest}", fontsize=11)
    known = axes.get_legend_handles_labels()
    legend = figure.legend(*known, loc="outside lower center", frameon=False, ncols=3)
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):  # marks of large sets are too faint for a legend
            handle.set(alpha=1, sizes=[40])


def _corner(states: Sequence[Triplets]) -> float:
    """Return the lower limit of the axes: of each set, all but a few outliers are in the frame."""
    lows = [np.quantile(np.minimum(t.positive, t.negative), 0.002, method="lower") for t in states]
    return float(np.floor(10 * min(lows) - 0.2) / 10)


def _draw_panel(axes: Axes, states: Sequence[Triplets], low: float) -> None:
    high = 1.0 + 0.02 * (1 - low)
    axes.fill_between([low, high], [low, high], high, color="#000000", alpha=0.06, lw=0)
    axes.plot([low, high], [low, high], color="#333333", lw=1, label="equally near")
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
            label=caption(found.name),
            rasterized=count > RASTERIZE_ABOVE,
            zorder=2 + number,
        )
    if len(states) == 2 and len(states[0].positive) <= _ARROWS:
        (x, y), (u, v) = ((t.positive, t.negative) for t in states)
        arrows = axes.quiver(x, y, u - x, v - y, angles="xy", scale_units="xy", scale=1, width=0.003)
        arrows.set(color="#333333", alpha=0.5, zorder=5)
    axes.text(0.03, 0.97, "hard: another class is nearer", va="top", transform=axes.transAxes)
    axes.text(0.97, 0.03, "easy: its own class is nearer", ha="right", transform=axes.transAxes)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    axes.set_xlabel("cosine with the easiest positive (nearest of its class)")
    axes.set_ylabel("cosine with the hardest negative (nearest of another)")
    axes.grid(alpha=0.3)
