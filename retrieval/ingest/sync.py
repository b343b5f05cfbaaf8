"""Sync: bring a gallery up to date with changed, moved, deleted and new files."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from retrieval.errors import ImageError, InputError
from retrieval.files import now
from retrieval.gallery import Gallery
from retrieval.images.load import read_bytes
from retrieval.ingest.indexing import BadFilePolicy, IngestResult, finish_run, ingest
from retrieval.ingest.plan import moved_item, plan_indexing
from retrieval.ingest.sources import ImageFile, Scan, file_exists, scan, stat_image
from retrieval.progress import Progress
from retrieval.storage.queries import existing_items
from retrieval.storage.records import ExistingItem


@dataclass(frozen=True)
class FolderDifference:
    """Differences between a folder and a gallery.

    Attributes:
        new: Number of files that are not in the gallery.
        changed: Number of files that have changed since they were indexed.
        unchanged: Number of files that have not.
        gone: Paths of items whose file is no longer in the folder; some may have moved within it.
    """

    new: int
    changed: int
    unchanged: int
    gone: list[str]


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
    gallery: Gallery,
    *,
    prune: bool = False,
    policy: BadFilePolicy | None = None,
    show_progress: bool = False,
) -> UpdateResult:
    """Check the file of every item: embed changed files again and follow moved ones. New files are not added.

    A missing file is searched for, by size and SHA-256, in the folders that the gallery was built from.

    Args:
        gallery: Gallery to update.
        prune: Remove items whose file is gone; otherwise they stay.
        policy: Treatment of unusable files.
        show_progress: Print progress on stderr.

    Raises:
        InputError: All files are gone, for example because a disk is not mounted. Nothing is removed.
        LookalikeError, KeyboardInterrupt: As for `add_images`.
    """
    store = gallery.store
    with store.writing():
        started, existing = now(), existing_items(store)
        found, gone = Scan(), dict[tuple[str, str], ExistingItem]()
        with Progress("checking", len(existing), "files", show=show_progress) as progress:
            for (root, path), item in existing.items():
                folder = gallery.folder.resolve() / root
                full = folder / path
                if file_exists(full):
                    found.add(full, stat_image(full, folder))
                else:
                    gone[root, path] = item
                progress.update()
        if existing and not found.files:
            raise InputError(
                f"{gallery.folder}: all image files are gone, for example {full}; is the disk mounted?"
            )
        moved = _follow_moved(gallery, gone)
        result = ingest(gallery, found, policy=policy, show_progress=show_progress)
        result.moved += moved
        if prune:
            result.removed += _remove(gallery, gone)
            _forget_bad_files(gallery)
        finish_run(gallery, result, "update", started)
    return UpdateResult(result, sorted(str(Path(*key)) for key in gone))


def folder_difference(gallery: Gallery, folder: Path) -> FolderDifference:
    """Return what `sync` would do, without changing anything."""
    top, found = _scan_folder(gallery, folder)
    gone = _missing(gallery, top, found.files)
    plan = plan_indexing(gallery.store, found.files.values(), retry=False)
    changed = sum(image.key in plan.existing for image in plan.todo)
    return FolderDifference(
        len(plan.todo) - changed, changed, plan.unchanged, sorted(str(Path(*key)) for key in gone)
    )


def sync(
    gallery: Gallery, folder: Path, *, policy: BadFilePolicy | None = None, show_progress: bool = False
) -> IngestResult:
    """Sync a gallery with a folder: add new, embed changed, follow moved and remove deleted files.

    Items from other folders are not affected.

    Args:
        gallery: Gallery to change.
        folder: Image folder.
        policy: Treatment of unusable files.
        show_progress: Print progress on stderr.

    Raises:
        InputError: The folder does not exist or contains no image.
        LookalikeError, KeyboardInterrupt: As for `add_images`. Nothing is removed.
    """
    with gallery.store.writing():
        started = now()
        top, found = _scan_folder(gallery, folder)
        result = ingest(gallery, found, policy=policy, show_progress=show_progress)
        result.removed += _remove(gallery, _missing(gallery, top, found.files))
        _forget_bad_files(gallery, top)
        finish_run(gallery, result, "sync", started)
    return result


def _scan_folder(gallery: Gallery, folder: Path) -> tuple[Path, Scan]:
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder")
    home = gallery.folder.resolve()
    return folder.resolve(), scan([folder], {str(home / root) for root, _ in existing_items(gallery.store)})


def _missing(gallery: Gallery, top: Path, files: Iterable[Path]) -> dict[tuple[str, str], ExistingItem]:
    """Return the items below `top` whose file is gone.

    A file that the scan did not find may still exist, in a tar file or without an image suffix.
    """
    existing, scanned = existing_items(gallery.store), set(files)
    below = {key: path for key in existing if (path := Path(*key)).is_relative_to(top)}
    return {
        key: existing[key] for key, path in below.items() if path not in scanned and not file_exists(path)
    }


def _remove(gallery: Gallery, gone: dict[tuple[str, str], ExistingItem]) -> int:
    removed = gallery.store.remove(item.id for item in gone.values())
    gallery.refresh()
    return removed


def _forget_bad_files(gallery: Gallery, top: Path | None = None) -> None:
    """Drop deleted files from the list of unusable files: those below `top`, or all."""
    bad = [
        file.stamp for file in gallery.store.bad_files() if top is None or file.stamp.full.is_relative_to(top)
    ]
    gallery.store.forget_bad_files(stamp.key for stamp in bad if not file_exists(stamp.full))


def _follow_moved(gallery: Gallery, gone: dict[tuple[str, str], ExistingItem]) -> int:
    """Update the paths of items whose file moved within its folders, delete them from `gone`, count them."""
    store, existing = gallery.store, existing_items(gallery.store)
    by_size: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for key, item in gone.items():
        by_size[item.size].append(key)
    items = {(i.root, i.path): i for i in store.items([item.id for item in gone.values()])}
    changes = []
    for image in _files_below({str(gallery.folder.resolve() / root) for root, _ in gone}):
        if image.key in existing or not by_size.get(image.size):
            continue
        try:
            digest = hashlib.sha256(read_bytes(image.full)).hexdigest()
        except ImageError:
            continue
        moved = next((key for key in by_size[image.size] if items[key].content_sha256 == digest), None)
        if moved is not None:
            changes.append(moved_item(image, items[moved]))
            by_size[image.size].remove(moved)
            del gone[moved]
    if changes:
        store.amend(changes)
    return len(changes)


def _files_below(roots: Iterable[str]) -> Iterable[ImageFile]:
    folders = sorted(root for root in roots if Path(root).is_dir())
    for folder in folders:
        try:
            yield from scan([folder], folders).files.values()
        except InputError:  # it contains no image any more
            continue
