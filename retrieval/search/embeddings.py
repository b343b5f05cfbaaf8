"""The stored embeddings of a gallery in memory, with labels and contents."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrieval import arrow
from retrieval.progress import Progress
from retrieval.search.snapshot import Snapshot
from retrieval.storage.queries import labelled_ids
from retrieval.storage.store import Store

_CHUNK = 10_000  # items in memory at a time


@dataclass(frozen=True, eq=False, repr=False)
class StoredEmbeddings:
    """Embeddings of a gallery's items, by id.

    They are also a table by `__arrow_c_stream__`, with the columns id, label, content_sha256 and vector, a
    list of D float32; the vectors are not copied.

    Attributes:
        ids: Item ids, int64 [N], ascending.
        vectors: Embeddings, float32 [N, D], unit length.
        labels: Labels [N]; `None` for an item without one.
        contents: SHA-256 of each file's bytes, [N].
        total: Number of items that this is a random sample of; N if it is all of them.
    """

    ids: np.ndarray
    vectors: np.ndarray
    labels: list[str | None]
    contents: list[str]
    total: int

    def __repr__(self) -> str:
        count, dim = self.vectors.shape
        return f"<StoredEmbeddings: {count:,} vectors of {dim} dimensions, of {self.total:,}>"

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the embeddings as a capsule of an Arrow stream.

        Raises:
            InputError: pyarrow is not installed.
        """
        kinds = {"id": "integer", "label": "text", "content_sha256": "text"}
        schema = arrow.table_schema(kinds, self.vectors.shape[1])
        columns: dict[str, Any] = {"id": self.ids, "label": self.labels, "content_sha256": self.contents}
        batches = (
            arrow.record_batch(schema, {name: v[some] for name, v in columns.items()}, self.vectors[some])
            for some in arrow.slices(len(self.ids))
        )
        return arrow.stream(schema, batches, requested_schema)


def read_embeddings(
    store: Store,
    snapshot: Snapshot,
    *,
    labelled: bool = False,
    chosen: Callable[[np.ndarray], np.ndarray] | None = None,
    limit: int | None = None,
) -> StoredEmbeddings:
    """Read the embeddings of a snapshot, with the labels and contents of their items.

    Args:
        store: Gallery store.
        snapshot: State of the gallery.
        labelled: Leave out items without a label.
        chosen: Function of ids that returns those that are not left out; `None` to leave out none.
        limit: Largest number of items; of more, a random sample is read, the same each time.

    Raises:
        LookalikeError: A vector or an item is damaged.
    """
    ids = np.sort(snapshot.item_ids(snapshot.live_rows()))
    if labelled:
        ids = np.intersect1d(ids, labelled_ids(store))
    if chosen is not None:
        ids = chosen(ids)
    total = len(ids)
    if limit is not None and total > limit:
        ids = np.sort(np.random.default_rng(0).choice(ids, limit, replace=False))
    found: dict[int, tuple[str | None, str]] = {}
    with Progress("reading", len(ids), show=False) as progress:
        for start in range(0, len(ids), _CHUNK):
            items = store.items(ids[start : start + _CHUNK].tolist())
            for item in items:
                found[item.id] = (sys.intern(item.label) if item.label else None, item.content_sha256)
            progress.update(len(items))
    kept = np.array([number for number in ids.tolist() if number in found], np.int64)
    facts = [found[number] for number in kept.tolist()]
    vectors = snapshot.vectors(snapshot.rows_of(kept))
    labels, contents = [label for label, _ in facts], [content for _, content in facts]
    return StoredEmbeddings(kept, vectors, labels, contents, total)
