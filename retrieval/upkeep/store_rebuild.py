"""Rebuild of a gallery in a database: all images embedded with another model, in a new collection."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import chain
from pathlib import Path

from retrieval.errors import InputError, StoreError
from retrieval.files import now
from retrieval.galleries.database import DatabaseView
from retrieval.galleries.database_folder import address_of, is_store
from retrieval.images.load import DECODE_POLICY
from retrieval.ingest.indexing import BadFilePolicy, IngestResult, finish_run, ingest
from retrieval.ingest.sources import Scan
from retrieval.model.embedder import Embedder
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import IndexSpec
from retrieval.storage.store import hold_lock
from retrieval.system import fsync_folder
from retrieval.upkeep.rebuild import RebuildResult, stored_files
from retrieval.upkeep.reprojection import old_of
from retrieval.upkeep.store_successor import (
    create_collection,
    delete,
    keep_files,
    keep_predecessor,
    new_address,
    recall_of,
    swap,
)
from retrieval.upkeep.store_verify import verify_database


def rebuild_database(
    gallery: DatabaseView,
    model: Embedder,
    *,
    keep_old: bool = True,
    policy: BadFilePolicy | None = None,
    accept: Callable[[DatabaseView], None] | None = None,
    show_progress: bool = False,
) -> RebuildResult:
    """Embed all images of a gallery with another model, under the same ids, keys, labels and metadata.

    The new collection is built beside the present one, with the folder `.NAME.rebuild`, which replaces the
    gallery's when it is complete. An interrupted rebuild continues. Other machines go on with the old
    collection until their folders are connected to the new one. Images whose file is unreadable are
    reported, and are in the old collection only.

    Args:
        gallery: Gallery to rebuild.
        model: New model.
        keep_old: Keep the old collection, with the folder NAME.old.
        policy: Treatment of unusable files.
        accept: Called with the complete new gallery before it replaces the old one; see
            `retrieval.upkeep.rebuild.rebuild`.
        show_progress: Print progress on stderr.

    Raises:
        InputError: NAME.old exists and the old collection is to be kept.
        LookalikeError, KeyboardInterrupt: The database fails, or as for `add_images`; nothing is changed.
    """
    folder = gallery.folder.resolve()
    draft, old = folder.with_name(f".{folder.name}.rebuild"), old_of(folder)
    with hold_lock(folder):
        gallery.refresh()
        was_done = keep_predecessor(draft, old, gallery.manifest.rebuilt_from)
        if was_done and gallery.fingerprint == model.fingerprint:
            return RebuildResult(gallery, IngestResult(unchanged=len(gallery)), old, len(gallery))
        if keep_old and old.exists():
            raise InputError(f"{old}: already exists; move or delete it, or pass --drop-old")
        new = _open_or_create(gallery, model, draft)
        resumed, started = len(new), now()
        found = Scan(stored_files(gallery, chain.from_iterable(gallery.writer.scan())))
        keep_files(folder, draft)
        with new.writer.running(), closing(new.writer.table()) as table:
            result = ingest(new, table, found, policy=policy, show_progress=show_progress)
        index = IndexSpec(recall=recall_of(gallery))
        finish_run(new, result, "rebuild", started, reindex=True, index=index, show_progress=show_progress)
        _check(new, gallery.engine.count() - len(result.bad), show_progress)
        if accept is not None:
            accept(new)
        location = new.location
        new.engine.close()
        swap(draft, folder)
        if keep_old:
            draft.rename(old)
        else:
            gallery.engine.close()
            delete(draft, location)
        fsync_folder(folder.parent)
    rebuilt = type(gallery)(gallery.folder, runtime=model.runtime, address=location)
    return RebuildResult(rebuilt, result, old if keep_old else None, resumed)


def _open_or_create(gallery: DatabaseView, model: Embedder, draft: Path) -> DatabaseView:
    """Open the gallery of an interrupted rebuild with the same model, or create an empty one."""
    origin = gallery.manifest.uuid
    if is_store(draft):
        address = address_of(draft, gallery.location)
        try:
            begun = DatabaseView(draft, runtime=model.runtime, address=address)
        except InputError:  # killed before there was a collection
            begun = None
        if begun is not None:
            if begun.manifest.rebuilt_from == origin and begun.fingerprint == model.fingerprint:
                begun.use_model(model)
                return begun
            begun.engine.close()
    delete(draft, gallery.location)
    old = gallery.manifest
    manifest = Manifest(
        model.fingerprint,
        model.dim,
        decode_policy=DECODE_POLICY,
        provider=model.provider,
        rebuilt_from=origin,
        dtype=old.dtype,
        product=old.product,
        variant=old.variant,
        objects=old.objects,
        detector=old.detector,
    )
    _ = gallery.detector  # if its file is missing, nothing is begun
    address = new_address(gallery)
    create_collection(draft, address, manifest, model).close()
    new = DatabaseView(draft, runtime=model.runtime, address=address)
    new.use_model(model)
    return new


def _check(new: DatabaseView, expected: int, show_progress: bool) -> None:
    """Raise a `StoreError` if a successor is damaged or incomplete."""
    found = verify_database(new, show_progress=show_progress)
    problems = [problem.what for problem in found.problems]
    if found.items != expected:
        problems.append(f"it has {found.items} images instead of {expected}")
    if problems:
        raise StoreError(f"{new.folder}: {problems[0]}; the old gallery is unchanged; try again")
