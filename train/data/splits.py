"""Split of the training images into training images, with label noise, and held-out images."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from retrieval.errors import InputError
from train.config import Config, SplitConfig
from train.data import DataSet, LabelledImage
from train.data.label_noise import with_wrong_labels

_DISTRACTORS = 2  # random stream, distinct from others with the same seed


class Division(NamedTuple):
    """Training split of a data set, as a run uses it.

    Attributes:
        clean: Training images with their true labels.
        given: The same images with the labels that the run learns from, some of them wrong.
        held_out: Validation images, with their true labels: label noise is drawn among the others. None with
            `split.refit`: the run that chooses the number of epochs is another one.
    """

    clean: list[LabelledImage]
    given: list[LabelledImage]
    held_out: list[LabelledImage]

    def digest(self) -> str:
        """Return a SHA-256 of the names and labels of the images of both parts, wherever their folder is."""
        sha256 = hashlib.sha256()
        for part in (self.clean, self.held_out):
            for image in part:
                name = json.dumps([*Path(image.path).parts[-2:], image.label])
                sha256.update(name.encode() + b"\n")
            sha256.update(b"\n")
        return sha256.hexdigest()


def divide(dataset: DataSet, config: Config) -> Division:
    """Hold out validation images and draw the label noise of a run; its settings and seed decide both."""
    images = dataset.train
    clean, held_out = (images, []) if config.split.refit else hold_out(images, config.split, config.seed)
    return Division(clean, with_wrong_labels(clean, config.noise, config.seed, dataset.transitions), held_out)


def hold_out(
    images: Sequence[LabelledImage], config: SplitConfig, seed: int
) -> tuple[list[LabelledImage], list[LabelledImage]]:
    """Divide images into training and validation images, at random by seed; both keep their order.

    by: classes. A share of the classes is held out, or none if that is fewer than two classes: one class
    alone cannot be evaluated. With `folds`, every class is in the validation part of exactly one fold, and
    fold sizes differ by at most one class.

    by: images. round(share n) of the n images of each class are held out; of a class with fewer than two
    such images, none: one image alone has nothing to find. With `folds`, every image is in the validation
    part of exactly one fold, and of each class fold sizes differ by at most one image.

    Raises:
        InputError: Too few classes or images remain for training or are in a fold, or images are to be held
            out and no class has enough of them.
    """
    positions = set((_images if config.by == "images" else _classes)(images, config, seed))
    training = [image for i, image in enumerate(images) if i not in positions]
    return training, [image for i, image in enumerate(images) if i in positions]


def draw_distractors(images: Sequence[LabelledImage], config: SplitConfig, seed: int) -> list[LabelledImage]:
    """Return the training images that held-out images are searched among, in their order.

    A held-out class has no image among them. With `by: images` there are none: the training images have the
    classes of the held-out ones.
    """
    if config.by == "images":
        return []
    count = min(config.distractors, len(images))
    chosen = np.random.default_rng([seed, _DISTRACTORS]).choice(len(images), count, replace=False)
    return [images[position] for position in sorted(chosen.tolist())]


def _classes(images: Sequence[LabelledImage], config: SplitConfig, seed: int) -> list[int]:
    """Return the positions of the images of the classes to hold out."""
    classes = sorted({image.label for image in images})
    chosen = set((_fold_of_classes if config.folds else _share_of_classes)(classes, config, seed))
    return [i for i, image in enumerate(images) if image.label in chosen]


def _share_of_classes(classes: list[str], config: SplitConfig, seed: int) -> list[str]:
    count = round(config.validation * len(classes))
    if count < 2:
        return []
    if len(classes) - count < 2:
        raise InputError(
            f"split.validation={config.validation:g} leaves {len(classes) - count} of {len(classes)} classes "
            "to train on; lower it"
        )
    chosen: list[str] = np.random.default_rng(seed).choice(classes, count, replace=False).tolist()
    return chosen


def _fold_of_classes(classes: list[str], config: SplitConfig, seed: int) -> list[str]:
    if len(classes) < 2 * config.folds:
        raise InputError(
            f"split.folds={config.folds} needs two classes in each, {2 * config.folds} in all; "
            f"there are {len(classes)}"
        )
    shuffled = np.random.default_rng(seed).permutation(classes)
    fold: list[str] = np.array_split(shuffled, config.folds)[config.fold].tolist()
    return fold


def _images(images: Sequence[LabelledImage], config: SplitConfig, seed: int) -> list[int]:
    """Return the positions of the images to hold out, the same share of each class."""
    members: dict[str, list[int]] = defaultdict(list)
    for position in sorted(range(len(images)), key=lambda i: images[i].path):
        members[images[position].label].append(position)
    random = np.random.default_rng(seed)
    deal = _fold_of_images if config.folds else _share_of_images
    chosen = [i for label in sorted(members) for i in deal(random.permutation(members[label]), label, config)]
    if images and config.validation and not chosen:
        raise InputError(
            f"split.validation={config.validation:g} holds out fewer than two images of every class, and one "
            "alone has nothing to find; raise it"
        )
    return chosen


def _share_of_images(shuffled: np.ndarray, label: str, config: SplitConfig) -> np.ndarray:
    count = round(config.validation * len(shuffled))
    if count < 2:
        return shuffled[:0]
    if len(shuffled) - count < 2:
        raise InputError(
            f"split.validation={config.validation:g} leaves {len(shuffled) - count} of {len(shuffled)} "
            f"images of class {label!r} to train on; lower it"
        )
    return shuffled[:count]


def _fold_of_images(shuffled: np.ndarray, label: str, config: SplitConfig) -> np.ndarray:
    if len(shuffled) < 2 * config.folds:
        raise InputError(
            f"split.folds={config.folds} needs two images of every class in each, {2 * config.folds} in all; "
            f"class {label!r} has {len(shuffled)}"
        )
    return np.array_split(shuffled, config.folds)[config.fold]
