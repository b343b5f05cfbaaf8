"""Changes to a served gallery: adding and removing images."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from retrieval.errors import InputError, LockedError, LookalikeError
from retrieval.files import now
from retrieval.gallery import Item
from retrieval.ingest.uploads import StoredUpload, Upload, store_uploads
from retrieval.search.where import is_text
from retrieval.storage.records import StoredItem, Value
from retrieval.storage.store import Store
from serve.core.errors import (
    BusyError,
    ChangesNotAllowedError,
    UnavailableError,
    UnknownItemError,
    UnwritableError,
)
from serve.core.service import SearchService

MAX_IMAGES = 64  # per request
MAX_LABEL_LENGTH = 1000
_MIN_FREE_BYTES = 2**30  # that remain on the gallery's disk
_LOCK_SECONDS = 2.0  # to wait for another writer; changes of this server take less
_LOCK_RETRY_SECONDS = 0.02
_REBUILT = "the gallery was rebuilt in the meantime: reload it"
_log = logging.getLogger("lookalike.serve")


@dataclass(frozen=True)
class AddedImage:
    """Result of adding an image.

    Attributes:
        item: The item with the bytes of the image.
        is_new: Whether it was added; otherwise the gallery had these bytes already.
    """

    item: Item
    is_new: bool


def check_allowed(service: SearchService) -> None:
    """Raise a `ChangesNotAllowedError` unless visitors may change the gallery."""
    if not service.permissions.changes:
        raise ChangesNotAllowedError("adding and removing images is disabled: allow it with --allow-changes")


def add(
    service: SearchService,
    images: Sequence[tuple[str, bytes]],
    label: str | None = None,
    metadata: Mapping[str, Value] | None = None,
) -> list[AddedImage | InputError]:
    """Add images to the gallery, which stores their files. Return the result or error of each.

    Args:
        service: The gallery.
        images: File name and bytes of each image.
        label: Label of all images; empty or None for no label.
        metadata: Metadata of all images.

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
    if label and (len(label) > MAX_LABEL_LENGTH or not is_text(label)):
        raise InputError(f"invalid label: it must be text of at most {MAX_LABEL_LENGTH} characters")
    vectors, fingerprint = service.embed([data for _, data in images])
    uploads = [
        Upload(name, data, vector)
        for (name, data), vector in zip(images, vectors, strict=True)
        if isinstance(vector, np.ndarray)
    ]
    stored: list[StoredUpload] = []
    items: dict[int, StoredItem] = {}
    if uploads:
        _check_disk(service, sum(len(upload.data) for upload in uploads))
        with _writing(service) as store:
            if store.manifest.fingerprint != fingerprint:
                raise UnavailableError(_REBUILT)
            stored = store_uploads(store, uploads, label or None, metadata)
            items = {item.id: item for item in store.items([upload.id for upload in stored])}
    added = (AddedImage(_item(service, items[upload.id]), upload.is_new) for upload in stored)
    return [vector if isinstance(vector, InputError) else next(added) for vector in vectors]


def remove(service: SearchService, items: Sequence[int], *, uuid: str | None = None) -> None:
    """Remove images from the gallery in one transaction, and the files that the gallery stores itself.

    Args:
        service: The gallery.
        items: Ids of the items.
        uuid: UUID of the gallery that the ids were read from; a rebuilt gallery has other ids.

    Raises:
        ChangesNotAllowedError: Visitors may not change the gallery.
        UnknownItemError: An item does not exist; nothing is removed.
        BusyError, UnavailableError, UnwritableError: As for `add`.
    """
    check_allowed(service)
    with _writing(service) as store:
        if uuid not in (None, store.manifest.uuid):
            raise UnavailableError(_REBUILT)
        started = now()
        try:
            if any(item >= 2**63 for item in items):  # too large for SQLite
                raise InputError(f"no item {max(items)}; nothing was removed")
            removed = store.remove(items)
        except InputError as error:
            raise UnknownItemError(str(error)) from error
        store.record_run("remove", started, {"removed": removed})


@contextmanager
def _writing(service: SearchService) -> Iterator[Store]:
    """Hold the gallery's write lock, which excludes other threads and other processes."""
    try:
        with ExitStack() as stack:
            store = _lock(service, stack)
            yield store
    except LockedError as error:
        raise BusyError("another process is writing to the gallery: try again later") from error
    except (InputError, UnavailableError):
        raise
    except LookalikeError as error:
        _log.error("the gallery cannot be written", exc_info=error)
        raise UnwritableError("the gallery cannot be written: see the server's log") from error
    service.refresh()


def _lock(service: SearchService, stack: ExitStack) -> Store:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        store = _open(service)
        try:
            stack.enter_context(store.writing())
        except LockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOCK_RETRY_SECONDS)
        else:
            if _open(service).manifest.uuid != store.manifest.uuid:
                raise UnavailableError(_REBUILT)
            return store


def _open(service: SearchService) -> Store:
    try:
        return Store(service.folder)
    except InputError as error:  # its message has the path of the folder
        raise UnavailableError("the gallery cannot be read at the moment") from error


def _check_disk(service: SearchService, size: int) -> None:
    if shutil.disk_usage(service.folder).free < _MIN_FREE_BYTES + size:
        raise UnwritableError("the server's disk is nearly full: no image was added")


def _item(service: SearchService, item: StoredItem) -> Item:
    return Item(item.id, service.gallery.paths.of(item), item.label, item.metadata, item.key)
