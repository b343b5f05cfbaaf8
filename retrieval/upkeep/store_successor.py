"""Replacement of a gallery in a database: a collection beside it, with a folder, and a swap of the folders.

The folder of the new collection is there before the collection, so that the next run finds what a killed one
has left.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import closing
from pathlib import Path

from retrieval.files import link_or_copy
from retrieval.galleries.database import RECALL, DatabaseView
from retrieval.galleries.database_folder import address_of, create_folder, is_store, read_folder
from retrieval.model.embedder import Embedder
from retrieval.search.detector import NAME as DETECTOR
from retrieval.storage.decisions import copy_log
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import UPLOADS
from retrieval.storage.store import hold_lock
from retrieval.stores.address import Address
from retrieval.stores.engine import Engine
from retrieval.stores.opening import open_engine
from retrieval.upkeep.successor import exchange

_WORD = 4  # random bytes in the name of a collection


def new_address(gallery: DatabaseView) -> Address:
    """Return an address beside that of a gallery, where no collection is."""
    return gallery.location.sibling(secrets.token_hex(_WORD))


def recall_of(gallery: DatabaseView) -> float:
    """Return the recall of the index of a gallery."""
    return float(gallery.engine.facts().get("recall", RECALL))


def create_collection(draft: Path, address: Address, manifest: Manifest, model: Embedder) -> Engine:
    """Create the folder of a collection, and the collection."""
    create_folder(draft, address, manifest.uuid, model)
    engine = open_engine(address)
    engine.create(manifest)
    return engine


def keep_files(folder: Path, target: Path) -> None:
    """Give another folder the uploads, the detector and the decisions of a gallery."""
    shutil.rmtree(target / UPLOADS, ignore_errors=True)
    for file in sorted((folder / UPLOADS).rglob("*")) if (folder / UPLOADS).is_dir() else ():
        if file.is_file():
            copy = target / UPLOADS / file.relative_to(folder / UPLOADS)
            copy.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(file, copy)
    if (folder / DETECTOR).exists():
        link_or_copy(folder / DETECTOR, target / DETECTOR)
    copy_log(folder, target)


def swap(draft: Path, folder: Path) -> None:
    """Swap the names of two folders, of which the second one is locked."""
    with hold_lock(draft):
        exchange(draft, folder.resolve())


def keep_predecessor(draft: Path, old: Path, origin: str | None) -> bool:
    """Finish a replacement that was killed after the swap; return whether there was one.

    Args:
        draft: Folder in which successors are built; after the swap it has the predecessor.
        old: Folder in which the predecessor is kept.
        origin: uuid of the collection that the present one has replaced, if any.
    """
    if not is_store(draft) or read_folder(draft).uuid != origin or old.exists():
        return False
    draft.rename(old)
    return True


def delete(folder: Path, other: Address) -> None:
    """Delete the folder of a collection, if it is there, and the collection; the password is another's."""
    if is_store(folder):
        with closing(open_engine(address_of(folder, other))) as engine:
            engine.drop()
    shutil.rmtree(folder, ignore_errors=True)
