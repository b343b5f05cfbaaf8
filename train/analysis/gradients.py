"""Gradient field of triplet losses in the triplet diagram (SCT, section 4 and figs. 2 and 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from retrieval.errors import InputError
from retrieval.reports.figures import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.quiver import Quiver

TripletLoss = Literal["nca", "margin", "sct"]
MARGIN = 0.2  # of squared distances
TITLES = {"nca": "NCA triplet loss", "margin": f"triplet loss with margin {MARGIN}", "sct": "SCT loss"}

_ARROWS, _FINE = 17, 201  # points along each side: for the arrows, and for the shaded region


@dataclass(frozen=True, eq=False)
class GradientField:
    """Changes of the two cosines of triplets in one gradient step, on a grid over the diagram.

    Attributes:
        loss: Triplet loss.
        entanglement: Entanglement of the network, 0..1; see `entangle`.
        step: Size of the gradient step.
        gamma: See `cosine_changes`.
        similarities: [n] cosines: with the positive along columns, with the negative along rows.
        positive: [n, n] changes of the cosine with the positive.
        negative: [n, n] changes of the cosine with the negative.
    """

    loss: TripletLoss
    entanglement: float
    step: float
    gamma: float
    similarities: np.ndarray
    positive: np.ndarray
    negative: np.ndarray

    @property
    def wrong(self) -> np.ndarray:
        """[n, n] bool, true if the step brings the negative closer to the anchor."""
        closer: np.ndarray = self.negative > 0
        return closer

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "loss": self.loss,
            "step": self.step,
            "gamma": self.gamma,
            "entanglement": self.entanglement,
            "similarities": self.similarities.tolist(),
            "positive_change": self.positive.tolist(),
            "negative_change": self.negative.tolist(),
            "wrong_share": float(self.wrong.mean()),
        }


def pull_and_push(
    loss: TripletLoss, s_ap: np.ndarray, s_an: np.ndarray, step: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return how strongly a step pulls anchor and positive together and pushes anchor and negative apart.

    These are the step size times -dL/ds_ap and times dL/ds_an: for NCA (SCT eq. 1) both are
    step e^s_an / (e^s_ap + e^s_an), for the margin loss on squared distances (eq. 20) 2 step where it is
    active, for SCT (eq. 13, weight 1) 0 and the step where the negative is closer than the positive, and
    elsewhere those of NCA.
    """
    if loss == "margin":
        active = 2 * step * (2 * (s_an - s_ap) + MARGIN > 0)
        return active, active
    softmax = step / (1 + np.exp(s_ap - s_an))
    if loss == "nca":
        return softmax, softmax
    hard = s_an > s_ap
    return np.where(hard, 0.0, softmax), np.where(hard, step, softmax)


def cosine_changes(
    loss: TripletLoss, s_ap: np.ndarray, s_an: np.ndarray, *, step: float, gamma: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact changes of a triplet's two cosines in one gradient step on its embeddings.

    Anchor, positive and negative are unit vectors. The step moves each along its own gradient, of the dot
    products (NCA, SCT) or of the squared distances (margin) of the vectors without normalization, and
    projects it back to the sphere. The new vectors are linear combinations of the old ones, so their dot
    products are combinations of the old dot products. Written out this is SCT eqs. 7-10 and 15-19 for NCA and
    eqs. 24-31 for the margin loss (where the last line of eq. 15 must begin with (1 + beta²) S_an, not S_ap).

    Args:
        loss: Triplet loss.
        s_ap: Cosines of the anchor with its positive, of any shape.
        s_an: Cosines of the anchor with its negative, of the same shape.
        step: Size of the gradient step.
        gamma: -1..1, the cosine between the parts of positive and negative that are orthogonal to the anchor:
            their own cosine is s_ap s_an + gamma sqrt(1 - s_ap²) sqrt(1 - s_an²).
    """
    pull, push = pull_and_push(loss, s_ap, s_an, step)
    s_pn = s_ap * s_an + gamma * np.sqrt((1 - s_ap**2) * (1 - s_an**2))
    one, zero = np.ones_like(s_ap), np.zeros_like(s_ap)
    own = 1.0 if loss == "margin" else 0.0  # a squared distance also changes with the vector's own length
    products = _matrix([[one, s_ap, s_an], [s_ap, one, s_pn], [s_an, s_pn, one]])
    combine = _matrix([[one, pull, -push], [pull, 1 - own * pull, zero], [-push, zero, 1 + own * push]])
    moved = combine @ products @ np.swapaxes(combine, -1, -2)  # [..., 3, 3] dot products of the new vectors
    length = np.sqrt(np.diagonal(moved, axis1=-2, axis2=-1))  # [..., 3]
    new_ap = moved[..., 0, 1] / (length[..., 0] * length[..., 1])
    new_an = moved[..., 0, 2] / (length[..., 0] * length[..., 2])
    return new_ap - s_ap, new_an - s_an


def entangle(
    s_ap: np.ndarray, s_an: np.ndarray, positive: np.ndarray, negative: np.ndarray, entanglement: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the changes of two cosines in a network, where similar images move together (SCT, section 4).

    Each cosine takes on a part of the other's change: the entanglement of the network, 0..1, times s_ap s_an.
    """
    share = entanglement * s_ap * s_an
    return positive + share * negative, negative + share * positive


def gradient_field(
    loss: TripletLoss,
    entanglement: float = 0.0,
    *,
    step: float = 0.1,
    gamma: float = 0.0,
    points: int = _ARROWS,
) -> GradientField:
    """Compute the gradient field for cosines in 0..1, with `points` along each side.

    Raises:
        InputError: An unknown loss, an entanglement outside 0..1, a gamma outside -1..1, a step not above 0.
    """
    if loss not in TITLES:
        raise InputError(f"there is no gradient field of {loss!r}; choose nca, margin or sct")
    for name, value, low in (("entanglement", entanglement, 0), ("gamma", gamma, -1)):
        if not low <= value <= 1:
            raise InputError(f"{name} is {value:g}; choose a number in {low}..1")
    if not 0 < step < np.inf:
        raise InputError(f"the step is {step:g}; choose a number above 0")
    # Midpoints, so that no triplet is degenerate: at a cosine of 1 two of its vectors are the same.
    similarities = (np.arange(points) + 0.5) / points
    s_ap, s_an = np.meshgrid(similarities, similarities)
    positive, negative = entangle(
        s_ap, s_an, *cosine_changes(loss, s_ap, s_an, step=step, gamma=gamma), entanglement
    )
    return GradientField(loss, float(entanglement), step, gamma, similarities, positive, negative)


def gradient_field_figure(fields: Sequence[GradientField], figure: Figure) -> None:
    """Plot one panel per field: arrows of equal length along the moves, colored by the length of the move.

    Args:
        fields: Fields that differ only in their entanglement.
        figure: Figure to plot on.
    """
    from matplotlib.colors import Normalize
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    scale = Normalize(0, max(np.hypot(f.positive, f.negative).max() for f in fields))
    panels = figure.subplots(1, len(fields), sharey=True, squeeze=False)[0]
    for axes, found in zip(panels, fields, strict=True):
        arrows = _plot_panel(found, axes, scale)
    panels[0].set_ylabel("cosine of anchor and negative")
    figure.colorbar(arrows, ax=list(panels), label="length of the move (cosine)", shrink=0.8, pad=0.01)
    wrong = Patch(color=COLOURS[1], alpha=0.25, label="the step brings the negative closer")
    diagonal = Line2D([], [], color="black", linestyle="--", label="above: the negative is the closer one")
    figure.legend(handles=[wrong, diagonal], loc="outside lower center", ncols=2, frameon=False)
    title = f"Where one step of the {TITLES[fields[0].loss]} moves triplets (step size {fields[0].step:g})"
    figure.suptitle(title, fontsize=13)


def _plot_panel(found: GradientField, axes: Axes, scale: Any) -> Quiver:
    background = gradient_field(
        found.loss, found.entanglement, step=found.step, gamma=found.gamma, points=_FINE
    )
    fine = background.similarities
    axes.contourf(fine, fine, background.negative, levels=[1e-9, np.inf], colors=[COLOURS[1]], alpha=0.25)
    axes.plot([0, 1], [0, 1], "k--", linewidth=1)
    length = np.hypot(found.positive, found.negative)
    shown = length > 1e-9
    x, y = (grid[shown] for grid in np.meshgrid(found.similarities, found.similarities))
    size = 0.85 / len(found.similarities) / length[shown]
    arrows = axes.quiver(
        x,
        y,
        found.positive[shown] * size,
        found.negative[shown] * size,
        length[shown],
        norm=scale,
        cmap="viridis_r",
        angles="xy",
        scale_units="xy",
        scale=1,
        pivot="mid",
        width=0.006,
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="cosine of anchor and positive")
    axes.set(xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    axes.set_title(f"entanglement {found.entanglement:g}", fontsize=11)
    return arrows


def _matrix(rows: list[list[np.ndarray]]) -> np.ndarray:
    """Stack arrays of one shape as the entries of matrices, [..., rows, columns]."""
    return np.stack([np.stack(row, -1) for row in rows], -2)
