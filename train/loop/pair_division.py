"""Training from labelled pairs: what cannot be set, and the division of the pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrieval.errors import InputError
from train.config import Config
from train.data import DataSet, LabelledImage
from train.data.dataset import LabelledPairs

_FEWEST = 10  # held-out pairs: with fewer, a score says nothing


def check_pairs(config: Config) -> None:
    """Raise an InputError for settings that need classes."""
    refused = {
        **config.needing_classes(),
        "distill.teacher": config.distill.teacher is not None,
        "augment.symmetries": config.augment.symmetries > 1,
        "batch.layout=at-least": config.batch.layout == "at-least",
        "batch.hard_classes": config.batch.hard_classes > 0,
        "batch.categories": config.batch.categories is not None,
    }
    for setting, is_set in refused.items():
        if is_set:
            raise InputError(f"{setting}: cannot be used with labelled pairs, of {config.data}; leave it out")


def metric_of(pairs: LabelledPairs) -> str:
    """Return the metric that chooses the best epoch: auc of labels, spearman of scores."""
    return "spearman" if pairs.graded else "auc"


def divide_pairs(
    dataset: DataSet, training: Sequence[LabelledImage], held_out: Sequence[LabelledImage]
) -> tuple[LabelledPairs, LabelledPairs | None]:
    """Return the pairs of training images and of held-out images; those between them are in neither.

    Raises:
        InputError: No pairs are left to train on, or too few to validate on.
    """
    assert dataset.pairs is not None
    place = {image.path: position for position, image in enumerate(dataset.train)}
    ours, others = (
        dataset.pairs.among([place[image.path] for image in images]) for images in (training, held_out)
    )
    if len(np.unique(ours.values)) < 2:
        raise InputError(
            f"{dataset.name}: the pairs of training images are too few, or all of one value; hold out fewer "
            "(split.validation)"
        )
    if not held_out:
        return ours, None
    if len(others) < _FEWEST or len(np.unique(others.values)) < 2:
        raise InputError(
            f"split.validation: {len(others)} pairs are of two held-out images, too few or all of one value; "
            "raise it, or set split.validation=0"
        )
    return ours, others
