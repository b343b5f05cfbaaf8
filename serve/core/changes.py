"""Changes to a served gallery: adding, describing and removing images."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum

from retrieval.errors import InputError, LockedError, LookalikeError, StoreError, pointing
from retrieval.galleries.items import Item, item_values
from retrieval.ingest.admission import Admission
from retrieval.ingest.editor import Editor
from retrieval.ingest.uploads import StoredUpload, Upload
from retrieval.search.options import Duplicates
from retrieval.search.where import is_text
from retrieval.storage.records import StoredItem, Value
from retrieval.text import pluralize
from serve.core.errors import (
    BusyError,
    ChangesNotAllowedError,
    CountMismatchError,
    UnavailableError,
    UnknownItemError,
    UnwritableError,
)
from serve.core.queries import find_item
from serve.core.service import SearchService

MAX_IMAGES = 64  # per request
MAX_LABEL_LENGTH = 1000
_MIN_FREE_BYTES = 2**30  # that remain on the gallery's disk
_LOCK_SECONDS = 2.0  # to wait for another writer; changes of this server take less
_LOCK_RETRY_SECONDS = 0.02
_REBUILT = "the gallery was rebuilt in the meantime: reload it"
_log = logging.getLogger("lookalike.serve")


class _Unchanged(Enum):
    """Stands for a label that a change leaves as it is, where `None` is no label."""

    UNCHANGED = 0


UNCHANGED = _Unchanged.UNCHANGED
Check = Callable[[Item], None]
"""Raises an `InputError` if an item is not as it has to be; called while nobody else changes the gallery."""


@dataclass(frozen=True)
class AddedImage:
    """Result of adding an image.

    Attributes:
        item: The item with the bytes of the image, or one of which it is a near-duplicate.
        is_new: Whether it was added; otherwise the gallery had these bytes, or a near-duplicate, already.
        similarity: Cosine similarity of a near-duplicate to the item; `None` for the same bytes.
    """

    item: Item
    is_new: bool
    similarity: float | None = None

    def other_metadata(self, given: Mapping[str, Value] | None) -> dict[str, Value]:
        """Return those of the given values that the item does not have."""
        stored = {name.lower(): value for name, value in self.item.metadata.items()}
        return {name: value for name, value in (given or {}).items() if stored.get(name.lower()) != value}


@dataclass(frozen=True)
class Selection:
    """Images that a condition selects.

    Attributes:
        ids: Ids of all of them, ascending.
        removed: Whether they were removed.
    """

    ids: list[int]
    removed: bool


@dataclass(frozen=True)
class NewLabel:
    """A label that an image is to have.

    Attributes:
        id: Id of the item.
        old: Its label as it was read; None for none.
        label: Its label from now on; None for none.
    """

    id: int
    old: str | None
    label: str | None


@dataclass(frozen=True)
class Labelled:
    """What became of new labels.

    Attributes:
        decisions: Ids of the items whose label was changed, each with the number of the decision.
        changed: Items that had another label than was read, as they are; nothing was changed about them.
        missing: Ids of those that are no longer in the gallery.
    """

    decisions: dict[int, int]
    changed: list[Item]
    missing: list[int]


def check_allowed(service: SearchService) -> None:
    """Raise a `ChangesNotAllowedError` unless visitors may change the gallery."""
    if not service.permissions.changes:
        raise ChangesNotAllowedError("changing the gallery is disabled: allow it with --allow-changes")


def add(
    service: SearchService,
    images: Sequence[tuple[str, bytes]],
    label: str | None = None,
    metadata: Mapping[str, Value] | None = None,
    *,
    duplicates: Duplicates = "keep",
) -> list[AddedImage | InputError]:
    """Add images to the gallery, which stores their files. Return the result or error of each.

    Args:
        service: The gallery.
        images: File name and bytes of each image.
        label: Label of all images; empty or None for no label.
        metadata: Metadata of all images.
        duplicates: What becomes of near-duplicates.

    Raises:
        ChangesNotAllowedError: Visitors may not change the gallery.
        NoModelError: The gallery has no model.
        InputError: Too many images, an invalid label, or metadata that does not fit the gallery's columns.
        BusyError: Another process is writing to the gallery.
        UnavailableError: The gallery cannot be read, or was rebuilt with another model in the meantime.
        UnwritableError: The disk is full or read-only. Nothing is changed, as with all of these.
    """
    check_allowed(service)
    if len(images) > MAX_IMAGES:
        raise InputError(f"{len(images)} images at once: send at most {MAX_IMAGES}")
    _check_label(label)
    embedded, then = service.embed_uploads(images)
    uploads = [one for one in embedded if isinstance(one, Upload)]
    stored: list[StoredUpload] = []
    items: dict[int, StoredItem] = {}
    if uploads:
        _check_disk(service, sum(len(upload.data) for upload in uploads))
        with writing(service) as editor:
            now = editor.manifest
            if (now.fingerprint, now.parts) != (then.fingerprint, then.parts):
                raise UnavailableError(_REBUILT)
            door = None
            if duplicates == "refuse":
                service.refresh()  # another process may have added images
                door = Admission(service.gallery)
            with pointing("#/metadata"):
                stored = editor.add(uploads, label or None, metadata, door)
            items = {item.id: item for item in editor.stored_items([upload.id for upload in stored])}
    added = (
        AddedImage(_item(service, items[upload.id]), upload.is_new, upload.similarity) for upload in stored
    )
    return [one if isinstance(one, InputError) else next(added) for one in embedded]


def remove(
    service: SearchService, items: Sequence[int], *, uuid: str | None = None, check: Check | None = None
) -> None:
    """Remove images from the gallery in one transaction, and the files that the gallery stores itself.

    Args:
        service: The gallery.
        items: Ids of the items.
        uuid: UUID of the gallery that the ids were read from; a rebuilt gallery has other ids.
        check: Receives each item as it is now; what it raises keeps all of them.

    Raises:
        ChangesNotAllowedError: Visitors may not change the gallery.
        UnknownItemError: An item does not exist; nothing is removed.
        BusyError, UnavailableError, UnwritableError: As for `add`.
    """
    check_allowed(service)
    with writing(service) as editor:
        if uuid not in (None, editor.manifest.uuid):
            raise UnavailableError(_REBUILT)
        if check is not None:
            service.refresh()  # another process may have changed them
            for item in items:
                check(find_item(service.gallery, item))
        try:
            if any(item >= 2**63 for item in items):  # too large for SQLite
                raise InputError(f"no item {max(items)}; nothing was removed")
            editor.remove(items)
        except InputError as error:
            raise UnknownItemError(service.gallery.public(str(error))) from error


def select(service: SearchService, where: str) -> Selection:
    """Return the images that `remove_selected` would remove, and change nothing.

    Raises:
        ChangesNotAllowedError: Visitors may not change the gallery.
        InputError: The condition is invalid.
        UnavailableError: The gallery cannot be read.
    """
    check_allowed(service)
    condition = service.condition(where)
    ids, _ = service.read(lambda gallery: gallery.select(where=condition))
    return Selection(ids, removed=False)


def remove_selected(service: SearchService, where: str, expected: int) -> Selection:
    """Remove all images that fulfil a condition, if they are as many as expected.

    Args:
        service: The gallery.
        where: The condition.
        expected: Number of images, from `select`.

    Raises:
        CountMismatchError: They are more or fewer now.
        InputError: The condition is invalid.
        ChangesNotAllowedError, BusyError, UnavailableError, UnwritableError: As for `add`. Nothing is
            removed, as with all of these.
    """
    check_allowed(service)
    condition = service.condition(where)
    assert condition is not None
    with writing(service) as editor:
        ids = editor.select(condition)
        if len(ids) != expected:
            what = f"the condition selects {pluralize(len(ids), 'image')} now, not {expected}"
            raise CountMismatchError(f"{what}; nothing was removed: look at them again with dry_run")
        if ids:
            editor.remove(ids)
    return Selection(ids, removed=True)


def update(
    service: SearchService,
    item: int,
    label: str | _Unchanged | None = UNCHANGED,
    metadata: Mapping[str, Value] | None = None,
    *,
    check: Check | None = None,
) -> Item:
    """Change the label or metadata of an image, and return it.

    Args:
        service: The gallery.
        item: Id of the item.
        label: Its label from now on; empty or None for none.
        metadata: Values of the columns that change; None removes a value.
        check: Receives the item as it is now; what it raises keeps it.

    Raises:
        UnknownItemError: There is no such image.
        InputError: An invalid label, or metadata that does not fit the gallery's columns.
        ChangesNotAllowedError, BusyError, UnavailableError, UnwritableError: As for `add`. Nothing is
            changed, as with all of these.
    """
    check_allowed(service)
    if label is not UNCHANGED:
        _check_label(label)
    with writing(service) as editor:
        service.refresh()  # another process may have removed the image
        present = find_item(service.gallery, item)
        if check is not None:
            check(present)
        (before,) = editor.stored_items([item])
        after = before.label if label is UNCHANGED else label or None
        if after != before.label or metadata:
            with pointing("#/metadata"):
                editor.amend(before, after, metadata or {})
        (changed,) = editor.stored_items([item])
    return _item(service, changed)


def relabel(service: SearchService, wanted: Sequence[NewLabel]) -> Labelled:
    """Change the labels of those images that still have the label that was read, in one transaction.

    Args:
        service: The gallery.
        wanted: The labels, at most one for each image.

    Raises:
        InputError: An invalid label.
        ChangesNotAllowedError, BusyError, UnavailableError, UnwritableError: As for `add`. Nothing is
            changed, as with all of these.
    """
    check_allowed(service)
    for one in wanted:
        _check_label(one.label)
    with writing(service) as editor:
        service.refresh()  # another process may have removed or changed them
        present = service.gallery.items([one.id for one in wanted])
        there = [one for one in wanted if one.id in present]
        same = [one for one in there if (present[one.id].label or None) == one.old]
        chosen = [one for one in same if one.label != one.old]
        numbers: list[int] = []
        if chosen:
            stored = {item.id: item for item in editor.stored_items([one.id for one in chosen])}
            numbers = editor.relabel([stored[one.id] for one in chosen], [one.label for one in chosen])
        others = {one.id for one in there} - {one.id for one in same}
    return Labelled(
        {one.id: number for one, number in zip(chosen, numbers, strict=True)},
        [present[one.id] for one in there if one.id in others],
        [one.id for one in wanted if one.id not in present],
    )


@contextmanager
def writing(service: SearchService) -> Iterator[Editor]:
    """Hold the gallery's write lock, which excludes other threads and other processes.

    Raises:
        BusyError, UnavailableError, UnwritableError: As for `add`.
    """
    try:
        with ExitStack() as stack:
            editor = _lock(service, stack)
            yield editor
    except LockedError as error:
        raise BusyError("another process is writing to the gallery: try again later") from error
    except (InputError, UnavailableError, StoreError):
        raise
    except LookalikeError as error:
        _log.error("the gallery cannot be written", exc_info=error)
        raise UnwritableError("the gallery cannot be written: see the server's log") from error
    service.refresh()


def _lock(service: SearchService, stack: ExitStack) -> Editor:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        editor = _open(service)
        try:
            stack.enter_context(editor.writing())
        except LockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOCK_RETRY_SECONDS)
        else:
            if _open(service).manifest.uuid != editor.manifest.uuid:
                raise UnavailableError(_REBUILT)
            return editor


def _open(service: SearchService) -> Editor:
    try:
        return service.gallery.editor()
    except InputError as error:  # its message has the path of the folder
        raise UnavailableError("the gallery cannot be read at the moment") from error


def _check_label(label: str | None) -> None:
    if label and (len(label) > MAX_LABEL_LENGTH or not is_text(label)):
        with pointing("#/label"):
            raise InputError(f"invalid label: it must be text of at most {MAX_LABEL_LENGTH} characters")


def _check_disk(service: SearchService, size: int) -> None:
    if shutil.disk_usage(service.folder).free < _MIN_FREE_BYTES + size:
        raise UnwritableError("the server's disk is nearly full: no image was added")


def _item(service: SearchService, item: StoredItem) -> Item:
    return Item(*item_values(item, service.gallery.paths.shown(item)))
