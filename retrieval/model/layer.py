"""Linear layer on the unit vectors of a model: learned by `adapt` and `teach`, folded into the model file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Layer:
    """Linear layer on unit vectors, followed by normalization: x -> (x - mean) weight^T / norm.

    Attributes:
        weight: float32 [D', D].
        mean: Mean that is subtracted from the vectors, float32 [D]; zeros for none.
    """

    weight: np.ndarray
    mean: np.ndarray

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Return the new unit vectors, float32 [N, D'], of unit vectors, float32 [N, D].

        A vector that the layer maps to zero stays zero.
        """
        projected = (vectors - self.mean) @ self.weight.T
        norms = np.linalg.norm(projected, axis=1, keepdims=True)
        found: np.ndarray = projected / np.maximum(norms, np.finfo(np.float32).tiny)
        return found.astype(np.float32, copy=False)
