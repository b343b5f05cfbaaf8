"""Folds of labelled rows: classes that are held out, and images of the other classes whose label is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from retrieval.search.groups import class_sizes
from train.layers.whitening import FEWEST_CLASSES

Kind = Literal["known", "unseen"]
KINDS: tuple[Kind, Kind] = ("known", "unseen")
MOST_IMAGES = 10_000  # with a label, and without one, that are searched; of one class at most so many:
_MOST_OF_A_CLASS = 500
_MOST_QUERIES = 1000  # of each kind in a fold


@dataclass(frozen=True)
class Split:
    """Rows of one fold.

    Attributes:
        training: Rows to learn from, int64 [n], ascending.
        queries: Held-out rows of each kind, ascending.
    """

    training: np.ndarray
    queries: Mapping[Kind, np.ndarray]


class Folds:
    """Division of labelled rows into folds.

    Args:
        classes: Class of each row, int [N].
        count: Number of folds.
        seed: Random seed.
        most: Number of rows to search, at most.
        products: Product of each row, int [N], whose rows are held out together; `None` for none.

    Attributes:
        image_fold: Fold of each row, in which its label is held out, int [N].
        class_fold: Fold of the class of each row, in which the class is held out, int [N]; -1 with fewer than
            eight classes.
        answerable: Whether a row is searched and another one, or another product, of its class is, bool [N].
        searched: Rows that are searched, int64 [m], ascending: all, or of many those of some classes.
    """

    def __init__(
        self,
        classes: np.ndarray,
        count: int,
        seed: int,
        most: int = MOST_IMAGES,
        products: np.ndarray | None = None,
    ) -> None:
        random = np.random.default_rng(seed)
        _, self._numbers = np.unique(classes, return_inverse=True)
        self._random = random
        order = random.permutation(len(classes))
        # Rank of each row in its class, in random order.
        by_class = order[np.argsort(self._numbers[order], kind="stable")]
        sizes = np.bincount(self._numbers)
        ranks = np.empty(len(classes), np.int64)
        ranks[by_class] = np.arange(len(classes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        offset = random.integers(0, count, len(sizes))
        self.image_fold = (ranks + offset[self._numbers]) % count
        if products is not None:  # with the first of its rows
            _, first, product = np.unique(products, return_index=True, return_inverse=True)
            self.image_fold = self.image_fold[first][product]
        fold_of = np.full(len(sizes), -1)
        if len(sizes) >= FEWEST_CLASSES:
            fold_of[random.permutation(len(sizes))] = np.arange(len(sizes)) % count
        self.class_fold = fold_of[self._numbers]
        self.searched = self._choose_searched(sizes, ranks, most)
        numbers = self._numbers[self.searched]
        counts = class_sizes(numbers, None if products is None else products[self.searched])
        self.answerable = np.zeros(len(classes), bool)
        self.answerable[self.searched] = counts[numbers] > 1

    def _choose_searched(self, sizes: np.ndarray, ranks: np.ndarray, most: int) -> np.ndarray:
        kept = np.minimum(sizes, _MOST_OF_A_CLASS)
        chosen = self._random.permutation(len(sizes))
        chosen = chosen[: max(FEWEST_CLASSES, int(np.searchsorted(np.cumsum(kept[chosen]), most, "right")))]
        return np.flatnonzero(np.isin(self._numbers, chosen) & (ranks < _MOST_OF_A_CLASS))

    def split(self, fold: int) -> Split:
        """Return the rows of one fold."""
        unseen = self.class_fold == fold
        held_out = ~unseen & (self.image_fold == fold)
        masks: dict[Kind, np.ndarray] = {"known": held_out, "unseen": unseen}
        queries = {kind: self._some(np.flatnonzero(mask & self.answerable)) for kind, mask in masks.items()}
        return Split(np.flatnonzero(~unseen & ~held_out), queries)

    def _some(self, rows: np.ndarray) -> np.ndarray:
        if len(rows) <= _MOST_QUERIES:
            return rows
        return np.sort(self._random.choice(rows, _MOST_QUERIES, replace=False))
