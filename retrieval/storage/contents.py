"""What a gallery holds, in memory: vectors, and what is known about each picture."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval.progress import Progress
from retrieval.storage.schema import SEARCHABLE

if TYPE_CHECKING:
    from retrieval.gallery import Gallery

LABELLED = "SELECT id, label FROM items WHERE seg IS NOT NULL AND coalesce(label, '') != ''"
# Where an item without a file stands in a list of paths: below the gallery, in a folder that is never made.
_NO_FILE = "without a file"
_AT_ONCE = 10_000


@dataclass(frozen=True, eq=False)
class Stored:
    """Pictures of a gallery, by id.

    Attributes:
        ids: int64 [N].
        vectors: float32 [N, D], unit length.
        labels: [N], `None` for a picture without one.
        contents: [N], SHA-256 of each file's bytes.
        total: of how many they are a random sample; N where they are all.
    """

    ids: np.ndarray
    vectors: np.ndarray
    labels: list[str | None]
    contents: list[str]
    total: int


def stored(gallery: Gallery, *, labelled: bool = False, limit: int | None = None) -> Stored:
    """What is alive in the state that the gallery shows.

    Args:
        labelled: only what has a label.
        limit: beyond this a random sample is drawn, the same each time.

    Raises:
        LookalikeError: a vector, or what is known about an item, is damaged.
    """
    snapshot = gallery.snapshot
    ids = np.sort(snapshot.ids[snapshot.ids > 0])
    if labelled:
        ids = np.intersect1d(ids, np.array([number for number, _ in gallery.store.rows(LABELLED)], np.int64))
    total = len(ids)
    if limit is not None and total > limit:
        ids = np.sort(np.random.default_rng(0).choice(ids, limit, replace=False))
    found: dict[int, tuple[str | None, str]] = {}
    with Progress("reading", len(ids), show=False) as progress:
        for start in range(0, len(ids), _AT_ONCE):  # so that there are never all of the items in memory
            items = gallery.store.items(ids[start : start + _AT_ONCE].tolist())
            for item in items:
                found[item.id] = (sys.intern(item.label) if item.label else None, item.content_sha256)
            progress.update(len(items))
    kept = np.array([number for number in ids.tolist() if number in found], np.int64)
    facts = [found[number] for number in kept.tolist()]
    vectors = snapshot.vectors(snapshot.rows_of(kept))
    return Stored(kept, vectors, [label for label, _ in facts], [content for _, content in facts], total)


def places_of(gallery: Gallery, ids: Sequence[int]) -> list[Path]:
    """The file of each of some items; one that has none gets a path that is its own, where no file is."""
    paths = {item.id: gallery.path_of(item) for item in gallery.store.items(ids)}
    return [Path(paths.get(i) or gallery.folder / _NO_FILE / str(i)).absolute() for i in ids]


class Places(Sequence[Path]):
    """As `places_of`, looked up one by one: for many items, few of which are asked for."""

    def __init__(self, gallery: Gallery, ids: Sequence[int]) -> None:
        self._gallery, self._ids = gallery, ids

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, row: Any) -> Any:
        return places_of(self._gallery, [self._ids[row]])[0]


def finder(gallery: Gallery) -> Callable[[Path], int | None]:
    """The inverse of `Places`, for one state: the item at a place, or `None`."""
    store, snapshot, folder = gallery.store, gallery.snapshot, gallery.folder.absolute()
    roots = [
        root for (root,) in store.rows(f"SELECT DISTINCT root FROM items WHERE {SEARCHABLE} AND path != ''")
    ]
    query = f"SELECT id FROM items WHERE {SEARCHABLE} AND root = ? AND path = ? ORDER BY id"

    def candidates(place: Path) -> Iterator[int]:
        if place.parent.name == _NO_FILE and place.name.isdecimal():
            yield int(place.name)
        for root in roots:
            if place.is_relative_to(folder / root):
                path = place.relative_to(folder / root).as_posix()
                yield from (number for (number,) in store.rows(query, (root, path)))

    def item_at(place: Path) -> int | None:
        there = (number for number in candidates(place) if snapshot.rows_of(np.array([number]))[0] >= 0)
        return next(there, None)

    return item_at
