"""Variance of embeddings: spectrum of the covariance, overall and within each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retrieval.analysis.embeddings import Embeddings
from retrieval.errors import InputError
from retrieval.reports.figures import COLOURS, MARKERS, caption

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DIRECTIONS = 3
_COLLAPSED = 1e-10  # variance of equal unit vectors in float32, by rounding
_AT_ONCE = 8192


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Variance of embeddings of unit length, a squared distance without unit.

    Attributes:
        name: Name of the embeddings.
        variance: Variance along the principal directions, float64 [D], largest first: the eigenvalues of the
            covariance (divided by N) of all N embeddings.
        classes: Classes of at least two images, [C].
        class_eigenvalues: Eigenvalues of the covariance (divided by n - 1) of each class, after projecting
            all embeddings on their first three principal directions, float64 [C, 3], largest first (LoOp,
            supplement, figure 1). A class of n images has at most n - 1 above 0.
    """

    name: str
    variance: np.ndarray
    classes: np.ndarray
    class_eigenvalues: np.ndarray

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
            "class_eigenvalues": {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()},
            "classes": dict(zip(self.classes.tolist(), self.class_eigenvalues.tolist(), strict=True)),
        }


def spectrum(embeddings: Embeddings) -> Spectrum:
    """Compute the spectrum of all embeddings and of each class.

    Raises:
        InputError: Embeddings have fewer than three dimensions, or no class has two images.
    """
    vectors, name = embeddings.vectors, embeddings.name
    if vectors.shape[1] < _DIRECTIONS:
        raise InputError(f"{name}: needs embeddings of {_DIRECTIONS} numbers, these have {vectors.shape[1]}")
    labels, counts = np.unique(embeddings.labels, return_counts=True)
    classes = labels[counts > 1]
    if not len(classes):
        raise InputError(f"{name}: no class has two images, so none has a spread")
    mean = vectors.mean(0, dtype=np.float64)
    variance, directions = np.linalg.eigh(_covariance(vectors, mean))
    variance = np.maximum(variance[::-1], 0)  # below 0 by rounding
    if variance.sum() < _COLLAPSED:
        variance = np.zeros_like(variance)
    projected = (vectors - mean.astype(np.float32)) @ directions[:, ::-1][:, :_DIRECTIONS]  # [N, 3]
    return Spectrum(name, variance, classes, _within(projected, embeddings.classes)[counts > 1])


def _covariance(vectors: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return the covariance, float64 [D, D], computed in blocks to save memory."""
    total = np.zeros((len(mean), len(mean)))
    for start in range(0, len(vectors), _AT_ONCE):
        block = vectors[start : start + _AT_ONCE] - mean
        total += block.T @ block
    return total / len(vectors)


def _within(points: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the eigenvalues of the covariance of each class, largest first: [N, d], [N] -> [C, d]."""
    counts = np.bincount(classes).astype(np.float64)

    def sums(values: np.ndarray) -> np.ndarray:
        found = np.zeros((len(counts), *values.shape[1:]))
        np.add.at(found, classes, values)
        return found

    centred = points - (sums(points) / counts[:, None])[classes]
    scatter = sums(centred[:, :, None] * centred[:, None, :])  # [C, d, d]
    divisors = np.maximum(counts - 1, 1)[:, None, None]
    eigenvalues: np.ndarray = np.maximum(np.linalg.eigvalsh(scatter / divisors)[:, ::-1], 0)
    return eigenvalues


def draw_spectra(spectra: Sequence[Spectrum], figure: Figure) -> None:
    """Draw two panels: eigenvalues of the classes, and the variance explained by the first directions."""
    figure.suptitle("Variance of the embeddings", fontsize=13)
    inside, overall = figure.subplots(1, 2)
    _draw_classes(spectra, inside)
    _draw_explained(spectra, overall)
    figure.legend(*overall.get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=2)


def _draw_classes(spectra: Sequence[Spectrum], axes: Axes) -> None:
    width = 0.8 / len(spectra)
    for number, found in enumerate(spectra):
        places = np.arange(_DIRECTIONS) + (number - (len(spectra) - 1) / 2) * width
        # The error bar must not go below 0, which a variance never is.
        below = np.minimum(found.deviation, found.mean)
        spread, colour = [below, found.deviation], COLOURS[number % len(COLOURS)]
        axes.bar(places, found.mean, 0.9 * width, yerr=spread, capsize=3, color=colour)
    axes.set_xticks(range(_DIRECTIONS), ["largest", "middle", "smallest"])
    axes.set_xlabel("eigenvalue of a class in the first 3 directions")
    axes.set_ylabel("variance (squared distance)")
    axes.set_title("Within classes: mean and deviation", fontsize=11)
    axes.grid(axis="y", alpha=0.3)


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
