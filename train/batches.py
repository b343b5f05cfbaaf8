"""Batches of P classes x K images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
        classes = _Deck(range(len(self._of_class)), random)
        images = [_Deck(members.tolist(), random) for members in self._of_class]
        for _ in range(self.per_epoch):
            chosen = classes.draw(self.classes)
            yield np.array([image for c in chosen for image in images[c].draw(self.per_class)])


class _Deck:
    """Shuffled cards, dealt for ever, all of them before any again."""

    def __init__(self, cards: Iterable[int], random: np.random.Generator) -> None:
        self._cards, self._random, self._left = list(cards), random, list[int]()

    def draw(self, count: int) -> list[int]:
        """Take some; the same card twice only where there are fewer than `count`."""
        hand, self._left = self._left[:count], self._left[count:]
        while len(hand) < count:
            shuffled = self._random.permutation(self._cards).tolist()
            # Cards already in the hand come last in the new round.
            shuffled.sort(key=set(hand).__contains__)
            missing = count - len(hand)
            hand, self._left = hand + shuffled[:missing], shuffled[missing:]
        return hand
