"""Change a gallery while it is served: take pictures in, and take them out."""

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

MOST = 64  # pictures at a time
LONGEST_LABEL = 1000
_LEAST_FREE = 2**30  # bytes that stay free on the gallery's disk
_PATIENCE = 2.0  # seconds to wait for another writer; what a server writes itself takes less
_PAUSE = 0.02
_REBUILT = "the gallery was built anew just now: look at it again first"
_log = logging.getLogger("lookalike.serve")


@dataclass(frozen=True)
class Added:
    """The item that a picture is now, and whether it is new; otherwise an older one has the same bytes."""

    item: Item
    is_new: bool


def check_allowed(service: SearchService) -> None:
    """Raise a `ChangesNotAllowedError` unless visitors may change the gallery."""
    if not service.permissions.changes:
        raise ChangesNotAllowedError(
            "no images are added or removed here: `lookalike serve --allow-changes` lets them be"
        )


def add(
    service: SearchService,
    pictures: Sequence[tuple[str, bytes]],
    label: str | None = None,
    metadata: Mapping[str, Value] | None = None,
) -> list[Added | InputError]:
    """Take pictures into the gallery, which keeps their files -> for each its item, or what is wrong with it.

    Args:
        pictures: what its sender calls each, and the bytes of its file.
        label, metadata: of all of them; an empty label is none.

    Raises:
        ChangesNotAllowedError: the server was not started for this.
        NoModelError: the gallery cannot embed pictures.
        InputError: too many pictures, a label that is none, metadata that does not fit the gallery's columns.
        BusyError: another process has been writing the gallery for a while.
        UnavailableError: the gallery cannot be read, or was rebuilt with another model meanwhile.
        UnwritableError: there is no room, or no permission. Nothing is changed then, as with all of these.
    """
    check_allowed(service)
    if len(pictures) > MOST:
        raise InputError(f"{len(pictures)} images at once: at most {MOST} are taken")
    if label and (len(label) > LONGEST_LABEL or not is_text(label)):
        raise InputError(f"a label is a text of at most {LONGEST_LABEL} characters")
    embedded, fingerprint = service.embed([data for _, data in pictures])
    given = [
        Upload(name, data, vector)
        for (name, data), vector in zip(pictures, embedded, strict=True)
        if isinstance(vector, np.ndarray)
    ]
    kept: list[StoredUpload] = []
    items: dict[int, StoredItem] = {}
    if given:
        _check_room(service, sum(len(one.data) for one in given))
        with _writing(service) as store:
            if store.manifest.fingerprint != fingerprint:
                raise UnavailableError(_REBUILT)
            kept = store_uploads(store, given, label or None, metadata)
            items = {item.id: item for item in store.items([one.id for one in kept])}
    each = (Added(_item(service, items[one.id]), one.is_new) for one in kept)
    return [vector if isinstance(vector, InputError) else next(each) for vector in embedded]


def remove(service: SearchService, numbers: Sequence[int], *, uuid: str | None = None) -> None:
    """Take pictures out of the gallery, in one step; files that it keeps itself go with them, others stay.

    Args:
        numbers: of the items.
        uuid: of the gallery that the numbers were read in; in another that took its place, they mean others.

    Raises:
        ChangesNotAllowedError: the server was not started for this.
        UnknownItemError: one of them is not there; nothing is changed then.
        BusyError, UnavailableError, UnwritableError: as for `add`.
    """
    check_allowed(service)
    with _writing(service) as store:
        if uuid not in (None, store.manifest.uuid):
            raise UnavailableError(_REBUILT)
        started = now()
        try:
            if any(number >= 2**63 for number in numbers):  # more than the database can count
                raise InputError(f"no item {max(numbers)}; nothing was removed")
            removed = store.remove(numbers)
        except InputError as error:
            raise UnknownItemError(str(error)) from error
        store.record_run("remove", started, {"removed": removed})
        store.clear_leftovers()


@contextmanager
def _writing(service: SearchService) -> Iterator[Store]:
    """Hold the gallery's lock, which keeps out other threads as well as other processes."""
    try:
        with ExitStack() as held:
            store = _locked(service, held)
            yield store
    except LockedError as error:
        raise BusyError("another process is writing the gallery: try again when it is done") from error
    except (InputError, UnavailableError):
        raise
    except LookalikeError as error:
        _log.error("the gallery cannot be written", exc_info=error)
        raise UnwritableError("the gallery cannot be written here: the server's log says why") from error
    service.take_up()


def _locked(service: SearchService, held: ExitStack) -> Store:
    until = time.monotonic() + _PATIENCE
    while True:
        store = _opened(service)
        try:
            held.enter_context(store.writing())
        except LockedError:
            if time.monotonic() > until:
                raise
            time.sleep(_PAUSE)
        else:
            if _opened(service).manifest.uuid != store.manifest.uuid:
                raise UnavailableError(_REBUILT)
            return store


def _opened(service: SearchService) -> Store:
    try:
        return Store(service.folder)
    except InputError as error:  # which names the folder
        raise UnavailableError("the gallery cannot be read at the moment") from error


def _check_room(service: SearchService, size: int) -> None:
    if shutil.disk_usage(service.folder).free < _LEAST_FREE + size:
        raise UnwritableError("the server's disk is nearly full, so that no image is taken in")


def _item(service: SearchService, item: StoredItem) -> Item:
    return Item(item.id, service.gallery.paths.of(item), item.label, item.metadata, item.key)
