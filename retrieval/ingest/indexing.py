"""From image files to a gallery: find what is new, embed it, commit. Interrupted runs continue."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np

from retrieval.errors import ImageError, LookalikeError
from retrieval.files import now
from retrieval.gallery import Gallery
from retrieval.images.decode import BATCH, Decoded, KnownFile, read_ahead
from retrieval.ingest.plan import ContentIndex, Plan, follow_file, make_plan
from retrieval.ingest.sources import ImageFile, Metadata, Scan, collect, exists
from retrieval.progress import Progress
from retrieval.storage.queries import files_by_root, keys_with_same_content, live_ids, newest_id
from retrieval.storage.records import BadFile, Change, IndexSpec, NewItem, StoredItem

COMMIT_ITEMS = 4096
COMMIT_SECONDS = 30.0
MAX_BAD = 0.5
_FAIR_SAMPLE = 100  # files that a share of bad ones is counted over, at least


@dataclass
class IngestResult:
    """What an indexing run did.

    Attributes:
        added: pictures put into the gallery, also in the place of older ones.
        replaced: those in the place of an older picture.
        copied: those whose bytes the gallery knew, so that their vectors were copied.
        unchanged: pictures that were there already, also where their file had been touched.
        moved: items that followed their file to another path.
        described: items whose label or metadata changed, and nothing else.
        removed: items taken out.
        ignored: files without an image suffix.
        unmatched: rows of a table about files that were not given.
        bad: files that could not be used.
        duplicates: keys of items whose files hold the same bytes, where a new one is among them.
    """

    added: int = 0
    replaced: int = 0
    copied: int = 0
    unchanged: int = 0
    moved: int = 0
    described: int = 0
    removed: int = 0
    ignored: int = 0
    unmatched: int = 0
    bad: list[BadFile] = field(default_factory=list)
    duplicates: list[list[str]] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """The numbers, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}


def add_images(
    gallery: Gallery,
    sources: Iterable[str | Path] = (),
    *,
    list_file: str | None = None,
    metadata: Metadata | None = None,
    root: Path | None = None,
    kind: str | None = None,
    recall: float | None = None,
    memory: int | None = None,
    reindex: bool = False,
    retry: bool = False,
    max_bad: float = MAX_BAD,
    command: str = "add",
    show_progress: bool = False,
) -> IngestResult:
    """Embed what is new or changed among files and folders, and index it.

    What a picture is and where it may come from: see `ingest.sources`. Pictures that are there, by path,
    size and time of change, are left alone, except that they take up what a table says about them. Bytes
    that the gallery knows are not embedded again: a touched file stays as it is, an item follows its file
    to another path, and of a copy the vector is copied. Unusable files are recorded and skipped.
    What is done is committed every few thousand images, so that a run that is cut off continues where
    it stopped.

    Args:
        sources: image files, folders, globs, tar shards.
        list_file, metadata, root: more sources, and what is known of them; see `ingest.sources.collect`.
        kind, recall, memory: of the index, as for `Gallery.build_index`; `None`: as the last time.
        reindex: bring the index up to date at the end; otherwise only when much is outside it.
        retry: try files again that were unusable before and have not changed.
        max_bad: the share of unusable files at which to stop, counted over at least 100.
        command: what to call this in the gallery's history.
        show_progress: report on stderr.

    Raises:
        InputError: a source that does not exist, or holds no image; a table that is not what it should be.
            Nothing is changed then.
        LookalikeError: too many files are unusable; what was done is kept.
        KeyboardInterrupt: with what was done by then; it is kept.
    """
    # The whole run holds the lock: two writers would embed the same files twice.
    with gallery.store.writing():
        started = now()
        found = collect(sources, list_file=list_file, metadata=metadata, root=root, roots=_roots(gallery))
        outcome = absorb(gallery, found, retry=retry, max_bad=max_bad, show_progress=show_progress)
        index = IndexSpec(kind, recall, memory)
        finish(gallery, outcome, command, started, reindex=reindex, index=index, show_progress=show_progress)
    return outcome


def absorb(
    gallery: Gallery,
    found: Scan,
    *,
    retry: bool = False,
    max_bad: float = MAX_BAD,
    show_progress: bool = False,
) -> IngestResult:
    """Bring what was found into the gallery. Call it inside `store.writing()`.

    An item whose file cannot be reached now, whatever it holds, stays.
    """
    store = gallery.store
    if gallery.changed():  # by another process, before we held the lock
        gallery.refresh()
    newest = newest_id(store)
    plan = make_plan(store, found.files.values(), retry=retry)
    outcome = IngestResult(
        unchanged=plan.unchanged, ignored=found.ignored, unmatched=found.unmatched, bad=plan.bad
    )
    if plan.changes:
        store.amend(plan.changes)
        outcome.described = len(plan.changes)
    if plan.todo or found.unusable:
        with Progress("embedding", len(plan.todo), show=show_progress) as progress:
            _Run(gallery, plan, outcome, max_bad).go(found.unusable, progress)
    gone = _alive(gallery, plan.outdated)
    if gone:
        outcome.removed += store.remove(gone)
    gallery.refresh()
    outcome.duplicates = keys_with_same_content(store, newest)
    return outcome


def finish(
    gallery: Gallery,
    outcome: IngestResult,
    command: str,
    started: str,
    *,
    reindex: bool = False,
    index: IndexSpec | None = None,
    show_progress: bool = False,
) -> None:
    """Index what is new, if there is much of it or another index is specified, and record the run."""
    previous = gallery.store.manifest.index_spec
    spec = (index or IndexSpec()).or_else(previous)
    if spec != previous or gallery.outside_index > (0 if reindex else max(10_000, len(gallery) // 10)):
        gallery.build_index(spec, show_progress=show_progress)
    gallery.store.record_run(command, started, {**outcome.counts, "bad": len(outcome.bad)})


class _Run:
    """Reads, decodes and embeds the pictures of a plan, and commits them now and then."""

    def __init__(self, gallery: Gallery, plan: Plan, outcome: IngestResult, max_bad: float) -> None:
        self._gallery, self._plan, self._outcome, self._max_bad = gallery, plan, outcome, max_bad
        self._known = ContentIndex(gallery.store)
        self._followed: set[int] = set()  # items that have gone to another path in this run
        self._new: list[tuple[np.ndarray, list[NewItem]]] = []
        self._changes: list[Change] = []
        self._bad: list[BadFile] = []
        self._deadline = time.monotonic() + COMMIT_SECONDS

    def go(self, unusable: Iterable[BadFile], progress: Progress) -> None:
        """Do all of it; `unusable` files are known without reading them."""
        tried = bad = 0
        for file in unusable:
            self._reject(file)
            tried, bad = tried + 1, bad + 1
        try:
            for batch in self._batches():
                self._take(batch)
                bad += sum(isinstance(file, ImageError) for _, file in batch)
                tried += len(batch)
                progress.update(len(batch), f"{bad} unusable" if bad else "")
                if bad > self._max_bad * max(tried, _FAIR_SAMPLE):
                    self._commit()
                    raise self._too_many(bad, tried)
                if (
                    sum(len(items) for _, items in self._new) >= COMMIT_ITEMS
                    or time.monotonic() > self._deadline
                ):
                    self._commit()
        except KeyboardInterrupt:
            self._commit()
            what = f"interrupted; {self._outcome.added} images are in the gallery now"
            raise KeyboardInterrupt(f"{what}; the same command again does the rest") from None
        self._commit()

    def _batches(self) -> Iterable[list[tuple[ImageFile, Decoded | KnownFile | ImageError]]]:
        todo, preprocess = self._plan.todo, self._gallery.embedder.preprocess
        paths = (self._gallery.folder / picture.full for picture in todo)
        read = read_ahead(paths, preprocess, side=preprocess.scaled, known=self._known.__contains__)
        files = zip(todo, read, strict=True)
        while batch := list(islice(files, BATCH)):
            yield batch

    def _take(self, batch: list[tuple[ImageFile, Decoded | KnownFile | ImageError]]) -> None:
        fresh = [(picture, file) for picture, file in batch if isinstance(file, Decoded)]
        if fresh:
            vectors = self._gallery.embedder.embed_pixels([file.pixels for _, file in fresh])
            self._new.append(
                (vectors, [self._item(p, f.content_sha256, f.width, f.height) for p, f in fresh])
            )
        for picture, file in batch:
            if isinstance(file, ImageError):
                self._reject(BadFile(picture.file, file.reason, file.detail))
            elif isinstance(file, KnownFile):
                self._recognise(picture, file.content_sha256)

    def _reject(self, file: BadFile) -> None:
        """Keep a file on the list of unusable ones, unless that would cost an item that may be as it was."""
        out_of_reach = file.reason in (ImageError.MISSING, ImageError.PERMISSION)
        if out_of_reach and file.stamp.key in self._plan.present:
            self._outcome.bad.append(file)
        else:
            self._bad.append(file)

    def _recognise(self, picture: ImageFile, content: str) -> None:
        """A picture whose bytes the gallery has embedded: touched, moved, or a copy."""
        ids, at_path = self._known.ids(content), self._plan.present.get(picture.key)
        if at_path is not None and at_path.id in ids and picture.id in (None, at_path.key):
            stamp = picture.file if picture.told else replace(picture.file, label=at_path.label)
            self._changes.append(Change(at_path.id, stamp, picture.metadata))
            self._outcome.unchanged += 1
            return
        items = self._gallery.store.items(ids)
        left = next((item for item in items if at_path is None and self._may_follow(item, picture)), None)
        if left is not None:
            self._changes.append(follow_file(picture, left))
            self._followed.add(left.id)
            self._outcome.moved += 1
        else:
            item = self._item(picture, content, items[0].width, items[0].height)
            self._new.append((self._gallery.vector(items[0].id)[None], [item]))
            self._outcome.copied += 1

    def _may_follow(self, item: StoredItem, picture: ImageFile) -> bool:
        """Whether an item's file is gone, so that this picture can be it in another place."""
        free = picture.id in (None, item.key) and item.id not in self._followed
        return free and item.path != "" and not exists(self._gallery.folder / item.full)

    def _item(self, picture: ImageFile, content: str, width: int, height: int) -> NewItem:
        """The item of a picture, which keeps the label that the owner gave to the one before it."""
        there = self._plan.present.get(picture.key)
        stamp = picture.file if picture.told or there is None else replace(picture.file, label=there.label)
        self._outcome.replaced += there is not None
        return NewItem(stamp, content, width, height, picture.metadata, picture.id)

    def _commit(self) -> None:
        store = self._gallery.store
        if self._changes:
            store.amend(self._changes)
        items = [item for _, items in self._new for item in items]
        if items or self._bad:
            dim = self._gallery.store.manifest.dim
            vectors = np.concatenate([np.empty((0, dim), np.float32), *(block for block, _ in self._new)])
            store.commit(vectors, items, self._bad)
        self._outcome.added += len(items)
        self._outcome.bad += self._bad
        self._new, self._changes, self._bad = [], [], []
        self._deadline = time.monotonic() + COMMIT_SECONDS

    def _too_many(self, bad: int, tried: int) -> LookalikeError:
        first = self._outcome.bad[-1]
        what = f"{bad} of {tried} files were unusable, the last one {first.stamp.full} ({first.detail})"
        hint = "--max-bad 1 goes on all the same"
        return LookalikeError(f"{self._gallery.folder}: stopped: {what}; what was done is kept; {hint}")


def _roots(gallery: Gallery) -> list[str]:
    return [str(gallery.folder.resolve() / root) for root in files_by_root(gallery.store)]


def _alive(gallery: Gallery, ids: list[int]) -> list[int]:
    return sorted(set(live_ids(gallery.store)) & set(ids)) if ids else []
