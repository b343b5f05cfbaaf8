"""Re-projection of a gallery in a database: a new collection beside the present one, and a swap of folders.

The folder of the new collection is `.NAME.reprojection` until it is complete. Then the two folders swap their
names, and that of the old collection is kept as NAME.old, from which `undo_database` restores it. A search
server notices the swap as that of a gallery in files.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from retrieval.errors import InputError, StoreError
from retrieval.files import fsync_folder, link_or_copy
from retrieval.galleries.database import RECALL, DatabaseView
from retrieval.galleries.database_folder import create_folder, is_store, read_folder
from retrieval.model.embedder import Embedder
from retrieval.model.layer import Layer
from retrieval.progress import Progress
from retrieval.storage.decisions import copy_log
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import UPLOADS, StoredItem
from retrieval.storage.store import hold_lock
from retrieval.stores.address import Address
from retrieval.stores.engine import Engine
from retrieval.stores.opening import open_engine
from retrieval.upkeep.reprojection import (
    Reprojection,
    check_projectable,
    checked_probes,
    draft_of,
    old_of,
    projected,
)
from retrieval.upkeep.successor import exchange

_CHUNK = 4096  # items in memory at a time
_WORD = 4  # random bytes in the name of a collection


def reproject_database(
    gallery: DatabaseView,
    layer: Layer,
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
        layer: Layer.
        model: The gallery's model with the layer at its end.
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
        _tidy(draft, old, gallery)
        check_projectable(gallery, drop_old=drop_old)
        checked_probes(gallery, layer, model)
        manifest = projected(gallery.manifest, model)
        address = gallery.location.sibling(secrets.token_hex(_WORD))
        with _successor(gallery, draft, address, manifest, model) as engine:
            count = _copy(gallery.engine, engine, layer, show_progress)
            recall = float(gallery.engine.facts().get("recall", RECALL))
            engine.optimize(recall, show_progress=show_progress)
        if is_store(old):
            _delete(old, address)
        _swap(draft, gallery.folder)
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
        _tidy(draft, old, gallery)
        if origin is None:
            raise InputError(
                f"{gallery.folder}: nothing to undo; no layer changed its vectors, or it was undone"
            )
        if not is_store(old) or read_folder(old).uuid != origin:
            what = (
                f"{gallery.folder}: cannot be undone, because {old} is not the gallery that it was made from"
            )
            raise InputError(f"{what}; build the gallery again with the model that you want")
        address = _address(old, gallery.location)
        before = open_engine(address)
        try:
            _restore(gallery, before, show_progress)
        finally:
            before.close()
        _keep_files(gallery.folder, old)
        gallery.engine.close()
        _swap(old, gallery.folder)
        _delete(old, address)
        fsync_folder(old.parent)
    return DatabaseView(gallery.folder, root=gallery.root, address=address)


@contextmanager
def _successor(
    gallery: DatabaseView, draft: Path, address: Address, manifest: Manifest, model: Embedder
) -> Iterator[Engine]:
    """Create a collection beside that of a gallery, with a folder; both are deleted after an error.

    The folder is there first, so that the next run finds the collection of one that was killed.
    """
    create_folder(draft, address, manifest.uuid, model)
    try:
        engine = open_engine(address)
        try:
            engine.create(manifest)
            yield engine
        finally:
            engine.close()
        _keep_files(gallery.folder, draft)
    except BaseException:
        _delete(draft, address)
        raise


def _copy(source: Engine, target: Engine, layer: Layer, show_progress: bool) -> int:
    """Copy all items with the layer's vectors, and return their number."""
    target.add_columns(source.columns())
    copied = 0
    with Progress("re-projecting", source.count(), "vectors", show=show_progress) as progress:
        for items, vectors in _chunks(source, source):
            if len(vectors) < len(items):
                raise StoreError(f"{source.address}: items were removed meanwhile; try again")
            target.put(items, layer(vectors).astype(np.float32))
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


# ---- folders


def _keep_files(folder: Path, target: Path) -> None:
    """Give another folder the uploads and the decisions of a gallery."""
    shutil.rmtree(target / UPLOADS, ignore_errors=True)
    for file in sorted((folder / UPLOADS).rglob("*")) if (folder / UPLOADS).is_dir() else ():
        if file.is_file():
            copy = target / UPLOADS / file.relative_to(folder / UPLOADS)
            copy.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(file, copy)
    copy_log(folder, target)


def _swap(one: Path, other: Path) -> None:
    """Swap the names of two folders, both locked."""
    with ExitStack() as stack:
        stack.enter_context(hold_lock(one))
        exchange(one, other.resolve())


def _tidy(draft: Path, old: Path, gallery: DatabaseView) -> None:
    """Finish what a killed run has left: its collection is deleted, unless the swap was done."""
    if not is_store(draft):
        shutil.rmtree(draft, ignore_errors=True)
    elif read_folder(draft).uuid == gallery.manifest.projected_from and not old.exists():
        draft.rename(old)
    else:
        _delete(draft, gallery.location)


def _address(folder: Path, other: Address) -> Address:
    """Return the address of the collection of a folder, with the password of another one."""
    return replace(read_folder(folder).address, password=other.password)


def _delete(folder: Path, other: Address) -> None:
    """Delete the folder of a collection, and the collection; the password is that of another address."""
    engine = open_engine(_address(folder, other))
    try:
        engine.drop()
    finally:
        engine.close()
    shutil.rmtree(folder)
