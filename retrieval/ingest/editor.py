"""Changes of a few items at a time, as a server makes them. Decisions are logged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from retrieval.errors import InputError
from retrieval.files import now
from retrieval.galleries.writer import Writer
from retrieval.ingest.admission import Admission
from retrieval.ingest.picture_parts import refuse_column, with_changes_of_parts
from retrieval.ingest.uploads import StoredUpload, Upload, store_uploads
from retrieval.storage.decisions import DecisionLog, decide
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import Change, StoredItem, Value


class Editor:
    """Adds uploads to a gallery, and changes and removes items. Call its methods inside `writing`.

    Args:
        writer: Writer of the gallery.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer, self._log = writer, DecisionLog(writer.folder)

    @property
    def manifest(self) -> Manifest:
        """Facts about the gallery, as they are now."""
        return self._writer.manifest

    def writing(self) -> AbstractContextManager[None]:
        """Hold the write lock of the gallery folder.

        Raises:
            LockedError: Another process is writing.
            LookalikeError: The folder cannot be written.
        """
        return self._writer.writing()

    def add(
        self,
        uploads: Sequence[Upload],
        label: str | None,
        metadata: Mapping[str, Value] | None,
        door: Admission | None = None,
    ) -> list[StoredUpload]:
        """Store uploads with their files, and return the item of each; known bytes are not stored again.

        Near-duplicates are not stored, either, if a door refuses them.

        Raises:
            InputError: The metadata does not fit the gallery's columns. Nothing is changed.
            LookalikeError: Writing failed. Nothing is changed.
        """
        return store_uploads(self._writer, uploads, label, metadata, door)

    def remove(self, ids: Sequence[int]) -> None:
        """Remove items, and their files if they were uploaded. The decision is logged.

        The parts of a picture go with it, in a gallery that divides pictures.

        Raises:
            InputError: An unknown item; nothing is changed.
        """
        items = self.stored_items(ids)
        if missing := {*ids} - {item.id for item in items}:
            raise InputError(f"no item {min(missing)}; nothing was removed")
        with self._log.before(decide("remove", item) for item in items):
            started = now()
            removed = self._writer.remove(self._writer.with_parts(ids))
            self._writer.record_run("remove", started, {"removed": removed})

    def select(self, where: str) -> list[int]:
        """Return the ids of all items that fulfil a condition, ascending.

        Raises:
            InputError: The condition is invalid.
        """
        return self._writer.matching(where)

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

    def relabel(self, items: Sequence[StoredItem], labels: Sequence[str | None]) -> list[int]:
        """Change the labels of items at once. The decisions are logged; return their numbers.

        Args:
            items: The items as they are now.
            labels: Their labels from now on.
        """
        with self._log.before(decide("label", *one) for one in zip(items, labels, strict=True)) as numbers:
            self._amend(items, labels, {})
        return numbers

    def _amend(
        self, items: Sequence[StoredItem], labels: Sequence[str | None], metadata: Mapping[str, Value]
    ) -> None:
        self._writer.check_metadata(metadata, [("metadata", metadata)])
        if self._writer.manifest.objects:
            refuse_column(metadata, None)
        started, both = now(), zip(items, labels, strict=True)
        changes = [Change(item.id, item.stamp(label), metadata) for item, label in both]
        changes = with_changes_of_parts(self._writer, items, changes)
        self._writer.amend(changes)
        self._writer.record_run("update", started, {"described": len(changes)})

    def undo(self, numbers: Sequence[int]) -> list[int]:
        """Withdraw decisions, the newest first, and return the numbers of those whose label changed back.

        A label changes back if it is still the one decided on. An image that was removed comes back when its
        folder is indexed again.

        Raises:
            InputError: There is no such decision; nothing is changed.
        """
        known = {one.n: one for one in self._log.read()}
        chosen = [known[n] for n in sorted(numbers, reverse=True) if n in known and not known[n].undone]
        relabelled = [one for one in chosen if one.action == "label"]
        ids = self._writer.ids_by_key([one.key for one in relabelled])
        items = self.stored_items([*ids.values()])
        labels = {item.key: item.label for item in items}
        changed = []
        for one in relabelled:
            if one.key in labels and labels[one.key] == one.new:
                labels[one.key] = one.old
                changed.append(one.n)
        if others := [item for item in items if labels[item.key] != item.label]:
            self._amend(others, [labels[item.key] for item in others], {})
        self._log.undo(numbers)
        return changed

    def stored_items(self, ids: Sequence[int]) -> list[StoredItem]:
        """Return all facts about items by id."""
        return self._writer.items(ids)
