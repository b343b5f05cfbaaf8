"""Principal components of vectors, divided by a power of their deviations: the start of every layer.

Learning changes the leading components by a square matrix. The blend is a share of that matrix, the rest
being the identity: interpolation of weights, as WiSE-FT does between a zero-shot and a fine-tuned model
(Wortsman et al. 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.errors import InputError
from retrieval.model.layer import Layer

FEW = 2  # vectors for each dimension, below which no dimension is left out
NOTHING = 1e-3  # component of vectors of norm 1, or relative deviation, that is nothing but rounding


@dataclass(frozen=True)
class Start:
    """Start of a layer.

    Attributes:
        power: Power of the standard deviations.
        layer: Rotation, division by the power of the standard deviations, and mean.
        learned: Number k of the leading components that learning may change.
    """

    power: float
    layer: Layer
    learned: int

    def components(self, vectors: np.ndarray) -> np.ndarray:
        """Return the components of vectors, float32 [n, D'], with norm 1 on average."""
        found = (vectors - self.layer.mean) @ self.layer.weight.T
        norm = float(np.linalg.norm(found, axis=1).mean())
        scaled: np.ndarray = found / max(norm, float(np.finfo(np.float32).tiny))
        return scaled

    def blended(self, matrix: np.ndarray, share: float) -> Layer:
        """Return the layer with a share of a learned matrix [k, k]."""
        weight = self.layer.weight.copy()
        weight[: self.learned] = mixed(matrix, share) @ weight[: self.learned]
        return Layer(weight, self.layer.mean)


def fit_starts(vectors: np.ndarray, powers: Sequence[float], most: int) -> list[Start]:
    """Fit the start of each power to vectors.

    The variances are shrunk towards their mean (Ledoit and Wolf 2004), so that the noise of few images does
    not become large in weak components. Only components in which the vectors differ are learned.

    Args:
        vectors: Unit vectors, float32 [n, D].
        powers: Powers of the standard deviations.
        most: Largest dimension D', unless there are fewer than two vectors for each dimension: then D.

    Raises:
        InputError: Fewer than two vectors.
    """
    n, width = vectors.shape
    if n < 2:
        raise InputError(f"a layer is fitted to two vectors or more, got {n}")
    mean = vectors.mean(0, dtype=np.float64)
    centred = vectors - mean.astype(np.float32)
    covariance = (centred.T @ centred).astype(np.float64) / n
    values, axes = np.linalg.eigh(covariance)
    values, axes = np.maximum(values[::-1], 0), axes[:, ::-1]
    fourth = float((np.einsum("nd,nd->n", centred, centred).astype(np.float64) ** 2).mean())
    squares, average = float((values**2).sum()), float(values.mean())
    spread = squares - width * average**2
    shrinkage = min(max((fourth - squares) / n / spread, 0.0), 1.0) if spread > 0 else 1.0
    variances = (1 - shrinkage) * values + shrinkage * average
    variances = np.maximum(variances, NOTHING**2 * variances[0])
    dim = width if n < FEW * width else min(width, most)
    starts = []
    for power in powers:
        scale = (variances[:dim] / variances[0]) ** (-power / 2) if average > 0 else np.ones(dim)
        weight = (axes[:, :dim] * scale).T.astype(np.float32)
        starts.append(Start(power, Layer(weight, mean.astype(np.float32)), min(dim, most, n - 1)))
    return starts


def mixed(matrix: np.ndarray, share: float) -> np.ndarray:
    """Return a share of a square matrix, the rest being the identity."""
    return (1 - share) * np.eye(len(matrix), dtype=np.float32) + share * matrix
