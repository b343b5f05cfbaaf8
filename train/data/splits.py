"""Split of the training classes into training and validation classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrieval.errors import InputError
from train.config import SplitConfig
from train.data import LabelledImage


def hold_out_classes(
    images: Sequence[LabelledImage], config: SplitConfig, seed: int
) -> tuple[list[LabelledImage], list[LabelledImage]]:
    """Divide images by class into training and validation images, at random by seed.

    With `config.folds`, every class is in the validation part of exactly one fold, and fold sizes differ by
    at most one class. Otherwise a share of the classes is held out, or none if that is fewer than two
    classes: one class alone cannot be evaluated.

    Raises:
        InputError: Fewer than two classes would remain for training or be in a fold.
    """
    classes = sorted({image.label for image in images})
    held_out = set(_fold(classes, config, seed) if config.folds else _share(classes, config, seed))
    training = [image for image in images if image.label not in held_out]
    return training, [image for image in images if image.label in held_out]


def _share(classes: list[str], config: SplitConfig, seed: int) -> list[str]:
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


def _fold(classes: list[str], config: SplitConfig, seed: int) -> list[str]:
    if len(classes) < 2 * config.folds:
        raise InputError(
            f"split.folds={config.folds} needs two classes in each, {2 * config.folds} in all; "
            f"there are {len(classes)}"
        )
    shuffled = np.random.default_rng(seed).permutation(classes)
    fold: list[str] = np.array_split(shuffled, config.folds)[config.fold].tolist()
    return fold
