"""Compaction: drop removed items and merge small segments into large ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.files import folder_size, now
from retrieval.gallery import Gallery
from retrieval.progress import Progress
from retrieval.storage import segments
from retrieval.storage.maintenance import Replacement, replace_segments
from retrieval.storage.records import GalleryState, Segment
from retrieval.storage.store import Store

MAX_SMALL_SEGMENTS = 64  # number of small segments from which `merge_newest` merges them
SEGMENT_BYTES = 1 << 27  # vectors in one file; compaction holds up to three times as much in memory
_SMALL = 4096  # rows


@dataclass(frozen=True)
class Compaction:
    """Result of a compaction.

    Attributes:
        dropped: Removed items that were deleted for good.
        segments: Number of segments before and after.
        bytes: Size on disk before and after.
        reindexed: Whether rows moved, so that the index was rebuilt.
    """

    dropped: int
    segments: tuple[int, int]
    bytes: tuple[int, int]
    reindexed: bool


@dataclass(frozen=True)
class _Group:
    """Neighbouring segments to merge into one.

    Attributes:
        old: Segments, oldest first.
        ids: Item id of each of their rows, int64 [rows].
        alive: bool [rows], False for rows of removed items.
    """

    old: list[Segment]
    ids: np.ndarray
    alive: np.ndarray

    @property
    def is_done(self) -> bool:
        return len(self.old) == 1 and bool(self.alive.all())


def compact(gallery: Gallery, *, show_progress: bool = False) -> Compaction:
    """Drop removed items, merge small segments, rebuild the index if rows moved, and free disk space.

    Searches continue meanwhile. Items keep their ids and their order. Memory stays bounded; the disk needs
    as much free space as the rewritten segments take.

    Args:
        gallery: Gallery to compact.
        show_progress: Report progress on stderr.

    Raises:
        LookalikeError: A stored vector is damaged, another process is writing, or the disk is full; the
            gallery is unchanged.
    """
    store, started = gallery.store, now()
    with store.writing():
        size, state = folder_size(store.folder), store.state()
        groups = _groups(store, state)
        todo = [group for group in groups if not group.is_done]
        replacements: list[Replacement] = []
        total = sum(len(group.ids) for group in todo)
        with Progress("compacting", total, "vectors", show=show_progress) as progress:
            for group in todo:
                replacements.append(_merge(store, group))
                progress.update(len(group.ids))
        index = state.index
        moved = index is not None and not _alive(groups)[: index.n].all()
        dropped = replace_segments(store, replacements, purge=True, drop_index=moved)
        if moved:
            gallery.build_index(show_progress=show_progress)
        store.vacuum()
        store.clear_leftovers()
        store.record_run("compact", started, {"dropped": dropped})
        gallery.refresh()
        counts = len(state.segments), len(store.segments())
        return Compaction(dropped, counts, (size, folder_size(store.folder)), moved)


def merge_newest(store: Store, at_least: int = MAX_SMALL_SEGMENTS) -> None:
    """Merge the newest small segments if there are many. Call it inside `store.writing()`.

    Every image that is added alone leaves a segment, and every reader keeps the files of all segments open.
    All rows keep their position, counted over all segments, also those of removed items; so the index stays
    valid.

    Args:
        store: Gallery store.
        at_least: Number of small segments from which they are merged.

    Raises:
        LookalikeError: A stored vector is damaged; nothing is changed.
    """
    small = [*takewhile(lambda segment: segment.n <= _SMALL, reversed(store.segments()))][::-1]
    if len(small) < at_least:
        return
    ids = np.concatenate([store.segment_rows(segment)[0] for segment in small])
    replace_segments(store, [_merge(store, _Group(small, ids, np.ones(len(ids), bool)))])
    store.clear_leftovers()


def _groups(store: Store, state: GalleryState) -> list[_Group]:
    """Group neighbouring segments whose live rows fit into one, in order."""
    capacity = max(1, SEGMENT_BYTES // (4 * store.manifest.dim))
    groups: list[_Group] = []
    for segment in state.segments:
        ids, _ = store.segment_rows(segment)
        single = _Group([segment], ids, ~np.isin(ids, state.removed))
        last = groups[-1] if groups else None
        if last and int(last.alive.sum() + single.alive.sum()) <= capacity:
            groups[-1] = _Group(
                [*last.old, segment],
                np.concatenate([last.ids, single.ids]),
                np.concatenate([last.alive, single.alive]),
            )
        else:
            groups.append(single)
    return groups


def _alive(groups: Sequence[_Group]) -> np.ndarray:
    return np.concatenate([np.empty(0, bool), *(group.alive for group in groups)])


def _merge(store: Store, group: _Group) -> Replacement:
    """Write the live rows of a group into a new segment, each checked against its checksum."""
    vectors = np.concatenate([store.segment_vectors(segment) for segment in group.old])[group.alive]
    checksums = np.concatenate([store.segment_rows(segment)[1] for segment in group.old])[group.alive]
    if (segments.row_checksums(vectors) != checksums).any():
        hint = f"run `lookalike index verify {store.folder} --repair`, which moves it to quarantine"
        raise LookalikeError(f"{store.folder}: a stored vector is damaged; {hint}")
    ids = group.ids[group.alive]
    new = segments.write(store.folder / "segments", vectors, ids) if len(ids) else None
    return Replacement(group.old, new, ids)
