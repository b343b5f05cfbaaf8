"""Measure a gallery on its own labelled images: each is searched for among all the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from retrieval.errors import InputError
from retrieval.evaluation.findings import Pictures, find
from retrieval.evaluation.report import Report, check_keeps, keep
from retrieval.evaluation.score import evaluate
from retrieval.gallery import Gallery
from retrieval.metrics.clustering import less_effort
from retrieval.progress import Progress
from retrieval.search.embeddings import StoredEmbeddings
from retrieval.storage.queries import largest_classes, state_digest

_NAME = "stored embeddings"


def evaluate_gallery(gallery: Gallery, *, limit: int | None = None, show_progress: bool = False) -> Report:
    """Search with every labelled image of a gallery, from the stored vectors; the gallery keeps the report.

    Images without a label are no queries, but are searched: nobody knows what they are, so they count as
    wrong.

    Args:
        limit: beyond this only a random sample of the labelled images is searched with, the same each time.
        show_progress: report on stderr.

    Raises:
        InputError: too few labels to tell right from wrong, or a gallery that cannot be written.
        LookalikeError: it is damaged.
    """
    check_labels(gallery)
    check_keeps(gallery.folder)
    state = state_of(gallery)
    found = gallery.embeddings()
    labels = found.labels
    named = np.flatnonzero([label is not None for label in labels])
    _check(gallery, sorted(Counter(filter(None, labels)).values(), reverse=True))
    asked = named
    if limit is not None and len(named) > limit:
        asked = np.sort(np.random.default_rng(0).choice(named, limit, replace=False))
    numbers = np.full(len(labels), -1)
    numbers[named] = np.unique([labels[row] for row in named], return_inverse=True)[1]
    evaluation = evaluate(
        *(_NAME, found.vectors[asked], numbers[asked], found.vectors, numbers, asked),
        show_progress=show_progress,
    )
    with Progress("writing the report", 2, "files", show=show_progress) as progress:
        queries = Pictures(
            gallery.paths.lookup(found.ids[asked].tolist()),
            [labels[row] for row in asked],
            [found.contents[row] for row in asked],
        )
        searched = Pictures(gallery.paths.lazy(found.ids.tolist()), labels)
        classes = len(np.unique(numbers[asked]))
        report = Report(
            data=gallery.folder.resolve().name,
            protocol=protocol_in(gallery),
            images=len(asked),
            classes=classes,
            fingerprint=gallery.fingerprint,
            results=[evaluation.result],
            notes=_notes(found, len(named), len(asked), classes),
            findings=find(evaluation, queries, searched),
            gallery_state=state,
        )
        keep(report, gallery.folder)
        progress.update(2)
    return report


def check_labels(gallery: Gallery) -> None:
    """Refuse a gallery whose labels cannot say what is right; quick, however large it is.

    Raises:
        InputError: no labels, a single one, or none that two images have.
    """
    _check(gallery, largest_classes(gallery.store, 2))


def state_of(gallery: Gallery) -> str:
    """A word for exactly what the gallery holds now: which items, and what is known about each."""
    return state_digest(gallery.store)


def protocol_in(gallery: Gallery) -> str:
    """What is done with each query of a gallery, in one line."""
    return f"each searched for in a gallery of {len(gallery):,} images, itself left out"


def _check(gallery: Gallery, sizes: Sequence[int]) -> None:
    """`sizes` of the classes, the two largest at least, largest first."""
    if not sizes:
        why = "none of its images has a label, so that nothing says what is right; "
        why += "`lookalike index add` takes labels from folders or from a table"
    elif len(sizes) < 2:
        why = "all its labelled images are of one class, so that there is nothing to take them for"
    elif sizes[0] < 2:
        why = "no two of its images share a label, so that there is nothing to find"
    else:
        return
    raise InputError(f"{gallery.folder}: {why}")


def _notes(found: StoredEmbeddings, labelled: int, asked: int, classes: int) -> tuple[str, ...]:
    notes = []
    if asked < labelled:
        notes.append(f"The queries are a random sample of the {labelled:,} labelled images.")
    if labelled < len(found.labels):
        without = len(found.labels) - labelled
        notes.append(f"{without:,} images without a label were searched too, and count as wrong where found.")
    effort = less_effort(asked, classes)
    return tuple([*notes, effort] if effort else notes)
