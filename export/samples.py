"""Sample images for checking and calibrating a model file: from a data set, or noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from retrieval.errors import InputError
from retrieval.images.decode import decode_ahead
from retrieval.images.picture import Decoded
from retrieval.images.preprocess import Preprocess
from retrieval.model.training_images import TrainingImages
from train import data
from train.data import DataSet, LabelledImage

NOISE = "noise"
CALIBRATION_IMAGES = 256
TEST_IMAGES = 2000
_PER_CLASS = 20


@dataclass(frozen=True)
class SampleImages:
    """Source of sample images.

    Attributes:
        dataset: Data set; `None` for noise images.
    """

    dataset: DataSet | None

    @classmethod
    def load(cls, spec: str) -> SampleImages:
        """Load a data set, or use noise images for the spec "noise".

        Raises:
            InputError: The data set cannot be loaded.
        """
        return cls(None if spec == NOISE else data.load(spec, unlabelled=True))

    @classmethod
    def load_or_noise(cls, spec: str) -> SampleImages:
        """Load a data set, or use noise images if it cannot be loaded."""
        try:
            return cls.load(spec)
        except InputError:
            return cls(None)

    def training_images(self, held_out: Sequence[LabelledImage] = ()) -> TrainingImages | None:
        """Return the training images of the data set; `None` for noise.

        Args:
            held_out: Those of them whose labels were not learned.
        """
        if self.dataset is None:
            return None
        images = self.dataset.train
        labels = {image.label for image in images} if self.dataset.labelled else set[str]()
        found = TrainingImages.of(
            [image.path for image in images], labels, {image.path for image in held_out}
        )
        return found if len(found.contents) else None

    def sample_pixels(self, count: int, preprocess: Preprocess) -> tuple[np.ndarray, str]:
        """Return at most `count` random test images (fixed seed), uint8 [n, S, S, 3], and a description."""
        if self.dataset is not None and (pixels := _random_images(self.dataset.test, count, preprocess)):
            return np.stack(pixels), f"{len(pixels)} images of {self.dataset.name}"
        return noise_images(count, preprocess.size), f"{count} noise images"

    def calibration_pixels(self, preprocess: Preprocess) -> tuple[np.ndarray, str]:
        """Return at most 256 random training images (fixed seed), uint8 [n, S, S, 3], and a description.

        Raises:
            InputError: None of the training images can be read.
        """
        if self.dataset is None:
            return noise_images(CALIBRATION_IMAGES, preprocess.size), f"{CALIBRATION_IMAGES} noise images"
        pixels = _random_images(self.dataset.train, CALIBRATION_IMAGES, preprocess)
        if not pixels:
            raise InputError(f"{self.dataset.name}: none of the training images can be read for calibration")
        return np.stack(pixels), f"{len(pixels)} training images of {self.dataset.name}"


def noise_images(count: int, size: int) -> np.ndarray:
    """Return images of independent uniform values (fixed seed), uint8 [count, size, size, 3]."""
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), np.uint8)


def sample_by_class(images: Sequence[LabelledImage], limit: int = TEST_IMAGES) -> list[LabelledImage]:
    """Draw at most `limit` images class by class (fixed seed), so that images have others of their class.

    Each class contributes 20 images, or more if there are few classes; of many classes, only some are drawn.
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


def _random_images(images: Sequence[LabelledImage], count: int, preprocess: Preprocess) -> list[np.ndarray]:
    """Decode `count` readable images in random order, or fewer if there are fewer."""
    order = np.random.default_rng(0).permutation(len(images))
    files = decode_ahead((images[i].path for i in order), preprocess, side=preprocess.scaled)
    return list(islice((file.pixels for file in files if isinstance(file, Decoded)), count))
