"""What a data set is: image files, their classes, and which are for training and which for testing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

SPLITS = ("train", "test")


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """An image file and its class.

    Attributes:
        path: where it is.
        label: its class.
        coarse: a second, coarser label (the chain of a hotel, a super-class), or `None` without one.
    """

    path: Path
    label: str
    coarse: str | None = None


class Splits(NamedTuple):
    """The images of a data set as a layout gives them; see `DataSet`."""

    train: list[LabelledImage]
    test: list[LabelledImage]
    gallery: list[LabelledImage] | None = None


@dataclass(frozen=True)
class DataSet:
    """Images to train on, and images to test on.

    Attributes:
        name: as the user wrote it.
        train: to train on.
        test: to test on. With `gallery`, these are queries; without, each is searched among the others.
            Data that comes without a test split has the same list in `train` and `test`.
        gallery: what queries are searched in, or `None`.
        coarse_name: what the coarser labels are, in the singular ("hotel chain"), or `None` without any.
        transitions: which class is mistaken for which (asymmetric label noise); empty where nobody says.
    """

    name: str
    train: list[LabelledImage]
    test: list[LabelledImage]
    gallery: list[LabelledImage] | None = None
    coarse_name: str | None = None
    transitions: Mapping[str, str] = field(default_factory=dict)


def class_numbers(images: Sequence[LabelledImage]) -> np.ndarray:
    """Labels as numbers 0..C-1 in the order of the sorted names, int64 [N]."""
    return np.unique([image.label for image in images], return_inverse=True)[1].astype(np.int64)
