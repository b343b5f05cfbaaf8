"""What a smaller precision costs and gains, beside single precision."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from export.samples import Pictures, noise, sampled
from retrieval import metrics
from retrieval.embedder import Embedder, measure_latency
from retrieval.errors import InputError
from retrieval.images.decode import embed_files
from retrieval.progress import Progress
from train.data import class_numbers

# Below this mean cosine to single precision, a file is not kept. In half precision sound networks stay above
# 0.99999, and those below overflow somewhere. In 8 bits, a trained MobileNetV2 keeps 0.996 and its Recall@1.
MIN_MEAN_COSINE = {"fp16": 0.9999, "int8": 0.98}
MAX_RECALL_LOSS = 0.01
BATCHES = (1, 32)
_NOISE = 64
_SECONDS = 0.5


@dataclass(frozen=True)
class Measured:
    """One model file.

    Attributes:
        bytes: of the file.
        milliseconds: of embedding so many pictures at once, median, on this machine.
        recall_at_1: in 0..1; `None`: on noise.
    """

    bytes: int
    milliseconds: dict[int, float]
    recall_at_1: float | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        times = {str(n): round(value, 3) for n, value in self.milliseconds.items()}
        return {"bytes": self.bytes, "milliseconds": times, "recall_at_1": self.recall_at_1}


@dataclass(frozen=True)
class Cost:
    """A model file beside that of the same network in single precision.

    Attributes:
        pictures: what both were tried on, in words.
        mean_cosine, lowest_cosine: between their embeddings of a picture.
    """

    precision: str
    pictures: str
    provider: str
    fp32: Measured
    reduced: Measured
    mean_cosine: float
    lowest_cosine: float

    @property
    def too_much(self) -> list[str]:
        """Why nobody should pay that, with the numbers; empty where it is fine."""
        reasons = []
        floor = MIN_MEAN_COSINE[self.precision]
        if not self.mean_cosine >= floor:  # also where it is not a number
            reasons.append(f"the mean cosine to fp32 is {self.mean_cosine:.5f}, at least {floor} is wanted")
        before, after = self.fp32.recall_at_1, self.reduced.recall_at_1
        if before is not None and after is not None and before - after > MAX_RECALL_LOSS:
            reasons.append(f"Recall@1 falls from {100 * before:.1f}% to {100 * after:.1f}%, by over 1 point")
        return reasons

    def table(self) -> str:
        """For people."""
        both = (self.fp32, self.reduced)
        rows = [("size, MB", *(f"{m.bytes / 1e6:.1f}" for m in both))]
        rows += [
            (f"{n} picture{'s' * (n > 1)}, ms", *(f"{m.milliseconds[n]:.1f}" for m in both)) for n in BATCHES
        ]
        if self.fp32.recall_at_1 is not None:
            rows.append(("Recall@1, %", *(f"{100 * (m.recall_at_1 or 0):.1f}" for m in both)))
        rows += [("mean cosine", "1", f"{self.mean_cosine:.5f}")]
        rows += [("lowest cosine", "1", f"{self.lowest_cosine:.5f}")]
        lines = [f"{name:<18}{a:>10}{b:>10}" for name, a, b in [("", "fp32", self.precision), *rows]]
        return "\n".join([*lines, f"on {self.pictures}, {self.provider}"])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "pictures": self.pictures,
            "provider": self.provider,
            "mean_cosine": self.mean_cosine,
            "lowest_cosine": self.lowest_cosine,
            "fp32": self.fp32.to_dict(),
            self.precision: self.reduced.to_dict(),
        }


def compare(single: Path, reduced: Path, precision: str, pictures: Pictures, *, show: bool = False) -> Cost:
    """Measure two model files of one network on the same pictures: test images (at most 2,000), or noise.

    Raises:
        InputError: no test image can be read, or none has another of its class.
    """
    embedders = Embedder(single), Embedder(reduced)
    vectors, labels, words = _embedded(embedders, pictures, show)
    cosines = np.einsum("nd,nd->n", *vectors)
    before, after = (
        Measured(
            file.stat().st_size,
            {n: 1000 * measure_latency(embedder, n, seconds=_SECONDS) for n in BATCHES},
            None if labels is None else metrics.recall_at_k(found, labels, ks=(1,))[1],
        )
        for file, embedder, found in zip((single, reduced), embedders, vectors, strict=True)
    )
    provider = embedders[1].provider
    return Cost(precision, words, provider, before, after, float(cosines.mean()), float(cosines.min()))


def _embedded(
    embedders: tuple[Embedder, Embedder], pictures: Pictures, show: bool
) -> tuple[list[np.ndarray], np.ndarray | None, str]:
    """Two arrays float32 [N, D], class numbers [N] or `None`, and what was embedded in words."""

    def both(pixels: np.ndarray) -> np.ndarray:
        return np.hstack([embedder.embed_pixels(pixels) for embedder in embedders])

    preprocess = embedders[0].preprocess
    if pictures.dataset is None:
        found = both(noise(_NOISE, preprocess.size))
        return np.split(found, 2, axis=1), None, f"{_NOISE} pictures of noise"
    images = sampled(pictures.dataset.test)
    with Progress("comparing with fp32", len(images), show=show) as progress:
        embedded = embed_files([image.path for image in images], preprocess, both, progress)
    kept = [images[i] for i in embedded.positions]
    if not kept:
        raise InputError(f"{pictures.dataset.name}: none of its test images can be read")
    numbers = class_numbers(kept)
    words = f"{len(kept):,} test images of {numbers.max() + 1} classes of {pictures.dataset.name}"
    return np.split(embedded.vectors, 2, axis=1), numbers, words
