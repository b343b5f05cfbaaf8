"""What a gallery keeps about pictures, vectors and its index, as plain values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

Value = str | int | float | None
# The root of the files that a gallery keeps itself: relative to its folder, so that they move with it.
OWN = "pictures"
# What they are called.
KEPT = re.compile(r"[0-9a-f]{64}\.[a-z]+")


@dataclass(frozen=True)
class FileStamp:
    """An image file as the scan saw it: where it is, and what tells whether it changed."""

    root: str
    path: str
    size: int
    mtime_ns: int
    label: str | None = None

    @property
    def full(self) -> Path:
        return Path(self.root, self.path)

    @property
    def key(self) -> tuple[str, str]:
        return self.root, self.path


@dataclass(frozen=True)
class NewItem:
    """A picture that was embedded, about to be committed.

    Attributes:
        stamp: its file; root and path are empty where there is none.
        content_sha256: of the file's bytes; empty where there is none.
        width, height: of the picture, in pixels; 0 where it is not known.
        metadata: a value for each column that is given; the item that this one replaces lends the others.
        key: the stable id people use; `None` makes it the path, or keeps the one the path already has.
    """

    stamp: FileStamp
    content_sha256: str
    width: int
    height: int
    metadata: Mapping[str, Value] = field(default_factory=dict)
    key: str | None = None


@dataclass(frozen=True)
class StoredItem:
    """Everything a gallery keeps about an item, but its vector.

    Attributes:
        metadata: the columns in which it has a value.
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
    """New facts about an item whose vector stays: what is `None` is left as it is.

    Attributes:
        id: of the item.
        stamp: its file, with the label.
        metadata: the columns that change.
        key: its stable id.
    """

    id: int
    stamp: FileStamp | None = None
    metadata: Mapping[str, Value] = field(default_factory=dict)
    key: str | None = None


@dataclass(frozen=True)
class BadFile:
    """A file that could not be used, with the reason."""

    stamp: FileStamp
    reason: str
    detail: str


@dataclass(frozen=True)
class Segment:
    """A file of vectors, float32 [n, D], and beside it one of item ids and checksums."""

    seg: int
    file: str
    n: int
    sha256: str
    bytes: int
    rows_sha256: str

    @property
    def rows_file(self) -> str:
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
    """The index in use: over the first n rows, counted through all segments, oldest first."""

    folder: str
    sha256: str
    kind: str
    n: int
    card_sha256: str


@dataclass(frozen=True, eq=False)
class State:
    """One committed state of a gallery.

    Attributes:
        segments: oldest first; their rows ascend by item id.
        removed: int64 [m], items that are gone and whose rows still lie in the segments.
        index: `None` where the vectors are searched one by one.
    """

    segments: tuple[Segment, ...]
    removed: np.ndarray
    index: ActiveIndex | None
