"""Pictures that come as bytes and have no file of their own: the gallery keeps them in its folder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.files import atomic_write, fsync_folder, now
from retrieval.images.load import open_bytes
from retrieval.ingest.plan import check_columns
from retrieval.ingest.sources import ImageFile
from retrieval.storage.queries import ids_by_key, items_by_content
from retrieval.storage.records import OWN, FileStamp, NewItem, Value
from retrieval.storage.store import Store
from retrieval.upkeep.compact import merge_newest

_LONGEST_NAME = 200


@dataclass(frozen=True, eq=False)
class Upload:
    """A picture that came as bytes.

    Attributes:
        name: what its sender calls it, which may be anything.
        data: the bytes of a file that can be decoded.
        vector: of the gallery's model, float32 [D].
    """

    name: str
    data: bytes
    vector: np.ndarray


@dataclass(frozen=True)
class StoredUpload:
    """The item that a picture is, and whether it is new; otherwise an older one has the same bytes."""

    id: int
    is_new: bool


def store_uploads(
    store: Store,
    given: Sequence[Upload],
    label: str | None = None,
    metadata: Mapping[str, Value] | None = None,
) -> list[StoredUpload]:
    """Put pictures into a gallery with their files, in one step. Call it inside `store.writing()`.

    A file is called by the SHA-256 of its bytes, so that no name of a sender's ever becomes one; the item's
    key is the name, as far as it can be one and is free. Bytes that the gallery holds are not kept again.

    Args:
        label, metadata: of all of them.

    Raises:
        InputError: metadata that does not fit the gallery's columns; nothing is changed then.
        LookalikeError, OSError: it cannot be written; nothing is changed then.
    """
    digests = [hashlib.sha256(picture.data).hexdigest() for picture in given]
    known = items_by_content(store, digests)
    fresh: dict[str, Upload] = {}
    for digest, picture in zip(digests, given, strict=True):
        if digest not in known:
            fresh.setdefault(digest, picture)
    if fresh:
        started = now()
        check_columns(store, [ImageFile("", "metadata", 0, 0, metadata=metadata or {})])
        try:
            items = _written(store, fresh, label, metadata or {})
            store.commit(np.stack([picture.vector for picture in fresh.values()]), items)
        except BaseException:
            with suppress(OSError, LookalikeError):
                store.clear_leftovers()  # the files
            raise
        store.record_run("add", started, {"added": len(items)})
        merge_newest(store)
        ids = ids_by_key(store, [item.key for item in items if item.key is not None])
        known |= {item.content_sha256: ids[item.key] for item in items if item.key is not None}
    first = {digest: place for place, digest in reversed([*enumerate(digests)])}
    return [
        StoredUpload(known[digest], is_new=digest in fresh and first[digest] == place)
        for place, digest in enumerate(digests)
    ]


def _written(
    store: Store, fresh: Mapping[str, Upload], label: str | None, metadata: Mapping[str, Value]
) -> list[NewItem]:
    """Write the files of pictures, which are named by the SHA-256 of their bytes -> the items to be."""
    if not store.own.is_dir():
        store.own.mkdir()
        fsync_folder(store.own.parent)
    items: dict[str, NewItem] = {}
    for digest, picture in fresh.items():
        opened = open_bytes(picture.data, picture.name)
        file = store.own / f"{digest}{opened.suffix}"
        with atomic_write(file) as draft:
            draft.write_bytes(picture.data)
        status = file.stat()
        stamp = FileStamp(OWN, file.name, status.st_size, status.st_mtime_ns, label)
        key = _key(store, picture.name, digest, opened.suffix, items)
        items[key] = NewItem(stamp, digest, *opened.upright, metadata, key)
    return list(items.values())


def _key(store: Store, name: str, digest: str, suffix: str, taken: Collection[str]) -> str:
    """A key that no item has, as like the sender's name as can be; never a bare number, which is an id."""
    base = re.split(r"[/\\]", name)[-1]
    base = "".join(letter for letter in base if letter.isprintable())[-_LONGEST_NAME:].strip(" .")
    named = PurePosixPath(base or digest)
    named = named if named.suffix else named.with_name(f"{named.name}{suffix}")
    for key in (named.name, f"{named.stem}-{digest[:8]}{named.suffix}"):
        if key not in taken and not ids_by_key(store, [key]):
            return key
    return f"{digest}{suffix}"
