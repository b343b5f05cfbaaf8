"""Merging of segments into larger ones, without the rows of removed items where that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.storage import maintenance, segments
from retrieval.storage.maintenance import Replacement
from retrieval.storage.records import Segment
from retrieval.storage.segments import ITEM, NUMBER
from retrieval.storage.store import Store

SEGMENT_BYTES = 1 << 28  # of vectors in one file
SEGMENT_ROWS = 1 << 17  # in one file; the facts about their items are in memory while it is written
_FACTOR = 8  # growth of a segment by each merge, at least
_BLOCK = 4096  # rows in memory at once


def merge_small(store: Store) -> int:
    """Merge neighbouring small segments, so that readers map few files. Call it inside `store.writing()`.

    Size-tiered: neighbours below 8^t rows merge as soon as they have 8^t rows together, for every t up to
    half of a full segment. So a vector is written again at most once for each t, six times in all, and after
    single uploads fewer than 8 segments of each t are left. All rows stay, in their order.

    Args:
        store: Gallery store.

    Returns:
        Number of segments that were merged.

    Raises:
        LookalikeError: A stored vector is damaged; nothing is changed.
    """
    listed = store.segments()
    groups = [listed[some] for some in mergeable([segment.n for segment in listed], capacity_of(store))]
    nothing = np.empty(0, np.int64)
    if groups:
        replacements = [Replacement(group, rewrite(store, group, nothing)) for group in groups]
        maintenance.replace_segments(store, replacements)
        store.clear_leftovers(uploads=False)
    return sum(map(len, groups))


def mergeable(sizes: Sequence[int], capacity: int) -> list[slice]:
    """Return the ranges of neighbouring segments to merge.

    Args:
        sizes: Rows of each segment, oldest first.
        capacity: Rows of the largest segment.
    """
    full = max(2, capacity // 2)
    limit = full
    found: list[slice] = []
    taken = [False] * len(sizes)
    while limit > 1:
        start, total = 0, 0
        for position, size in enumerate(sizes):
            if size >= limit or taken[position]:
                start, total = position + 1, 0
                continue
            total += size
            if total >= limit:
                found.append(slice(start, position + 1))
                taken[start : position + 1] = [True] * (position + 1 - start)
                start, total = position + 1, 0
        limit = _next_limit(limit)
    return sorted(found, key=lambda some: int(some.start))


def _next_limit(limit: int) -> int:
    """Return the highest power of the factor below a limit."""
    power = 1
    while power * _FACTOR < limit:
        power *= _FACTOR
    return power


def capacity_of(store: Store) -> int:
    """Return the rows of the largest segment of a gallery."""
    itemsize = np.dtype(store.manifest.dtype).itemsize
    return min(SEGMENT_ROWS, max(1, SEGMENT_BYTES // (itemsize * store.manifest.dim)))


def rewrite(
    store: Store,
    group: Sequence[Segment],
    dead: np.ndarray,
    dim: int | None = None,
    convert: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> Segment | None:
    """Write the rows of segments, without the dead ones, into a new segment.

    Args:
        store: Gallery store, inside `writing()`.
        group: Segments, oldest first.
        dead: Numbers of the vectors to leave out, int64 [m].
        dim: Dimension of the new vectors; `None` for that of the gallery.
        convert: Returns the new vectors [b, dim] of a block of vectors [b, D], given as well their numbers,
            int64 [b]; `None` keeps the vectors.

    Returns:
        The segment; `None` if no row is left.

    Raises:
        LookalikeError: A stored vector is damaged.
    """
    found = [store.segment_rows(segment) for segment in group]
    kept = [np.flatnonzero(~np.isin(rows[NUMBER], dead)) for rows in found]
    rows = np.concatenate([part[:2, some] for part, some in zip(found, kept, strict=True)], axis=1)
    if not rows.shape[1]:
        return None
    read = (block for segment, some in zip(group, kept, strict=True) for block in _read(store, segment, some))
    blocks = (vectors if convert is None else convert(vectors, numbers) for vectors, numbers in read)
    parts = zip(group, found, kept, strict=True)
    changed = maintenance.changed_items(store)
    texts = (maintenance.facts_in(store, one, rows[ITEM], some, changed) for one, rows, some in parts)
    manifest, folder = store.manifest, store.folder / "segments"
    return segments.write(
        folder, blocks, rows, chain.from_iterable(texts), dim or manifest.dim, manifest.dtype
    )


def _read(store: Store, segment: Segment, some: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield some rows of a segment in blocks, checked against their checksums: vectors and their numbers."""
    vectors, rows = store.segment_vectors(segment), store.segment_rows(segment)
    for start in range(0, len(some), _BLOCK):
        at = some[start : start + _BLOCK]
        block, checked = vectors[at], rows[:, at]
        if (segments.checksums(block, checked) != checked[segments.CHECKSUM]).any():
            hint = f"run `lookalike index verify {store.folder} --repair`, which moves it to quarantine"
            raise LookalikeError(f"{store.folder}: a stored vector is damaged; {hint}")
        yield block, checked[NUMBER]
