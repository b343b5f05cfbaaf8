"""Data set: labelled image files, divided into training and test images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from retrieval.errors import InputError

SPLITS = ("train", "test")


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """Image file with its class.

    Attributes:
        path: Image file.
        label: Class.
        coarse: A second, coarser label (a hotel's chain, a super-class), or `None`.
    """

    path: Path
    label: str
    coarse: str | None = None


class Splits(NamedTuple):
    """Splits of a data set as read from disk; see `DataSet`."""

    train: list[LabelledImage]
    test: list[LabelledImage]
    gallery: list[LabelledImage] | None = None


@dataclass(frozen=True)
class LabelledPairs:
    """Pairs of the images of a data set.

    Attributes:
        first, second: int64 [P], positions in the list of images.
        values: float64 [P]: 1 for the same and 0 for different, or scores, larger for more alike.
        graded: Whether the values are scores.
        contradictions: Pairs that are different although others connect them as the same.
    """

    first: np.ndarray
    second: np.ndarray
    values: np.ndarray
    graded: bool
    contradictions: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def among(self, positions: Sequence[int]) -> LabelledPairs:
        """Return the pairs both of whose images are at these positions, numbered in their order."""
        size = 1 + int(max(self.first.max(initial=-1), self.second.max(initial=-1)))
        number = np.full(max(size, 1 + max(positions, default=0)), -1)
        number[list(positions)] = np.arange(len(positions))
        first, second = number[self.first], number[self.second]
        kept = (first >= 0) & (second >= 0)
        return LabelledPairs(first[kept], second[kept], self.values[kept], self.graded)


@dataclass(frozen=True)
class DataSet:
    """Training and test images.

    Attributes:
        name: Data specification as the user wrote it.
        train: Training images.
        test: Test images. With `gallery`, these are queries; without, each is searched among the others. Data
            without a test split has the same list in `train` and `test`.
        gallery: Images that queries are searched in, or `None`.
        coarse_name: Meaning of the coarser labels, in the singular ("hotel chain"), or `None`.
        transitions: Wrong class by true class for asymmetric label noise; empty if undefined.
        licence: Licence of the images, or "" if unknown.
        labelled: Whether the classes are known; without, every image is a class of its own.
        pairs: Labelled pairs of the training images, instead of classes; `None` for none.
    """

    name: str
    train: list[LabelledImage]
    test: list[LabelledImage]
    gallery: list[LabelledImage] | None = None
    coarse_name: str | None = None
    transitions: Mapping[str, str] = field(default_factory=dict)
    licence: str = ""
    labelled: bool = True
    pairs: LabelledPairs | None = None


def check_test_split(dataset: DataSet) -> None:
    """Raise an `InputError` if training sees all that variants would be measured on."""
    if dataset.test == dataset.train:
        raise InputError(
            f"data {dataset.name}: no test split, so training would see all that is measured; divide it into "
            "folders train and test with other classes, or name the split in the CSV"
        )


def class_numbers(images: Sequence[LabelledImage]) -> np.ndarray:
    """Return labels as numbers 0..C-1 in the order of the sorted names, int64 [N]."""
    return np.unique([image.label for image in images], return_inverse=True)[1].astype(np.int64)


def class_categories(images: Sequence[LabelledImage]) -> dict[str, str]:
    """Return the coarse label of each label, the most frequent one of its images.

    Raises:
        InputError: An image has none.
    """
    found: dict[str, Counter[str]] = {}
    for image in images:
        if image.coarse is None:
            raise InputError(
                f"batch.categories: {image.path} has no coarse label; give one to each image (the column "
                "coarse of a csv), or leave the setting out"
            )
        found.setdefault(image.label, Counter())[image.coarse] += 1
    return {label: counts.most_common(1)[0][0] for label, counts in found.items()}
