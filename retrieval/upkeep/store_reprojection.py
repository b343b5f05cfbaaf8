"""Re-projection of a gallery in a database: a new collection beside the present one, and a swap of folders.

The folder of the new collection is `.NAME.reprojection` until it is complete. Then the two folders swap their
names, and that of the old collection is kept as NAME.old, from which `undo_database` restores it. A search
server notices the swap as that of a gallery in files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np

from retrieval.errors import InputError, StoreError
from retrieval.files import link_or_copy
from retrieval.galleries.database import DatabaseView
from retrieval.galleries.database_folder import address_of, is_store, read_folder
from retrieval.model.embedder import Embedder
from retrieval.model.layer import Layer
from retrieval.progress import Progress
from retrieval.search.calibration import NAME as CALIBRATION
from retrieval.storage.records import StoredItem
from retrieval.storage.store import hold_lock
from retrieval.stores.engine import Engine
from retrieval.stores.opening import open_engine
from retrieval.system import fsync_folder
from retrieval.upkeep.reprojection import (
    Reprojection,
    check_projectable,
    checked_probes,
    draft_of,
    old_of,
    projected,
)
from retrieval.upkeep.store_successor import (
    create_collection,
    delete,
    keep_files,
    keep_predecessor,
    new_address,
    recall_of,
    swap,
)

_CHUNK = 4096  # items in memory at a time


def reproject_database(
    gallery: DatabaseView,
    layer: Layer | None,
    model: Embedder,
    *,
    drop_old: bool = False,
    show_progress: bool = False,
) -> Reprojection:
    """Put every stored vector through a layer, in a new collection with a model file that has the layer.

    Ids, keys, labels, metadata, uploads and decisions stay; a calibration is that of the old vectors and does
    not. Whatever happens, the folder is that of the old collection or of the new one, complete. Other
    machines go on with the old collection until their folders are connected to the new one.

    Args:
        gallery: Gallery whose vectors are the layer's inputs.
        layer: Layer; `None` for a model with another text encoder: vectors and calibration stay.
        model: The gallery's model with the layer at its end, or with the text encoder.
        drop_old: Delete an earlier NAME.old with its collection.
        show_progress: Report progress on stderr.

    Raises:
        InputError: As for `retrieval.upkeep.reprojection.reproject`.
        LookalikeError: The database fails, its items changed meanwhile, or another process is writing; the
            gallery is unchanged.
    """
    draft, old = draft_of(gallery.folder), old_of(gallery.folder)
    with hold_lock(gallery.folder):
        gallery.refresh()
        if not keep_predecessor(draft, old, gallery.manifest.projected_from):
            delete(draft, gallery.location)
        check_projectable(gallery, drop_old=drop_old)
        checked_probes(gallery, layer, model)
        manifest = projected(gallery.manifest, model)
        address = new_address(gallery)
        try:
            with closing(create_collection(draft, address, manifest, model)) as engine:
                count = _copy(gallery.engine, engine, layer, show_progress)
                engine.optimize(recall_of(gallery), show_progress=show_progress)
            keep_files(gallery.folder, draft)
            if layer is None and (gallery.folder / CALIBRATION).exists():
                link_or_copy(gallery.folder / CALIBRATION, draft / CALIBRATION)
        except BaseException:
            delete(draft, address)
            raise
        if is_store(old):
            delete(old, address)
        swap(draft, gallery.folder)
        draft.rename(old)
        fsync_folder(old.parent)
    return Reprojection(DatabaseView(gallery.folder, runtime=model.runtime, address=address), old, count)


def undo_database(gallery: DatabaseView, *, show_progress: bool = False) -> DatabaseView:
    """Return to the collection in NAME.old, from before the last layer, and delete the present one.

    Changes of items since then stay: removals, labels, keys and metadata.

    Args:
        gallery: Gallery that was re-projected.
        show_progress: Report progress on stderr.

    Raises:
        InputError: There is no NAME.old that this gallery comes from, or images were added since, which have
            no vector of the old model.
        LookalikeError: As for `reproject_database`.
    """
    draft, old, origin = draft_of(gallery.folder), old_of(gallery.folder), gallery.manifest.projected_from
    with hold_lock(gallery.folder):
        gallery.refresh()
        if not keep_predecessor(draft, old, gallery.manifest.projected_from):
            delete(draft, gallery.location)
        if origin is None:
            raise InputError(
                f"{gallery.folder}: nothing to undo; no layer changed its vectors, or it was undone"
            )
        if not is_store(old) or read_folder(old).uuid != origin:
            what = (
                f"{gallery.folder}: cannot be undone, because {old} is not the gallery that it was made from"
            )
            raise InputError(f"{what}; build the gallery again with the model that you want")
        address = address_of(old, gallery.location)
        with closing(open_engine(address)) as before:
            _restore(gallery, before, show_progress)
        keep_files(gallery.folder, old)
        gallery.engine.close()
        swap(old, gallery.folder)
        delete(old, address)
        fsync_folder(old.parent)
    return DatabaseView(gallery.folder, root=gallery.root, address=address)


def _copy(source: Engine, target: Engine, layer: Layer | None, show_progress: bool) -> int:
    """Copy all items with their vectors, through a layer if there is one, and return their number."""
    target.add_columns(source.columns())
    copied = 0
    with Progress("re-projecting", source.count(), "vectors", show=show_progress) as progress:
        for items, vectors in _chunks(source, source):
            if len(vectors) < len(items):
                raise StoreError(f"{source.address}: items were removed meanwhile; try again")
            target.put(items, vectors if layer is None else layer(vectors))
            copied += len(items)
            progress.update(len(items))
    if (expected := source.count()) != copied:
        what = f"{copied:,} vectors were re-projected, and there are {expected:,} now"
        raise StoreError(f"{source.address}: {what}; try again while no other process adds images")
    return copied


def _chunks(items: Engine, vectors: Engine) -> Iterator[tuple[list[StoredItem], np.ndarray]]:
    """Yield all items by id, with the vectors that are stored under their ids."""
    last = 0
    while some := items.scan(None, last, _CHUNK):
        last = some[-1].id
        found = vectors.vectors([item.id for item in some])
        there = [found[item.id] for item in some if item.id in found]
        yield some, np.stack(there) if there else np.empty((0, 0), np.float32)


def _restore(gallery: DatabaseView, before: Engine, show_progress: bool) -> None:
    """Bring the items of the old collection up to the present state."""
    added = sum(len(items) - len(vectors) for items, vectors in _chunks(gallery.engine, before))
    if added:
        raise InputError(
            f"{gallery.folder}: {added} images were added since, without a vector of the old model; "
            "remove them, or build another collection with the model that you want"
        )
    before.add_columns(gallery.engine.columns())
    there: set[int] = set()
    with Progress("restoring", gallery.engine.count(), "vectors", show=show_progress) as progress:
        for items, vectors in _chunks(gallery.engine, before):
            before.put(items, vectors)
            there.update(item.id for item in items)
            progress.update(len(items))
    last = 0
    while some := before.scan(None, last, _CHUNK):
        last = some[-1].id
        before.remove([item.id for item in some if item.id not in there])
