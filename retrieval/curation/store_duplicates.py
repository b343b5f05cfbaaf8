"""Near-duplicates in a gallery whose items are in a database: each item is searched there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from retrieval.curation.duplicate_groups import Group, NearDuplicates
from retrieval.curation.near_pairs import Components
from retrieval.galleries.database import DatabaseView
from retrieval.images.boxes import split
from retrieval.progress import Progress
from retrieval.search.vectors import bounded_cosine
from retrieval.storage.records import StoredItem

_CHUNK = 256  # items searched at a time
_NEIGHBOURS, _MOST_NEIGHBOURS = 16, 1024  # of an item, at first and at most
_COMPARED = 2048  # members of a group between which the lowest similarity is measured


def find_in_database(
    gallery: DatabaseView, min_score: float, *, show_progress: bool = False
) -> NearDuplicates:
    """Find groups of near-duplicates, as `retrieval.curation.duplicates.find_in_files` does.

    The pairs are those that the database finds, so their recall is that of its index. Of an item with more
    than 1,024 near-duplicates, the nearest count. Memory: about 100 bytes per image, and 16 per pair.

    Args:
        gallery: Gallery to search.
        min_score: Lowest cosine similarity of a pair, from -1 to 1.
        show_progress: Report progress on stderr.
    """
    ids: list[np.ndarray] = []
    contents: list[np.ndarray] = []
    pairs = [np.empty((0, 2), np.int64)]
    with Progress("comparing", len(gallery), show=show_progress) as progress:
        for every in gallery.writer.scan(size=_CHUNK):
            items = [item for item in every if not (gallery.manifest.objects and split(item.path)[1])]
            ids.append(np.array([item.id for item in items]))
            contents.append(np.array([_content_number(item) for item in items], np.uint64))
            pairs += _pairs(gallery, ids[-1], min_score)
            progress.update(len(every))
    numbers = np.concatenate([np.empty(0, np.int64), *ids])
    components = Components(len(numbers))
    a, b = np.searchsorted(numbers, np.concatenate(pairs)).T
    there = (a < len(numbers)) & (b < len(numbers))  # not those added meanwhile
    there[there] &= (numbers[[a[there], b[there]]] == np.concatenate(pairs)[there].T).all(0)
    components.join(a[there], b[there])
    digests = np.concatenate([np.empty(0, np.uint64), *contents])
    order = np.argsort(digests, kind="stable")
    same = np.flatnonzero((digests[order][1:] == digests[order][:-1]) & (digests[order][1:] > 0))
    components.join(order[same], order[same + 1])
    groups = (_group(gallery, numbers[members]) for members in components.connected())
    product = gallery.manifest.product
    return NearDuplicates.sorted(filter(None, groups), None, complete=False, product=product)


def _content_number(item: StoredItem) -> int:
    """Return the first 64 bits of the SHA-256 of an item's file; 0 without one."""
    return int(item.content_sha256[:16] or "0", 16)


def _pairs(gallery: DatabaseView, ids: np.ndarray, min_score: float) -> Iterator[np.ndarray]:
    """Yield the pairs of some items with others that are at least as similar, int64 [n, 2]."""
    stored = gallery.vectors(ids.tolist())
    left, k = np.array([number for number in ids.tolist() if number in stored], np.int64), _NEIGHBOURS
    while len(left):
        found = gallery.engine.nearest(np.stack([stored[number] for number in left.tolist()]), k)
        complete = []
        for number, near in zip(left.tolist(), found, strict=True):
            close = near.scores >= min_score
            complete.append(k >= _MOST_NEIGHBOURS or len(close) < k or not close.all())
            if complete[-1]:
                others = near.ids[close & (near.ids != number)]
                yield np.stack([np.full_like(others, number), others], axis=1)
        left, k = left[~np.array(complete)], 4 * k


def _group(gallery: DatabaseView, ids: np.ndarray) -> Group | None:
    """Return the group of some items; `None` if fewer than two are left."""
    members = gallery.items(ids.tolist())
    stored = gallery.stored_items(ids.tolist())
    if len(members) < 2:
        return None
    compared: Sequence[int] = sorted(members)[:_COMPARED]
    vectors = np.stack([*gallery.vectors(compared).values()])
    files = {item.content_sha256 for item in stored}
    lowest = bounded_cosine(float((vectors @ vectors.T).min()))
    return Group(tuple(members[i] for i in sorted(members)), lowest, len(files) == 1 and "" not in files)
