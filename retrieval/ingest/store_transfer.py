"""Bulk load of vectors into a gallery in a database, and reading all of one for an export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from retrieval.errors import InputError
from retrieval.galleries.database import DatabaseView
from retrieval.ingest.vector_files import Chunk
from retrieval.ingest.vector_items import COLUMNS, VectorItems
from retrieval.progress import Progress
from retrieval.storage.records import UPLOADS, Facts, FileStamp, NewItem, StoredItem, Value
from retrieval.stores.conditions import is_hidden

_AT_ONCE = 4096  # items written or read at a time; what an interruption costs
_SAME = {"float32": 1e-6, "float16": 1e-3}  # largest difference between a vector and its stored copy


class StoreImport:
    """Bulk load of one file of vectors into a gallery in a database.

    The import is idempotent: items that are there with the same facts, metadata and vector are left alone, so
    an interrupted import continues when it is repeated.

    Attributes:
        added, replaced, unchanged: Numbers of items so far; `unchanged` had the same contents before.

    Args:
        gallery: Gallery.
        items: Rows of the file.
    """

    def __init__(self, gallery: DatabaseView, items: VectorItems) -> None:
        self._gallery, self._items = gallery, items
        self.added = self.replaced = self.unchanged = 0

    def run(self, recall: float | None, *, show_progress: bool = False) -> None:
        """Write all rows, some thousands at a time, and complete the index of the database.

        Args:
            recall: Recall of the index; `None` for the default.
            show_progress: Print progress on stderr.

        Raises:
            InputError: The gallery has another vector under the number of a row without an id; rows before it
                are imported.
            LookalikeError: The database fails; rows written before stay.
        """
        gallery = self._gallery
        with Progress("importing", self._items.file.count, "vectors", show=show_progress) as progress:
            for vectors, facts, metadata in self._items.chunks(gallery.folder / UPLOADS):
                for start in range(0, len(facts), _AT_ONCE):
                    some = slice(start, start + _AT_ONCE)
                    items = _new_items(facts[some], {name: v[some] for name, v in metadata.items()})
                    self._write(items, vectors[some])
                    progress.update(len(items))
        gallery.complete_index(recall, show_progress=show_progress)

    def _write(self, items: list[NewItem], vectors: np.ndarray) -> None:
        gallery = self._gallery
        ids = gallery.engine.ids_by("key", [item.key or "" for item in items])
        stored = {item.key: item for item in gallery.stored_items([*ids.values()])} if ids else {}
        former = gallery.vectors([*ids.values()]) if ids else {}
        tolerance = _SAME[gallery.manifest.dtype]
        left = []
        for position, item in enumerate(items):
            before = stored.get(item.key or "")
            vector = None if before is None else former.get(before.id)
            if before is None or vector is None:
                left.append(position)
                self.added += 1
                continue
            same = bool(np.abs(vector - vectors[position]).max(initial=0) <= tolerance)
            if not same and self._items.is_numbered:
                what = f"{gallery.folder}: has another vector under the key {item.key!r}, from another file"
                raise InputError(f"{what}; choose other keys with --prefix, or give the rows ids")
            if same and (self._items.is_numbered or _has(before, item)):
                self.unchanged += 1
            else:
                left.append(position)
                self.replaced += 1
        if left:
            gallery.writer.put([items[position] for position in left], vectors[left])


def _new_items(facts: Facts, metadata: dict[str, Sequence[Value]]) -> list[NewItem]:
    return [
        NewItem(
            FileStamp(root, path, size, mtime_ns, label),
            content,
            width,
            height,
            {name: values[row] for name, values in metadata.items() if values[row] is not None},
            key,
        )
        for row, (key, root, path, size, mtime_ns, content, width, height, label) in enumerate(facts.rows())
    ]


def _has(stored: StoredItem, item: NewItem) -> bool:
    """Return whether an item has all that another one would give it."""
    stamp = item.stamp
    facts = (stamp.root, stamp.path, stamp.size, stamp.mtime_ns, item.content_sha256, item.width, item.height)
    return (
        stored[2:9] == facts
        and stamp.label in (None, stored.label)
        and all(stored.metadata.get(name) == value for name, value in item.metadata.items())
    )


# ---- export


def types_of(gallery: DatabaseView) -> dict[str, str]:
    """Return the type of each metadata column that users see: "text" or "number"."""
    return {name: str(kind) for name, kind in gallery.engine.columns().items() if not is_hidden(name)}


def _kinds_of(gallery: DatabaseView) -> dict[str, str]:
    """Return the kind of each metadata column: "text", "integer" or "number".

    A column of numbers without fractions has integers; a gallery with such columns is read once to tell.
    """
    kinds = types_of(gallery)
    integers = {name for name, kind in kinds.items() if kind == "number"}
    if integers:
        for items in gallery.writer.scan(size=_AT_ONCE):
            integers -= {
                name for item in items for name, value in item.metadata.items() if isinstance(value, float)
            }
            if not integers:
                break
    return {name: "integer" if name in integers else kind for name, kind in kinds.items()}


def rows_of_database(gallery: DatabaseView, progress: Progress) -> tuple[Mapping[str, str], Iterator[Chunk]]:
    """Return the kinds of the metadata columns, and all items by id; see `retrieval.ingest.transfer.Rows`."""
    kinds = _kinds_of(gallery)
    return kinds, _chunks_of(gallery, [*kinds], progress)


def _chunks_of(gallery: DatabaseView, names: Sequence[str], progress: Progress) -> Iterator[Chunk]:
    start = 0
    for page in gallery.writer.scan(size=_AT_ONCE):
        vectors = gallery.vectors([item.id for item in page])
        items = [item for item in page if item.id in vectors]
        if not items:
            continue
        facts = ([getattr(item, name) for item in items] for name in ("label", "width", "height"))
        columns: dict[str, list[Value]] = dict(
            zip(
                COLUMNS,
                ([item.key for item in items], [gallery.paths.shown(item) for item in items], *facts),
                strict=True,
            )
        )
        columns |= {name: [item.metadata.get(name) for item in items] for name in names}
        yield Chunk(start, np.stack([vectors[item.id] for item in items]), columns)
        start += len(items)
        progress.update(len(items))
