"""Precision of a model on a GPU: what a faster one changes in vectors and neighbours, and what may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

K = 10
# A precision beyond these is not chosen: the lowest cosine, below which a gallery also takes the vectors of a
# machine for those of another model, and the share of the first K neighbours that stay.
COSINE, KEPT = 0.999, 0.99
_TIED = 1e-9  # scores of copies of an image, which trade places by rounding alone; of float64


@dataclass(frozen=True)
class Drift:
    """Difference that another precision makes to the vectors of some images.

    Attributes:
        least: Lowest cosine of both vectors of an image; those that are not finite count as 0.
        mean: Mean cosine.
        kept: Share of the first `K` neighbours of each image that are still among them, from 0 to 1.
        images: Number of images.
    """

    least: float
    mean: float
    kept: float
    images: int

    @property
    def within(self) -> bool:
        """Whether the bounds are kept."""
        return self.least >= COSINE and self.kept >= KEPT

    def __str__(self) -> str:
        return (
            f"1 - cosine at most {1 - self.least:.2g}, {self.kept:.2%} of the first {K} neighbours stay, "
            f"{self.images} images"
        )


@dataclass(frozen=True)
class Precision:
    """Decision of a gallery on the precision of its model on an NVIDIA GPU; a CPU computes in fp32.

    Attributes:
        name: "tf32" or "fp32".
        drift: Difference that TF32 made to fp32 on the same GPU.
        provider: Execution provider of the measurement, by ONNX Runtime's name.
        date: Day of the measurement, YYYY-MM-DD in UTC.
    """

    name: str
    drift: Drift
    provider: str
    date: str

    @property
    def allows_tf32(self) -> bool:
        """Whether the model may round to TF32."""
        return self.name == "tf32"

    def __str__(self) -> str:
        chosen = "TF32 on a GPU, fp32 on a CPU" if self.allows_tf32 else "fp32, TF32 is beyond the bounds"
        return f"{chosen}; TF32 against fp32: {self.drift} ({self.date})"

    def as_dict(self) -> dict[str, Any]:
        """Return the record as plain values."""
        return {"name": self.name, **vars(self.drift), "provider": self.provider, "date": self.date}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Precision:
        """Return the record of plain values; a `KeyError`, `TypeError` or `ValueError` if they are none."""
        least, mean, kept = (float(facts[name]) for name in ("least", "mean", "kept"))
        drift = Drift(least, mean, kept, int(facts["images"]))
        return cls(str(facts["name"]), drift, str(facts["provider"]), str(facts["date"]))


def measure_drift(reference: np.ndarray, vectors: np.ndarray) -> Drift:
    """Compare the vectors of images in two precisions.

    Args:
        reference: Unit vectors in full precision, float32 [N, D], N of at least 2.
        vectors: Unit vectors of the same images in the other one, float32 [N, D]; they may not be finite.
    """
    fast = np.where(np.isfinite(vectors).all(1, keepdims=True), vectors, 0)
    cosines = np.einsum("nd,nd->n", fast.astype(float), reference.astype(float)).clip(-1, 1)
    scores, found = _scores(reference), neighbours(fast)
    last = np.sort(scores, axis=1)[:, -found.shape[1]]
    kept = np.take_along_axis(scores, found, axis=1) >= last[:, None] - _TIED
    return Drift(float(cosines.min()), float(cosines.mean()), float(kept.mean()), len(reference))


def neighbours(vectors: np.ndarray) -> np.ndarray:
    """Return the rows of the nearest K others, or all if there are fewer, int64 [N, min(K, N - 1)]."""
    return np.argsort(-_scores(vectors), axis=1, kind="stable")[:, : min(K, len(vectors) - 1)]


def _scores(vectors: np.ndarray) -> np.ndarray:
    """Return the cosines of all pairs, float64 [N, N], with those of an image with itself last."""
    wide = vectors.astype(np.float64)
    scores: np.ndarray = wide @ wide.T
    np.fill_diagonal(scores, -np.inf)
    return scores
