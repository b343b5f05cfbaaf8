"""Records of a gallery: items, files, segments and the index as plain values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

Value = str | int | float | None
# Root of the uploaded files: relative to the gallery folder, so that they move with it.
UPLOADS = "pictures"
# Names of the uploaded files.
UPLOAD_NAME = re.compile(r"[0-9a-f]{64}\.[a-z]+")


@dataclass(frozen=True)
class FileStamp:
    """An image file as scanned: its place, and the facts by which a change is detected.

    Attributes:
        root: Folder that the path is relative to.
        path: Path below the root, with "/" as the separator.
        size: Size in bytes.
        mtime_ns: Modification time in nanoseconds.
        label: Label, if any.
    """

    root: str
    path: str
    size: int
    mtime_ns: int
    label: str | None = None

    @property
    def full(self) -> Path:
        """Path of the file, root included."""
        return Path(self.root, self.path)

    @property
    def key(self) -> tuple[str, str]:
        """Root and path, which identify the file."""
        return self.root, self.path


@dataclass(frozen=True)
class NewItem:
    """An embedded image, about to be committed.

    Attributes:
        stamp: Image file; root and path are empty for an item without a file.
        content_sha256: SHA-256 of the file's bytes; empty for an item without a file.
        width, height: Image size in pixels; 0 if unknown.
        metadata: Values by column; other columns keep the value of the item that this one replaces.
        key: Stable id for users; `None` for the path, or for the key that the path already has.
    """

    stamp: FileStamp
    content_sha256: str
    width: int
    height: int
    metadata: Mapping[str, Value] = field(default_factory=dict)
    key: str | None = None


@dataclass(frozen=True)
class StoredItem:
    """All facts about an item except its vector.

    Attributes:
        id: Item id, which is never used again.
        key: Stable id for users.
        root: Folder that the path is relative to; a relative one is below the gallery folder.
        path: Path below the root; empty for an item without a file.
        size: File size in bytes when it was embedded.
        mtime_ns: Modification time then, in nanoseconds.
        content_sha256: SHA-256 of the file's bytes; empty for an item without a file.
        width, height: Image size in pixels; 0 if unknown.
        label: Label, if any.
        metadata: Values by column, without the missing ones.
    """

    id: int
    key: str
    root: str
    path: str
    size: int
    mtime_ns: int
    content_sha256: str
    width: int
    height: int
    label: str | None
    metadata: dict[str, Value]

    @property
    def full(self) -> Path:
        """Path of the file, root included."""
        return Path(self.root, self.path)


@dataclass(frozen=True)
class ExistingItem:
    """The live item of an image file.

    Attributes:
        id: Item id.
        key: Item key.
        size: File size in bytes when it was embedded.
        mtime_ns: Modification time then, in nanoseconds.
        label: Label, if any.
        embedded: Whether it has a vector; False if that was lost to damage.
    """

    id: int
    key: str
    size: int
    mtime_ns: int
    label: str | None
    embedded: bool


@dataclass(frozen=True)
class Change:
    """New facts about an item whose vector stays; `None` leaves a fact unchanged.

    Attributes:
        id: Item id.
        stamp: Image file, with the label.
        metadata: Values by column, for the columns that change.
        key: Stable id for users.
    """

    id: int
    stamp: FileStamp | None = None
    metadata: Mapping[str, Value] = field(default_factory=dict)
    key: str | None = None


@dataclass(frozen=True)
class BadFile:
    """An unusable file.

    Attributes:
        stamp: Image file.
        reason: Reason as a code: one of `retrieval.errors.ImageError`, or of the scan, such as "name".
        detail: Reason as text.
    """

    stamp: FileStamp
    reason: str
    detail: str


@dataclass(frozen=True)
class Segment:
    """A file of vectors, float32 [n, D], with a file of item ids and checksums.

    Attributes:
        seg: Segment number.
        file: Name of the file of vectors.
        n: Number of rows.
        sha256: SHA-256 of the file of vectors.
        bytes: Size of the file of vectors.
        rows_sha256: SHA-256 of the file of item ids and checksums.
    """

    seg: int
    file: str
    n: int
    sha256: str
    bytes: int
    rows_sha256: str

    @property
    def rows_file(self) -> str:
        """Name of the file of item ids and checksums."""
        return f"{Path(self.file).stem}.rows.npy"


@dataclass(frozen=True)
class IndexSpec:
    """How to index a gallery.

    Attributes:
        kind: Index kind, one of `retrieval.search.kinds.NAMES`; `None` for the previous one, at first "auto".
        recall: Share of the 10 nearest neighbours that the index must find, above 0 and up to 1; `None` for
            the previous value, at first 0.99.
        memory: Bytes of memory that the index may use; `None` for the previous limit, at first none.
    """

    kind: str | None = None
    recall: float | None = None
    memory: int | None = None

    def or_else(self, previous: IndexSpec) -> IndexSpec:
        """Return this specification with its `None` values taken from a previous one."""
        return IndexSpec(
            previous.kind if self.kind is None else self.kind,
            previous.recall if self.recall is None else self.recall,
            previous.memory if self.memory is None else self.memory,
        )


@dataclass(frozen=True)
class ActiveIndex:
    """The index in use, over the first n rows of all segments, oldest first.

    Attributes:
        folder: Name of its folder below `indexes`.
        sha256: SHA-256 of its file `index.faiss`.
        kind: Index kind.
        n: Number of rows in it.
        card_sha256: SHA-256 of its file `card.json`.
    """

    folder: str
    sha256: str
    kind: str
    n: int
    card_sha256: str


@dataclass(frozen=True, eq=False)
class GalleryState:
    """One committed state of a gallery.

    Attributes:
        segments: Segments, oldest first; their rows ascend by item id.
        removed: Ids of removed items whose rows are still in the segments, int64 [m].
        index: Index in use; `None` for exact search.
    """

    segments: tuple[Segment, ...]
    removed: np.ndarray
    index: ActiveIndex | None
