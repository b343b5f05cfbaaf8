"""Indexing runs: find new and changed image files, embed them, commit them to a gallery."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import NamedTuple, get_args

import numpy as np

from retrieval.errors import ImageError, InputError, LookalikeError
from retrieval.files import now
from retrieval.galleries.searchable import SearchableGallery
from retrieval.images import boxes
from retrieval.images.location import Location, locate_item
from retrieval.images.picture import KnownFile
from retrieval.ingest.admission import Admission, Arrival, Original
from retrieval.ingest.committer import Batch, Committer, ItemDraft
from retrieval.ingest.file_plan import changes_of, known_roots, moved_item, plan_indexing
from retrieval.ingest.picture_parts import divide
from retrieval.ingest.pipeline import EmbeddedBatch, embed_ahead
from retrieval.ingest.precision_choice import choose_precision
from retrieval.ingest.replay import replay, withhold
from retrieval.ingest.sources import Scan, Sources, collect
from retrieval.ingest.tables import TableReport
from retrieval.progress import Progress
from retrieval.search.options import Duplicates
from retrieval.storage.planning import (
    Comparison,
    ExistingItem,
    ImageFile,
    ItemPlace,
    ItemTable,
)
from retrieval.storage.records import PICTURE, BadFile, Change, IndexSpec
from retrieval.text import pluralize

COMMIT_ITEMS = 4096
COMMIT_SECONDS = 30.0
_FIRST_COMMIT_SECONDS = 1.0  # then 2, 4, ...: what was embedded first can soon be searched
MAX_BAD = 0.5
_EXAMPLES = 3  # unusable files in an error message
_TABLES = (".csv", ".parquet")
_MIN_SAMPLE = 100  # files over which the share of unusable ones is counted, at least


PlannedFile = tuple[ImageFile, ExistingItem | None]
"""A file to read, with the item that it has."""
BatchSource = Callable[
    [SearchableGallery, Comparison, Callable[[str], bool]], Generator[tuple[list[PlannedFile], EmbeddedBatch]]
]
"""Function that embeds the files to read of a plan, and yields them in order with what was found in them.

Its arguments are the gallery, the plan, and a function that returns whether the gallery has embedded the file
with a SHA-256. That function may be called by several threads; each call that returns true is for one
`KnownFile` that is yielded later.
"""


@dataclass(frozen=True)
class BadFilePolicy:
    """How a run treats unusable files.

    Attributes:
        retry: Retry files that were unusable in an earlier run and have not changed since.
        max_bad: Stop if a larger share of the files, from 0 to 1 and counted over at least 100 files, is
            unusable.

    Raises:
        InputError: The share is out of range.
    """

    retry: bool = False
    max_bad: float = MAX_BAD

    def __post_init__(self) -> None:
        if not 0 <= self.max_bad <= 1:
            raise InputError(f"max_bad {self.max_bad}: a share of the files, from 0 to 1")

    def exceeded(self, bad: int, tried: int) -> bool:
        """Return whether too many of the files that were tried are unusable."""
        return bad > self.max_bad * max(tried, _MIN_SAMPLE)

    def error(self, folder: Path, bad: int, tried: int, last: BadFile) -> LookalikeError:
        """Return the error of a run that stops since too many files are unusable."""
        return LookalikeError(
            f"{folder}: stopped: {bad} of {tried} files were unusable, the last one {last.stamp.shown} "
            f"({last.detail}); images embedded so far are kept; continue with --max-bad 1"
        )


@dataclass(frozen=True)
class Refusal:
    """A near-duplicate that was not added.

    Attributes:
        path: Its file.
        id: Id of the item that it duplicates.
        key: Key of that item.
        score: Cosine similarity of both.
    """

    path: str
    id: int
    key: str
    score: float


@dataclass
class IngestResult:
    """Result of an indexing run.

    Attributes:
        added: Images added, including those that replace an older version.
        replaced: Images that replaced an older version.
        copied: Images whose vector was copied, because the gallery had embedded the same bytes before.
        unchanged: Images that were in the gallery already, including files with only a new modification time.
        moved: Items whose file has moved to another path.
        described: Items of which only the label or the metadata changed.
        removed: Items removed.
        relabelled: Items that have the label again that was decided on by hand.
        withheld: Files left out because their image was removed by hand.
        ignored: Files without an image suffix.
        unmatched: Rows of the metadata table for files that are not among the sources.
        bad: Unusable files.
        table: What does not fit the types of the columns of the metadata table.
        duplicates: Groups of keys of items with identical bytes, for groups that contain a new item.
        refused: Near-duplicates that were not added.
    """

    added: int = 0
    replaced: int = 0
    copied: int = 0
    unchanged: int = 0
    moved: int = 0
    described: int = 0
    removed: int = 0
    relabelled: int = 0
    withheld: int = 0
    ignored: int = 0
    unmatched: int = 0
    bad: list[BadFile] = field(default_factory=list)
    table: TableReport = field(default_factory=TableReport)
    duplicates: list[list[str]] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """All counts, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}


def refuse_empty(gallery: SearchableGallery, result: IngestResult) -> None:
    """Raise an `InputError` if a gallery has no image, since all files were unusable."""
    if result.bad and not len(gallery):
        examples = "; ".join(f"{file.stamp.shown}: {file.detail}" for file in result.bad[:_EXAMPLES])
        count = pluralize(len(result.bad), "file")
        problem = f"{gallery.folder}: not built, since no image in {count} is usable, such as {examples}"
        tables = [shown for shown in (file.stamp.shown for file in result.bad) if shown.endswith(_TABLES)]
        raise InputError(f"{problem}; a table is named by --metadata {tables[0]}" if tables else problem)


def add_images(
    gallery: SearchableGallery,
    sources: Sources,
    *,
    index: IndexSpec | None = None,
    reindex: bool = False,
    policy: BadFilePolicy | None = None,
    source: BatchSource | None = None,
    command: str = "add",
    duplicates: Duplicates = "keep",
    ignore_decisions: bool = False,
    show_progress: bool = False,
) -> IngestResult:
    """Embed and index the new and changed images of some sources.

    Images with the same path, size and modification time as in the gallery are skipped, except that new
    labels and metadata are stored. Bytes that the gallery has embedded before are not embedded again: if only
    the modification time changed, the item stays as it is; if the file moved, the item follows it; a copy
    gets a copy of the vector. Unusable files are recorded and skipped. The run commits every few thousand
    images, so an interrupted run continues where it stopped.

    Args:
        gallery: Gallery to add to.
        sources: Images and metadata.
        index: Index to build; `None` keeps the present kind of index.
        reindex: Index all new vectors at the end; otherwise only if many are not indexed yet.
        policy: Treatment of unusable files.
        source: Embeds the images; `None` for this process.
        command: Name of this run in the gallery's history.
        duplicates: What becomes of new images that are near-duplicates of others.
        ignore_decisions: Add images that were removed by hand, and keep labels as the sources have them.
        show_progress: Print progress on stderr.

    Raises:
        InputError: A source does not exist or contains no image, or a table is invalid. Nothing is changed.
        LookalikeError: Too many files are unusable; images committed before stay.
        KeyboardInterrupt: Interrupted; images embedded before stay.
    """
    if duplicates not in get_args(Duplicates):
        raise InputError(f"duplicates {duplicates!r}: unknown; known: {', '.join(get_args(Duplicates))}")
    writer = gallery.writer
    has_detector = gallery.detector is not None  # of which pictures that are there take no run
    with writer.running(), closing(writer.table(whole=has_detector)) as table:
        started = now()
        found = collect(sources, known_roots(table))
        if not ignore_decisions:
            withhold(gallery.folder, found)
        if gallery.manifest.objects:
            divide(gallery, table, found)
            if not ignore_decisions:  # parts that were removed
                withhold(gallery.folder, found)
        result = ingest(
            gallery,
            table,
            found,
            policy=policy,
            source=source,
            duplicates=duplicates,
            show_progress=show_progress,
        )
        if not ignore_decisions:
            replay_into(gallery, result)
        finish_run(
            gallery, result, command, started, reindex=reindex, index=index, show_progress=show_progress
        )
    if gallery.manifest.objects and gallery.manifest.product is None and result.added:
        gallery.use_products(PICTURE)
    return result


def ingest(
    gallery: SearchableGallery,
    table: ItemTable,
    found: Scan,
    *,
    policy: BadFilePolicy | None = None,
    source: BatchSource | None = None,
    duplicates: Duplicates = "keep",
    show_progress: bool = False,
) -> IngestResult:
    """Bring a gallery, whose items are in a table, up to date with the files of a scan.

    Call it inside `writer.running()`.
    """
    policy = policy or BadFilePolicy()
    plan = plan_indexing(gallery.writer, table, found, retry=policy.retry, show_progress=show_progress)
    return carry_out(
        gallery,
        plan,
        found,
        policy=policy,
        source=source,
        duplicates=duplicates,
        show_progress=show_progress,
    )


def carry_out(
    gallery: SearchableGallery,
    plan: Comparison,
    found: Scan,
    *,
    policy: BadFilePolicy | None = None,
    source: BatchSource | None = None,
    duplicates: Duplicates = "keep",
    remove_gone: bool = False,
    show_progress: bool = False,
) -> IngestResult:
    """Embed the new and changed files of a plan, and follow moved ones.

    Call it inside the `writer.running()` in which the plan was made. An item whose file cannot be read at
    present is kept.

    Args:
        gallery: Gallery to change.
        plan: Comparison of the files with the gallery.
        found: The scan that the plan was made from.
        policy: Treatment of unusable files.
        source: Embeds the images; `None` for this process.
        duplicates: What becomes of new images that are near-duplicates of others.
        remove_gone: In the end, remove the items whose file is gone.
        show_progress: Print progress on stderr.

    Raises:
        LookalikeError, KeyboardInterrupt: As for `add_images`. Nothing is removed.
    """
    writer, policy = gallery.writer, policy or BadFilePolicy()
    if gallery.changed():  # by another process, before we held the lock
        gallery.refresh()
    result = IngestResult(
        unchanged=plan.unchanged,
        ignored=found.ignored,
        unmatched=found.unmatched,
        table=found.table,
        withheld=found.withheld,
        bad=list(plan.known_bad()),
    )
    for changes in changes_of(writer, plan):
        writer.amend(changes)
        result.described += len(changes)
    with Progress("embedding", plan.todo_count, show=show_progress) as progress:
        door = Admission(gallery.fixed()) if duplicates == "refuse" else None
        run = _Run(gallery, plan, found, result, policy, source or embed_here, door)
        run.run(progress)
    if outdated := {*plan.renamed(), *found.outdated}:
        result.removed += writer.remove(sorted(outdated))
    for gone in plan.gone_items() if remove_gone else ():
        result.removed += writer.remove(gone)
    gallery.refresh()
    result.duplicates, result.refused = plan.duplicates(), run.refusals()
    if gallery.manifest.objects:  # the parts of a copy are copies, too
        result.duplicates = [some for some in result.duplicates if not boxes.split(some[0])[1]]
    return result


def replay_into(gallery: SearchableGallery, result: IngestResult) -> None:
    """Carry out the decisions made by hand that are not in effect, and count them in a result."""
    if not gallery.writer.replays:
        return
    done = replay(gallery.writer)
    result.relabelled, result.removed = done.relabelled, result.removed + done.removed
    gallery.refresh()


def finish_run(
    gallery: SearchableGallery,
    result: IngestResult,
    command: str,
    started: str,
    *,
    reindex: bool = False,
    index: IndexSpec | None = None,
    show_progress: bool = False,
) -> None:
    """Index new vectors if there are many or another index is specified, and record the run."""
    gallery.index_new(index, reindex=reindex, added=result.added, show_progress=show_progress)
    gallery.writer.record_run(command, started, {**result.counts, "bad": len(result.bad)})


def embed_here(
    gallery: SearchableGallery, plan: Comparison, known: Callable[[str], bool]
) -> Generator[tuple[list[PlannedFile], EmbeddedBatch]]:
    """Embed the files of a plan in this process: the default `BatchSource`."""
    reading, folder = deque[PlannedFile](), str(gallery.folder)

    def places() -> Iterator[Location]:
        for planned in plan.todo():
            reading.append(planned)
            image = planned[0]
            yield locate_item(folder, image.root, image.path)

    choose_precision(gallery, (locate_item(folder, image.root, image.path) for image, _ in plan.todo()))

    with closing(embed_ahead(places(), gallery.embedder, known=known)) as batches:
        for batch in batches:
            yield [reading.popleft() for _ in batch.files], batch


class _Arrived(NamedTuple):
    """An image to add, its vector, float32 [D], and whether that is the one of another item."""

    draft: ItemDraft
    vector: np.ndarray
    is_copy: bool = False


def _is_part(draft: ItemDraft) -> bool:
    """Return whether an image is a part of a picture that the gallery has divided."""
    return PICTURE in draft.image.metadata and bool(boxes.split(draft.image.path)[1])


def _picture(draft: ItemDraft) -> tuple[str, str]:
    """Return root and path of the picture that an image is, or is a part of."""
    return draft.image.root, boxes.split(draft.image.path)[0]


class _Run:
    """One indexing run: embeds the images of a plan, with periodic commits.

    Decoding, embedding and committing go on at the same time, in threads or processes of their own.
    """

    def __init__(
        self,
        gallery: SearchableGallery,
        plan: Comparison,
        found: Scan,
        result: IngestResult,
        policy: BadFilePolicy,
        source: BatchSource,
        door: Admission | None,
    ) -> None:
        self._gallery, self._plan, self._result, self._policy = gallery, plan, result, policy
        self._source, self._door, self._places = source, door, found.places
        self._refused: list[tuple[ImageFile, Original]] = []
        self._parts: list[_Arrived] = []  # of a picture that the door has not seen yet
        # Items with the bytes of the files that are being read, and the number of those files.
        self._known: dict[str, tuple[list[ItemPlace], int]] = {}
        self._lock = Lock()
        self._moved: set[int] = set()  # items whose path was changed by this run
        self._collected = Batch()
        self._keys: set[str] = set()  # new keys in its changes
        self._committer = Committer(gallery.writer, self._note)
        self._pause = min(_FIRST_COMMIT_SECONDS, COMMIT_SECONDS)
        self._deadline = time.monotonic() + self._pause

    def run(self, progress: Progress) -> None:
        """Process all images of the plan, and update the progress."""
        with closing(self._committer):
            try:
                self._process_all(progress)
            except KeyboardInterrupt:
                self._finish()
                count = pluralize(self._gallery.writer.count(), "image")
                raise KeyboardInterrupt(
                    f"interrupted; {count} in the gallery, {self._result.added} of this run; "
                    "run the same command again to continue"
                ) from None
            self._finish()

    def _process_all(self, progress: Progress) -> None:
        tried = bad = 0
        for image, item in self._plan.moved():
            self._move(image, item)
            self._commit_if_due()
        for file, has_item in self._plan.unusable():
            self._record_bad(file, has_item)
            self._commit_if_due()
            tried, bad = tried + 1, bad + 1
        if not self._plan.todo_count:  # no need to load the model
            return
        with closing(self._source(self._gallery, self._plan, self._is_known)) as batches:
            for files, batch in batches:
                self._process(files, batch)
                bad += sum(isinstance(file, ImageError) for file in batch.files)
                tried += len(files)
                progress.update(len(files), f"{bad} unusable" if bad else "")
                if self._policy.exceeded(bad, tried):
                    self._finish()
                    raise self._policy.error(self._gallery.folder, bad, tried, self._result.bad[-1])
                self._commit_if_due()
        self._collect(self._parts)

    # ---- known contents

    def _is_known(self, content: str) -> bool:
        """Return whether the gallery has embedded these bytes. Called by several threads."""
        items = self._plan.table.known(content)
        if items:
            with self._lock:
                self._known[content] = items, self._known.get(content, (items, 0))[1] + 1
        return bool(items)

    def _take_known(self, content: str) -> list[ItemPlace]:
        """Return what `_is_known` found, and forget it with the last file."""
        with self._lock:
            items, files = self._known.pop(content)
            if files > 1:
                self._known[content] = items, files - 1
        return items

    # ---- one batch

    def _process(self, files: Sequence[PlannedFile], batch: EmbeddedBatch) -> None:
        vectors, arrived = iter(batch.vectors), list[_Arrived]()
        for (image, existing), found in zip(files, batch.files, strict=True):
            if isinstance(found, ImageError):
                place = self._places.get(image[:2]) if found.reason == ImageError.BOX else None
                detail = f"{found.detail} ({place})" if place else found.detail
                self._record_bad(BadFile(image.stamp, found.reason, detail), existing is not None)
            elif isinstance(found, KnownFile):
                arrived += self._reuse_vector(image, existing, found.content_sha256)
            else:
                arrived.append(_Arrived(ItemDraft(image, existing, *found), next(vectors)))
        self._collect(arrived if self._door is None else self._admitted(arrived, self._door))

    def _collect(self, arrived: Iterable[_Arrived]) -> None:
        for one in arrived:
            self._collected.drafts.append(one.draft)
            self._collected.vectors.append(one.vector[None])
            self._result.replaced += one.draft.existing is not None
            self._result.copied += one.is_copy

    def _admitted(self, arrived: Iterable[_Arrived], door: Admission) -> Iterator[_Arrived]:
        """Yield those of some images that are no near-duplicates, and note the others.

        The parts of a picture that the gallery has divided wait for it, and do as it does.
        """
        parts: list[list[_Arrived]] = []
        reviewed: list[_Arrived] = []
        for one in arrived:
            if self._parts and _picture(one.draft) != _picture(self._parts[0].draft):
                yield from self._parts  # their picture was there already
                self._parts = []
            if _is_part(one.draft):
                self._parts.append(one)
            else:
                reviewed.append(one)
                parts.append(self._parts)
                self._parts = []
        originals = door.review(
            [
                Arrival(one.vector, one.draft.content, one.draft.existing and one.draft.existing.id)
                for one in reviewed
            ]
        )
        for one, original, its_parts in zip(reviewed, originals, parts, strict=True):
            if original is None:
                yield from its_parts
                yield one
            else:
                self._refused.append((one.draft.image, original))

    def refusals(self) -> list[Refusal]:
        """Return the near-duplicates that were not added, once the run is over."""
        writer = self._gallery.writer
        added = {original.image for _, original in self._refused if isinstance(original.image, str)}
        by_content = writer.ids_by_content(sorted(added))
        ids = [original.id(by_content) for _, original in self._refused]
        keys = {item.id: item.key for item in writer.items(sorted({*ids}))}
        return [
            Refusal(image.stamp.shown, id, keys.get(id, ""), original.score)
            for id, (image, original) in zip(ids, self._refused, strict=True)
        ]

    def _record_bad(self, file: BadFile, has_item: bool) -> None:
        """Record an unusable file; keep the item of a file that is only unreachable at present."""
        if has_item and file.reason in ImageError.UNREACHABLE:
            self._result.bad.append(file)
        else:
            self._collected.bad.append(file)

    def _reuse_vector(
        self, image: ImageFile, existing: ExistingItem | None, content: str
    ) -> Iterator[_Arrived]:
        """Handle an image whose bytes are embedded already: a new modification time, a move or a copy.

        Yields:
            The copy.
        """
        items = self._take_known(content)
        if existing and existing.id in (i.id for i in items) and image.id in (None, existing.key):
            stamp = image.stamp if image.has_own_label else replace(image.stamp, label=existing.label)
            self._collected.changes.append(Change(existing.id, stamp, image.metadata))
            self._result.unchanged += 1
            return
        moved = next((item for item in items if existing is None and self._has_moved(item, image)), None)
        if moved is not None:
            self._move(image, moved)
        else:
            first = items[0]
            draft = ItemDraft(image, existing, content, first.width, first.height)
            yield _Arrived(draft, self._gallery.vector(first.id), is_copy=True)

    def _has_moved(self, item: ItemPlace, image: ImageFile) -> bool:
        """Return whether an item's file is gone, so that `image` may be the same file at a new path."""
        free = image.id in (None, item.key) and item.id not in self._moved
        if not free or not item.path:
            return False
        return not locate_item(str(self._gallery.folder), item.root, item.path).exists()

    def _move(self, image: ImageFile, item: ItemPlace) -> None:
        """Let an item follow its file."""
        change = moved_item(image, item)
        if change.key is not None and change.key not in (image.id, item.key):
            self._committer.wait()  # for the keys of its items
            if change.key in self._keys or self._gallery.writer.ids_by_key([change.key]):
                change = replace(change, key=image.full.as_posix())
            self._keys.add(str(change.key))
        self._collected.changes.append(change)
        self._moved.add(item.id)
        self._result.moved += 1

    # ---- commits

    def _commit_if_due(self) -> None:
        if len(self._collected) >= COMMIT_ITEMS or time.monotonic() > self._deadline:
            self._commit()

    def _commit(self) -> None:
        """Commit what is collected, after the previous commit; do not wait for it."""
        self._committer.wait()
        batch, self._collected, self._keys = self._collected, Batch(), set()
        if len(batch):
            self._committer.commit(batch)
        self._pause = min(2 * self._pause, COMMIT_SECONDS)
        self._deadline = time.monotonic() + self._pause

    def _finish(self) -> None:
        self._commit()
        self._committer.wait()

    def _note(self, batch: Batch) -> None:
        """Count what was committed."""
        self._result.added += len(batch.drafts)  # first: an interruption may come at any time
        self._result.bad += batch.bad
        if self._door is not None:
            self._door.committed(sum(not _is_part(draft) for draft in batch.drafts))
        self._plan.note_added([draft.content for draft in batch.drafts])
