"""Upgrade of a gallery of format 2 to the present format, in place."""

from __future__ import annotations

import shutil
import uuid
from contextlib import closing
from pathlib import Path

import numpy as np

from retrieval.files import link_or_copy
from retrieval.galleries.files import Gallery
from retrieval.progress import Progress
from retrieval.storage import segments
from retrieval.storage.format2 import OldGallery, OldSegment
from retrieval.storage.manifest import write_copy
from retrieval.storage.records import Segment
from retrieval.storage.store import hold_lock
from retrieval.upkeep.salvage import replace_database

_DRAFT = "indexes/upgrade"


def upgrade(folder: Path, *, show_progress: bool = False) -> Gallery:
    """Upgrade a gallery of format 2, and return it.

    The files of vectors stay as they are; new files of rows and facts, and a new database, are written beside
    the old ones, and the new database replaces the old one in one step. An interrupted upgrade can be
    repeated. Ids, keys, labels and metadata stay; removed items are dropped. The index is built again.

    Args:
        folder: Gallery folder.
        show_progress: Report progress on stderr.

    Raises:
        InputError: The folder is no gallery of format 2.
        LockedError: Another process is writing.
        LookalikeError: The gallery is damaged; it is unchanged.
    """
    with closing(OldGallery(folder)) as old, hold_lock(folder):
        listed, numbers = list[Segment](), [np.empty(0, np.int64)]
        found = list(old.segments())
        with Progress("upgrading", sum(len(s.ids) for s in found), "vectors", show=show_progress) as progress:
            for segment in found:
                listed.append(_convert(old, segment))
                numbers.append(segment.ids)
                progress.update(len(segment.ids))
        draft = folder / _DRAFT
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        old.write_database(draft, listed, np.concatenate(numbers))
        write_copy(folder, old.manifest)
        replace_database(folder, draft)
    gallery = Gallery(folder)
    with gallery.store.writing():
        gallery.optimize_index(show_progress=show_progress)
    return gallery


def _convert(old: OldGallery, segment: OldSegment) -> Segment:
    """Link the vectors of a segment under a new name, and write the files of their rows and facts."""
    vectors, ids = old.vectors(segment), segment.ids
    path = old.folder / "segments" / f"{uuid.uuid4().hex}.npy"
    link_or_copy(old.folder / "segments" / segment.file, path)
    rows = np.stack([ids, ids])  # a vector has the number of the item that it was stored with
    segments.write_rows(path, np.vstack([rows, segments.checksums(vectors, rows)]))
    segments.write_facts(path, old.facts(ids))
    return Segment(0, path.name, len(ids), int(ids[0]), int(ids[-1]))
