"""Weights that losses give to the pairs of a real batch (RAW, theorem 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from retrieval.analysis.embeddings import Embeddings
from retrieval.reports.figures import COLOURS, RASTERIZE_ABOVE, caption
from train.papers.specs import NamedLoss
from train.papers.weight_curves import drawn_weights, loss_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_UNUSED = "0.75"


@dataclass(frozen=True, eq=False)
class BatchWeights:
    """Weights of the pairs of a batch under one loss.

    Attributes:
        name: Name of the loss.
        cosine: [B, B] cosines of the batch.
        weight: [B, B] weights w_ij that anchor i gives to j: above 0, a positive pair is pulled together and
            a negative pair pushed apart. 0 for pairs that the loss does not select.
        positive: [B, B] bool, two images of the same class.
        negative: [B, B] bool, two images of different classes.
    """

    name: str
    cosine: np.ndarray
    weight: np.ndarray
    positive: np.ndarray
    negative: np.ndarray

    @property
    def largest(self) -> float:
        """Largest absolute weight."""
        return float(np.abs(self.weight).max())

    def selected(self, pairs: np.ndarray) -> float:
        """Return the share of pairs with a weight: `positive` or `negative`, [B, B] bool."""
        return float((self.weight[pairs] != 0).mean()) if pairs.any() else 0.0

    def total(self, pairs: np.ndarray) -> float:
        """Return the sum of the weights of pairs: `positive` or `negative`, [B, B] bool."""
        return float(self.weight[pairs].sum())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; the weights are not scaled."""
        kinds = {"positive": self.positive, "negative": self.negative}
        return {
            "loss": self.name,
            "largest": self.largest,
            **{
                kind: {
                    "selected": self.selected(pairs),
                    "total": self.total(pairs),
                    "cosine": self.cosine[pairs].tolist(),
                    "weight": self.weight[pairs].tolist(),
                }
                for kind, pairs in kinds.items()
            },
        }


def batch_weights(batch: Embeddings, of: NamedLoss, *, seed: int = 0) -> BatchWeights:
    """Compute the weights of all pairs of a batch.

    Args:
        batch: Embeddings of the batch.
        of: Loss.
        seed: Seed of miners that choose at random.

    Raises:
        InputError: A loss that does not compare pairs of samples, such as one with proxies.
    """
    vectors, labels = torch.from_numpy(batch.vectors).double(), torch.from_numpy(batch.classes)
    unit = torch.nn.functional.normalize(vectors)
    cosine = (unit @ unit.T).fill_diagonal_(1.0)
    (weight,) = drawn_weights(of, cosine, labels, dim=unit.shape[1], seed=seed)
    same = (labels[:, None] == labels[None, :]).numpy()
    positive = same & ~np.eye(len(same), dtype=bool)
    return BatchWeights(of.name, cosine.numpy(), weight.numpy(), positive, ~same)


def batch_weights_figure(found: Sequence[BatchWeights], figure: Figure) -> None:
    """Plot the weight of each pair against its cosine, one panel for each loss, scaled to a largest of 1.

    Raises:
        InputError: More than six losses.
    """
    for one, axes in zip(found, loss_panels(len(found), figure), strict=True):
        scale = one.largest or 1.0
        for pairs, colour, marker, label in (
            (one.negative, COLOURS[0], "^", "negative pair: pushed apart"),
            (one.positive, COLOURS[2], "o", "positive pair: pulled together"),
        ):
            cosine, weight = one.cosine[pairs], one.weight[pairs] / scale
            used = weight != 0
            look: dict[str, Any] = {
                "marker": marker,
                "linewidths": 0,
                "rasterized": used.size > RASTERIZE_ABOVE,
            }
            axes.scatter(cosine[~used], weight[~used], s=7, color=_UNUSED, **look)
            axes.scatter(cosine[used], weight[used], s=14, color=colour, alpha=0.5, label=label, **look)
        shares = f"selected: {one.selected(one.positive):.0%} of +, {one.selected(one.negative):.1%} of −"
        axes.set_title(f"{caption(one.name, 48)}\nlargest {one.largest:.3g}; {shares}", fontsize=10)
    handles = figure.axes[0].get_legend_handles_labels()
    legend = figure.legend(*handles, loc="outside lower center", frameon=False, ncols=2, markerscale=1.8)
    legend.set_title("grey: weight 0, not selected by the loss")
    legend.get_title().set_fontsize(10)
    figure.suptitle(f"Weights of the pairs of a batch of {len(found[0].cosine)} images", fontsize=13)
