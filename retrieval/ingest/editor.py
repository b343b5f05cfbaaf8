"""Changes of a few items at a time, as a server makes them, of a gallery in files or in a database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.files import now
from retrieval.galleries.database import DatabaseView
from retrieval.ingest.file_plan import check_metadata
from retrieval.ingest.uploads import (
    StoredUpload,
    Upload,
    store_uploads,
    stored_uploads,
    unknown,
    write_files,
)
from retrieval.search.where import parse_condition
from retrieval.storage.decisions import DecisionLog, decide
from retrieval.storage.manifest import Manifest
from retrieval.storage.queries import ids_by_key, live_ids
from retrieval.storage.records import UPLOADS, Change, StoredItem, Value
from retrieval.storage.store import Store, hold_lock
from retrieval.stores.engine import Amendment


class Editor(ABC):
    """Adds uploads to a gallery, and changes and removes items. Call its methods inside `writing`.

    Attributes:
        manifest: Facts about the gallery, as they are now.
    """

    manifest: Manifest

    def __init__(self, folder: Path) -> None:
        self._log = DecisionLog(folder)

    @abstractmethod
    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the write lock of the gallery folder.

        Raises:
            LockedError: Another process is writing.
            LookalikeError: The folder cannot be written.
        """

    @abstractmethod
    def add(
        self, uploads: Sequence[Upload], label: str | None, metadata: Mapping[str, Value] | None
    ) -> list[StoredUpload]:
        """Store uploads with their files, and return the item of each; known bytes are not stored again.

        Raises:
            InputError: The metadata does not fit the gallery's columns. Nothing is changed.
            LookalikeError: Writing failed. Nothing is changed.
        """

    def remove(self, ids: Sequence[int]) -> None:
        """Remove items, and their files if they were uploaded. The decision is logged.

        Raises:
            InputError: An unknown item; nothing is changed.
        """
        with self._log.before(decide("remove", item) for item in self.stored_items(ids)):
            self._remove(ids)

    @abstractmethod
    def _remove(self, ids: Sequence[int]) -> None: ...

    @abstractmethod
    def select(self, where: str) -> list[int]:
        """Return the ids of all items that fulfil a condition, ascending.

        Raises:
            InputError: The condition is invalid.
        """

    def keep(self, item: StoredItem) -> None:
        """Log the decision that an item is right as it is."""
        self._log.append([decide("keep", item)])

    def amend(self, item: StoredItem, label: str | None, metadata: Mapping[str, Value]) -> None:
        """Change the label and the metadata of an item. The decision on another label is logged.

        Args:
            item: The item as it is now.
            label: Its label from now on.
            metadata: Values of the columns that change; `None` removes a value.

        Raises:
            InputError: The metadata does not fit the gallery's columns; nothing is changed.
        """
        with self._log.before([decide("label", item, label)] if label != item.label else []):
            self._amend([item], [label], metadata)

    def relabel(self, items: Sequence[StoredItem], labels: Sequence[str]) -> None:
        """Change the labels of items at once. The decisions are logged.

        Args:
            items: The items as they are now.
            labels: Their labels from now on.
        """
        with self._log.before(decide("label", *one) for one in zip(items, labels, strict=True)):
            self._amend(items, labels, {})

    @abstractmethod
    def _amend(
        self, items: Sequence[StoredItem], labels: Sequence[str | None], metadata: Mapping[str, Value]
    ) -> None: ...

    def undo(self, numbers: Sequence[int]) -> int:
        """Withdraw decisions, the newest first, and return the number of labels that changed back.

        A label changes back if it is still the one decided on. An image that was removed comes back when its
        folder is indexed again.

        Raises:
            InputError: There is no such decision; nothing is changed.
        """
        known = {one.n: one for one in self._log.read()}
        chosen = [known[n] for n in sorted(numbers, reverse=True) if n in known and not known[n].undone]
        changed = 0
        for one in chosen:
            items = self.stored_items([*self._ids_by_key([one.key]).values()])
            if one.action == "label" and items and items[0].label == one.new:
                self._amend(items[:1], [one.old], {})
                changed += 1
        self._log.undo(numbers)
        return changed

    @abstractmethod
    def _ids_by_key(self, keys: Sequence[str]) -> dict[str, int]:
        """Return the id of the item of each key; keys without one are left out."""

    @abstractmethod
    def stored_items(self, ids: Sequence[int]) -> list[StoredItem]:
        """Return all facts about items by id."""


class FileEditor(Editor):
    """Changes a gallery in files; each change is one transaction.

    Args:
        store: Its files.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store.folder)
        self._store = store
        self.manifest = store.manifest

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the write lock; see `Editor.writing`."""
        with self._store.writing():
            yield

    def add(
        self, uploads: Sequence[Upload], label: str | None, metadata: Mapping[str, Value] | None
    ) -> list[StoredUpload]:
        """Store uploads; see `Editor.add`."""
        return store_uploads(self._store, uploads, label, metadata)

    def _ids_by_key(self, keys: Sequence[str]) -> dict[str, int]:
        return ids_by_key(self._store, keys)

    def _remove(self, ids: Sequence[int]) -> None:
        started = now()
        removed = self._store.remove(ids)
        self._store.record_run("remove", started, {"removed": removed})

    def select(self, where: str) -> list[int]:
        """Return the ids of all items that fulfil a condition; see `Editor.select`."""
        return live_ids(self._store, parse_condition(where))

    def _amend(
        self, items: Sequence[StoredItem], labels: Sequence[str | None], metadata: Mapping[str, Value]
    ) -> None:
        check_metadata(self._store, metadata, [("metadata", metadata)])
        started, both = now(), zip(items, labels, strict=True)
        self._store.amend([Change(item.id, item.stamp(label), metadata) for item, label in both])
        self._store.record_run("update", started, {"described": len(items)})

    def stored_items(self, ids: Sequence[int]) -> list[StoredItem]:
        """Return all facts about items by id."""
        return self._store.items(ids)


class DatabaseEditor(Editor):
    """Changes a gallery in a database. The files of uploads are in the gallery folder.

    The lock is that of the folder: an upload's file and its item are written, or removed, together.

    Args:
        gallery: The gallery.
    """

    def __init__(self, gallery: DatabaseView) -> None:
        super().__init__(gallery.folder)
        self._gallery = gallery
        self.manifest = gallery.manifest

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the write lock of the folder; see `Editor.writing`."""
        try:
            with hold_lock(self._gallery.folder):
                yield
        except OSError as error:
            what = f"{self._gallery.folder}: cannot be written ({error.strerror})"
            raise LookalikeError(f"{what}; make the folder writable for this user") from error

    def add(
        self, uploads: Sequence[Upload], label: str | None, metadata: Mapping[str, Value] | None
    ) -> list[StoredUpload]:
        """Store uploads; see `Editor.add`."""
        engine, folder = self._gallery.engine, self._gallery.folder / UPLOADS
        ids = engine.ids_by("content_sha256", [upload.digest for upload in uploads])
        new = unknown(uploads, ids)
        if new:
            # Servers with folders of their own do not exclude each other: the name alone is no key.
            items = write_files(
                folder, new, label, metadata or {}, lambda keys: {keys[0], *engine.ids_by("key", keys[1:])}
            )
            vectors = np.stack([upload.vector for upload in new.values()])
            try:
                ids |= {item.content_sha256: item.id for item in self._gallery.put(items, vectors)}
            except InputError:  # after other errors, the items may have been written
                for item in items:
                    (folder / item.stamp.path).unlink(missing_ok=True)
                raise
        return stored_uploads(uploads, ids, new)

    def _ids_by_key(self, keys: Sequence[str]) -> dict[str, int]:
        return self._gallery.engine.ids_by("key", keys)

    def _remove(self, ids: Sequence[int]) -> None:
        self._gallery.remove(ids)

    def select(self, where: str) -> list[int]:
        """Return the ids of all items that fulfil a condition; see `Editor.select`."""
        return self._gallery.select(where=where)

    def _amend(
        self, items: Sequence[StoredItem], labels: Sequence[str | None], metadata: Mapping[str, Value]
    ) -> None:
        both = zip(items, labels, strict=True)
        self._gallery.amend([Amendment(item.id, {"label": label}, metadata) for item, label in both])

    def stored_items(self, ids: Sequence[int]) -> list[StoredItem]:
        """Return all facts about items by id."""
        return self._gallery.stored_items(ids)
