"""Weight that losses give to one pair, as a function of its similarity (RAW, section 3 and fig. 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from retrieval.errors import InputError
from retrieval.reports.figures import COLOURS, caption
from train.losses import pair_weights
from train.papers.specs import NamedLoss

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Cosines of the anchor with its positives and negatives; the first of each is swept.
POSITIVES, NEGATIVES = (0.7, 0.5, 0.3), (0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
# Losses of RAW, fig. 1.
LOSSES = ("contrastive", "triplet-cosine", "lifted-generalized", "binomial-deviance")
MOST = 6
PULLED: dict[str, Any] = {"color": COLOURS[2], "linestyle": "-", "label": "positive pair: pulled together"}
PUSHED: dict[str, Any] = {"color": COLOURS[0], "linestyle": ":", "label": "negative pair: pushed apart"}

# Between cosines of two digits, because ties have no derivative; and below 1, where the weights of losses on
# distances diverge.
_SWEEP = np.arange(-99.5, 95) / 100
_DRAWS = 24  # of miners that choose at random


@dataclass(frozen=True, eq=False)
class WeightCurves:
    """Weight of one pair as a function of its cosine.

    Attributes:
        name: Name of the loss.
        positives: Cosines of the anchor with its positives; the first is swept.
        negatives: Cosines of the anchor with its negatives; the first is swept.
        similarity: [n] cosines of the pair.
        positive: [n] weights of a positive pair, above 0 if it is pulled together.
        negative: [n] weights of a negative pair, above 0 if it is pushed apart.
    """

    name: str
    positives: tuple[float, ...]
    negatives: tuple[float, ...]
    similarity: np.ndarray
    positive: np.ndarray
    negative: np.ndarray

    @property
    def largest(self) -> float:
        """Largest absolute weight."""
        return float(max(np.abs(self.positive).max(), np.abs(self.negative).max()))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        arrays = {key: getattr(self, key).tolist() for key in ("similarity", "positive", "negative")}
        held = {"positives": list(self.positives), "negatives": list(self.negatives)}
        return {"loss": self.name, "batch": held, **arrays}


def anchor_batch(positives: Sequence[float], negatives: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Build a batch around its first sample, the anchor: cosines float64 [B, B] and labels int64 [B].

    After the anchor come its positives and then its negatives, two of each class, with the given cosines to
    the anchor. Unit vectors with these cosines exist: x_i = s_i e_0 + sqrt(1 - s_i²) e_i, so that two
    samples other than the anchor have cosine s_i s_j.
    """
    first = torch.tensor([1.0, *positives, *negatives], dtype=torch.float64)
    cosines = first[:, None] * first[None, :]
    cosines.fill_diagonal_(1.0)
    labels = [0] * (1 + len(positives)) + [1 + n // 2 for n in range(len(negatives))]
    return cosines, torch.tensor(labels)


def weight_curves(
    of: NamedLoss,
    positives: Sequence[float] = POSITIVES,
    negatives: Sequence[float] = NEGATIVES,
    *,
    similarity: np.ndarray = _SWEEP,
) -> WeightCurves:
    """Compute the weight that the anchor gives to one pair while the rest of the batch is fixed.

    In the `anchor_batch` of these cosines, the first positive and then the first negative is swept over all
    cosines. The weight is the derivative of the loss with respect to that cosine, times the batch size
    (`losses.pair_weights`); by theorem 3.1 of RAW these weights determine the loss's gradient. For miners
    that choose at random it is the mean over 24 draws. A cross-batch memory is empty.

    Args:
        of: Loss.
        positives: Cosines of the anchor with its positives.
        negatives: Cosines of the anchor with its negatives.
        similarity: [n] cosines to sweep over.

    Raises:
        InputError: A loss that does not compare pairs of samples, such as one with proxies, or a cosine that
            is not between -1 and 1.
    """
    for cosine in (*positives, *negatives):
        if not -1 < cosine < 1:
            raise InputError(f"a pair has cosine {cosine:g}; choose one between -1 and 1")
    at_positive = [_weight(of, [s, *positives[1:]], negatives, 1) for s in similarity]
    other = 1 + len(positives)
    at_negative = [_weight(of, positives, [s, *negatives[1:]], other) for s in similarity]
    curves = np.array(at_positive), np.array(at_negative)
    return WeightCurves(of.name, tuple(positives), tuple(negatives), similarity, *curves)


def _weight(of: NamedLoss, positives: Sequence[float], negatives: Sequence[float], place: int) -> float:
    cosines, labels = anchor_batch(positives, negatives)
    mining = getattr(of.loss.term, "mining", None)
    draws = _DRAWS if getattr(mining, "random", False) else 1
    found = [float(weights[0, place]) for weights in drawn_weights(of, cosines, labels, draws)]
    return sum(found) / draws


def drawn_weights(
    of: NamedLoss,
    cosines: Tensor,
    labels: Tensor,
    draws: int = 1,
    *,
    dim: int | None = None,
    seed: int = 0,
) -> list[Tensor]:
    """Return the weights of all pairs of a batch, [B, B], for several draws of a random miner.

    `dim` is the embedding dimension, on which distance-weighted mining depends; B by default.

    Raises:
        InputError: A loss that does not compare pairs of samples.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return [pair_weights(of.loss, cosines, labels, dim=dim) for _ in range(draws)]
    except ValueError as error:
        hint = "choose a built-in loss that compares samples with each other"
        raise InputError(f"{of.name}: {error}; {hint}") from error


def weight_curves_figure(found: Sequence[WeightCurves], figure: Figure) -> None:
    """Plot one panel for each loss (RAW, fig. 1), scaled to a largest weight of 1.

    All curves belong to the same cosines of the anchor.

    Raises:
        InputError: More than six losses.
    """
    for of_loss, axes in zip(found, loss_panels(len(found), figure), strict=True):
        scale = of_loss.largest or 1.0
        axes.plot(of_loss.similarity, of_loss.positive / scale, linewidth=2, **PULLED)
        axes.plot(of_loss.similarity, of_loss.negative / scale, linewidth=2.5, **PUSHED)
        axes.set(xlim=(-1, 1), xticks=[-1, -0.5, 0, 0.5, 1])
        axes.set_title(f"{caption(of_loss.name, 48)}\nlargest {of_loss.largest:.3g}", fontsize=10)
    handles = figure.axes[0].get_legend_handles_labels()
    positives, negatives = (", ".join(f"{s:g}" for s in x) for x in (found[0].positives, found[0].negatives))
    held = f"cosines of the anchor: positives {positives}; negatives {negatives}; the first of each varies"
    legend = figure.legend(*handles, loc="outside lower center", frameon=False, ncols=2, title=held)
    legend.get_title().set_fontsize(10)
    figure.suptitle("Weight of a pair as a function of its cosine", fontsize=13)


def loss_panels(count: int, figure: Figure) -> list[Axes]:
    """Return one panel for each loss, for weights by cosine.

    Raises:
        InputError: More than six losses.
    """
    if count > MOST:
        raise InputError(f"{count} losses are too many for one figure; give at most {MOST}")
    rows, columns = _layout(count)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    panels: list[Axes] = grid.flatten().tolist()
    for unused in panels[count:]:
        unused.set_axis_off()
    for axes in panels[:count]:
        axes.grid(alpha=0.3)
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("cosine of the pair")
    for row in grid:
        row[0].set_ylabel("weight / largest")
    return panels[:count]


def panels_size(count: int) -> tuple[float, float]:
    """Return the width and height in inches of a figure with one panel for each loss."""
    rows, columns = _layout(count)
    return max(7.5, 1 + 3.6 * columns), 1.3 + 3.3 * rows


def _layout(count: int) -> tuple[int, int]:
    columns = count if count < 4 else (count + 1) // 2
    return -(-count // columns), columns
