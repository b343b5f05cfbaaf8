"""Batch sampler: P classes x K images, or at least K images of each class in the batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from retrieval.errors import InputError
from train.config import BatchConfig


class Labelled(NamedTuple):
    """Batch with labels of its own: positions and labels, int64 [B] each.

    With `exact`, labels are of these very images: another one in place of an unreadable image has label -1.
    """

    positions: np.ndarray
    labels: np.ndarray
    exact: bool = False


class ClassBatchSampler:
    """Sampler of batches of P x K images: K from each of P classes, or at least K from each class drawn.

    An epoch has as many whole batches as fit into the images, or `per_epoch`. Classes are drawn without
    replacement until all were drawn, and so are the images of a class; a class with fewer than K images
    repeats some. The batches of an epoch depend on the seed, its number and `nearest` alone.

    With `hard_classes`, a share of the classes of a batch are groups: a class that is drawn, and the nearest
    to it that are not in the batch yet. The draws go over all classes as without groups, so a class is drawn
    as often as any other, and comes more often only as a neighbour.

    With `categories`, the classes of a batch come from that many categories, as many of each where they have
    enough; each category is drawn as often as any other, and so is a class within its category.

    Args:
        labels: int [N], 0..C-1.
        config: P, K and the layout; P is lowered to the number of classes if there are fewer.
        seed: Random seed.
        category: int [C], the category of each class; unused without `categories`.

    Attributes:
        nearest: The classes that each class is most confused with, int64 [C, m], the worst first; `None`
            until they are known: then there are no groups. It counts for the epochs that are begun later.
        classes: P.
        per_class: K.
        per_epoch: Batches per epoch.

    Raises:
        InputError: Fewer than two classes.
    """

    def __init__(
        self, labels: np.ndarray, config: BatchConfig, seed: int, category: np.ndarray | None = None
    ) -> None:
        self._labels = labels
        self._of_class = _members(labels)
        if len(self._of_class) < 2:
            raise InputError(
                f"training needs images of two classes or more, got {len(self._of_class)}; add classes, or "
                "hold out fewer (split.validation)"
            )
        self.classes = min(config.classes, len(self._of_class))
        self.per_class = config.per_class
        self._layout = config.layout
        self._grouped, self._group = round(config.hard_classes * self.classes), config.group
        self.nearest: np.ndarray | None = None
        self._category = None
        if config.categories is not None and category is not None:
            self._category = _members(np.unique(category, return_inverse=True)[1])  # classes of each
            self._together = min(config.categories, len(self._category))
        self._seed = seed
        self.per_epoch = config.per_epoch or max(1, len(labels) // (self.classes * self.per_class))

    def epoch(self, number: int) -> Iterator[np.ndarray]:
        """Yield the batches of one epoch: positions int64 [P * K], grouped by class."""
        random = np.random.default_rng([self._seed, number])
        batches = self._exact(random) if self._layout == "exact" else self._at_least(random)
        for batch in islice(batches, self.per_epoch):
            yield np.array(batch, np.int64)

    def _exact(self, random: np.random.Generator) -> Iterator[list[int]]:
        classes = _Deck(range(len(self._of_class)), random)
        images = [_Deck(members.tolist(), random) for members in self._of_class]
        related = None if self._category is None else self._related(self._category, random)
        while True:
            if self._grouped and self.nearest is not None:
                drawn = self._groups(classes, self.nearest)
            elif related is not None:
                drawn = next(related)
            else:
                drawn = classes.draw(self.classes)
            yield [image for c in drawn for image in images[c].draw(self.per_class)]

    def _related(self, category: list[np.ndarray], random: np.random.Generator) -> Iterator[list[int]]:
        """Yield the classes of batches of categories; another category fills up where one has too few."""
        categories = _Deck(range(len(category)), random)
        classes = [_Deck(members.tolist(), random) for members in category]
        while True:
            batch: dict[int, None] = {}
            together = categories.draw(self._together)
            while len(batch) < self.classes:
                one = together.pop() if together else categories.draw(1)[0]
                room = min(-(-self.classes // self._together), self.classes - len(batch))
                used = sum(c in batch for c in category[one].tolist())
                fresh = dict.fromkeys(c for c in classes[one].draw(used + room) if c not in batch)
                batch.update(dict.fromkeys(list(fresh)[:room]))
            yield list(batch)

    def _groups(self, classes: _Deck, nearest: np.ndarray) -> list[int]:
        """Draw the classes of a batch: groups of confused classes, then random ones."""
        batch: dict[int, None] = {}
        while len(batch) < self.classes:
            (first,) = classes.draw(1)
            if first in batch:
                continue
            batch[first] = None
            room = min(self._group - 1, self._grouped - len(batch))
            near = [c for c in nearest[first].tolist() if c not in batch][: max(0, room)]
            batch.update(dict.fromkeys(near))
        return list(batch)

    def _at_least(self, random: np.random.Generator) -> Iterator[list[int]]:
        images = _Deck(range(len(self._labels)), random)
        while True:
            batch: dict[int, list[int]] = {}
            room = self.classes * self.per_class
            while room:
                (image,) = images.draw(1)
                label = int(self._labels[image])
                if label not in batch and room < self.per_class:  # no room for another class
                    label = list(batch)[room % len(batch)]
                own = batch.setdefault(label, [])
                first = [image] if label == self._labels[image] and image not in own else []
                count = (1 if own else self.per_class) - len(first)
                own += first + self._others(label, own + first, count, random)
                room = self.classes * self.per_class - sum(map(len, batch.values()))
            yield [image for own in batch.values() for image in own]

    def _others(self, label: int, exclude: list[int], count: int, random: np.random.Generator) -> list[int]:
        """Draw images of a class outside `exclude`; repeat images only if the class has no others."""
        others = [i for i in random.permutation(self._of_class[label]).tolist() if i not in exclude]
        repeated: list[int] = random.choice(self._of_class[label], max(0, count - len(others))).tolist()
        return others[:count] + repeated


class PairBatchSampler:
    """Sampler of batches of labelled pairs, drawn without replacement until all were drawn.

    Args:
        first, second: int64 [N], the images of each pair.
        config: P and K: a batch has P x K / 2 pairs, or all if there are fewer. K is 2 then.
        seed: Random seed; the batches of an epoch depend on it and the number of the epoch alone.

    Attributes:
        classes: Pairs in a batch.
        per_class: 2, the images of a pair.
        per_epoch: Batches per epoch.
    """

    def __init__(self, first: np.ndarray, second: np.ndarray, config: BatchConfig, seed: int) -> None:
        self._images = np.stack([first, second], 1)
        self._seed = seed
        self.classes = min(config.classes * config.per_class // 2, len(first))
        self.per_class = 2
        self.per_epoch = config.per_epoch or max(1, len(first) // self.classes)

    def epoch(self, number: int) -> Iterator[Labelled]:
        """Yield the batches of one epoch: the two images of each pair in turn, labelled by its number."""
        deck = _Deck(range(len(self._images)), np.random.default_rng([self._seed, number]))
        for _ in range(self.per_epoch):
            pairs = np.array(deck.draw(self.classes), np.int64)
            yield Labelled(self._images[pairs].reshape(-1), np.repeat(pairs, 2), exact=True)


def _members(labels: np.ndarray) -> list[np.ndarray]:
    """Return the positions of each class, ascending; one sort, for there may be as many classes as images."""
    order, sizes = np.argsort(labels, kind="stable"), np.bincount(labels)
    return np.split(order, np.cumsum(sizes)[:-1]) if len(labels) else []


class _Deck:
    """Infinite shuffled deck: draws without replacement, reshuffled when it is used up."""

    def __init__(self, cards: Iterable[int], random: np.random.Generator) -> None:
        self._cards, self._random, self._left = list(cards), random, list[int]()

    def draw(self, count: int) -> list[int]:
        """Draw `count` cards, without duplicates if there are enough cards."""
        hand, self._left = self._left[:count], self._left[count:]
        while len(hand) < count:
            shuffled = self._random.permutation(self._cards).tolist()
            # Cards drawn in this call already come last after reshuffling.
            shuffled.sort(key=set(hand).__contains__)
            missing = count - len(hand)
            hand, self._left = hand + shuffled[:missing], shuffled[missing:]
        return hand
