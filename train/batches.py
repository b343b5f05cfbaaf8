"""Batches of P classes x K images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from retrieval.errors import InputError
from train.config import BatchConfig


class ClassBatches:
    """Draws batches of K images from each of P classes.

    An epoch has as many batches as whole batches fit into the images. Classes are dealt like cards: each
    comes once before any comes again; so are the images of a class, and a class with fewer than K images
    repeats some. What an epoch draws depends on the seed and its number alone.

    Args:
        labels: int [N], 0..C-1.
        config: P and K; P is lowered to the number of classes where there are fewer.

    Raises:
        InputError: fewer than two classes.
    """

    def __init__(self, labels: np.ndarray, config: BatchConfig, seed: int) -> None:
        self._of_class = [np.flatnonzero(labels == c) for c in range(int(labels.max(initial=-1)) + 1)]
        if len(self._of_class) < 2:
            raise InputError(f"training needs images of at least two classes, got {len(self._of_class)}")
        self.classes = min(config.classes, len(self._of_class))
        self.per_class = config.per_class
        self._seed = seed
        self.per_epoch = max(1, len(labels) // (self.classes * self.per_class))

    def epoch(self, number: int) -> Iterator[np.ndarray]:
        """The batches of one epoch: positions int64 [P * K], the images of a class side by side."""
        random = np.random.default_rng([self._seed, number])
        classes = _deck(np.arange(len(self._of_class)), random)
        images = [_deck(members, random) for members in self._of_class]
        for _ in range(self.per_epoch):
            chosen: list[int] = []
            while len(chosen) < self.classes:
                drawn = next(classes)
                if drawn not in chosen:  # a new round may begin within a batch
                    chosen.append(drawn)
            yield np.array([next(images[c]) for c in chosen for _ in range(self.per_class)])


def _deck(cards: np.ndarray, random: np.random.Generator) -> Iterator[int]:
    """Deal shuffled cards for ever, all of them before any again."""
    while True:
        yield from random.permutation(cards).tolist()
