"""Labels to teach with: those of a gallery, those of a table, or decisions on pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retrieval.cli import print_status
from retrieval.errors import InputError
from retrieval.evaluation.gallery import hides_training, learned_images
from retrieval.galleries.searchable import SearchableGallery
from retrieval.ingest.judgements import connected_components, read_judgements
from retrieval.text import pluralize

GALLERY = "gallery"  # stands for the labels that the gallery has
MOST_LABELLED = 200_000
_MOST_OTHERS = 20_000  # images without a label, which starts are fitted to as well


@dataclass(frozen=True, eq=False)
class Lesson:
    """What a layer is learned from.

    Attributes:
        vectors: Labelled unit vectors, float32 [N, D].
        classes: Class of each, int64 [N].
        others: Vectors of a sample of the other images, float32 [M, D].
        labels: Number of labels or decisions that were given.
        contradictory: Images that decisions both join and separate, which are left out.
        products: Product of each labelled vector, int64 [N], which is held out whole; `None` for none.
        known: Number of images left out, since the network was trained on them: they would show what it knows
            by heart as a gain for new images.
    """

    vectors: np.ndarray
    classes: np.ndarray
    others: np.ndarray
    labels: int
    contradictory: int
    products: np.ndarray | None = None
    known: int = 0


def read_lesson(gallery: SearchableGallery, labels: str) -> Lesson:
    """Read labels and the stored vectors of their images.

    Args:
        gallery: Gallery.
        labels: "gallery", or a CSV or Parquet file; see `retrieval.ingest.judgements`. Of more than 200,000
            labelled images a random sample is used. Images that the network was trained on are left out.

    Raises:
        InputError: The table is invalid, there are no labels, or no two images of a class beside another one.
    """
    contradictory, named = 0, None
    if labels == GALLERY:
        stored = gallery.embeddings(labelled=True, limit=MOST_LABELLED)
        of_item: dict[int, str | int] = dict(zip(stored.ids.tolist(), map(str, stored.labels), strict=True))
        given = stored.total
    else:
        found = read_judgements(Path(labels), gallery)
        given = len(found.labels) + len(found.pairs)
        of_item = {**found.labels}
        if found.pairs:
            joined, contradictory = join_pairs(found.pairs)
            of_item = {**joined}
        else:
            named = found.labels
    if not of_item:
        raise InputError(f"{gallery.folder}: no labels in {labels}; give a table by --labels TABLE")
    known = learned_images(gallery, [*of_item], named)
    ids = np.array(sorted(of_item.keys() - known), np.int64)
    if len(ids) > MOST_LABELLED:
        ids = np.sort(np.random.default_rng(0).choice(ids, MOST_LABELLED, replace=False))
    ids, vectors = _vectors_of(gallery, ids)
    classes = np.unique([str(of_item[item]) for item in ids.tolist()], return_inverse=True)[1]
    _, sizes = np.unique(classes, return_counts=True)
    if len(sizes) < 2 or sizes.max() < 2:
        few = f"{pluralize(len(ids), 'labelled image')} of {pluralize(len(sizes), 'class')}"
        if known:
            few += f" that the network was not trained on, beside {len(known):,} that it was trained on"
        raise InputError(f"{gallery.folder}: {few}; label two classes or more, and two images of one of them")
    others = np.setdiff1d(gallery.sample(len(gallery)), [*of_item])
    if len(others) > _MOST_OTHERS:
        others = np.sort(np.random.default_rng(0).choice(others, _MOST_OTHERS, replace=False))
    products = gallery.products_beside(ids, classes)
    others_of = _vectors_of(gallery, others)[1]
    return Lesson(vectors, classes, others_of, given, contradictory, products, len(known))


def print_lesson(gallery: SearchableGallery, lesson: Lesson) -> None:
    """Say on stderr what is learned from, and what the network knows already."""
    classes, images = len(np.unique(lesson.classes)), len(lesson.classes)
    print_status(f"{gallery.folder}: {pluralize(images, 'labelled image')} of {classes} classes")
    if lesson.known:
        print_status(left_out_line(lesson.known))
    if hides_training(gallery):
        print_status(
            "the model file does not tell which images the network was trained on; if these are among them, "
            "the gain is not that of new images"
        )


def left_out_line(images: int) -> str:
    """Return what to say of labelled images that the network was trained on."""
    return (
        f"{pluralize(images, 'labelled image')} left out: the network was trained on them, so they cannot "
        "show what is gained for new images"
    )


def _vectors_of(gallery: SearchableGallery, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids that have a vector, int64 [n], and their vectors, float32 [n, D]."""
    found = gallery.vectors(ids.tolist())
    there = [number for number in ids.tolist() if number in found]
    empty = np.empty((0, gallery.manifest.dim), np.float32)
    vectors = np.stack([found[number] for number in there]) if there else empty
    return np.array(there, np.int64), vectors


def join_pairs(pairs: Sequence[tuple[int, int, bool]]) -> tuple[Mapping[int, int], int]:
    """Return a class of each item of decisions on pairs, and the number of items that are left out.

    Items that decisions join, directly or through others, are one class; an item that is joined with no other
    is a class of its own. Images of two classes count as different, as the decisions say for some of them.
    Classes within which a decision says that two items differ are left out. Of several decisions on the same
    pair, the last one counts.

    Args:
        pairs: Two item ids, and whether both show the same thing.
    """
    last = {(min(a, b), max(a, b)): same for a, b, same in pairs}
    items = {item for pair in last for item in pair}
    joined = connected_components(items, [pair for pair, same in last.items() if same])
    wrong = {joined[a] for (a, b), same in last.items() if not same and joined[a] == joined[b]}
    kept = {item: group for item, group in joined.items() if group not in wrong}
    return kept, len(joined) - len(kept)
