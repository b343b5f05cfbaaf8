"""Rebuild: embed a gallery again with another model, beside the old gallery, and swap the two."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from retrieval.errors import InputError
from retrieval.files import link_or_copy, now
from retrieval.galleries.files import FilesView
from retrieval.galleries.searchable import SearchableGallery
from retrieval.ingest.indexing import BadFilePolicy, IngestResult, finish_run, ingest
from retrieval.ingest.sources import Entry, Scan, stat_image
from retrieval.model.embedder import Embedder
from retrieval.search.detector import NAME as DETECTOR
from retrieval.storage.decisions import copy_log
from retrieval.storage.maintenance import carry_identities
from retrieval.storage.queries import count_items, live_ids
from retrieval.storage.records import UPLOADS, BadFile, FileStamp, StoredItem
from retrieval.storage.store import Store, clear_drafts
from retrieval.system import fsync_folder
from retrieval.upkeep.successor import check_successor, exchange, keep_predecessor


@dataclass(frozen=True)
class RebuildResult:
    """Result of a rebuild.

    Attributes:
        gallery: The new gallery, in place of the old one.
        result: Result of the indexing run.
        old: Present folder of the old gallery; `None` if it was deleted.
        resumed: Number of images that an earlier, interrupted rebuild had embedded.
    """

    gallery: SearchableGallery
    result: IngestResult
    old: Path | None
    resumed: int


def rebuild(
    gallery: FilesView,
    model: Embedder,
    *,
    keep_old: bool = True,
    policy: BadFilePolicy | None = None,
    accept: Callable[[FilesView], None] | None = None,
    show_progress: bool = False,
) -> RebuildResult:
    """Embed all images of a gallery with another model, under the same ids, keys, labels and metadata.

    The new gallery is built in the hidden folder `.NAME.rebuild` beside the old one and replaces it when it
    is complete; until then the old one is unchanged. An interrupted rebuild continues where it stopped, in
    `.NAME.rebuild`; what it has left before that folder was complete is deleted.
    Images whose file is unreadable are reported and remain in the old gallery only.

    Args:
        gallery: Gallery to rebuild.
        model: New model.
        keep_old: Keep the old gallery as NAME.old.
        policy: Treatment of unusable files.
        accept: Called with the complete new gallery before it replaces the old one. If it raises an error,
            the old gallery stays, and the next rebuild with this model begins here, without embedding.
        show_progress: Print progress on stderr.

    Raises:
        InputError: NAME.old exists and the old gallery is to be kept.
        LookalikeError, KeyboardInterrupt: As for `add_images`; the old gallery stays in place.
    """
    folder = gallery.folder.resolve()
    draft, old = folder.with_name(f".{folder.name}.rebuild"), folder.with_name(f"{folder.name}.old")
    with gallery.store.writing():
        clear_drafts(draft)
        was_done = keep_predecessor(draft, old, gallery.store.manifest.rebuilt_from)
        if was_done and gallery.fingerprint == model.fingerprint:
            return RebuildResult(gallery, IngestResult(unchanged=len(gallery)), old, len(gallery))
        if keep_old and old.exists():
            raise InputError(f"{old}: already exists; move or delete it, or pass --drop-old")
        new = _open_or_create(gallery, model, draft)
        with new.store.writing():
            carry_identities(gallery.store, new.store)
            _link_uploads(gallery.store, new.store)
            resumed, started, found = len(new), now(), Scan(stored_files(gallery, _items(gallery.store)))
            with closing(new.store.table()) as table:
                result = ingest(new, table, found, policy=policy, show_progress=show_progress)
            index = gallery.store.manifest.index_spec
            finish_run(
                new, result, "rebuild", started, reindex=True, index=index, show_progress=show_progress
            )
            expected = count_items(gallery.store).live - len(result.bad)
            copy_log(gallery.folder, draft)
            check_successor(draft, expected, model.runtime, show_progress=show_progress)
            if accept is not None:
                accept(new)
            exchange(draft, folder)
        if keep_old:
            draft.rename(old)
        else:
            shutil.rmtree(draft)
        fsync_folder(folder.parent)
    rebuilt = type(gallery)(gallery.folder, runtime=model.runtime)
    return RebuildResult(rebuilt, result, old if keep_old else None, resumed)


def _open_or_create(gallery: FilesView, model: Embedder, draft: Path) -> FilesView:
    """Open the gallery of an interrupted rebuild with the same model, or create an empty one."""
    origin = gallery.store.manifest.uuid
    if (draft / "gallery.db").exists():
        begun = FilesView(draft, runtime=model.runtime)
        if begun.store.manifest.rebuilt_from == origin and begun.fingerprint == model.fingerprint:
            begun.use_model(model)
            return begun
    if draft.exists():
        shutil.rmtree(draft)
    detector = gallery.detector  # if its file is missing, nothing is begun
    new = FilesView.new(draft, model, storage=gallery.store.manifest.dtype)
    with new.store.writing():
        if detector is not None:
            link_or_copy(detector.path, draft / DETECTOR)
        old = gallery.store.manifest
        known = replace(
            new.store.manifest,
            rebuilt_from=origin,
            product=old.product,
            variant=old.variant,
            objects=old.objects,
            detector=old.detector,
        )
        new.store.update_manifest(known)
    return new


def stored_files(gallery: SearchableGallery, items: Iterable[StoredItem]) -> Iterator[Entry]:
    """Yield the files of items, with the keys, labels and metadata that the gallery has for them."""
    for item in items:
        if not item.path:
            no_file = FileStamp("", item.key, 0, 0, item.label)
            yield BadFile(no_file, "no-file", "it has a vector but no image file")
            continue
        full = Path(gallery.paths.of(item)).absolute()
        image = stat_image(str(full), str(full.parents[len(Path(item.path).parts) - 1]))
        if item.root == UPLOADS:
            image = image._replace(root=UPLOADS)
        yield image._replace(label=item.label, id=item.key, metadata=item.metadata, has_own_label=True)


def _link_uploads(old: Store, new: Store) -> None:
    """Hard-link, or else copy, the uploaded image files of the old gallery into the new one."""
    for name in old.uploaded_files():
        source, target = old.uploads / name, new.uploads / name
        if source.exists() and not target.exists():
            new.uploads.mkdir(old.uploads.stat().st_mode & 0o770, exist_ok=True)
            link_or_copy(source, target)


def _items(store: Store) -> Iterator[StoredItem]:
    ids = live_ids(store)
    for start in range(0, len(ids), 1000):
        yield from store.items(ids[start : start + 1000])
