"""Near-duplicates in a gallery: images with the same bytes or with similar embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from retrieval.errors import InputError
from retrieval.gallery import Gallery, Item
from retrieval.progress import Progress
from retrieval.search.snapshot import Snapshot
from retrieval.storage.queries import repeated_contents

_BLOCK = 2048  # rows compared with as many others at once
_DIRECTIONS = 64  # dimensions of the first comparison
_SAMPLE = 8192  # vectors from which these directions are computed
_ROUNDING = 1e-6  # of float32


@dataclass(frozen=True)
class Group:
    """Images connected by pairs of near-duplicates.

    Attributes:
        members: Items, by id.
        lowest: Lowest cosine similarity between two members; below the threshold if the group is a chain.
        identical: Whether the files of all members have the same bytes.
    """

    members: tuple[Item, ...]
    lowest: float
    identical: bool

    @property
    def labels(self) -> tuple[str, ...]:
        """Distinct labels of the members; with more than one, at least one is wrong."""
        return tuple(sorted({item.label for item in self.members if item.label is not None}))


def find_duplicates(gallery: Gallery, min_score: float = 0.95, *, show_progress: bool = False) -> list[Group]:
    """Find groups of near-duplicates: groups with several labels first, then by falling similarity.

    All pairs of images with a cosine similarity of at least `min_score` are found, and all pairs of files
    with the same bytes; a group is a connected component of these pairs. The work grows with the square of
    the number of images, the memory linearly: about 300 bytes per image.

    Args:
        gallery: Gallery to search.
        min_score: Lowest cosine similarity of a pair, from -1 to 1.
        show_progress: Report progress on stderr.

    Raises:
        InputError: The threshold is out of range.
    """
    if not -1 <= min_score <= 1:
        raise InputError(f"minimum score {min_score}: must be from -1 to 1")
    snapshot = gallery.snapshot
    rows = snapshot.live_rows()
    groups = _Components(len(rows))
    _join_same_bytes(gallery, snapshot, rows, groups)
    _join_similar(snapshot, rows, min_score, groups, show_progress)
    found = _describe(gallery, snapshot, [rows[members] for members in groups.connected()])
    return sorted(found, key=lambda group: (len(group.labels) < 2, -group.lowest, group.members[0].id))


class _Components:
    """Connected components of the numbers from 0 to n - 1."""

    def __init__(self, count: int) -> None:
        self._of = np.arange(count)  # the group of each number

    def apart(self, some: slice, others: slice) -> np.ndarray:
        """Return which pairs are not connected yet, bool [n, m]."""
        apart: np.ndarray = self._of[some, None] != self._of[others]
        return apart

    def join(self, numbers: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        """Connect numbers[a] and numbers[b], for every pair of a and b."""
        if not len(a):
            return
        old, place = np.unique(self._of[numbers], return_inverse=True)
        graph = coo_array((np.ones(len(a), bool), (place[a], place[b])), (len(old), len(old)))
        count, joined = connected_components(graph, directed=False)
        if count < len(old):
            _, first = np.unique(joined, return_index=True)
            becomes = np.arange(len(self._of))
            becomes[old] = old[first][joined]
            self._of = becomes[self._of]

    def connected(self) -> list[np.ndarray]:
        """Return the members of each component of more than one, ascending."""
        order = np.argsort(self._of, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(self._of[order])) + 1)
        return [part for part in parts if len(part) > 1]


def _join_similar(
    snapshot: Snapshot, rows: np.ndarray, min_score: float, groups: _Components, show_progress: bool
) -> None:
    """Join all pairs of rows that score at least `min_score`, a tile of the upper triangle at a time."""
    bounds, count = _bounds(snapshot, rows), len(rows)
    with Progress("comparing", count * (count - 1) // 2, "pairs", show=show_progress) as progress:
        for top in range(0, count, _BLOCK):
            for left in range(top, count, _BLOCK):
                some, others = slice(top, top + _BLOCK), slice(left, left + _BLOCK)
                near = bounds[some] @ bounds[others].T >= min_score - 10 * _ROUNDING  # [b, b']
                if left == top:
                    near = np.triu(near, 1)
                if near.any():
                    near &= groups.apart(some, others)  # connected pairs need no check
                    _join_checked(snapshot, rows, near, (top, left), min_score, groups)
                progress.update(near.size if left > top else len(near) * (len(near) - 1) // 2)


def _join_checked(
    snapshot: Snapshot,
    rows: np.ndarray,
    near: np.ndarray,
    corner: tuple[int, int],
    min_score: float,
    groups: _Components,
) -> None:
    """Join the pairs of a tile, bool [b, b'], whose exact score is at least `min_score`."""
    some, others = np.flatnonzero(near.any(1)), np.flatnonzero(near.any(0))
    numbers = np.concatenate([some + corner[0], others + corner[1]])
    scores = snapshot.vectors(rows[numbers[: len(some)]]) @ snapshot.vectors(rows[numbers[len(some) :]]).T
    alike = (scores >= min_score - _ROUNDING) & near[np.ix_(some, others)]
    a, b = np.nonzero(alike)
    groups.join(numbers, a, b + len(some))


def _bounds(snapshot: Snapshot, rows: np.ndarray) -> np.ndarray:
    """Return short unit vectors whose inner products bound those of the vectors from above: float32 [n, d].

    x and y are each split into a part in a few common directions, P x, and the rest, r(x). By Cauchy and
    Schwarz x.y <= Px.Py + |r(x)| |r(y)|: an inner product in one dimension more than the directions.
    """
    sample = np.random.default_rng(0).choice(rows, min(_SAMPLE, len(rows)), replace=False)
    sampled = snapshot.vectors(np.sort(sample)).astype(np.float64)
    _, directions = np.linalg.eigh(sampled.T @ sampled)  # ascending: the last hold most of the length
    directions = directions[:, -_DIRECTIONS:].astype(np.float32)
    parts = [np.empty((0, directions.shape[1] + 1), np.float32)]
    for block in _blocks(rows):
        projected = snapshot.vectors(block) @ directions
        rest = np.sqrt(np.maximum(1 - (projected**2).sum(1, keepdims=True), 0))
        parts.append(np.hstack([projected, rest]))
    return np.concatenate(parts)


def _join_same_bytes(gallery: Gallery, snapshot: Snapshot, rows: np.ndarray, groups: _Components) -> None:
    """Join all images whose files have the same bytes."""
    found = repeated_contents(gallery.store)
    at = snapshot.rows_of(np.array([item for _, item in found], np.int64))
    digests = np.array([digest for digest, _ in found], str)[at >= 0]
    same = np.flatnonzero(digests[1:] == digests[:-1])
    groups.join(np.searchsorted(rows, at[at >= 0]), same, same + 1)


def _describe(gallery: Gallery, snapshot: Snapshot, groups: list[np.ndarray]) -> list[Group]:
    """Return the groups of rows with their items; items compacted away meanwhile are left out."""
    ids = [snapshot.item_ids(rows).tolist() for rows in groups]
    all_ids = sorted(number for members in ids for number in members)
    items = gallery.items(all_ids)
    contents = {item.id: item.content_sha256 for item in gallery.store.items(all_ids)}
    described = []
    for rows, members in zip(groups, ids, strict=True):
        known = tuple(items[number] for number in members if number in items)
        if len(known) > 1:
            files = {contents[item.id] for item in known}
            described.append(Group(known, _lowest(snapshot, rows), len(files) == 1 and "" not in files))
    return described


def _lowest(snapshot: Snapshot, rows: np.ndarray) -> float:
    """Return the lowest inner product between two of the rows."""
    lowest = 1.0
    for start in range(0, len(rows), _BLOCK):
        block = snapshot.vectors(rows[start : start + _BLOCK])
        for others in _blocks(rows[start:]):
            lowest = min(lowest, float((block @ snapshot.vectors(others).T).min()))
    return lowest


def _blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    return (rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK))
