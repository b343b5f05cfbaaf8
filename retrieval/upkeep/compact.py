"""Compaction: drop removed items, and merge small segments into large ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.files import folder_size, now
from retrieval.galleries.files import FilesView
from retrieval.progress import Progress
from retrieval.storage import maintenance, removals, segments
from retrieval.storage.maintenance import Replacement
from retrieval.storage.merging import capacity_of, rewrite
from retrieval.storage.records import Segment
from retrieval.storage.segments import ITEM, NUMBER
from retrieval.storage.store import Store


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
        stay = [segment for segment in state.segments if segment.file not in rewritten]
        replacements += _with_present_facts(store, stay)
        dropped = maintenance.replace_segments(store, replacements, purge=True)
        store.clear_leftovers()
        store.clear_index_parts()
        removals.clear(store.folder)  # only now: the old segments had the vectors that it names
        maintenance.free_space(store)
        store.record_run("compact", started, {"dropped": dropped})
        gallery.refresh()
        counts = len(state.segments), len(store.segments())
        return Compaction(dropped, counts, (size, folder_size(store.folder)), work.done != "nothing")


def _groups(store: Store, listed: Sequence[Segment], dead: np.ndarray) -> Iterator[list[Segment]]:
    """Yield neighbouring segments to rewrite into one: with dead rows, or small ones."""
    capacity, group, size, wanted = capacity_of(store), list[Segment](), 0, False
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


def _with_present_facts(store: Store, listed: Sequence[Segment]) -> Iterator[Replacement]:
    """Yield the segments whose file of facts is out of date or missing, with one that has a new file."""
    changed, folder = maintenance.changed_items(store), store.folder / "segments"
    for segment in listed:
        items = store.segment_rows(segment)[ITEM]
        if np.isin(items, changed).any() or segments.open_facts(folder, segment) is None:
            texts = maintenance.facts_in(store, segment, items, np.arange(segment.n), changed)
            yield Replacement([segment], segments.with_facts(folder, segment, texts))
