"""Compaction: drop removed items and merge small segments into large ones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.files import folder_size, now
from retrieval.gallery import Gallery
from retrieval.progress import Progress
from retrieval.storage import segments
from retrieval.storage.maintenance import Replacement, facts_of, replace_segments
from retrieval.storage.records import GalleryState, Segment
from retrieval.storage.segments import CHECKSUM, ITEM, NUMBER
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
    """

    dropped: int
    segments: tuple[int, int]
    bytes: tuple[int, int]


@dataclass(frozen=True)
class _Group:
    """Neighbouring segments to merge into one.

    Attributes:
        old: Segments, oldest first.
        rows: Vector numbers, item ids and checksums of their rows, int64 [3, rows].
        alive: bool [rows], False for dead vectors.
    """

    old: list[Segment]
    rows: np.ndarray
    alive: np.ndarray

    @property
    def is_done(self) -> bool:
        return len(self.old) == 1 and bool(self.alive.all())


def compact(gallery: Gallery, *, show_progress: bool = False) -> Compaction:
    """Drop removed items, merge small segments, and free disk space.

    Searches continue meanwhile. Items keep their ids and their order, and the index stays in use. Memory
    stays bounded; the disk needs as much free space as the rewritten segments take.

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
        total = sum(len(group.alive) for group in todo)
        with Progress("compacting", total, "vectors", show=show_progress) as progress:
            for group in todo:
                replacements.append(_merge(store, group))
                progress.update(len(group.alive))
        dropped = replace_segments(store, replacements, purge=True)
        store.vacuum()
        store.clear_leftovers()
        store.record_run("compact", started, {"dropped": dropped})
        gallery.refresh()
        counts = len(state.segments), len(store.segments())
        return Compaction(dropped, counts, (size, folder_size(store.folder)))


def merge_newest(store: Store, at_least: int = MAX_SMALL_SEGMENTS) -> None:
    """Merge the newest small segments if there are many. Call it inside `store.writing()`.

    Every image that is added alone leaves a segment, and every reader keeps the files of all segments open.
    Args:
        store: Gallery store.
        at_least: Number of small segments from which they are merged.

    Raises:
        LookalikeError: A stored vector is damaged; nothing is changed.
    """
    small = [*takewhile(lambda segment: segment.n <= _SMALL, reversed(store.segments()))][::-1]
    if len(small) < at_least:
        return
    rows = np.concatenate([store.segment_rows(segment) for segment in small], 1)
    replace_segments(store, [_merge(store, _Group(small, rows, np.ones(rows.shape[1], bool)))])
    store.clear_leftovers()


def _groups(store: Store, state: GalleryState) -> list[_Group]:
    """Group neighbouring segments whose live rows fit into one, in order."""
    capacity = max(1, SEGMENT_BYTES // (4 * store.manifest.dim))
    groups: list[_Group] = []
    for segment in state.segments:
        rows = store.segment_rows(segment)
        single = _Group([segment], rows, ~np.isin(rows[NUMBER], state.dead))
        last = groups[-1] if groups else None
        if last and int(last.alive.sum() + single.alive.sum()) <= capacity:
            groups[-1] = _Group(
                [*last.old, segment],
                np.concatenate([last.rows, single.rows], 1),
                np.concatenate([last.alive, single.alive]),
            )
        else:
            groups.append(single)
    return groups


def _merge(store: Store, group: _Group) -> Replacement:
    """Write the live rows of a group into a new segment, each checked against its checksum."""
    vectors = np.concatenate([store.segment_vectors(segment) for segment in group.old])[group.alive]
    rows = group.rows[:, group.alive]
    if (segments.checksums(vectors, rows) != rows[CHECKSUM]).any():
        hint = f"run `lookalike index verify {store.folder} --repair`, which moves it to quarantine"
        raise LookalikeError(f"{store.folder}: a stored vector is damaged; {hint}")
    if not rows.shape[1]:
        return Replacement(group.old, None)
    facts, manifest = facts_of(store, rows[ITEM]), store.manifest
    folder = store.folder / "segments"
    return Replacement(
        group.old, segments.write(folder, [vectors], rows[:CHECKSUM], facts, manifest.dim, manifest.dtype)
    )
