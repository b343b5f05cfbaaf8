"""Leakage between two galleries: test images that have a near-duplicate among the training images."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from retrieval.errors import InputError
from retrieval.galleries.items import Item
from retrieval.galleries.searchable import SearchableGallery
from retrieval.progress import Progress
from retrieval.search.options import NEAR_DUPLICATE
from retrieval.search.vectors import bounded_cosine
from retrieval.storage.records import Value

_CHUNK = 1024  # test images that are compared at once
_ROUNDING = 1e-6  # of float32


@dataclass(frozen=True)
class Leak:
    """A test image and the training image that is most similar to it.

    Attributes:
        item: The test image.
        train: The training image.
        score: Cosine similarity of the two.
        identical: Whether their files have the same bytes.
    """

    item: Item
    train: Item
    score: float
    identical: bool


@dataclass(frozen=True)
class Leakage:
    """Result of `find_leakage`.

    Attributes:
        leaks: By falling similarity.
        train_images, test_images: Numbers of images.
        by_label: Number of leaks for each label of the test images, most first; `None` for no label.
        products: Products of which both galleries have views, in order, if they have products.
    """

    leaks: list[Leak]
    train_images: int
    test_images: int
    by_label: list[tuple[str | None, int]]
    products: list[Value]


def find_leakage(
    train: SearchableGallery,
    test: SearchableGallery,
    min_score: float = NEAR_DUPLICATE,
    *,
    show_progress: bool = False,
) -> Leakage:
    """Find the images of one gallery that have a near-duplicate in another, each with the nearest one.

    Products of which both galleries have views are found as well, however different these are.

    Every image is compared with every other. Memory: the vectors of both galleries.

    Args:
        train: Gallery of the training images.
        test: Gallery of the test images.
        min_score: Lowest cosine similarity of near-duplicates, from -1 to 1.
        show_progress: Report progress on stderr.

    Raises:
        InputError: The threshold is out of range, or the galleries have different models.
        LookalikeError: A stored vector or item is damaged.
    """
    if not -1 <= min_score <= 1:
        raise InputError(f"minimum score {min_score}: must be from -1 to 1")
    if train.fingerprint != test.fingerprint:
        what = f"{test.folder}: its vectors are of another model than those of {train.folder}"
        raise InputError(f"{what}; build both galleries with one model")
    seen, tested = train.embeddings(pictures=True), test.embeddings(pictures=True)
    found: list[tuple[int, int, float]] = []  # ids and score
    with Progress("comparing", len(tested.ids), show=show_progress) as progress:
        for start in range(0, len(tested.ids) if len(seen.ids) else 0, _CHUNK):
            queries = tested.vectors[start : start + _CHUNK]
            scores, nearest = (part[:, 0] for part in train.backend.neighbours(queries, seen.vectors, 1))
            near = np.flatnonzero(scores >= min_score - _ROUNDING)
            rows = zip(tested.ids[start + near], seen.ids[nearest[near]], scores[near], strict=True)
            found += [(int(a), int(b), bounded_cosine(float(score))) for a, b, score in rows]
            progress.update(len(queries))
    found.sort(key=lambda leak: (-leak[2], leak[0]))
    items, others = test.items([a for a, *_ in found]), train.items(sorted({b for _, b, _ in found}))
    of_test = dict(zip(tested.ids.tolist(), tested.contents, strict=True))
    of_train = dict(zip(seen.ids.tolist(), seen.contents, strict=True))
    leaks = [
        Leak(items[a], others[b], score, of_test[a] == of_train[b] != "")
        for a, b, score in found
        if a in items and b in others
    ]
    labels = Counter(leak.item.label for leak in leaks)
    torn = sorted(products_of(train) & products_of(test), key=lambda value: (isinstance(value, str), value))
    return Leakage(leaks, len(seen.ids), len(tested.ids), labels.most_common(), torn)


def products_of(gallery: SearchableGallery) -> set[Value]:
    """Return the products of a gallery; none if its images are not of products."""
    column, contents = gallery.manifest.product, gallery.contents
    if column is None:
        return set()
    counts = contents.value_counts(column) if column in contents.columns() else contents.label_counts()
    return {value for value, _ in counts if value not in (None, "")}
