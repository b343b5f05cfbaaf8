"""Indexing of images into a gallery whose items are in a database."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from retrieval.errors import ImageError, InputError
from retrieval.galleries.database import DatabaseView
from retrieval.images.location import Location, locate_item
from retrieval.ingest.file_plan import in_chunks
from retrieval.ingest.indexing import BadFilePolicy, IngestResult
from retrieval.ingest.pipeline import Embedded, embed_ahead
from retrieval.ingest.replay import withhold
from retrieval.ingest.sources import Scan, Sources, collect
from retrieval.progress import Progress
from retrieval.storage.planning import ImageFile
from retrieval.storage.records import BadFile, NewItem, StoredItem, Value
from retrieval.stores.engine import Amendment

COMMIT_ITEMS = 1024  # written at a time; what an interruption costs
_OPTIMIZED = 10_000  # new items after which the index is completed


class _Planned(NamedTuple):
    """A file to embed.

    Attributes:
        image: The file.
        key: Key of its item.
        existing: Item that it replaces, if any.
    """

    image: ImageFile
    key: str
    existing: StoredItem | None


@dataclass
class _Collected:
    """Items that wait to be written, with their vectors."""

    items: list[NewItem] = field(default_factory=list)
    vectors: list[np.ndarray] = field(default_factory=list)


def add_to_store(
    gallery: DatabaseView,
    sources: Sources,
    *,
    recall: float | None = None,
    policy: BadFilePolicy | None = None,
    ignore_decisions: bool = False,
    show_progress: bool = False,
) -> IngestResult:
    """Embed the new and changed images of some sources, and write them to a database.

    Images with the same path, size and modification time as in the gallery are skipped, except that new
    labels and metadata are stored. Items are written about a thousand at a time, so an interrupted run
    continues where it stopped. Several processes may index different folders at the same time. Unusable
    files are skipped and listed by each run.

    Args:
        gallery: Gallery to add to.
        sources: Images and metadata.
        recall: Recall of the index, which is completed in any case; `None` to complete it only after many
            images were added, for the default recall.
        policy: Treatment of unusable files.
        ignore_decisions: Add images that were removed by hand through this folder.
        show_progress: Print progress on stderr.

    Raises:
        InputError: A source does not exist or contains no image, or a table is invalid; images written before
            stay.
        LookalikeError: Too many files are unusable, or the database fails; images written before stay.
        KeyboardInterrupt: Interrupted; images written before stay.
    """
    found = collect(sources)
    if not ignore_decisions:
        withhold(gallery.folder, found)
    run = _Run(gallery, found, policy or BadFilePolicy())
    with Progress("embedding", None, "images", show=show_progress) as progress:
        try:
            run.embed(progress)
        except KeyboardInterrupt:
            done = f"interrupted; {run.result.added} images of this run are in the gallery"
            raise KeyboardInterrupt(f"{done}; run the same command again to continue") from None
    if recall is not None or run.result.added >= _OPTIMIZED:
        gallery.complete_index(recall, show_progress=show_progress)
    return run.result


class _Run:
    """One indexing run."""

    def __init__(self, gallery: DatabaseView, found: Scan, policy: BadFilePolicy) -> None:
        self._gallery, self._found, self._policy = gallery, found, policy
        self._planned: deque[_Planned] = deque()
        self._collected = _Collected()
        self._seen: dict[str, tuple[str, str]] = {}  # root and path of keys that may occur twice
        self._tried = 0
        self.result = IngestResult()

    def embed(self, progress: Progress) -> None:
        """Embed and write all files of the scan."""
        with closing(embed_ahead(self._places(progress), self._gallery.embedder)) as batches:
            for batch in batches:
                vectors = iter(batch.vectors)
                for file in batch.files:
                    planned = self._planned.popleft()
                    if isinstance(file, Embedded):
                        self._collect(planned, file, next(vectors))
                    elif isinstance(file, ImageError):
                        self._record_bad(planned, file)
                self._count(len(batch.files), progress)
                if len(self._collected.items) >= COMMIT_ITEMS:
                    self._write()
        self._write()
        found, result = self._found, self.result
        result.ignored, result.unmatched, result.withheld = found.ignored, found.unmatched, found.withheld
        result.table = found.table

    def _collect(self, planned: _Planned, file: Embedded, vector: np.ndarray) -> None:
        image, existing = planned.image, planned.existing
        stamp = image.stamp
        if existing is not None and not image.has_own_label:
            stamp = replace(stamp, label=existing.label)
        self._collected.items.append(
            NewItem(stamp, file.content_sha256, file.width, file.height, image.metadata, planned.key)
        )
        self._collected.vectors.append(vector)
        self.result.replaced += existing is not None

    def _record_bad(self, planned: _Planned, error: ImageError) -> None:
        """Record an unusable file; remove its item unless the file is only unreachable at present."""
        self.result.bad.append(BadFile(planned.image.stamp, error.reason, error.detail))
        if planned.existing is not None and error.reason not in (ImageError.MISSING, ImageError.PERMISSION):
            self.result.removed += self._gallery.remove([planned.existing.id])

    def _write(self) -> None:
        collected, self._collected = self._collected, _Collected()
        if collected.items:
            self._gallery.put(collected.items, np.stack(collected.vectors))
            self.result.added += len(collected.items)

    def _count(self, files: int, progress: Progress) -> None:
        self._tried += files
        bad = len(self.result.bad)
        progress.update(files, f"{bad} unusable" if bad else "")
        if self._policy.exceeded(bad, self._tried):
            self._write()
            raise self._policy.error(self._gallery.folder, bad, self._tried, self.result.bad[-1])

    # ---- comparison with the gallery

    def _places(self, progress: Progress) -> Iterator[Location]:
        """Yield the new and changed files; store what is new about the others."""
        for chunk in in_chunks(self._found):
            images = []
            for entry in chunk:
                if isinstance(entry, BadFile):
                    self.result.bad.append(entry)
                    self._count(1, progress)
                else:
                    images.append(entry)
            existing = self._existing(images)
            amended = []
            for image in images:
                planned = self._plan(image, existing)
                if planned is None:
                    continue
                if not _is_unchanged(planned):
                    self._planned.append(planned)
                    yield locate_item("", image.root, image.path)
                    continue
                self.result.unchanged += 1
                if change := _amendment(planned):
                    amended.append(change)
            if amended:
                self._gallery.amend(amended)
                self.result.described += len(amended)

    def _existing(self, images: Sequence[ImageFile]) -> dict[str, StoredItem]:
        """Return the items that have a key which one of the images may have."""
        keys = {key for image in images for key in _keys(image)}
        ids = self._gallery.engine.ids_by("key", sorted(keys))
        return {item.key: item for item in self._gallery.stored_items([*ids.values()])}

    def _plan(self, image: ImageFile, existing: Mapping[str, StoredItem]) -> _Planned | None:
        """Return what to do with a file; `None` if the run has it already."""
        first, *others = _keys(image)
        place = image.root, image.path
        key = first
        for other in others:  # another folder may have a file with the same relative path
            item = existing.get(first)
            taken = self._seen.get(first, place) if item is None else (item.root, item.path)
            if other in existing or taken != place:
                key = other
        if self._found.repeats or image.id is not None:
            if key in self._seen:
                if self._seen[key] != place:
                    raise InputError(f"two images have the id {key!r}; give each its own")
                return None
            self._seen[key] = place
        return _Planned(image, key, existing.get(key))


def _keys(image: ImageFile) -> tuple[str, ...]:
    """Return the keys that the item of a file may have."""
    return (image.id,) if image.id is not None else (image.path, image.full.as_posix())


def _is_unchanged(planned: _Planned) -> bool:
    image, item = planned.image, planned.existing
    return item is not None and (item.root, item.path, item.size, item.mtime_ns) == image[:4]


def _amendment(planned: _Planned) -> Amendment | None:
    """Return the given label and metadata that differ from those stored; `None` if none do."""
    image, item = planned.image, planned.existing
    assert item is not None
    metadata = {name: value for name, value in image.metadata.items() if item.metadata.get(name) != value}
    facts: dict[str, Value] = {}
    if image.has_own_label and image.label != item.label:
        facts["label"] = image.label
    return Amendment(item.id, facts, metadata) if facts or metadata else None
