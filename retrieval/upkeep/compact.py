"""Compaction: drop removed items, and merge small segments into large ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.files import folder_size, now
from retrieval.galleries.files import FilesView
from retrieval.progress import Progress
from retrieval.storage import maintenance, removals, segments
from retrieval.storage.maintenance import Replacement
from retrieval.storage.records import Segment
from retrieval.storage.segments import ITEM, NUMBER
from retrieval.storage.store import Store

SEGMENT_BYTES = 1 << 28  # of vectors in one file
SEGMENT_ROWS = 1 << 17  # in one file; the facts about their items are in memory while it is written
_FACTOR = 8  # growth of a segment by each merge, at least
_BLOCK = 4096  # rows in memory at once


@dataclass(frozen=True)
class Compaction:
    """Result of a compaction.

    Attributes:
        dropped: Removed items that were deleted for good.
        segments: Number of segments before and after.
        bytes: Size on disk before and after.
        reindexed: Whether a new index was built, because many vectors of the old one were dead, or because
            it was missing after a repair that was interrupted.
    """

    dropped: int
    segments: tuple[int, int]
    bytes: tuple[int, int]
    reindexed: bool


def compact(gallery: FilesView, *, show_progress: bool = False) -> Compaction:
    """Drop removed items, merge small segments, and free disk space.

    Searches continue meanwhile, with an index all the time: vectors keep their numbers, and the index is
    asked for the living ones only. If too many of its vectors are gone, or it is missing although one was
    asked for, a new one is put to use first. Items keep their ids and their order. Memory stays bounded; the
    disk needs as much free space as the rewritten segments and a new index take.

    Args:
        gallery: Gallery to compact.
        show_progress: Report progress on stderr.

    Raises:
        LookalikeError: A stored vector is damaged, another process is writing, or the disk is full; the
            gallery is unchanged.
    """
    store, started = gallery.store, now()
    with store.writing():
        gallery.refresh()
        some = len(gallery.state)  # vectors outside the index may wait
        work = gallery.optimize_index(tolerated=some, show_progress=show_progress)
        size, state = folder_size(store.folder), store.state()
        groups = [*_groups(store, state.segments, state.dead)]
        total = sum(segment.n for group in groups for segment in group)
        with Progress("compacting", total, "vectors", show=show_progress) as progress:
            replacements = []
            for group in groups:
                replacements.append(Replacement(group, rewrite(store, group, state.dead)))
                progress.update(sum(segment.n for segment in group))
        rewritten = {segment.file for group in groups for segment in group}
        _refresh_facts(store, [segment for segment in state.segments if segment.file not in rewritten])
        dropped = maintenance.replace_segments(store, replacements, purge=True)
        store.clear_leftovers()
        store.clear_index_parts()
        removals.clear(store.folder)  # only now: the old segments had the vectors that it names
        maintenance.free_space(store)
        store.record_run("compact", started, {"dropped": dropped})
        gallery.refresh()
        counts = len(state.segments), len(store.segments())
        return Compaction(dropped, counts, (size, folder_size(store.folder)), work.done != "nothing")


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
    groups = [listed[some] for some in mergeable([segment.n for segment in listed], _capacity(store))]
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


def _capacity(store: Store) -> int:
    itemsize = np.dtype(store.manifest.dtype).itemsize
    return min(SEGMENT_ROWS, max(1, SEGMENT_BYTES // (itemsize * store.manifest.dim)))


def _groups(store: Store, listed: Sequence[Segment], dead: np.ndarray) -> Iterator[list[Segment]]:
    """Yield neighbouring segments to rewrite into one: with dead rows, or small ones."""
    capacity, group, size, wanted = _capacity(store), list[Segment](), 0, False
    for segment in listed:
        alive = segment.n - int(np.isin(store.segment_rows(segment)[NUMBER], dead).sum())
        is_done = alive == segment.n >= capacity // 2
        if group and (is_done or size + alive > capacity):
            if wanted or len(group) > 1:
                yield group
            group, size, wanted = [], 0, False
        if not is_done:
            group.append(segment)
            size, wanted = size + alive, wanted or alive < segment.n
    if wanted or len(group) > 1:
        yield group


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
    facts = maintenance.facts_of(store, rows[ITEM])
    manifest = store.manifest
    return segments.write(store.folder / "segments", blocks, rows, facts, dim or manifest.dim, manifest.dtype)


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


def _refresh_facts(store: Store, listed: Sequence[Segment]) -> None:
    """Write the facts of changed items into the files of segments that stay."""
    changed = maintenance.changed_items(store)
    for segment in listed if len(changed) else ():
        items = store.segment_rows(segment)[ITEM]
        if np.isin(items, changed).any():
            facts = maintenance.facts_of(store, items)
            segments.write_facts(store.folder / "segments" / segment.file, facts)
