"""Weight that losses give to one pair, as a function of its similarity (RAW, section 3 and fig. 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from retrieval.errors import InputError
from retrieval.reports.figures import COLOURS
from train.analysis.specs import NamedLoss
from train.losses import pair_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Cosines of the anchor with its positives and negatives; the first of each is swept.
POSITIVES, NEGATIVES = (0.7, 0.5, 0.3), (0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
CLASSES, BATCH_SIZE = 1 + len(NEGATIVES) // 2, 1 + len(POSITIVES) + len(NEGATIVES)
# Between the cosines above, because ties have no derivative; and below 1, where the weights of losses on
# distances diverge.
_SWEEP = np.arange(-99.5, 95) / 100
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
MOST = len(COLOURS)
_DRAWS = 24  # of miners that choose at random


@dataclass(frozen=True, eq=False)
class WeightCurves:
    """Weight of one pair as a function of its cosine.

    Attributes:
        name: Name of the loss.
        similarity: [n] cosines of the pair.
        positive: [n] weights of a positive pair, above 0 if it is pulled together.
        negative: [n] weights of a negative pair, above 0 if it is pushed apart.
    """

    name: str
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
        held = {"positives": POSITIVES, "negatives": NEGATIVES}
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


def weight_curves(of: NamedLoss, *, similarity: np.ndarray = _SWEEP) -> WeightCurves:
    """Compute the weight that the anchor gives to one pair while the rest of the batch is fixed.

    In the `anchor_batch` of `POSITIVES` and `NEGATIVES`, the first positive and then the first negative is
    swept over all cosines. The weight is the derivative of the loss with respect to that cosine, times the
    batch size (`losses.pair_weights`); by theorem 3.1 of RAW these weights determine the loss's gradient. For
    miners that choose at random it is the mean over 24 draws. A cross-batch memory is empty.

    Args:
        of: Loss.
        similarity: [n] cosines to sweep over.

    Raises:
        InputError: A loss that does not compare pairs of samples, such as one with proxies.
    """
    at_positive = [_weight(of, [s, *POSITIVES[1:]], NEGATIVES, 1) for s in similarity]
    other = 1 + len(POSITIVES)
    at_negative = [_weight(of, POSITIVES, [s, *NEGATIVES[1:]], other) for s in similarity]
    return WeightCurves(of.name, similarity, np.array(at_positive), np.array(at_negative))


def _weight(of: NamedLoss, positives: Sequence[float], negatives: Sequence[float], place: int) -> float:
    cosines, labels = anchor_batch(positives, negatives)
    mining = getattr(of.loss.term, "mining", None)
    rules = {getattr(mining, which, None) for which in ("positive", "negative")}
    draws = _DRAWS if rules & {"random", "distance-weighted"} else 1
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            found = [float(pair_weights(of.loss, cosines, labels)[0, place]) for _ in range(draws)]
    except ValueError as error:
        hint = "choose a built-in loss that compares samples with each other"
        raise InputError(f"{of.name}: {error}; {hint}") from error
    return sum(found) / draws


def weight_curves_figure(found: Sequence[WeightCurves], figure: Figure) -> None:
    """Plot two panels, positive and negative pairs; each loss is scaled to a largest weight of 1.

    Raises:
        InputError: More losses than there are distinct line styles.
    """
    if len(found) > MOST:
        raise InputError(f"{len(found)} losses are too many for one figure; give at most {MOST}")
    pull, push = figure.subplots(1, 2, sharey=True)
    for number, of_loss in enumerate(found):
        look: dict[str, Any] = {"color": COLOURS[number], "linestyle": _DASHES[number], "linewidth": 2}
        scale = of_loss.largest or 1.0
        pull.plot(of_loss.similarity, of_loss.positive / scale, label=of_loss.name, **look)
        push.plot(of_loss.similarity, of_loss.negative / scale, **look)
    for axes, kind, what in ((pull, "positive", "pulled together"), (push, "negative", "pushed apart")):
        axes.set(xlim=(-1, 1), xticks=[-1, -0.5, 0, 0.5, 1], xlabel=f"cosine of a {kind} pair")
        axes.set_title(f"Strength with which it is {what}", fontsize=11)
        axes.grid(alpha=0.3)
    pull.set_ylabel("weight (largest of each loss: 1)")
    wide = max(len(of_loss.name) for of_loss in found) > 45
    positives, negatives = (", ".join(f"{s:g}" for s in x) for x in (POSITIVES, NEGATIVES))
    held = f"cosines of the anchor: positives {positives}; negatives {negatives}; the first of each varies"
    look = {"loc": "outside lower center", "frameon": False, "ncols": 1 if wide else 2}
    figure.legend(title=held, title_fontsize=10, **look)
    figure.suptitle("Weight of a pair as a function of its similarity", fontsize=13)
