"""Gradient field of triplet losses in the triplet diagram (SCT, section 4, figs. 2 and 9, appendix .1-.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from retrieval.errors import InputError
from retrieval.reports.figures import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TripletLoss = Literal["nca", "margin", "sct"]
_NAMES = {"nca": "NCA triplet loss", "margin": "margin triplet loss", "sct": "SCT loss"}

_ARROWS, _FINE = 17, 201  # points along each side: for the arrows, and for the shaded region
_ZERO = 1e-9  # changes by rounding
_LONGEST = 1.6  # longest arrow, in distances between arrows
_WANTED, _WRONG = "#333333", COLOURS[1]


@dataclass(frozen=True)
class TripletStep:
    """One gradient step of a triplet loss on the embeddings of a triplet.

    Attributes:
        loss: nca (SCT eq. 1), margin (eq. 20, of squared distances) or sct (eq. 13, weight 1).
        size: Size of the step (the learning rate alpha of eqs. 4-6), above 0.
        gamma: -1..1, the cosine between the parts of positive and negative that are orthogonal to the anchor:
            their own cosine is s_ap s_an + gamma sqrt(1 - s_ap²) sqrt(1 - s_an²) (eq. 16).
        margin: Margin of the margin loss; `None` for one that every triplet violates, as in the paper.

    Raises:
        InputError: An unknown loss, a gamma outside -1..1, a size not above 0, a margin below 0 or for a
            loss without one.
    """

    loss: TripletLoss
    size: float = 0.1
    gamma: float = 0.0
    margin: float | None = None

    def __post_init__(self) -> None:
        if self.loss not in _NAMES:
            raise InputError(f"there is no gradient field of {self.loss!r}; choose nca, margin or sct")
        if not -1 <= self.gamma <= 1:
            raise InputError(f"gamma is {self.gamma:g}; choose a number in -1..1")
        if not 0 < self.size < np.inf:
            raise InputError(f"the step is {self.size:g}; choose a number above 0")
        if self.margin is not None and not (self.loss == "margin" and 0 <= self.margin < np.inf):
            raise InputError(f"margin {self.margin:g}: choose a number of 0 or more, for the loss 'margin'")

    @property
    def title(self) -> str:
        """Name of the loss in a figure, with what differs from the defaults."""
        margin = "" if self.margin is None else f", margin {self.margin:g}"
        gamma = f", gamma {self.gamma:g}" if self.gamma else ""
        return f"{_NAMES[self.loss]}{margin}{gamma}"

    def pull_and_push(self, s_ap: np.ndarray, s_an: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how strongly the step pulls the positive to the anchor, and pushes the negative away.

        These are the step size times -dL/ds_ap and times dL/ds_an: for NCA both are the beta of eqs. 4-6,
        size e^s_an / (e^s_ap + e^s_an), for the margin loss 2 size where it is active (eqs. 21-23), for SCT 0
        and the size where the negative is closer than the positive, and elsewhere those of NCA.
        """
        if self.loss == "margin":
            margin = np.inf if self.margin is None else self.margin
            active = 2 * self.size * (2 * (s_an - s_ap) + margin > 0)
            return active, active
        softmax = self.size / (1 + np.exp(s_ap - s_an))
        if self.loss == "nca":
            return softmax, softmax
        hard = s_an > s_ap
        return np.where(hard, 0.0, softmax), np.where(hard, self.size, softmax)

    def cosine_changes(self, s_ap: np.ndarray, s_an: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the exact changes of the two cosines of triplets, whose embeddings move freely.

        Anchor, positive and negative are unit vectors. The step moves each along its own gradient, of the dot
        products (NCA, SCT) or of the squared distances (margin) of the vectors without normalization, and
        projects it back to the sphere. The new vectors are linear combinations of the old ones, so their dot
        products are combinations of the old dot products. Written out this is SCT eqs. 7-10 and 15-19 for NCA
        and eqs. 24-31 for the margin loss (where the last line of eq. 15 must begin with (1 + beta²) S_an,
        not S_ap).

        Args:
            s_ap: Cosines of the anchor with its positive, of any shape.
            s_an: Cosines of the anchor with its negative, of the same shape.
        """
        pull, push = self.pull_and_push(s_ap, s_an)
        s_pn = s_ap * s_an + self.gamma * np.sqrt((1 - s_ap**2) * (1 - s_an**2))
        one, zero = np.ones_like(s_ap), np.zeros_like(s_ap)
        own = 1.0 if self.loss == "margin" else 0.0  # a squared distance also changes with the own length
        products = _matrix([[one, s_ap, s_an], [s_ap, one, s_pn], [s_an, s_pn, one]])
        combine = _matrix([[one, pull, -push], [pull, 1 - own * pull, zero], [-push, zero, 1 + own * push]])
        moved = combine @ products @ np.swapaxes(combine, -1, -2)  # [..., 3, 3] dot products of the new ones
        length = np.sqrt(np.diagonal(moved, axis1=-2, axis2=-1))  # [..., 3]
        new_ap = moved[..., 0, 1] / (length[..., 0] * length[..., 1])
        new_an = moved[..., 0, 2] / (length[..., 0] * length[..., 2])
        return new_ap - s_ap, new_an - s_an


@dataclass(frozen=True, eq=False)
class GradientField:
    """Changes of the two cosines of triplets in one gradient step, on a grid over the diagram.

    Attributes:
        step: The step.
        entanglement: Entanglement p of the network, 0..1; see `entangle`.
        similarities: [n] cosines: with the positive along columns, with the negative along rows.
        positive: [n, n] changes of the cosine with the positive (upper row of fig. 2).
        negative: [n, n] changes of the cosine with the negative (lower row).
    """

    step: TripletStep
    entanglement: float
    similarities: np.ndarray
    positive: np.ndarray
    negative: np.ndarray

    @cached_property
    def fine(self) -> GradientField:
        """The same field on a fine grid, for the shaded regions and their shares."""
        return gradient_field(self.step, self.entanglement, points=_FINE)

    @property
    def positive_away(self) -> float:
        """Share of the diagram in which the step pushes the positive away from the anchor."""
        return float((self.fine.positive < -_ZERO).mean())

    @property
    def negative_closer(self) -> float:
        """Share of the diagram in which the step brings the negative closer to the anchor."""
        return float((self.fine.negative > _ZERO).mean())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "loss": self.step.loss,
            "step": self.step.size,
            "gamma": self.step.gamma,
            "margin": self.step.margin,
            "entanglement": self.entanglement,
            "similarities": self.similarities.tolist(),
            "positive_change": self.positive.tolist(),
            "negative_change": self.negative.tolist(),
            "positive_away_share": self.positive_away,
            "negative_closer_share": self.negative_closer,
        }


def entangle(
    s_ap: np.ndarray, s_an: np.ndarray, positive: np.ndarray, negative: np.ndarray, entanglement: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the changes of two cosines in a network, where similar images move together (SCT, eqs. 11-12).

    Each cosine takes on a part of the other's change: the entanglement p of the network, 0..1, times
    q = s_ap s_an.
    """
    share = entanglement * s_ap * s_an
    return positive + share * negative, negative + share * positive


def gradient_field(step: TripletStep, entanglement: float = 0.0, *, points: int = _ARROWS) -> GradientField:
    """Compute the gradient field for cosines in 0..1, with `points` along each side.

    Raises:
        InputError: An entanglement outside 0..1.
    """
    if not 0 <= entanglement <= 1:
        raise InputError(f"entanglement is {entanglement:g}; choose a number in 0..1")
    # Midpoints, so that no triplet is degenerate: at a cosine of 1 two of its vectors are the same.
    similarities = (np.arange(points) + 0.5) / points
    s_ap, s_an = np.meshgrid(similarities, similarities)
    positive, negative = entangle(s_ap, s_an, *step.cosine_changes(s_ap, s_an), entanglement)
    return GradientField(step, float(entanglement), similarities, positive, negative)


def field_size(steps: int, entanglements: int) -> tuple[float, float]:
    """Return width and height of `gradient_field_figure` in inches."""
    return 0.9 + 2.7 * entanglements, 1.0 + 5.6 * steps


def gradient_field_figure(rows: Sequence[Sequence[GradientField]], figure: Figure) -> None:
    """Plot two rows of panels per step: the changes of the positive's cosine, and of the negative's.

    The length of an arrow is the change, on one scale per step. The region is shaded where the sign is wrong.

    Args:
        rows: For each step its fields, with the same entanglements.
        figure: Figure to plot on.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    sizes = {fields[0].step.size for fields in rows}
    size = f" of size {sizes.pop():g}" if len(sizes) == 1 else ""
    figure.suptitle(f"Change of a triplet's two cosines in one gradient step{size}", fontsize=13)
    parts = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for part, fields in zip(parts, rows, strict=True):
        longest = float(max(np.abs([f.positive, f.negative]).max() for f in fields))
        part.suptitle(f"{fields[0].step.title} (longest arrow: a change of {longest:.2g})", fontsize=12)
        panels = part.subplots(2, len(fields), sharex=True, sharey=True, squeeze=False)
        for column, found in enumerate(fields):
            for axes, of_positive in zip(panels[:, column], (True, False), strict=True):
                _plot_panel(found, axes, longest, of_positive=of_positive)
            panels[0, column].set_title(f"entanglement p = {found.entanglement:g}", fontsize=11)
            panels[1, column].set_xlabel("cosine with the positive", fontsize=10)
        for axes, change in zip(panels[:, 0], ("positive", "negative"), strict=True):
            axes.set_ylabel(f"change of the {change}'s cosine\n\ncosine with the negative", fontsize=10)
    away = Patch(color=_WRONG, alpha=0.25, label="wrong: the positive moves away, or the negative closer")
    diagonal = Line2D([], [], color="black", linestyle="--", label="above: hard triplets")
    figure.legend(handles=[away, diagonal], loc="outside lower center", ncols=2, frameon=False)


def _plot_panel(found: GradientField, axes: Axes, longest: float, *, of_positive: bool) -> None:
    def wrong(field: GradientField) -> np.ndarray:
        """Return the change, counted in the direction that the loss does not want."""
        return -field.positive if of_positive else field.negative

    fine = found.fine.similarities
    axes.contourf(fine, fine, wrong(found.fine), levels=[_ZERO, np.inf], colors=[_WRONG], alpha=0.25)
    axes.plot([0, 1], [0, 1], "k--", linewidth=1)
    against = wrong(found)
    shown = np.abs(against) > _ZERO
    x, y = (grid[shown] for grid in np.meshgrid(found.similarities, found.similarities))
    none = np.zeros_like(x)
    axes.quiver(
        x,
        y,
        *((found.positive[shown], none) if of_positive else (none, found.negative[shown])),
        color=np.where(against[shown] > 0, _WRONG, _WANTED),
        angles="xy",
        scale_units="xy",
        scale=longest * len(found.similarities) / _LONGEST,
        pivot="mid",
        width=0.006,
        headlength=3.5,
        headaxislength=3.2,
        minlength=0,
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])


def _matrix(rows: list[list[np.ndarray]]) -> np.ndarray:
    """Stack arrays of one shape as the entries of matrices, [..., rows, columns]."""
    return np.stack([np.stack(row, -1) for row in rows], -2)
