"""Verification of a gallery whose items are in a database."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from retrieval.galleries.database import DatabaseView
from retrieval.progress import Progress
from retrieval.text import pluralize
from retrieval.upkeep.verify import Problem, Verification, check_detector, check_model

_LENGTH_ERROR = 1e-2  # of a stored vector, also in float16
_PROBES = 64  # items that are searched by their own vectors
_FOUND = 0.9  # share of them that must be found first: the index is approximate
_AGAIN = "their images are embedded again"


def verify_database(gallery: DatabaseView, *, show_progress: bool = False) -> Verification:
    """Check every item and vector of a collection, its index on some items, and the model.

    Args:
        gallery: Gallery to check.
        show_progress: Report progress on stderr.

    Raises:
        LookalikeError: The database cannot be read.
    """
    remedy = "create the folder again with `lookalike index connect`"
    problems = [*check_model(gallery.folder, gallery.manifest, lambda: gallery.embedder, remedy)]
    problems += check_detector(gallery.folder, gallery.manifest)
    items = vectors = 0
    damaged: list[int] = []
    missing: list[int] = []
    with Progress("verifying", len(gallery), show=show_progress) as progress:
        for some in gallery.writer.scan():
            stored = gallery.vectors([item.id for item in some])
            items, vectors = items + len(some), vectors + len(stored)
            missing += [item.id for item in some if item.id not in stored]
            damaged += [number for number, vector in stored.items() if not _is_unit(vector, gallery)]
            progress.update(len(some))
    if missing:
        problems.append(
            Problem(
                f"{pluralize(len(missing), 'item')} without a vector: {_listed(missing)}", _AGAIN, "embed"
            )
        )
    if damaged:
        what = f"{pluralize(len(damaged), 'vector')} not of unit length: item {_listed(damaged)}"
        problems.append(Problem(what, _AGAIN, "embed"))
    lost = [*_check_index(gallery)]
    return Verification(
        items,
        vectors,
        0,
        0,
        [*problems, *lost],
        [*problems, *lost],
        unembedded=(*missing, *damaged),
        unindexed=bool(lost),
    )


def _is_unit(vector: np.ndarray, gallery: DatabaseView) -> bool:
    return vector.shape == (gallery.manifest.dim,) and abs(float(vector @ vector) - 1) < _LENGTH_ERROR


def _check_index(gallery: DatabaseView) -> Iterator[Problem]:
    """Search some items by their own vectors."""
    stored = gallery.vectors(gallery.sample(_PROBES))
    if not stored:
        return
    found = gallery.engine.nearest(np.stack([*stored.values()]), 1)
    # A copy of an image may be found before it: the score counts.
    first = sum(len(one.scores) > 0 and float(one.scores[0]) > 1 - _LENGTH_ERROR for one in found)
    if first < _FOUND * len(stored):
        what = f"the index finds {first} of {len(stored)} items by their own vectors"
        yield Problem(what, "it is built again", "index")


def _listed(items: list[int]) -> str:
    return ", ".join(map(str, items[:5])) + (", ..." if len(items) > 5 else "")
