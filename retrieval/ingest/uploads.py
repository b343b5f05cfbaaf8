"""Uploads: images that arrive as bytes and are stored in the gallery's folder of uploads."""

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
from retrieval.ingest.plan import check_metadata
from retrieval.storage.queries import ids_by_key, items_by_content
from retrieval.storage.records import UPLOADS, FileStamp, NewItem, Value
from retrieval.storage.store import Store
from retrieval.upkeep.compact import merge_small

_MAX_NAME = 200  # characters


@dataclass(frozen=True, eq=False)
class Upload:
    """An image to store.

    Attributes:
        name: File name given by the client; untrusted.
        data: Bytes of a valid image file.
        vector: Embedding by the gallery's model, float32 [D].
    """

    name: str
    data: bytes
    vector: np.ndarray


@dataclass(frozen=True)
class StoredUpload:
    """Item of an upload.

    Attributes:
        id: Item id.
        is_new: False if the gallery had an item with the same bytes before.
    """

    id: int
    is_new: bool


def store_uploads(
    store: Store,
    uploads: Sequence[Upload],
    label: str | None = None,
    metadata: Mapping[str, Value] | None = None,
) -> list[StoredUpload]:
    """Store uploads and their files in one transaction. Call it inside `store.writing()`.

    The file name is the SHA-256 of the bytes, so a client never chooses a file name. The item's key is the
    client's name, sanitized, if no item has that key. Known bytes are not stored again.

    Args:
        store: Store of the gallery.
        uploads: Images to store.
        label: Label of all uploads.
        metadata: Metadata of all uploads, by column.

    Returns:
        The item of each upload.

    Raises:
        InputError: The metadata does not fit the gallery's columns. Nothing is changed.
        LookalikeError, OSError: Writing failed. Nothing is changed.
    """
    digests = [hashlib.sha256(upload.data).hexdigest() for upload in uploads]
    known = items_by_content(store, digests)
    new: dict[str, Upload] = {}
    for digest, upload in zip(digests, uploads, strict=True):
        if digest not in known:
            new.setdefault(digest, upload)
    if new:
        started = now()
        check_metadata(store, metadata or {}, [("metadata", metadata or {})])
        try:
            items = _write_files(store, new, label, metadata or {})
            store.commit(np.stack([upload.vector for upload in new.values()]), items)
        except BaseException:
            with suppress(OSError, LookalikeError):
                store.clear_leftovers()  # the new files
            raise
        store.record_run("add", started, {"added": len(items)})
        merge_small(store)
        ids = ids_by_key(store, [item.key for item in items if item.key is not None])
        known |= {item.content_sha256: ids[item.key] for item in items if item.key is not None}
    first = {digest: i for i, digest in reversed([*enumerate(digests)])}
    return [
        StoredUpload(known[digest], is_new=digest in new and first[digest] == i)
        for i, digest in enumerate(digests)
    ]


def _write_files(
    store: Store, new: Mapping[str, Upload], label: str | None, metadata: Mapping[str, Value]
) -> list[NewItem]:
    """Write the files of uploads, by the SHA-256 of their bytes, and return the items to commit."""
    if not store.uploads.is_dir():
        store.uploads.mkdir()
        fsync_folder(store.uploads.parent)
    items: dict[str, NewItem] = {}
    for digest, upload in new.items():
        opened = open_bytes(upload.data, upload.name)
        file = store.uploads / f"{digest}{opened.suffix}"
        with atomic_write(file) as draft:
            draft.write_bytes(upload.data)
        status = file.stat()
        stamp = FileStamp(UPLOADS, file.name, status.st_size, status.st_mtime_ns, label)
        key = _key(store, upload.name, digest, opened.suffix, items)
        items[key] = NewItem(stamp, digest, *opened.upright_size, metadata, key)
    return list(items.values())


def _key(store: Store, name: str, digest: str, suffix: str, taken: Collection[str]) -> str:
    """Return a free key derived from the client's file name; its suffix tells it from a numeric id."""
    base = re.split(r"[/\\]", name)[-1]
    base = "".join(letter for letter in base if letter.isprintable())[-_MAX_NAME:].strip(" .")
    file = PurePosixPath(base or digest)
    file = file if file.suffix else file.with_name(f"{file.name}{suffix}")
    for key in (file.name, f"{file.stem}-{digest[:8]}{file.suffix}"):
        if key not in taken and not ids_by_key(store, [key]):
            return key
    return f"{digest}{suffix}"
