"""Compact a gallery: drop what was removed, and make few large segments of many small ones."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.files import folder_size, now
from retrieval.gallery import Gallery
from retrieval.progress import Progress
from retrieval.storage import segments as files
from retrieval.storage.records import Segment, State
from retrieval.storage.store import Store, name_segment

MANY = 64  # segments
_SMALL = 4096  # rows
SEGMENT_BYTES = 1 << 27  # of vectors in one file; compaction holds up to three times as much in memory


@dataclass(frozen=True)
class Compaction:
    """What a compaction did.

    Attributes:
        dropped: removed items that are gone for good now.
        segments: how many there were, and how many there are.
        bytes: on the disk, before and after.
        reindexed: whether rows moved, so that the index was built again.
    """

    dropped: int
    segments: tuple[int, int]
    bytes: tuple[int, int]
    reindexed: bool


@dataclass(frozen=True)
class _Group:
    """Neighbouring segments that become one.

    Attributes:
        old: the segments.
        ids: int64 [rows], the item of each of their rows.
        alive: bool [rows], False where the item was removed.
    """

    old: list[Segment]
    ids: np.ndarray
    alive: np.ndarray

    @property
    def is_done(self) -> bool:
        return len(self.old) == 1 and bool(self.alive.all())


def compact(gallery: Gallery, *, show_progress: bool = False) -> Compaction:
    """Drop removed items, merge small segments, build the index again where rows moved, give space back.

    Searches go on meanwhile. Items keep their ids and their order. Memory stays bounded; on the disk it
    takes as much space again as what it rewrites.

    Raises:
        LookalikeError: a stored vector is damaged, another process is writing, or the disk is full; the
            gallery is as it was.
    """
    store, started = gallery.store, now()
    with store.writing():
        size, state = folder_size(store.folder), store.state()
        groups = _groups(store, state)
        todo = [group for group in groups if not group.is_done]
        total = sum(len(group.ids) for group in todo)
        with Progress("compacting", total, "vectors", show=show_progress) as progress:
            new = []
            for group in todo:
                new.append(_merge(store, group))
                progress.update(len(group.ids))
        index = state.index
        moved = index is not None and not _alive(groups)[: index.n].all()
        with store.transaction() as db:
            for group, segment in zip(todo, new, strict=True):
                swap(db, group.old, segment, group.ids[group.alive])
            dropped = _forget(db)
            if moved:
                db.execute("DELETE FROM indexes")
        if moved:
            gallery.build_index(show_progress=show_progress)
        store.vacuum()
        store.clear_leftovers()
        store.record_run("compact", started, {"dropped": dropped})
        gallery.refresh()
        counts = len(state.segments), len(store.segments())
        return Compaction(dropped, counts, (size, folder_size(store.folder)), moved)


def merge_newest(store: Store, at_least: int = MANY) -> None:
    """Make one segment of the newest small ones, where there are many. Call it inside `store.writing()`.

    Pictures that come one by one leave a segment each, and every reader keeps every segment's file open. All
    rows stay where they are counted through all segments, also those of removed items, and so does the index.

    Raises:
        LookalikeError: a stored vector is damaged; nothing is changed then.
    """
    small = [*takewhile(lambda segment: segment.n <= _SMALL, reversed(store.segments()))][::-1]
    if len(small) < at_least:
        return
    ids = np.concatenate([store.rows_of(segment)[0] for segment in small])
    merged = _merge(store, _Group(small, ids, np.ones(len(ids), bool)))
    with store.transaction() as db:
        swap(db, small, merged, ids)
    store.clear_leftovers()


def _groups(store: Store, state: State) -> list[_Group]:
    """Neighbours whose living rows fit into one segment, first come first served."""
    most = max(1, SEGMENT_BYTES // (4 * store.manifest.dim))
    groups: list[_Group] = []
    for segment in state.segments:
        ids, _ = store.rows_of(segment)
        one = _Group([segment], ids, ~np.isin(ids, state.removed))
        last = groups[-1] if groups else None
        if last and int(last.alive.sum() + one.alive.sum()) <= most:
            groups[-1] = _Group(
                [*last.old, segment],
                np.concatenate([last.ids, one.ids]),
                np.concatenate([last.alive, one.alive]),
            )
        else:
            groups.append(one)
    return groups


def _alive(groups: Sequence[_Group]) -> np.ndarray:
    return np.concatenate([np.empty(0, bool), *(group.alive for group in groups)])


def _merge(store: Store, group: _Group) -> Segment | None:
    """Write the living rows of a group, each of them checked; `None` where there are none."""
    vectors = np.concatenate([store.vectors(segment) for segment in group.old])[group.alive]
    checksums = np.concatenate([store.rows_of(segment)[1] for segment in group.old])[group.alive]
    if (files.row_checksums(vectors) != checksums).any():
        hint = f"`lookalike index verify {store.folder} --repair` sets it aside"
        raise LookalikeError(f"{store.folder}: a stored vector is damaged; {hint}")
    ids = group.ids[group.alive]
    return files.write(store.folder / "segments", vectors, ids) if len(ids) else None


def swap(db: sqlite3.Connection, old: Sequence[Segment], new: Segment | None, ids: np.ndarray) -> None:
    """Put a segment with the items int64 [n] in the place of neighbouring ones, inside a transaction."""
    db.executemany("DELETE FROM segments WHERE seg = ?", [(segment.seg,) for segment in old])
    if new is not None:
        seg = name_segment(db, new, old[0].seg)
        places = [(seg, row, item) for row, item in enumerate(ids.tolist())]
        db.executemany("UPDATE items SET seg = ?, row = ? WHERE id = ?", places)


def _forget(db: sqlite3.Connection) -> int:
    """Delete the removed items -> how many there were."""
    db.execute("DELETE FROM metadata WHERE id IN (SELECT id FROM items WHERE deleted_at IS NOT NULL)")
    return db.execute("DELETE FROM items WHERE deleted_at IS NOT NULL").rowcount
