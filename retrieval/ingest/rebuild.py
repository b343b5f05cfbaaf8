"""Make a gallery again with another model: beside the old one, which serves until the new one is whole."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from retrieval.embedder import Embedder
from retrieval.errors import InputError, LookalikeError
from retrieval.files import atomic_write, fsync_folder, now
from retrieval.gallery import Gallery
from retrieval.ingest.indexing import MAX_BAD, IngestResult, absorb, finish
from retrieval.ingest.sources import Scan, stamp
from retrieval.storage.queries import live_ids
from retrieval.storage.records import OWN, BadFile, FileStamp, StoredItem
from retrieval.storage.store import Store
from retrieval.upkeep.verify import verify

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@dataclass(frozen=True)
class RebuildResult:
    """What a rebuild did.

    Attributes:
        gallery: the new one, in the old one's place.
        old: where the old one is now; `None` where it was dropped.
        resumed: pictures that an earlier, interrupted rebuild had done.
    """

    gallery: Gallery
    outcome: IngestResult
    old: Path | None
    resumed: int


def rebuild(
    gallery: Gallery,
    model: Embedder,
    *,
    keep_old: bool = True,
    max_bad: float = MAX_BAD,
    show_progress: bool = False,
) -> RebuildResult:
    """Embed every picture of a gallery with a model, under the same ids, labels and metadata.

    The new gallery grows in the hidden folder `.NAME.rebuild` beside the old one and takes its place at the
    end; until then the old one is as it was, and a rebuild that was cut off goes on where it stopped.
    Pictures whose file cannot be read any more are reported, and are in the old gallery alone.

    Args:
        keep_old: leave the old gallery under the name NAME.old.

    Raises:
        InputError: NAME.old is there already, and the old gallery is to be kept.
        LookalikeError, KeyboardInterrupt: as for `add_images`; the old gallery stays then.
    """
    folder = gallery.folder.resolve()
    draft, old = folder.with_name(f".{folder.name}.rebuild"), folder.with_name(f"{folder.name}.old")
    with gallery.store.writing():
        if _tidy(gallery, draft, old) and gallery.fingerprint == model.fingerprint:
            return RebuildResult(gallery, IngestResult(unchanged=len(gallery)), old, len(gallery))
        if keep_old and old.exists():
            raise InputError(f"{old}: an older gallery lies there; move or remove it, or give --drop-old")
        new = _begin(gallery, model, draft)
        with new.store.writing():
            _take_along(gallery.store, new.store)
            resumed, started, found = len(new), now(), _pictures(gallery)
            outcome = absorb(new, found, max_bad=max_bad, show_progress=show_progress)
            index = gallery.store.manifest.index_spec
            finish(new, outcome, "rebuild", started, reindex=True, index=index, show_progress=show_progress)
            _check(new, len(found.files) + len(found.unusable) - len(outcome.bad), show_progress)
            _exchange(draft, folder)
        if keep_old:
            draft.rename(old)
        else:
            shutil.rmtree(draft)
        fsync_folder(folder.parent)
    return RebuildResult(Gallery(gallery.folder), outcome, old if keep_old else None, resumed)


def _tidy(gallery: Gallery, draft: Path, old: Path) -> bool:
    """Whether an earlier rebuild was cut off when the new gallery had taken its place; finishes it then."""
    if not (draft / "gallery.db").exists():
        return False
    if Store(draft).manifest.uuid != gallery.store.manifest.rebuilt_from:
        return False
    if old.exists():
        shutil.rmtree(draft)
    else:
        draft.rename(old)
    return True


def _begin(gallery: Gallery, model: Embedder, draft: Path) -> Gallery:
    """The new gallery: the one that an earlier rebuild with this model began, or an empty one."""
    origin = gallery.store.manifest.uuid
    if (draft / "gallery.db").exists():
        begun = Gallery(draft)
        if begun.store.manifest.rebuilt_from == origin and begun.fingerprint == model.fingerprint:
            return begun
    if draft.exists():
        shutil.rmtree(draft)
    new = Gallery.create(draft, model)
    with new.store.writing():
        new.store.update_manifest(replace(new.store.manifest, rebuilt_from=origin))
    return new


def _pictures(gallery: Gallery) -> Scan:
    """The files of all items, with what the gallery says about them."""
    found = Scan()
    for item in _items(gallery.store):
        if not item.path:
            nowhere = FileStamp("", item.key, 0, 0, item.label)
            found.unusable.append(BadFile(nowhere, "no-file", "it has a vector and no image file"))
            continue
        full = Path(gallery.paths.of(item)).absolute()
        picture = stamp(full, full.parents[len(Path(item.path).parts) - 1])
        if item.root == OWN:
            picture = replace(picture, root=OWN)
        if picture.full in found.files:
            twice = BadFile(
                picture.file, "same-file", f"it is also the file of {found.files[picture.full].id}"
            )
            found.unusable.append(twice)
        else:
            facts = replace(picture, label=item.label, id=item.key, metadata=item.metadata, told=True)
            found.files[picture.full] = facts
    return found


def _take_along(old: Store, new: Store) -> None:
    """Give the new gallery the files that the old one keeps itself: the same ones, under a second name."""
    for name in old.kept_files():
        source, target = old.own / name, new.own / name
        if source.exists() and not target.exists():
            new.own.mkdir(exist_ok=True)
            try:
                target.hardlink_to(source)
            except OSError:  # the disk knows no second names
                with atomic_write(target) as draft:
                    shutil.copy2(source, draft)


def _items(store: Store) -> Iterator[StoredItem]:
    ids = live_ids(store)
    for start in range(0, len(ids), 1000):
        yield from store.items(ids[start : start + 1000])


def _check(new: Gallery, expected: int, show_progress: bool) -> None:
    found = verify(new.folder, show_progress=show_progress)
    wrong = [problem.what for problem in found.problems]
    if found.items != expected:
        wrong.append(f"it holds {found.items} pictures where {expected} were embedded")
    if wrong:
        raise LookalikeError(
            f"{new.folder}: {wrong[0]}; the old gallery stays; delete this folder and try again"
        )


def _exchange(draft: Path, folder: Path) -> None:
    """Let two folders change names: in one step where the system can, else in three renames."""
    system = ctypes.CDLL(None, use_errno=True)
    if hasattr(system, "renameat2"):
        names = (_AT_FDCWD, os.fsencode(draft), _AT_FDCWD, os.fsencode(folder))
        if system.renameat2(*names, _RENAME_EXCHANGE) == 0:
            return
    spare = draft.with_name(f"{draft.name}.old")
    folder.rename(spare)
    draft.rename(folder)
    spare.rename(draft)
