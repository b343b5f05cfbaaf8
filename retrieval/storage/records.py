"""Records of a gallery: items, files, segments and the index as plain values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from retrieval.images.location import shown

Value = str | int | float | None
MISSING = object()  # stands for a value that is not given, where `None` is given as a value
# Values of n items by column: `Value` or `MISSING`.
MetadataColumns = Mapping[str, Sequence[object]]
# Root of the uploaded files: relative to the gallery folder, so that they move with it.
UPLOADS = "pictures"
# Column of the picture that items are parts of, in a gallery that divides pictures.
PICTURE = "picture"
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
    def shown(self) -> str:
        """Path of the file as users see it: a remote file's URL."""
        return shown(str(self.full))

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
class Facts:
    """Facts about n items as columns of n values, in the order of the columns of the table `items`.

    Attributes:
        key: Stable ids for users, all different.
        root, path, size, mtime_ns: As for `FileStamp`; empty and 0 for items without a file.
        content_sha256, width, height: As for `NewItem`.
        label: Labels; `None` for an item without one.
    """

    key: Sequence[str]
    root: Sequence[str]
    path: Sequence[str]
    size: Sequence[int]
    mtime_ns: Sequence[int]
    content_sha256: Sequence[str]
    width: Sequence[int]
    height: Sequence[int]
    label: Sequence[str | None]

    def __len__(self) -> int:
        return len(self.key)

    @property
    def columns(self) -> tuple[Sequence[Any], ...]:
        """The columns, in order."""
        return tuple(vars(self).values())

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the facts about each item, in order."""
        return zip(*self.columns, strict=True)

    def __getitem__(self, some: slice) -> Facts:
        return Facts(*(column[some] for column in self.columns))


NO_FACTS = ("", "", "", 0, 0, "", 0, 0, None)  # in the order of `Facts`, about an item that is not known


class StoredItem(NamedTuple):
    """All facts about an item except its vector. A named tuple, since a search makes many.

    Attributes:
        id: Item id, which stays with the key and is never used for another one.
        key: Stable id for users.
        root: Folder that the path is relative to; a relative one is below the gallery folder.
        path: Path below the root; empty for an item without a file.
        size: File size in bytes when it was embedded.
        mtime_ns: Modification time then, in nanoseconds.
        content_sha256: SHA-256 of the file's bytes; empty for an item without a file.
        width, height: Image size in pixels; 0 if unknown.
        label: Label, if any.
        vector: Number of its vector; `None` if it waits to be embedded again.
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
    vector: int | None
    metadata: dict[str, Value]

    @property
    def full(self) -> Path:
        """Path of the file, root included."""
        return Path(self.root, self.path)

    def stamp(self, label: str | None) -> FileStamp:
        """Return its file with another label."""
        return FileStamp(self.root, self.path, self.size, self.mtime_ns, label)


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
    """A file of vectors [n, D], with a file of rows and a file of facts; see `retrieval.storage.segments`.

    Attributes:
        seg: Segment number.
        file: Name of the file of vectors.
        n: Number of rows.
        first, last: Lowest and highest vector number.
        mark: `segments.mark_of` its rows; `None` if an earlier version wrote it.
    """

    seg: int
    file: str
    n: int
    first: int
    last: int
    mark: int | None = None


@dataclass(frozen=True)
class IndexSpec:
    """How to index a gallery.

    Attributes:
        kind: Index kind, one of `retrieval.search.kinds.NAMES`; `None` for the previous one, at first "auto".
        recall: Share of the 10 nearest neighbours that the index must find, above 0 and up to 1; `None` for
            the previous value, at first 0.99.
        memory: Bytes of memory that the index may use; `None` for the previous limit, at first none.
        dim: Leading dimensions of the vectors that the index holds, of unit length again; 0 for all of them;
            `None` for the previous number, at first all.
    """

    kind: str | None = None
    recall: float | None = None
    memory: int | None = None
    dim: int | None = None

    def or_else(self, previous: IndexSpec) -> IndexSpec:
        """Return this specification with its `None` values taken from a previous one."""
        return IndexSpec(
            previous.kind if self.kind is None else self.kind,
            previous.recall if self.recall is None else self.recall,
            previous.memory if self.memory is None else self.memory,
            previous.dim if self.dim is None else self.dim,
        )


@dataclass(frozen=True)
class ActiveIndex:
    """The index in use, over the vectors up to a number.

    Attributes:
        folder: Name of its folder below `indexes`.
        sha256: SHA-256 of its file `index.faiss`.
        kind: Index kind.
        n: Number of vectors in it.
        last: Highest vector number that it covers.
        card_sha256: SHA-256 of its file `card.json`.
    """

    folder: str
    sha256: str
    kind: str
    n: int
    last: int
    card_sha256: str


@dataclass(frozen=True, eq=False)
class GalleryState:
    """One committed state of a gallery.

    Attributes:
        segments: Segments, oldest first; vector numbers ascend over all their rows.
        dead: Numbers of the vectors of removed and replaced items that are still in the segments, int64 [m].
        index: Index in use; `None` for exact search.
        log: Number of the newest entry of the log of changes.
        amended: Ids of items whose facts changed after their segment was written, int64 [a], some repeated.
    """

    segments: tuple[Segment, ...]
    dead: np.ndarray
    index: ActiveIndex | None
    log: int
    amended: np.ndarray
