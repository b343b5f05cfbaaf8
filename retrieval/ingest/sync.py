"""Sync: bring a gallery up to date with changed, moved, deleted and new files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from retrieval.errors import ImageError, InputError
from retrieval.files import now
from retrieval.galleries.database import DatabaseView
from retrieval.galleries.searchable import SearchableGallery
from retrieval.images.load import content_sha256, read_bytes
from retrieval.images.location import Location, locate, locate_item
from retrieval.ingest.file_plan import find_gone, in_chunks, known_roots, match_moved, plan_indexing
from retrieval.ingest.indexing import BadFilePolicy, IngestResult, carry_out, finish_run, replay_into
from retrieval.ingest.picture_parts import divide
from retrieval.ingest.replay import withhold
from retrieval.ingest.sources import Entry, Scan, absolute, scan
from retrieval.progress import Progress
from retrieval.storage.planning import Comparison, ImageFile, ItemTable, PictureParts
from retrieval.text import pluralize


@dataclass(frozen=True)
class RemovalLimit:
    """Most images that a sync may remove: the larger one of a share and a number.

    Attributes:
        share: Share of the images concerned, from 0 to 1.
        count: Number of images; a picture and the parts of it are one.
    """

    share: float = 0.1
    count: int = 10

    def allows(self, plan: Comparison, total: int) -> bool:
        """Return whether the items of a plan that are gone, of `total`, may be removed."""
        return plan.gone_count <= self.share * total or plan.gone_pictures <= self.count

    def __str__(self) -> str:
        parts = [f"{100 * self.share:g}%"] if self.share else []
        parts += [pluralize(self.count, "image")] if self.count else []
        return " or ".join(parts) or "none"


@dataclass(frozen=True)
class FolderDifference:
    """Differences between a folder and a gallery.

    Attributes:
        new: Number of files that are not in the gallery.
        changed: Number of files that have changed since they were indexed.
        unchanged: Number of files that have not.
        moved: Number of files that have moved to another path in the folder.
        gone: Paths of the images whose file is gone, which `sync` removes.
        indexed: Number of images that the gallery has from this folder.
        allowed: The limit allows `sync` to remove those that are gone.
    """

    new: int
    changed: int
    unchanged: int
    moved: int
    gone: list[str]
    indexed: int
    allowed: bool

    @property
    def has_changes(self) -> bool:
        """Whether `sync` would change anything."""
        return bool(self.new or self.changed or self.moved or self.gone)

    @property
    def removed_share(self) -> float:
        """Share of the indexed images that are gone, from 0 to 1."""
        return len(self.gone) / max(1, self.indexed)


@dataclass
class UpdateResult:
    """Result of `update`.

    Attributes:
        result: Result of the indexing run.
        gone: Paths of items whose file is gone.
    """

    result: IngestResult
    gone: list[str] = field(default_factory=list)


def update(
    gallery: SearchableGallery,
    *,
    prune: bool = False,
    limit: RemovalLimit | None = None,
    checksum: bool = False,
    policy: BadFilePolicy | None = None,
    ignore_decisions: bool = False,
    show_progress: bool = False,
) -> UpdateResult:
    """Check the file of every item: embed changed files again and follow moved ones. New files are not added.

    A missing file is searched for, by size and SHA-256, in the folders that the gallery was built from.

    Args:
        gallery: Gallery to update.
        prune: Remove items whose file is gone; otherwise they stay.
        limit: Most items to remove; `None` for the default limit.
        checksum: Compare the contents of files with the same size and modification time, too.
        policy: Treatment of unusable files.
        ignore_decisions: Do not carry out the decisions made by hand.
        show_progress: Print progress on stderr.

    Raises:
        InputError: All files are gone, for example because a disk is not mounted, or more of them than the
            limit allows and `prune` is set. Nothing is changed.
        LookalikeError, KeyboardInterrupt: As for `add_images`.
    """
    writer, policy = gallery.writer, policy or BadFilePolicy()
    with writer.running(), closing(writer.table(whole=True)) as table:
        started, gone = now(), list[int]()
        found = Scan(_stored_files(gallery, table, gone, writer.count(), show_progress))
        plan = plan_indexing(
            writer, table, found, retry=policy.retry, checksum=checksum, show_progress=show_progress
        )
        plan.add_gone(gone)
        existing = plan.file_count
        if gone and not existing:
            raise InputError(
                f"{gallery.folder}: all image files are gone, for example {plan.gone_example()}; "
                "is the disk mounted?"
            )
        if gone:
            _add_new_files(gallery, table, plan)
            match_moved(plan, show_progress)
        if prune:
            _check_limit(str(gallery.folder), plan, existing + len(gone), limit)
        result = carry_out(
            gallery, plan, found, policy=policy, remove_gone=prune, show_progress=show_progress
        )
        paths = plan.gone_paths()
        if not ignore_decisions:
            replay_into(gallery, result)
        if prune:
            _forget_bad_files(gallery)
        finish_run(gallery, result, "update", started)
    return UpdateResult(result, paths)


def folder_difference(
    gallery: SearchableGallery,
    folder: str | Path,
    *,
    limit: RemovalLimit | None = None,
    checksum: bool = False,
    min_age: float = 0.0,
    ignore_decisions: bool = False,
    show_progress: bool = False,
) -> FolderDifference:
    """Return what `sync` would do, without changing anything. The arguments are those of `sync`."""
    with closing(gallery.writer.table(whole=True)) as table:
        top, found = _scan_folder(gallery, table, folder, min_age, ignore_decisions)
        plan = plan_indexing(gallery.writer, table, found, checksum=checksum, show_progress=show_progress)
        find_gone(plan, top)
        match_moved(plan, show_progress)
        changed = plan.changed_count
        return FolderDifference(
            plan.todo_count - changed,
            changed,
            plan.unchanged,
            plan.moved_count,
            plan.gone_paths(),
            plan.below,
            (limit or RemovalLimit()).allows(plan, plan.below),
        )


def sync(
    gallery: SearchableGallery,
    folder: str | Path,
    *,
    limit: RemovalLimit | None = None,
    checksum: bool = False,
    policy: BadFilePolicy | None = None,
    min_age: float = 0.0,
    ignore_decisions: bool = False,
    show_progress: bool = False,
) -> IngestResult:
    """Sync a gallery with a folder: add new, embed changed, follow moved and remove deleted files.

    Items from other folders are not affected. A removed item keeps its id and metadata until the next
    compaction, and gets them back if its file comes back.

    Args:
        gallery: Gallery to change.
        folder: Image folder.
        limit: Most items to remove; `None` for the default limit.
        checksum: Compare the contents of files with the same size and modification time, too.
        policy: Treatment of unusable files.
        min_age: Leave out files modified in the last so many seconds.
        ignore_decisions: Add images that were removed by hand, and do not carry out decisions.
        show_progress: Print progress on stderr.

    Raises:
        InputError: The folder does not exist or contains no image, or more items than the limit allows would
            be removed. Nothing is changed.
        LookalikeError, KeyboardInterrupt: As for `add_images`. Nothing is removed.
    """
    writer, policy = gallery.writer, policy or BadFilePolicy()
    with writer.running(), closing(writer.table(whole=True)) as table:
        started = now()
        top, found = _scan_folder(gallery, table, folder, min_age, ignore_decisions)
        plan = plan_indexing(
            writer, table, found, retry=policy.retry, checksum=checksum, show_progress=show_progress
        )
        find_gone(plan, top)
        match_moved(plan, show_progress)
        _check_limit(str(folder), plan, plan.below, limit)
        result = carry_out(gallery, plan, found, policy=policy, remove_gone=True, show_progress=show_progress)
        if not ignore_decisions:
            replay_into(gallery, result)
        _forget_bad_files(gallery, top)
        finish_run(gallery, result, "sync", started)
    return result


def embed_again(gallery: DatabaseView, ids: Sequence[int], *, show_progress: bool = False) -> None:
    """Embed the files of items of a gallery in a database again, as their vectors are missing or damaged."""
    writer = gallery.writer
    with writer.running(), closing(writer.table()) as table:
        items = writer.items(ids)
        table.put(items, embedded=False)
        home = str(gallery.folder.resolve())
        stamps = ((item, locate_item(home, item.root, item.path).stamp()) for item in items if item.path)
        files = [ImageFile(item.root, item.path, *stamp) for item, stamp in stamps if stamp is not None]
        plan = plan_indexing(writer, table, Scan(files), show_progress=show_progress)
        carry_out(gallery, plan, Scan(), show_progress=show_progress)


def _scan_folder(
    gallery: SearchableGallery, table: ItemTable, folder: str | Path, min_age: float, ignore_decisions: bool
) -> tuple[Path, Scan]:
    place = Location.parse(folder)
    if place.kind != "url" and not Path(folder).is_dir():
        raise InputError(f"{folder}: there is no such folder")
    found = scan([place], known_roots(table))
    if min_age:
        found.entries = _settled(found.entries, min_age)
    if gallery.manifest.objects and not ignore_decisions:  # a picture goes with its parts
        withhold(table.folder, found)
    _with_parts(gallery, table, found)
    if not ignore_decisions:
        withhold(table.folder, found)
    return absolute(place), found


def _with_parts(gallery: SearchableGallery, table: ItemTable, found: Scan) -> None:
    """Let a scan find the parts that the gallery has of a picture in place of the picture.

    A picture that it had at another place, where it is no more, has the parts that it had there. In a gallery
    that divides pictures, these are the pictures with the boxes of a table.
    """
    divided = gallery.manifest.objects
    parts = [one for one in table.parts() if not divided or one.boxes[-1]]
    known = {(one.root, one.path): one for one in parts}
    of_size: dict[int, list[PictureParts]] = {}
    for one in parts:
        of_size.setdefault(one.size, []).append(one)
    home = str(gallery.folder)

    def has_moved(before: PictureParts, image: ImageFile) -> bool:
        try:
            data = read_bytes(locate_item(home, image.root, image.path))
        except ImageError:
            return False
        box = next(filter(None, before.boxes))
        same = content_sha256(data, box) == before.content
        return same and not locate_item(home, before.root, before.path).exists()

    def parts_there(entry: Entry) -> Iterator[Entry]:
        place = None
        if isinstance(entry, ImageFile):
            place = known.get((entry.root, entry.path))
            if place is None:
                place = next((one for one in of_size.get(entry.size, ()) if has_moved(one, entry)), None)
        if isinstance(entry, ImageFile) and place is not None:
            yield from (entry._replace(path=entry.path + box) for box in place.boxes)
        else:
            yield entry

    if parts:
        found.entries = chain.from_iterable(map(parts_there, found.entries))
    if divided:
        divide(gallery, table, found)


def _settled(entries: Iterable[Entry], min_age: float) -> Iterator[Entry]:
    """Yield the files that were not modified lately; a time in the future is no reason to wait."""
    now_ns = time.time_ns()
    for entry in entries:
        if not isinstance(entry, ImageFile) or not 0 <= now_ns - entry.mtime_ns < min_age * 1e9:
            yield entry


def _check_limit(where: str, plan: Comparison, total: int, limit: RemovalLimit | None) -> None:
    limit, removed = limit or RemovalLimit(), plan.gone_count
    if not limit.allows(plan, total):
        raise InputError(
            f"{where}: nothing was changed, since {removed} of {total} images ({removed / total:.1%}) would "
            f"be removed, for example {plan.gone_example()}, and --max-removed allows {limit}; mount the "
            "folder if it is not there, or pass --max-removed 100% if the files are deleted"
        )


def _stored_files(
    gallery: SearchableGallery, table: ItemTable, gone: list[int], total: int, show_progress: bool
) -> Iterator[ImageFile]:
    """Yield the file of every item, and add to `gone` the items whose file is gone."""
    home, last = str(gallery.folder.resolve()), 0
    with Progress("checking", total, "files", show=show_progress) as progress:
        while items := table.item_files(last):
            for item, root, path in items:
                stamp = locate_item(home, root, path).stamp()
                if stamp is None:
                    gone.append(item)
                else:
                    yield ImageFile(root, path, *stamp, path.rpartition("/")[0] or None)
            last = items[-1][0]
            progress.update(len(items))


def _add_new_files(gallery: SearchableGallery, table: ItemTable, plan: Comparison) -> None:
    """Add the files of the folders of gone items to a plan, as new places."""
    home = gallery.folder.resolve()
    folders = sorted(str(home / root) for root in plan.gone_roots() if (home / root).is_dir())
    for folder in folders:
        try:
            found = scan([folder], folders)
            _with_parts(gallery, table, found)
            for chunk in in_chunks(found):
                plan.add_candidates(chunk)
        except InputError:  # it contains no image any more
            continue


def _forget_bad_files(gallery: SearchableGallery, top: Path | None = None) -> None:
    """Drop deleted files from the list of unusable files: those below `top`, or all."""
    gone = [
        file.stamp.key
        for file in gallery.writer.bad_files()
        if (top is None or file.stamp.full.is_relative_to(top)) and not locate(file.stamp.full).exists()
    ]
    if gone:
        gallery.writer.forget_bad_files(gone)
