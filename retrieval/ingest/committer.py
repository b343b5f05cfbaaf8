"""Committer: writes batches of an indexing run in a thread, while the next images are decoded and embedded.

Memory use: one batch that is written and one that is collected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from retrieval.galleries.writer import Writer
from retrieval.storage.planning import ExistingItem, ImageFile
from retrieval.storage.records import BadFile, Change, NewItem


class ItemDraft(NamedTuple):
    """Item of a file that was read.

    Attributes:
        image: The file.
        existing: Item that it has already.
        content: SHA-256 of the file.
        width: Width of the image, in pixels.
        height: Height of the image, in pixels.
    """

    image: ImageFile
    existing: ExistingItem | None
    content: str
    width: int
    height: int


@dataclass(frozen=True)
class Batch:
    """What one commit writes.

    Attributes:
        vectors: Vectors of the drafts, float32 [n, D] in all.
        drafts: Items to add.
        changes: Changes of facts about items, written before.
        bad: Unusable files.
    """

    vectors: list[np.ndarray] = field(default_factory=list)
    drafts: list[ItemDraft] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    bad: list[BadFile] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.drafts) + len(self.changes) + len(self.bad)


class Committer:
    """Commits one batch at a time, in order. Use it in `writer.running()`, from one thread, and close it.

    Args:
        writer: Writer of the gallery.
        committed: Called with each batch after it was committed, in the thread that waits for it.
    """

    def __init__(self, writer: Writer, committed: Callable[[Batch], None]) -> None:
        self._writer, self._committed = writer, committed
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._running: tuple[Batch, Future[None]] | None = None

    def commit(self, batch: Batch) -> None:
        """Start to commit a batch; call `wait` before.

        Args:
            batch: Batch, which is not changed any more.
        """
        assert self._running is None
        self._running = batch, self._pool.submit(_write, self._writer, batch)

    def wait(self) -> None:
        """Wait until the last batch is committed, and raise its error if that failed."""
        if self._running is not None:
            batch, future = self._running
            future.exception()  # an interruption while waiting leaves the batch running
            self._running = None
            future.result()
            self._committed(batch)

    def close(self) -> None:
        """Wait for the thread to end."""
        self._pool.shutdown()


def _write(writer: Writer, batch: Batch) -> None:
    items = _new_items(writer, batch.drafts)
    if batch.changes:
        writer.amend(batch.changes)
    if items or batch.bad:
        empty = np.empty((0, writer.manifest.dim), np.float32)
        writer.commit(np.concatenate([empty, *batch.vectors]), items, batch.bad)


def _new_items(writer: Writer, drafts: Sequence[ItemDraft]) -> list[NewItem]:
    """Return the items of drafts, with the label of the item that each replaces unless it has its own."""
    heirs = writer.heirs([(draft.image, draft.existing) for draft in drafts])
    items = []
    for draft, (key, existing) in zip(drafts, heirs, strict=True):
        image, stamp = draft.image, draft.image.stamp
        if existing is not None and not image.has_own_label:
            stamp = replace(stamp, label=existing.label)
        items.append(NewItem(stamp, draft.content, draft.width, draft.height, image.metadata, key))
    return items
