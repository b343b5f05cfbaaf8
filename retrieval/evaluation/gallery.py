"""Evaluation of a gallery on its own labelled images: each searches all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from retrieval.errors import InputError
from retrieval.evaluation.findings import ImageSet, find_mistakes
from retrieval.evaluation.report import Report
from retrieval.evaluation.score import evaluate
from retrieval.metrics.clustering import effort_note
from retrieval.search.embeddings import StoredEmbeddings
from retrieval.searchable import SearchableGallery

_NAME = "stored embeddings"


def evaluate_gallery(
    gallery: SearchableGallery, *, limit: int | None = None, show_progress: bool = False
) -> Report:
    """Search the gallery with each of its labelled images, by their stored vectors.

    Images without a label are searched but are no queries; as results they count as wrong.

    Args:
        gallery: SearchableGallery to evaluate.
        limit: Number of queries beyond which a random sample of them is used, always the same.
        show_progress: Whether to report progress on stderr.

    Raises:
        InputError: The labels are too few to tell right from wrong.
        LookalikeError: The gallery is damaged.
    """
    check_labels(gallery)
    state = gallery.state_digest()
    found = gallery.embeddings()
    labels = found.labels
    labelled = np.flatnonzero([label is not None for label in labels])
    _check_sizes(gallery, sorted(Counter(filter(None, labels)).values(), reverse=True))
    queries = labelled
    if limit is not None and len(labelled) > limit:
        queries = np.sort(np.random.default_rng(0).choice(labelled, limit, replace=False))
    numbers = np.full(len(labels), -1)
    numbers[labelled] = np.unique([labels[row] for row in labelled], return_inverse=True)[1]
    evaluation = evaluate(
        _NAME,
        found.vectors[queries],
        numbers[queries],
        found.vectors,
        numbers,
        queries,
        backend=gallery.backend,
        show_progress=show_progress,
    )
    query_images = ImageSet(
        gallery.paths.lookup(found.ids[queries].tolist()),
        [labels[row] for row in queries],
        [found.contents[row] for row in queries],
    )
    classes = len(np.unique(numbers[queries]))
    return Report(
        data=gallery.folder.resolve().name,
        protocol=gallery_protocol(gallery),
        images=len(queries),
        classes=classes,
        fingerprint=gallery.fingerprint,
        results=[evaluation.result],
        notes=_notes(found, len(labelled), len(queries), classes),
        findings=find_mistakes(
            evaluation, query_images, ImageSet(gallery.paths.lazy(found.ids.tolist()), labels)
        ),
        gallery_state=state,
    )


def check_labels(gallery: SearchableGallery) -> None:
    """Check that the labels can tell right from wrong; fast for galleries of any size.

    Raises:
        InputError: There are no labels, a single class, or no class with two images.
    """
    _check_sizes(gallery, [count for label, count in gallery.label_counts() if label])


def gallery_protocol(gallery: SearchableGallery) -> str:
    """Return the protocol of queries to a gallery, in one line."""
    return f"each searched for in a gallery of {len(gallery):,} images, itself left out"


def _check_sizes(gallery: SearchableGallery, sizes: Sequence[int]) -> None:
    """Check the sizes of the classes, largest first; the two largest are enough."""
    if not len(gallery):
        why = "it has no images to search for; `lookalike index add` adds some"
    elif not sizes:
        why = "none of its images has a label, so there are no right results; "
        why += "`lookalike index add` takes labels from folders or from a table"
    elif len(sizes) < 2:
        why = "all its labelled images are of one class, so there are no wrong results; add other classes"
    elif sizes[0] < 2:
        why = "no two of its images share a label, so there is nothing to find; add more images per class"
    else:
        return
    raise InputError(f"{gallery.folder}: {why}")


def _notes(found: StoredEmbeddings, labelled: int, queries: int, classes: int) -> tuple[str, ...]:
    notes = []
    if queries < labelled:
        notes.append(f"The queries are a random sample of the {labelled:,} labelled images.")
    if labelled < len(found.labels):
        without = len(found.labels) - labelled
        notes.append(f"{without:,} images without a label were searched too; as results they count as wrong.")
    effort = effort_note(queries, classes)
    return tuple([*notes, effort] if effort else notes)
