"""LoOp's nine cases: where the closest points of two arcs are (section 3.2, table 1 and fig. 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from retrieval.analysis.embeddings import Embeddings
from retrieval.errors import InputError
from retrieval.reports.figures import COLOURS, caption
from train.losses.arcs import closest_points
from train.losses.view import PairTables, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BETWEEN, FIRST, SECOND = range(3)  # places of a point on an arc
# Places on the arc of the positives and on that of the negatives, in the numbering of table 1.
CASES = (
    (BETWEEN, BETWEEN),
    (FIRST, BETWEEN),
    (SECOND, BETWEEN),
    (BETWEEN, FIRST),
    (BETWEEN, SECOND),
    (FIRST, FIRST),
    (FIRST, SECOND),
    (SECOND, FIRST),
    (SECOND, SECOND),
)
_KINDS = {"between both ends": slice(0, 1), "at one end": slice(1, 5), "both at an end": slice(5, 9)}


@dataclass(frozen=True, eq=False)
class CaseShares:
    """Share of each of the nine cases in a batch.

    Attributes:
        name: Name of the embeddings.
        pairs: Number of pairs in the batch.
        combinations: Number of pairs of pairs of different classes.
        every: Shares over all combinations, [9], sum 1.
        nearest: Shares over the closest pair of another class of each pair (algorithm 1, line 7), [9], sum 1.
    """

    name: str
    pairs: int
    combinations: int
    every: np.ndarray
    nearest: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        shares = {"all_combinations": self.every.tolist(), "nearest_pair": self.nearest.tolist()}
        return {"name": self.name, "pairs": self.pairs, "combinations": self.combinations, **shares}

    def by_kind(self) -> dict[str, tuple[float, float]]:
        """Return the shares of case 0, of cases 1 to 4 and of cases 5 to 8: over all, over the nearest."""
        return {
            kind: (float(self.every[cases].sum()), float(self.nearest[cases].sum()))
            for kind, cases in _KINDS.items()
        }


def winning_cases(tables: PairTables) -> tuple[Tensor, Tensor]:
    """Return which of the nine cases holds the closest points of two arcs.

    A point is at an end of its arc if the other end has no weight in it.

    Args:
        tables: Dot products of pairs (i, j) and (k, l) of unit vectors, preferably float64.

    Returns:
        [P, Q] int64, the case 0..8, and [P, Q], the cosine of the closest points.
    """
    cosine, wi, wj, wk, wl = closest_points(tables)
    number = torch.zeros(3, 3, dtype=torch.int64)
    for case, places in enumerate(CASES):
        number[places] = case
    return number[_place(wi, wj), _place(wk, wl)], cosine


def _place(first: Tensor, second: Tensor) -> Tensor:
    """Return the place on an arc of points with these weights of its ends."""
    between = torch.full_like(first, BETWEEN, dtype=torch.int64)
    return torch.where(second == 0, FIRST, torch.where(first == 0, SECOND, between))


@torch.no_grad()
def case_shares(batch: Embeddings) -> CaseShares:
    """Compute the share of each case among the alternate pairs of a batch.

    Raises:
        InputError: The batch has no two pairs of different classes.
    """
    view = View(torch.from_numpy(batch.vectors).double(), torch.from_numpy(batch.classes), paired=True)
    cases, cosine = winning_cases(view.pair_tables(normalized=True))
    negative = view.pair_negative
    if not negative.any():
        raise InputError(f"{batch.name}: no two pairs of different classes; choose more images of a class")
    closest = cosine.masked_fill(~negative, -torch.inf).argmax(1)
    nearest = cases.gather(1, closest[:, None])[:, 0][negative.any(1)]
    every, of_nearest = (_shares(found) for found in (cases[negative], nearest))
    return CaseShares(batch.name, int(view.pair_valid.sum()), int(negative.sum()) // 2, every, of_nearest)


def _shares(cases: Tensor) -> np.ndarray:
    counts = np.bincount(cases.numpy(), minlength=len(CASES))
    return np.asarray(counts / counts.sum())


def draw_case_shares(found: Sequence[CaseShares], figure: Figure) -> None:
    """Draw the shares of the nine cases as bars: of all combinations, and of the nearest pairs."""
    left, right = figure.subplots(1, 2, sharey=True)
    _draw_shares("All combinations of pairs", found, [one.every for one in found], left)
    _draw_shares("Nearest pair of another class", found, [one.nearest for one in found], right)
    left.set_ylabel("share (%)")
    key = "0: both points between the ends; 1–4: one at an end; 5–8: both at an end"
    legend = figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=3, title=key
    )
    legend.get_title().set_fontsize(10)
    figure.suptitle("Which of the nine cases has the closest points", fontsize=13)


def _draw_shares(title: str, found: Sequence[CaseShares], shares: Sequence[np.ndarray], axes: Axes) -> None:
    width = 0.8 / len(found)
    for number, (one, values) in enumerate(zip(found, shares, strict=True)):
        places = np.arange(len(CASES)) + (number - (len(found) - 1) / 2) * width
        colour, label = COLOURS[number % len(COLOURS)], f"{caption(one.name)}: {one.pairs} pairs"
        axes.bar(places, 100 * values, 0.9 * width, color=colour, label=label)
    for edge in (0.5, 4.5):
        axes.axvline(edge, color="0.6", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(CASES)))
    axes.set_xlabel("case of LoOp's table 1")
    axes.set_title(title, fontsize=11)
    axes.grid(axis="y", alpha=0.3)
