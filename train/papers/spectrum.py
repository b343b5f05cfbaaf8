"""Variance of embeddings: spectrum of the covariance, overall and within each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from retrieval.analysis.embeddings import Embeddings
from retrieval.errors import InputError
from retrieval.reports.figures import COLOURS, MARKERS, caption

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Pca = Literal["class", "global"]
_DIRECTIONS = 3
_FEWEST = _DIRECTIONS + 1  # images of a class whose covariance has three eigenvalues above 0
_SHOWN = 4  # classes in the figure of the paper
_COLUMNS = 4  # sources side by side
_COLLAPSED = 1e-10  # variance of equal unit vectors in float32, by rounding
_AT_ONCE = 8192


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Variance of embeddings of unit length, a squared distance without unit.

    Attributes:
        name: Name of the embeddings.
        variance: Variance along the principal directions, float64 [D], largest first: the eigenvalues of the
            covariance (divided by N) of all N embeddings.
        pca: "class" if the eigenvalues are in the principal directions of each class, "global" if they are in
            those of all embeddings.
        classes: Classes of at least four images, [C].
        class_eigenvalues: Three largest eigenvalues of the covariance (divided by n - 1) of each class,
            float64 [C, 3], largest first.
        left_out: Number of classes with fewer than four images. They have fewer than three eigenvalues above
            0 and would lower the means.
    """

    name: str
    variance: np.ndarray
    pca: Pca
    classes: np.ndarray
    class_eigenvalues: np.ndarray
    left_out: int

    @property
    def explained(self) -> np.ndarray:
        """Share of the variance in the first 1, 2, ... D principal directions, [D] in 0..1, or all 0."""
        total = self.variance.sum()
        return np.cumsum(self.variance) / total if total else np.zeros_like(self.variance)

    @property
    def effective_rank(self) -> float:
        """Effective rank of the covariance (Roy and Vetterli 2007, definition 1).

        It is exp of the entropy of the shares of variance: D if all directions have the same share, 1 if one
        has all of it, and 0 if all embeddings are equal.
        """
        total = self.variance.sum()
        if not total:
            return 0.0
        shares = self.variance[self.variance > 0] / total
        return float(np.exp(-(shares @ np.log(shares))))

    @property
    def mean(self) -> np.ndarray:
        """Mean of the eigenvalues over the classes, [3]."""
        return np.asarray(self.class_eigenvalues.mean(0))

    @property
    def deviation(self) -> np.ndarray:
        """Standard deviation of the eigenvalues over the classes (divided by C), [3]."""
        return np.asarray(self.class_eigenvalues.std(0))

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return {
            "name": self.name,
            "effective_rank": self.effective_rank,
            "total_variance": float(self.variance.sum()),
            "explained": self.explained.tolist(),
            "pca": self.pca,
            "class_eigenvalues": {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()},
            "classes": dict(zip(self.classes.tolist(), self.class_eigenvalues.tolist(), strict=True)),
            "classes_left_out": self.left_out,
        }

    def pick(self, seed: int = 0) -> list[int]:
        """Return the rows of up to four random classes; equal classes give equal picks."""
        count = min(_SHOWN, len(self.classes))
        rows = np.random.default_rng(seed).choice(len(self.classes), count, replace=False)
        return sorted(rows.tolist())


def spectrum(embeddings: Embeddings, *, pca: Pca = "class") -> Spectrum:
    """Compute the spectrum of all embeddings and of each class.

    Args:
        embeddings: Embeddings of images.
        pca: "class" projects the embeddings of each class on the first three principal directions of this
            class (LoOp, supplement, section 2 and figure 1): the eigenvalues are the three largest of the
            covariance of the class. "global" projects on the first three directions of all embeddings, which
            separate classes rather than images of a class: the eigenvalues are smaller, and are not those of
            the paper.

    Raises:
        InputError: Embeddings have fewer than three dimensions, or no class has four images.
    """
    vectors, name = embeddings.vectors, embeddings.name
    if vectors.shape[1] < _DIRECTIONS:
        raise InputError(f"{name}: needs embeddings of {_DIRECTIONS} numbers, these have {vectors.shape[1]}")
    labels, counts = np.unique(embeddings.labels, return_counts=True)
    enough = counts >= _FEWEST
    if not enough.any():
        raise InputError(
            f"{name}: no class has {_FEWEST} images, and fewer do not have {_DIRECTIONS} eigenvalues; "
            "choose other images"
        )
    mean = vectors.mean(0, dtype=np.float64)
    variance, directions = np.linalg.eigh(_covariance(vectors, mean))
    variance = np.maximum(variance[::-1], 0)  # below 0 by rounding
    if variance.sum() < _COLLAPSED:
        variance = np.zeros_like(variance)
    if pca == "global":
        vectors = (vectors - mean.astype(np.float32)) @ directions[:, ::-1][:, :_DIRECTIONS]  # [N, 3]
    order = np.argsort(embeddings.classes, kind="stable")
    groups = np.split(vectors[order], np.cumsum(counts)[:-1])
    eigenvalues = np.stack([_largest(group) for group in groups if len(group) >= _FEWEST])
    return Spectrum(name, variance, pca, labels[enough], eigenvalues, int((~enough).sum()))


def _covariance(vectors: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return the covariance, float64 [D, D], computed in blocks to save memory."""
    total = np.zeros((len(mean), len(mean)))
    for start in range(0, len(vectors), _AT_ONCE):
        block = vectors[start : start + _AT_ONCE] - mean
        total += block.T @ block
    return total / len(vectors)


def _largest(points: np.ndarray) -> np.ndarray:
    """Return the three largest eigenvalues of the covariance (divided by n - 1) of points [n, d]."""
    centred = points.astype(np.float64)
    centred -= centred.mean(0)
    # The products of rows have the same eigenvalues above 0 as those of columns.
    products = centred @ centred.T if len(centred) < centred.shape[1] else centred.T @ centred
    eigenvalues = np.linalg.eigvalsh(products)[::-1][:_DIRECTIONS] / (len(points) - 1)
    return np.maximum(eigenvalues, 0)


def draw_spectra(spectra: Sequence[Spectrum], figure: Figure, *, seed: int = 0) -> None:
    """Draw the eigenvalues of four random classes of each source, of all classes, and the explained variance.

    Args:
        spectra: Spectra of the sources, all of the same `pca`.
        figure: Empty figure.
        seed: Seed of the four classes.
    """
    rows, columns = _grid(len(spectra))
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[rows, 1.15])[:, 0]
    figure.suptitle("Variance of the embeddings", fontsize=13)
    grid = upper.subplots(rows, columns, sharey=True, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place < len(spectra):
            _draw_picked(spectra[place], spectra[place].pick(seed), axes)
        else:
            axes.set_axis_off()
    for first in grid[:, 0]:
        first.set_ylabel("eigenvalue × 100")
    inside, overall = lower.subplots(1, 2)
    _draw_classes(spectra, inside)
    _draw_explained(spectra, overall)
    lower.legend(*overall.get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=2)


def spectra_size(spectra: Sequence[Spectrum]) -> tuple[float, float]:
    """Return the width and height of the figure in inches."""
    rows, columns = _grid(len(spectra))
    return max(11, 3.4 * columns), 4 * (rows + 1.15) + 0.12 * len(spectra)


def _grid(sources: int) -> tuple[int, int]:
    columns = min(sources, _COLUMNS)
    return -(-sources // columns), columns


def _draw_picked(found: Spectrum, rows: Sequence[int], axes: Axes) -> None:
    """Draw the eigenvalues of some classes, those of the same place side by side (LoOp, supp., figure 1)."""
    width = 0.8 / len(rows)
    for number, row in enumerate(rows):
        places = np.arange(_DIRECTIONS) + (number - (len(rows) - 1) / 2) * width
        values, colour = (
            100 * found.class_eigenvalues[row],
            COLOURS[-1 - number],
        )  # the sources have the first
        axes.bar(places, values, 0.9 * width, color=colour, label=caption(str(found.classes[row]), 24))
    axes.set_title(f"{caption(found.name)}: {len(rows)} random classes", fontsize=11)
    axes.legend(frameon=False, fontsize=9)
    _label_eigenvalues(axes, found.pca)


def _label_eigenvalues(axes: Axes, pca: Pca) -> None:
    axes.set_xticks(range(_DIRECTIONS), ["largest", "middle", "smallest"])
    where = {"class": "PCA per class", "global": "global PCA, not the paper's"}[pca]
    axes.set_xlabel(f"eigenvalue ({where})")
    axes.grid(axis="y", alpha=0.3)


def _draw_classes(spectra: Sequence[Spectrum], axes: Axes) -> None:
    width = 0.8 / len(spectra)
    for number, found in enumerate(spectra):
        places = np.arange(_DIRECTIONS) + (number - (len(spectra) - 1) / 2) * width
        # The error bar must not go below 0, which a variance never is.
        below = np.minimum(found.deviation, found.mean)
        spread, colour = 100 * np.stack([below, found.deviation]), COLOURS[number % len(COLOURS)]
        axes.bar(places, 100 * found.mean, 0.9 * width, yerr=spread, capsize=3, color=colour)
    axes.set_ylabel("eigenvalue × 100")
    axes.set_title("All classes: mean and standard deviation", fontsize=11)
    _label_eigenvalues(axes, spectra[0].pca)


def _draw_explained(spectra: Sequence[Spectrum], axes: Axes) -> None:
    for number, found in enumerate(spectra):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        rank = f"effective rank {found.effective_rank:.1f} of {len(found.variance)}"
        label = f"{caption(found.name)}: {rank}, variance {found.variance.sum():.2g}"
        directions = np.arange(1, len(found.variance) + 1)
        shares = 100 * found.explained
        axes.plot(directions, shares, marker=marker, ms=4, markevery=0.1, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_ylim(0, 103)
    axes.set_xlabel("principal directions, largest first")
    axes.set_ylabel("share of the variance (%)")
    axes.set_title("All embeddings: explained variance", fontsize=11)
    axes.grid(alpha=0.3)
