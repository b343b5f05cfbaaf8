"""The pictures that a model file is tried on: those of a data set, or noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from retrieval.errors import InputError
from retrieval.images.decode import Decoded, decode_ahead
from retrieval.images.preprocess import Preprocess
from train import data
from train.data import DataSet, LabelledImage

NOISE = "noise"
CALIBRATION = 256
TEST = 2000
_PER_CLASS = 20


@dataclass(frozen=True)
class Pictures:
    """Where pictures come from.

    Attributes:
        dataset: `None`: noise.
    """

    dataset: DataSet | None

    @classmethod
    def of(cls, spec: str) -> Pictures:
        """Those of a data set, or of the word "noise"; an `InputError` where there are none."""
        return cls(None if spec == NOISE else data.load(spec))

    @classmethod
    def or_noise(cls, spec: str) -> Pictures:
        """As `of`, but noise where the data set is gone."""
        try:
            return cls.of(spec)
        except InputError:
            return cls(None)

    def some(self, count: int, preprocess: Preprocess) -> tuple[np.ndarray, str]:
        """At most `count` test images, drawn by a fixed seed: uint8 [n, S, S, 3], and a word on them."""
        if self.dataset is not None and (pixels := _drawn(self.dataset.test, count, preprocess)):
            return np.stack(pixels), f"{len(pixels)} images of {self.dataset.name}"
        return noise(count, preprocess.size), f"{count} pictures of noise"

    def for_calibration(self, preprocess: Preprocess) -> tuple[np.ndarray, str]:
        """At most 256 training images, drawn by a fixed seed, uint8 [n, S, S, 3], and what they are in words.

        Raises:
            InputError: a data set none of whose training images can be read.
        """
        if self.dataset is None:
            return noise(CALIBRATION, preprocess.size), f"{CALIBRATION} pictures of noise"
        pixels = _drawn(self.dataset.train, CALIBRATION, preprocess)
        if not pixels:
            raise InputError(f"{self.dataset.name}: none of its training images can be read to calibrate on")
        return np.stack(pixels), f"{len(pixels)} training images of {self.dataset.name}"


def noise(count: int, size: int) -> np.ndarray:
    """Pictures of independent values, the same each time, uint8 [count, size, size, 3]."""
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), np.uint8)


def sampled(images: Sequence[LabelledImage], limit: int = TEST) -> list[LabelledImage]:
    """At most `limit` images, drawn by a fixed seed class by class, so that each finds some of its own.

    Of each class come 20, or more where there are few classes; of many classes, those drawn first.
    """
    if len(images) <= limit:
        return list(images)
    random = np.random.default_rng(0)
    numbers = data.class_numbers(images)
    classes = random.permutation(numbers.max() + 1)
    of_each = max(_PER_CLASS, limit // len(classes))
    chosen: list[int] = []
    for number in classes:
        chosen += list(random.permutation(np.flatnonzero(numbers == number))[:of_each])
    return [images[i] for i in sorted(chosen[:limit])]


def _drawn(images: Sequence[LabelledImage], count: int, preprocess: Preprocess) -> list[np.ndarray]:
    """`count` images that can be read, or all there are."""
    order = np.random.default_rng(0).permutation(len(images))
    files = decode_ahead((images[i].path for i in order), preprocess, side=preprocess.scaled)
    return list(islice((file.pixels for file in files if isinstance(file, Decoded)), count))
