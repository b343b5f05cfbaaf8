"""Cost of a smaller precision (fp16, int8) relative to fp32: accuracy, size and latency."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from export.samples import SampleImages, noise_images, sample_by_class
from retrieval import metrics
from retrieval.errors import InputError
from retrieval.images.decode import embed_files
from retrieval.model.embedder import Embedder, measure_latency
from retrieval.model.runtime import Runtime
from retrieval.progress import Progress
from train.data import class_numbers

# A file with a lower mean cosine to fp32 is not kept. In half precision, networks stay above 0.99999 unless
# something overflows. In 8 bits, a trained MobileNetV2 keeps 0.996 and its Recall@1.
MIN_MEAN_COSINE = {"fp16": 0.9999, "int8": 0.98}
MAX_RECALL_LOSS = 0.01
BATCHES = (1, 4, 32)  # 4: about the fastest per image on a CPU
_NOISE = 64
_SECONDS = 0.5


@dataclass(frozen=True)
class Measurement:
    """Measurement of one model file.

    Attributes:
        bytes: File size in bytes.
        milliseconds: Median latency on this machine by batch size.
        recall_at_1: Recall@1 in 0..1; `None` on noise images.
    """

    bytes: int
    milliseconds: dict[int, float]
    recall_at_1: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        times = {str(n): round(value, 3) for n, value in self.milliseconds.items()}
        return {"bytes": self.bytes, "milliseconds": times, "recall_at_1": self.recall_at_1}


@dataclass(frozen=True)
class Cost:
    """Comparison of a model file with that of the same network in fp32.

    Attributes:
        precision: Precision of the reduced file, fp16 or int8.
        images: Description of the images that both files embedded.
        provider: ONNX Runtime execution provider.
        fp32: Measurement of the fp32 file.
        reduced: Measurement of the reduced file.
        mean_cosine: Mean cosine between the two embeddings of an image.
        lowest_cosine: Lowest cosine between the two embeddings of an image.
    """

    precision: str
    images: str
    provider: str
    fp32: Measurement
    reduced: Measurement
    mean_cosine: float
    lowest_cosine: float

    @property
    def violations(self) -> list[str]:
        """Return the limits exceeded, with the numbers; empty if the cost is acceptable."""
        reasons = []
        floor = MIN_MEAN_COSINE[self.precision]
        if not self.mean_cosine >= floor:  # also true for NaN
            reasons.append(f"the mean cosine to fp32 is {self.mean_cosine:.5f}, the limit is {floor}")
        before, after = self.fp32.recall_at_1, self.reduced.recall_at_1
        if before is not None and after is not None and before - after > MAX_RECALL_LOSS:
            reasons.append(f"Recall@1 falls from {100 * before:.1f}% to {100 * after:.1f}%, by over 1 point")
        return reasons

    def to_text(self) -> str:
        """Return a text table for the terminal."""
        both = (self.fp32, self.reduced)
        rows = [("size, MB", *(f"{m.bytes / 1e6:.1f}" for m in both))]
        rows += [
            (f"{n} image{'s' * (n > 1)}, ms", *(f"{m.milliseconds[n]:.1f}" for m in both)) for n in BATCHES
        ]
        if self.fp32.recall_at_1 is not None:
            rows.append(("Recall@1, %", *(f"{100 * (m.recall_at_1 or 0):.1f}" for m in both)))
        rows += [("mean cosine", "1", f"{self.mean_cosine:.5f}")]
        rows += [("lowest cosine", "1", f"{self.lowest_cosine:.5f}")]
        lines = [f"{name:<18}{a:>10}{b:>10}" for name, a, b in [("", "fp32", self.precision), *rows]]
        return "\n".join([*lines, f"on {self.images}, {self.provider}"])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "pictures": self.images,
            "provider": self.provider,
            "mean_cosine": self.mean_cosine,
            "lowest_cosine": self.lowest_cosine,
            "fp32": self.fp32.to_dict(),
            self.precision: self.reduced.to_dict(),
        }


def measure_cost(
    fp32: Path,
    reduced: Path,
    precision: str,
    samples: SampleImages,
    runtime: Runtime,
    *,
    show: bool = False,
) -> Cost:
    """Compare two model files of one network on at most 2,000 test images, or on noise images.

    Args:
        fp32: Model file in fp32.
        reduced: Model file in the smaller precision.
        precision: Precision of `reduced`, fp16 or int8.
        samples: Source of the images.
        runtime: Device and provider.
        show: Show progress.

    Raises:
        InputError: No test image can be read, or no class has two images.
    """
    embedders = Embedder.open(fp32, runtime), Embedder.open(reduced, runtime)
    vectors, labels, description = _embed(embedders, samples, show)
    cosines = np.einsum("nd,nd->n", *vectors)
    before, after = (
        Measurement(
            file.stat().st_size,
            {n: 1000 * measure_latency(embedder, n, seconds=_SECONDS) for n in BATCHES},
            None if labels is None else metrics.recall_at_k(found, labels, ks=(1,))[1],
        )
        for file, embedder, found in zip((fp32, reduced), embedders, vectors, strict=True)
    )
    provider = embedders[1].provider
    mean, lowest = float(cosines.mean()), float(cosines.min())
    return Cost(precision, description, provider, before, after, mean, lowest)


def _embed(
    embedders: tuple[Embedder, Embedder], samples: SampleImages, show: bool
) -> tuple[list[np.ndarray], np.ndarray | None, str]:
    """Return two arrays float32 [N, D], class numbers [N] or `None`, and a description of the images."""

    def both(pixels: np.ndarray) -> np.ndarray:
        return np.hstack([embedder.embed_pixels(pixels) for embedder in embedders])

    preprocess = embedders[0].preprocess
    if samples.dataset is None:
        found = both(noise_images(_NOISE, preprocess.size))
        return np.split(found, 2, axis=1), None, f"{_NOISE} noise images"
    images = sample_by_class(samples.dataset.test)
    with Progress("comparing with fp32", len(images), show=show) as progress:
        embedded = embed_files(
            [image.path for image in images],
            preprocess,
            both,
            progress,
            batch_size=embedders[0].batch_size,
        )
    kept = [images[i] for i in embedded.positions]
    if not kept:
        raise InputError(f"{samples.dataset.name}: none of the test images can be read")
    numbers = class_numbers(kept)
    description = f"{len(kept):,} test images of {numbers.max() + 1} classes of {samples.dataset.name}"
    return np.split(embedded.vectors, 2, axis=1), numbers, description
