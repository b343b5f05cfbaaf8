"""Near-duplicates in a gallery in files: images with the same bytes or with similar embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from retrieval.curation.duplicate_groups import Group, NearDuplicates
from retrieval.curation.near_pairs import Components, connect_near
from retrieval.galleries.files import FilesView
from retrieval.search.options import NEAR_DUPLICATE
from retrieval.search.snapshot import Snapshot
from retrieval.storage.queries import repeated_contents

EXACT_UP_TO = 100_000  # images of which all pairs are compared: about 20 seconds of one core
_BLOCK = 2048  # vectors in memory at a time
_MEASURED = 10_000  # members of a group up to which all pairs are scored


def find_in_files(
    gallery: FilesView, min_score: float = NEAR_DUPLICATE, *, exact: bool = False, show_progress: bool = False
) -> NearDuplicates:
    """Find groups of near-duplicates.

    A group is a connected component of all pairs of images with a cosine similarity of at least `min_score`,
    and of all pairs of files with the same bytes. Up to 100,000 images all pairs are compared. Above, each
    image is compared with those in the nearest cells of a partition, so that the work grows with n^1.5; the
    recall of the pairs is measured on a sample. Memory: about 500 bytes per image.

    Parts of pictures that the gallery has divided are left out.

    Args:
        gallery: Gallery to search.
        min_score: Lowest cosine similarity of a pair, from -1 to 1.
        exact: Compare all pairs whatever the number of images.
        show_progress: Report progress on stderr.
    """
    snapshot = gallery.state
    rows = snapshot.live_rows()
    if gallery.manifest.objects:
        ids = snapshot.item_ids(rows)
        rows = rows[gallery.pictures_of(ids) == ids]
    components, recall = Components(len(rows)), None
    _join_same_bytes(gallery, snapshot, rows, components)
    if len(rows) > 1:
        exact = exact or len(rows) <= EXACT_UP_TO
        recall = connect_near(
            snapshot, rows, min_score, components, exact=exact, backend=gallery.backend, show=show_progress
        )
    found = _describe(gallery, snapshot, [rows[members] for members in components.connected()])
    return NearDuplicates.sorted(found, recall, complete=recall is None, product=gallery.manifest.product)


def _join_same_bytes(
    gallery: FilesView, snapshot: Snapshot, rows: np.ndarray, components: Components
) -> None:
    """Join all images whose files have the same bytes."""
    found = repeated_contents(gallery.store)
    at = snapshot.rows_of(np.array([item for _, item in found], np.int64))
    there = np.isin(at, rows)
    digests = np.array([digest for digest, _ in found], str)[there]
    same = np.flatnonzero(digests[1:] == digests[:-1])
    places = np.searchsorted(rows, at[there])
    components.join(places[same], places[same + 1])


def _describe(gallery: FilesView, snapshot: Snapshot, groups: Sequence[np.ndarray]) -> list[Group]:
    """Return the groups of rows with their items; items compacted away meanwhile are left out."""
    if not groups:
        return []
    numbers = snapshot.item_ids(np.concatenate(groups))
    ids = [some.tolist() for some in np.split(numbers, np.cumsum([len(rows) for rows in groups])[:-1])]
    all_ids = np.sort(numbers).tolist()
    items = gallery.items(all_ids)
    contents = {item.id: item.content_sha256 for item in gallery.store.items(all_ids)}
    described = []
    for members, lowest in zip(ids, _lowest(snapshot, groups), strict=True):
        known = tuple(sorted((items[i] for i in members if i in items), key=lambda item: item.id))
        if len(known) > 1:
            files = {contents[item.id] for item in known}
            described.append(Group(known, lowest, len(files) == 1 and "" not in files))
    return described


def _lowest(snapshot: Snapshot, groups: Sequence[np.ndarray]) -> list[float]:
    """Return the lowest inner product between two rows of each group; groups of one size together."""
    sizes = np.array([len(rows) for rows in groups], np.int64)
    lowest = np.ones(len(groups))
    for size in np.unique(sizes).tolist():
        at, together = np.flatnonzero(sizes == size), max(1, _BLOCK // size)
        for some in np.array_split(at, math.ceil(len(at) / together)):
            if size > _BLOCK:
                lowest[some] = _lowest_of_many(snapshot, groups[int(some[0])])
            else:
                taken = snapshot.vectors(np.concatenate([groups[i] for i in some.tolist()]))
                members = taken.reshape(len(some), size, -1)
                lowest[some] = (members @ members.transpose(0, 2, 1)).min((1, 2))
    capped: list[float] = np.minimum(lowest, 1).tolist()
    return capped


def _lowest_of_many(snapshot: Snapshot, rows: np.ndarray) -> float:
    """Return the lowest inner product in a large group; beyond 10,000 rows, of random rows with all."""
    compared = np.random.default_rng(0).permutation(rows)[:_MEASURED]
    return min(
        float((snapshot.vectors(some) @ snapshot.vectors(others).T).min())
        for some in _blocks(compared)
        for others in _blocks(rows)
    )


def _blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    return (rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK))
