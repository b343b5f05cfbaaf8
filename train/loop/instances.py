"""Training without labels: every image is a class of its own, whose members are its augmented views."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from retrieval.errors import ImageError, InputError
from retrieval.files import atomic_write
from retrieval.images.load import load_image
from train.config import Config
from train.data import LabelledImage
from train.layers.copies import augment

_COPIES = 1000  # enough for a standard error of 0.016
_SIDE = 512  # pixels; of the longer side of a copy, at most


def check_unlabelled(config: Config) -> None:
    """Raise an InputError for settings that need labels, or that leave nothing to learn without them."""
    for setting, is_set in config.needing_classes().items():
        if is_set:
            raise InputError(f"{setting}: needs labels, and {config.data} has none; leave it out")
    if config.loss and not config.augment.is_random:
        raise InputError(
            f"augment: all views of an image are equal, and {config.data} has no other images of a class; "
            "set augment.crop=resized"
        )


def write_copies(folder: Path, images: Sequence[LabelledImage], config: Config) -> list[LabelledImage]:
    """Write one augmented copy of each held-out image as PNG; those of a run that is resumed stay.

    Args:
        folder: Folder for the copies.
        images: Held-out images. Of more than 1,000, as many are drawn with the seed.
        config: Configuration of the run.

    Returns:
        The copies, with the classes of their originals; without those of unreadable images.
    """
    chosen = np.sort(np.random.default_rng([config.seed, 5]).permutation(len(images))[:_COPIES])
    copies = []
    for position in chosen.tolist():
        image, file = images[position], folder / f"{position}.png"
        if not file.exists():
            try:
                copy = augment(load_image(image.path), np.random.default_rng([config.seed, position]))
            except ImageError:
                continue
            folder.mkdir(exist_ok=True)
            copy.thumbnail((_SIDE, _SIDE))
            with atomic_write(file) as draft:
                copy.save(draft, "PNG")
        copies.append(LabelledImage(file, image.label))
    return copies
