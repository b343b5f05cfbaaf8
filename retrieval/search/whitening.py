"""Ridge whitening: the space in which parts of a picture are compared with the images of a gallery."""

from __future__ import annotations

import numpy as np

from retrieval.model.layer import Layer

RIDGE = 3.0  # times the mean variance
FEWEST = 100  # vectors; the directions of fewer are chance


def ridge_whitening(vectors: np.ndarray, ridge: float = RIDGE) -> Layer:
    """Return the layer that makes the covariance of vectors, with a ridge, the identity.

    A part of a cluttered picture differs from a picture of one object mostly in a few directions, in which
    the images of a gallery differ most as well: ground, light, style. The layer gives these less weight.

    Args:
        vectors: Unit vectors of a gallery, float32 [n, D].
        ridge: What is added to every variance, in units of the mean variance.

    Returns:
        Layer from D to D dimensions; with fewer than `FEWEST` vectors, or equal ones, it changes nothing.
    """
    count, width = vectors.shape
    nothing = Layer(np.eye(width, dtype=np.float32), np.zeros(width, np.float32))
    if count < FEWEST:
        return nothing
    mean = vectors.mean(0)
    centred = vectors - mean
    covariance = centred.T @ centred / count
    average = float(np.trace(covariance)) / width
    if average <= np.finfo(np.float32).eps:
        return nothing
    scaled = covariance.astype(np.float64) / average + ridge * np.eye(width)
    return Layer(np.linalg.inv(np.linalg.cholesky(scaled)).astype(np.float32), mean)
