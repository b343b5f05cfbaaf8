"""Pairs that a loss selects for some anchors of a batch, by their cosine (RAW, section 5.1 and fig. 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval.analysis.embeddings import Embeddings
from retrieval.reports.figures import COLOURS, GREY, caption
from train.losses.mining import VariableThresholdMiner
from train.papers.batch_weights import BatchWeights
from train.papers.specs import NamedLoss

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HALF = 0.34  # height of the positives above the line of an anchor, and of the negatives below it


@dataclass(frozen=True, eq=False)
class AnchorPairs:
    """Pairs of one anchor.

    Attributes:
        label: Class of the anchor.
        positives: Cosines of the positive pairs, ascending.
        negatives: Cosines of the negative pairs, ascending.
        positive_selected: Whether the loss gives the positive pair a weight.
        negative_selected: Whether the loss gives the negative pair a weight.
        positive_limit: VTHM selects the positives below it: the hardest negative's cosine + margin.
        negative_limit: VTHM selects the negatives above it: the hardest positive's cosine - margin. Both
            limits are `None` for other miners.
    """

    label: str
    positives: np.ndarray
    negatives: np.ndarray
    positive_selected: np.ndarray
    negative_selected: np.ndarray
    positive_limit: float | None
    negative_limit: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        arrays = ("positives", "negatives", "positive_selected", "negative_selected")
        return {
            "label": self.label,
            **{key: getattr(self, key).tolist() for key in arrays},
            "positive_limit": self.positive_limit,
            "negative_limit": self.negative_limit,
        }


def anchor_pairs(
    batch: Embeddings, weights: BatchWeights, of: NamedLoss, *, count: int, seed: int = 0
) -> list[AnchorPairs]:
    """Return the pairs of some anchors of a batch.

    Args:
        batch: Embeddings of the batch.
        weights: Weights of its pairs under the loss.
        of: The loss.
        count: Number of anchors; fewer if the batch is smaller.
        seed: Seed of the anchors.
    """
    mining = getattr(of.loss.term, "mining", None)
    margin = mining.margin if isinstance(mining, VariableThresholdMiner) else None
    random = np.random.default_rng(seed)
    rows = np.sort(random.choice(len(batch), min(count, len(batch)), replace=False))
    return [_pairs_of(str(batch.labels[row]), weights, row, margin) for row in rows.tolist()]


def _pairs_of(label: str, weights: BatchWeights, row: int, margin: float | None) -> AnchorPairs:
    found = []
    for pairs in (weights.positive[row], weights.negative[row]):
        cosine, selected = weights.cosine[row][pairs], weights.weight[row][pairs] != 0
        order = np.argsort(cosine)
        found.append((cosine[order], selected[order]))
    (positives, positive_selected), (negatives, negative_selected) = found
    limits: tuple[float | None, float | None] = (None, None)
    if margin is not None:
        limits = float(negatives.max() + margin), float(positives.min() - margin)
    return AnchorPairs(label, positives, negatives, positive_selected, negative_selected, *limits)


def draw_selection(name: str, anchors: Sequence[AnchorPairs], figure: Figure) -> None:
    """Draw one row for each anchor: positive pairs above its line, negative pairs below it, by cosine."""
    axes = figure.add_subplot()
    for place, one in enumerate(anchors):
        axes.axhline(place, color="0.85", linewidth=0.8, zorder=0)
        positive, negative = (COLOURS[2], "o", -1), (COLOURS[0], "^", 1)
        _draw_pairs(axes, one.positives, one.positive_selected, place, *positive)
        _draw_pairs(axes, one.negatives, one.negative_selected, place, *negative)
        for limit, (colour, _, side) in ((one.positive_limit, positive), (one.negative_limit, negative)):
            if limit is not None:
                axes.plot([limit, limit], [place, place + side * 1.3 * _HALF], color=colour, linewidth=2)
    # Each kind once for the legend.
    for colour, marker, filled, label in (
        (COLOURS[2], "o", True, "positive pair, selected"),
        (COLOURS[0], "^", True, "negative pair, selected"),
        (GREY, "o", False, "positive pair, left out"),
        (GREY, "^", False, "negative pair, left out"),
    ):
        face = colour if filled else "white"
        axes.plot([], [], marker, color=colour, markerfacecolor=face, markersize=6, label=label)
    if any(one.positive_limit is not None for one in anchors):
        axes.plot([], [], color=COLOURS[2], linewidth=2, label="hardest negative + margin: positives below")
        axes.plot([], [], color=COLOURS[0], linewidth=2, label="hardest positive − margin: negatives above")
    axes.set_yticks(range(len(anchors)), [caption(one.label, 24) for one in anchors])
    axes.set_ylim(len(anchors) - 0.4, -0.6)
    axes.set_xlabel("cosine with the anchor")
    axes.set_ylabel("class of the anchor")
    figure.legend(loc="outside lower center", frameon=False, ncols=2)
    figure.suptitle(f"Pairs that are selected: {caption(name, 60)}", fontsize=13)


def _draw_pairs(
    axes: Axes, cosines: np.ndarray, selected: np.ndarray, place: int, colour: str, marker: str, side: int
) -> None:
    height = np.full(len(cosines), place + side * 0.5 * _HALF)
    left_out: dict[str, Any] = {"color": GREY, "markerfacecolor": "white", "markersize": 5, "zorder": 2}
    axes.plot(cosines[~selected], height[~selected], marker, **left_out)
    axes.plot(cosines[selected], height[selected], marker, color=colour, markersize=6, zorder=3)
