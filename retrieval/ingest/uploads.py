"""Uploads: images that arrive as bytes and are stored in the gallery's folder of uploads."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath

import numpy as np

from retrieval.files import atomic_write, now
from retrieval.galleries.writer import Writer
from retrieval.images.load import content_sha256, open_bytes
from retrieval.ingest.admission import Admission, Arrival, Original
from retrieval.ingest.picture_parts import refuse_column
from retrieval.storage.records import PICTURE, UPLOADS, FileStamp, NewItem, Value
from retrieval.system import fsync_folder

_MAX_NAME = 200  # characters


@dataclass(frozen=True, eq=False)
class Upload:
    """An image to store.

    Attributes:
        name: File name given by the client; untrusted.
        data: Bytes of a valid image file.
        vector: Embedding by the gallery's model, float32 [D].
        parts: Fragment and embedding of each part, in a gallery that divides pictures.
    """

    name: str
    data: bytes
    vector: np.ndarray
    parts: Sequence[tuple[str, np.ndarray]] = ()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the bytes, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class StoredUpload:
    """Item of an upload.

    Attributes:
        id: Item id.
        is_new: False if the gallery had an item with the same bytes before, or a near-duplicate.
        similarity: Cosine similarity to the item, of which it is a near-duplicate; `None` if the item has its
            bytes.
    """

    id: int
    is_new: bool
    similarity: float | None = None


def store_uploads(
    writer: Writer,
    uploads: Sequence[Upload],
    label: str | None = None,
    metadata: Mapping[str, Value] | None = None,
    door: Admission | None = None,
) -> list[StoredUpload]:
    """Store uploads and their files at once. Call it inside `writer.writing()`.

    The file name is the SHA-256 of the bytes, so a client never chooses a file name. The item's key is the
    client's name, sanitized, if no item has that key. Known bytes are not stored again.

    Args:
        writer: Writer of the gallery.
        uploads: Images to store.
        label: Label of all uploads.
        metadata: Metadata of all uploads, by column.
        door: Refuses near-duplicates; `None` to store them.

    Returns:
        The item of each upload.

    Raises:
        InputError: The metadata does not fit the gallery's columns. Nothing is changed.
        LookalikeError, OSError: Writing failed. Nothing is changed.
    """
    ids, given = writer.ids_by_content([upload.digest for upload in uploads]), metadata or {}
    if writer.manifest.objects:
        refuse_column(given, None)
    new: dict[str, Upload] = {}
    for upload in uploads:
        if upload.digest not in ids:
            new.setdefault(upload.digest, upload)
    near: dict[str, Original] = {}
    if door is not None:
        reviewed = door.review([Arrival(upload.vector, upload.digest) for upload in new.values()])
        near = {digest: one for digest, one in zip(new, reviewed, strict=True) if one is not None}
        new = {digest: upload for digest, upload in new.items() if digest not in near}
    if new:
        started, items = now(), list[NewItem]()
        writer.check_metadata(given, [("metadata", given)])
        try:
            items = _write_files(writer, new, label, given)
            every = [_with_parts(writer, *one) for one in zip(new.values(), items, strict=True)]
            vectors = np.stack([vector for some in every for _, vector in some])
            writer.commit(vectors, [item for some in every for item, _ in some])
        except BaseException as error:
            writer.discard(items, error)
            raise
        writer.record_run("add", started, {"added": len(vectors)})
        writer.merge()
        ids |= writer.ids_by_content([*new])
    return [
        StoredUpload(near[one.digest].id(ids), False, near[one.digest].score)
        if one.digest in near
        else StoredUpload(ids[one.digest], new.get(one.digest) is one)
        for one in uploads
    ]


def _write_files(
    writer: Writer, new: Mapping[str, Upload], label: str | None, metadata: Mapping[str, Value]
) -> list[NewItem]:
    """Write the files of uploads by SHA-256, and return the items to commit.

    Only the owner can read a new folder.
    """
    folder = writer.uploads
    if not folder.is_dir():
        folder.mkdir(0o700)
        fsync_folder(folder.parent)
    # The owner may let a group read the folder, but nobody else reads what visitors have uploaded.
    mode = folder.stat().st_mode & 0o660
    items: dict[str, NewItem] = {}
    for digest, upload in new.items():
        opened = open_bytes(upload.data, upload.name)
        file = folder / f"{digest}{opened.suffix}"
        with atomic_write(file) as draft:
            draft.touch(mode)
            draft.write_bytes(upload.data)
        status = file.stat()
        stamp = FileStamp(UPLOADS, file.name, status.st_size, status.st_mtime_ns, label)
        names = _names(upload.name, digest, opened.suffix)
        used = writer.taken(names) | items.keys()
        key = next((name for name in names if name not in used), names[-1])
        items[key] = NewItem(stamp, digest, *opened.upright_size, metadata, key)
    return list(items.values())


def _with_parts(writer: Writer, upload: Upload, item: NewItem) -> list[tuple[NewItem, np.ndarray]]:
    """Return the items of an upload's parts and, behind them, its own, each with its vector."""
    if not writer.manifest.objects:
        return [(item, upload.vector)]
    item = replace(item, metadata={**item.metadata, PICTURE: item.key})
    found = []
    for box, vector in upload.parts:
        stamp = replace(item.stamp, path=item.stamp.path + box)
        content = content_sha256(upload.data, box)
        found.append((replace(item, stamp=stamp, content_sha256=content, key=f"{item.key}{box}"), vector))
    return [*found, (item, upload.vector)]


def _names(name: str, digest: str, suffix: str) -> list[str]:
    """Return keys for an upload, the best first: the client's file name, then others that no item has.

    The suffix tells a key from a numeric id.
    """
    base = re.split(r"[/\\]", name)[-1]
    base = "".join(letter for letter in base if letter.isprintable())[-_MAX_NAME:].strip(" .")
    file = PurePosixPath(base or digest)
    file = file if file.suffix else file.with_name(f"{file.name}{suffix}")
    return [file.name, f"{file.stem}-{digest[:8]}{file.suffix}", f"{digest}{suffix}"]
