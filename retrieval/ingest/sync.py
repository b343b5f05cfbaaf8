"""Keep a gallery in step with its files: those that changed, moved, vanished, or are new in a folder."""

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
from retrieval.ingest.indexing import MAX_BAD, IngestResult, absorb, finish
from retrieval.ingest.plan import follow_file, make_plan
from retrieval.ingest.sources import ImageFile, Scan, exists, scan, stamp
from retrieval.progress import Progress
from retrieval.storage.queries import existing_items
from retrieval.storage.records import ExistingItem


@dataclass(frozen=True)
class Difference:
    """How a folder differs from what a gallery holds of it.

    Attributes:
        new, changed, unchanged: files that the gallery does not hold, holds otherwise, or holds as they are.
        gone: paths of its items whose file is not in the folder any more; some may have moved within it.
    """

    new: int
    changed: int
    unchanged: int
    gone: list[str]


@dataclass
class Update:
    """What `update` did, and the paths of items whose file is gone."""

    outcome: IngestResult
    gone: list[str] = field(default_factory=list)


def update(
    gallery: Gallery,
    *,
    prune: bool = False,
    retry: bool = False,
    max_bad: float = MAX_BAD,
    show_progress: bool = False,
) -> Update:
    """Look at the file of every item again: embed those whose bytes changed, follow those that moved.

    A file that is gone is looked for in the folders that the gallery was made of; unless `prune`, an item
    whose file is found nowhere stays. New files are not added.

    Raises:
        InputError: every file is gone, as where a disk is not mounted; nothing is removed then.
        LookalikeError, KeyboardInterrupt: as for `add_images`.
    """
    store = gallery.store
    with store.writing():
        started, there = now(), existing_items(store)
        found, gone = Scan(), dict[tuple[str, str], ExistingItem]()
        with Progress("looking", len(there), "files", show=show_progress) as progress:
            for (root, path), item in there.items():
                top = gallery.folder.resolve() / root
                full = top / path
                if exists(full):
                    found.add(full, stamp(full, top))
                else:
                    gone[root, path] = item
                progress.update()
        if there and not found.files:
            raise InputError(
                f"{gallery.folder}: all its files are gone, the first from {full}; is a disk away?"
            )
        followed = _follow(gallery, gone)
        outcome = absorb(gallery, found, retry=retry, max_bad=max_bad, show_progress=show_progress)
        outcome.moved += followed
        if prune:
            outcome.removed += _remove(gallery, gone)
            _forget_bad(gallery)
        finish(gallery, outcome, "update", started)
    return Update(outcome, sorted(str(Path(*key)) for key in gone))


def compare(gallery: Gallery, folder: Path) -> Difference:
    """What `sync` would do."""
    top, found = _look(gallery, folder)
    gone = _missing(gallery, top, found.files)
    plan = make_plan(gallery.store, found.files.values(), retry=False)
    changed = sum(picture.key in plan.present for picture in plan.todo)
    return Difference(
        len(plan.todo) - changed, changed, plan.unchanged, sorted(str(Path(*key)) for key in gone)
    )


def sync(
    gallery: Gallery,
    folder: Path,
    *,
    retry: bool = False,
    max_bad: float = MAX_BAD,
    show_progress: bool = False,
) -> IngestResult:
    """Make a gallery hold of a folder what is in it now: add, replace, follow and remove.

    What the gallery holds of other folders stays as it is.

    Raises:
        InputError: there is no such folder, or no image in it.
        LookalikeError, KeyboardInterrupt: as for `add_images`; nothing is removed then.
    """
    with gallery.store.writing():
        started = now()
        top, found = _look(gallery, folder)
        outcome = absorb(gallery, found, retry=retry, max_bad=max_bad, show_progress=show_progress)
        outcome.removed += _remove(gallery, _missing(gallery, top, found.files))
        _forget_bad(gallery, top)
        finish(gallery, outcome, "sync", started)
    return outcome


def _look(gallery: Gallery, folder: Path) -> tuple[Path, Scan]:
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder")
    home = gallery.folder.resolve()
    return folder.resolve(), scan([folder], {str(home / root) for root, _ in existing_items(gallery.store)})


def _missing(gallery: Gallery, top: Path, files: Iterable[Path]) -> dict[tuple[str, str], ExistingItem]:
    """Items of a folder whose file is not among those found there, and is gone.

    A picture in a tar file, or one that was named outright, may be there all the same.
    """
    there, seen = existing_items(gallery.store), set(files)
    below = {key: path for key in there if (path := Path(*key)).is_relative_to(top)}
    return {key: there[key] for key, path in below.items() if path not in seen and not exists(path)}


def _remove(gallery: Gallery, gone: dict[tuple[str, str], ExistingItem]) -> int:
    count = gallery.store.remove(item.id for item in gone.values())
    gallery.refresh()
    return count


def _forget_bad(gallery: Gallery, top: Path | None = None) -> None:
    """Strike files that are gone off the list of unusable ones: those below `top`, or all."""
    bad = [
        file.stamp for file in gallery.store.bad_files() if top is None or file.stamp.full.is_relative_to(top)
    ]
    gallery.store.forget_bad_files(stamp.key for stamp in bad if not exists(stamp.full))


def _follow(gallery: Gallery, gone: dict[tuple[str, str], ExistingItem]) -> int:
    """Let items follow their files to other paths in the same folders -> how many; `gone` loses them."""
    store, known = gallery.store, existing_items(gallery.store)
    wanted: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for key, item in gone.items():
        wanted[item.size].append(key)
    items = {(i.root, i.path): i for i in store.items([item.id for item in gone.values()])}
    changes = []
    for picture in _files_of({str(gallery.folder.resolve() / root) for root, _ in gone}):
        if picture.key in known or not wanted.get(picture.size):
            continue
        try:
            digest = hashlib.sha256(read_bytes(picture.full)).hexdigest()
        except ImageError:
            continue
        left = next((key for key in wanted[picture.size] if items[key].content_sha256 == digest), None)
        if left is not None:
            changes.append(follow_file(picture, items[left]))
            wanted[picture.size].remove(left)
            del gone[left]
    if changes:
        store.amend(changes)
    return len(changes)


def _files_of(roots: Iterable[str]) -> Iterable[ImageFile]:
    there = sorted(root for root in roots if Path(root).is_dir())
    for root in there:
        try:
            yield from scan([root], there).files.values()
        except InputError:  # no image is left in it
            continue
