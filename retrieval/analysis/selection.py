"""Triplets of a mining strategy: a positive and a negative image for each anchor (SCT, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

PositiveRule = Literal["easy", "random"]
NegativeRule = Literal["hard", "semi-hard", "random"]

_CELLS = 1 << 24  # cosines of anchors x images at once: 64 MB


@dataclass(frozen=True, eq=False)
class Selection:
    """Triplets of images, as rows of an array of embeddings.

    Attributes:
        anchor: int64 [T].
        positive: int64 [T], other images of the anchors' classes.
        negative: int64 [T], images of other classes.
    """

    anchor: np.ndarray
    positive: np.ndarray
    negative: np.ndarray

    def cosines(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the cosines of the anchors with their positives and with their negatives, [T] each.

        Args:
            vectors: Embeddings of the same images, unit length, [N, D]; those of another model, too.
        """
        anchors = vectors[self.anchor]
        return tuple((anchors * vectors[rows]).sum(1) for rows in (self.positive, self.negative))


def select_triplets(
    vectors: np.ndarray,
    classes: np.ndarray,
    positive: PositiveRule = "easy",
    negative: NegativeRule = "hard",
    *,
    anchors: np.ndarray | None = None,
    seed: int = 0,
) -> Selection:
    """Select a triplet for each anchor; anchors without a positive or without such a negative are left out.

    Args:
        vectors: Embeddings of unit length, float [N, D].
        classes: Classes of the images, int [N].
        positive: The easy (most similar) other image of the class, or a random one.
        negative: The hard (most similar) image of another class, the semi-hard one (most similar of those
            less similar than the positive), or a random one.
        anchors: Rows of the anchors; all by default.
        seed: Seed of the random images, which do not depend on the embeddings.
    """
    rows = np.arange(len(vectors)) if anchors is None else anchors
    some_positive, some_negative = _draw(classes, rows, np.random.default_rng(seed))
    found = some_positive >= 0, some_negative >= 0
    rows, chosen_p, chosen_n = (part[found[0] & found[1]] for part in (rows, some_positive, some_negative))
    kept = np.ones(len(rows), bool)
    step = max(1, _CELLS // len(vectors))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        cosines = vectors[rows[part]] @ vectors.T  # [b, N]
        own = np.arange(len(cosines))
        same = classes[rows[part], None] == classes
        if positive == "easy":
            alike = np.where(same, cosines, -np.inf)
            alike[own, rows[part]] = -np.inf
            chosen_p[part] = alike.argmax(1)
        if negative != "random":
            eligible = ~same
            if negative == "semi-hard":
                eligible &= cosines < cosines[own, chosen_p[part], None]
            other = np.where(eligible, cosines, -np.inf)
            chosen_n[part] = other.argmax(1)
            kept[part] = np.isfinite(other.max(1))
    return Selection(rows[kept], chosen_p[kept], chosen_n[kept])


def _draw(
    classes: np.ndarray, rows: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a random positive and a random negative for each anchor; -1 if there is none."""
    order = np.argsort(classes, kind="stable")
    _, starts, inverse, counts = np.unique(
        classes[order], return_index=True, return_inverse=True, return_counts=True
    )
    place = np.empty(len(order), np.int64)  # of each image among the images sorted by class
    place[order] = np.arange(len(order))
    of_class = inverse[place[rows]]
    first, count = starts[of_class], counts[of_class]
    draws = random.random((2, len(rows)))
    ahead = (draws[0] * (count - 1)).astype(np.int64)  # among the other images of the class
    positive = first + ahead + (first + ahead >= place[rows])
    left = len(order) - count
    negative = (draws[1] * left).astype(np.int64)
    negative += count * (negative >= first)
    last = len(order) - 1
    return (
        np.where(count > 1, order[np.minimum(positive, last)], -1),
        np.where(left > 0, order[np.minimum(negative, last)], -1),
    )
