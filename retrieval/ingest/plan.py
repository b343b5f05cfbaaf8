"""Indexing plan: which images are new, changed or known to be unusable, compared with a gallery."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from retrieval.ingest import tables
from retrieval.ingest.sources import ImageFile
from retrieval.storage import schema
from retrieval.storage.queries import column_type, embedded_contents, existing_items
from retrieval.storage.records import UPLOADS, BadFile, Change, ExistingItem, StoredItem, Value
from retrieval.storage.store import Store


@dataclass
class IndexingPlan:
    """Work that the images of some sources require.

    Attributes:
        todo: Images to read, and to embed unless the gallery has embedded the same bytes.
        changes: Changes of labels and metadata only.
        unchanged: Number of images that need no work.
        bad: Unusable files that have not changed since the last run.
        outdated: Ids to remove after `todo` is done: the images now have another key.
        existing: Items of the gallery, by root and path.
    """

    todo: list[ImageFile] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    unchanged: int = 0
    bad: list[BadFile] = field(default_factory=list)
    outdated: list[int] = field(default_factory=list)
    existing: Mapping[tuple[str, str], ExistingItem] = field(default_factory=dict)


def plan_indexing(store: Store, images: Iterable[ImageFile], *, retry: bool) -> IndexingPlan:
    """Compare images with a gallery, by size and modification time.

    Args:
        store: Store of the gallery.
        images: Images of the sources.
        retry: Retry files that were unusable before, although they have not changed.

    Raises:
        InputError: The metadata does not fit the gallery's columns.
    """
    images = _with_uploads_root(store, images)
    plan = IndexingPlan(existing=existing_items(store))
    known_bad = {file.stamp.key: file for file in store.bad_files()}
    described: dict[int, ImageFile] = {}
    renamed_items: list[ExistingItem] = []
    for image in images:
        existing, version = plan.existing.get(image.key), (image.size, image.mtime_ns)
        renamed = existing is not None and image.id not in (None, existing.key)
        bad = known_bad.get(image.key)
        if existing and existing.embedded and not renamed and (existing.size, existing.mtime_ns) == version:
            plan.unchanged += 1
            if image.has_own_label or image.metadata:
                described[existing.id] = image
        elif bad and not retry and (bad.stamp.size, bad.stamp.mtime_ns) == version:
            plan.bad.append(bad)
        else:
            plan.todo.append(image)
            if existing and renamed:
                renamed_items.append(existing)
    given = {image.id for image in plan.todo}  # an item whose key another file gets is replaced
    plan.outdated = [item.id for item in renamed_items if item.key not in given]
    check_metadata(store, images)
    plan.changes = list(_changes(store, described))
    return plan


def _with_uploads_root(store: Store, images: Iterable[ImageFile]) -> list[ImageFile]:
    """Give uploaded files the root under which the gallery stores them."""
    if not store.uploads.is_dir():
        return list(images)
    folder = f"{store.uploads}/"
    with_path = ((os.path.join(image.root, image.path), image) for image in images)
    return [
        replace(image, root=UPLOADS, path=full.removeprefix(folder)) if full.startswith(folder) else image
        for full, image in with_path
    ]


class ContentIndex:
    """SHA-256 of all embedded files, with the ids of their items. Thread-safe."""

    def __init__(self, store: Store) -> None:
        rows = embedded_contents(store)
        # Sorted arrays take a third of the memory of a set of strings.
        self._digests = np.array([digest for digest, _ in rows], "S64")
        self._ids = np.array([item for _, item in rows], np.int64)

    def __contains__(self, digest: str) -> bool:
        start, stop = self._range(digest)
        return start < stop

    def ids(self, digest: str) -> list[int]:
        """Return the ids of the items with these bytes, oldest first."""
        found: list[int] = self._ids[slice(*self._range(digest))].tolist()
        return found

    def _range(self, digest: str) -> tuple[int, int]:
        value = np.array(digest, "S64")
        start, stop = (int(np.searchsorted(self._digests, value, side)) for side in ("left", "right"))
        return start, stop


def moved_item(image: ImageFile, item: StoredItem) -> Change:
    """Return the change of an item whose file has moved to the path of `image`.

    The key changes only if it was the old path, and the label only if it was the old folder.
    """
    folder = Path(item.path).parent.as_posix()
    keeps_label = not image.has_own_label and item.label not in (None, folder)
    stamp = replace(image.stamp, label=item.label) if keeps_label else image.stamp
    key = image.id or (image.path if item.key == item.path else None)
    return Change(item.id, stamp, image.metadata, key)


def check_metadata(store: Store, images: Iterable[ImageFile]) -> None:
    """Raise an `InputError` if the metadata of the images does not fit the gallery's columns."""
    described = [image for image in images if image.metadata]
    if not described:
        return
    columns = store.columns()
    names = schema.match_columns({name for image in described for name in image.metadata}, columns)
    types = {}
    for column in set(columns) & set(names.values()):
        kind = column_type(store, column)
        if kind is not None:
            types[column] = "text" if kind == "text" else "number"
    rows = (
        (image.full, {names[name]: schema.check_value(name, value) for name, value in image.metadata.items()})
        for image in described
    )
    tables.check_types(rows, types)


def _changes(store: Store, described: Mapping[int, ImageFile]) -> Iterator[Change]:
    """Yield the changes of items whose label or metadata differ from those of their image, by id."""
    for item in store.items(list(described)):
        image = described[item.id]
        label = image.label if image.has_own_label else item.label
        metadata: dict[str, Value] = {
            name: value for name, value in image.metadata.items() if item.metadata.get(name) != value
        }
        if metadata or label != item.label:
            yield Change(item.id, replace(image.stamp, label=label), metadata)
