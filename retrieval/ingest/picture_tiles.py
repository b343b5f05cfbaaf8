"""Galleries of the parts of pictures: each picture is an item, and so are overlapping tiles that cover it.

The tiles are those that a search for objects looks at (`retrieval.search.regions`). All items of a picture
have its path in a column, by which searches find the picture once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from retrieval.errors import ImageError
from retrieval.images.boxes import PartBox, split
from retrieval.images.load import open_bytes, read_bytes
from retrieval.images.location import locate_item
from retrieval.ingest.sources import Entry
from retrieval.search.regions import tiles
from retrieval.storage.planning import ImageFile

COLUMN = "picture"


def with_tiles(entries: Iterable[Entry], folder: Path) -> Iterator[Entry]:
    """Yield pictures with the tiles behind each; those that cannot be read, and parts, are alone.

    Args:
        entries: What a scan yields.
        folder: Gallery folder.
    """
    for entry in entries:
        if not isinstance(entry, ImageFile) or split(entry.path)[1]:
            yield entry
            continue
        metadata = {**entry.metadata, COLUMN: entry.path}
        yield entry._replace(metadata=metadata)
        for box in _tiles(entry, folder):
            key = None if entry.id is None else entry.id + box
            yield entry._replace(path=entry.path + box, id=key, metadata=metadata)


def _tiles(image: ImageFile, folder: Path) -> list[str]:
    """Return the fragments of the tiles of a picture; none if it cannot be read, which the run reports."""
    where = locate_item(str(folder), image.root, image.path)
    try:
        size = open_bytes(read_bytes(where), str(where)).upright_size
    except ImageError:
        return []
    found = tiles(*size)
    return [PartBox.of_fractions(box).fragment for box in found] if len(found) > 1 else []
