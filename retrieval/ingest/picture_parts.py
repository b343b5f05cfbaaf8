"""Galleries of the parts of pictures: each picture is an item, and so are its parts.

The parts are what the gallery's detector finds in a picture; without one, or where it finds nothing, the
tiles that a search for objects looks at (`retrieval.search.regions`). All items of a picture have its path in
a column, by which searches find the picture once; the full path, if another folder has a picture of the same
relative path. The picture comes behind its parts: once it is an item, all
of them are, so that a run that was killed leaves no picture with some of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from retrieval.errors import ImageError, InputError
from retrieval.galleries.searchable import SearchableGallery
from retrieval.galleries.writer import Writer
from retrieval.images.boxes import PartBox, parse, split
from retrieval.images.load import open_bytes, read_bytes
from retrieval.images.location import locate_item
from retrieval.images.preprocess import Preprocess
from retrieval.ingest.sources import Entry, Scan
from retrieval.search.detector import Detector
from retrieval.search.regions import tiles
from retrieval.storage.planning import ImageFile, ItemTable, PictureItem
from retrieval.storage.records import PICTURE, Change, StoredItem, Value


def divide(gallery: SearchableGallery, table: ItemTable, found: Scan) -> None:
    """Put the parts of each picture of a scan before it; those that cannot be read, and parts, are alone.

    A picture that has not changed since it was divided keeps its parts. Parts that a changed one has no more
    are among the outdated items of the scan.

    Args:
        gallery: Gallery that divides pictures.
        table: Its items.
        found: Scan that has not been iterated over yet.

    Raises:
        InputError: While iterating: the user gives a picture a value in the column of the pictures.
        LookalikeError: The gallery lacks its detector.
    """
    found.entries = _with_parts(gallery, table, found, found.entries, gallery.detector)


def _with_parts(
    gallery: SearchableGallery,
    table: ItemTable,
    found: Scan,
    entries: Iterable[Entry],
    detector: Detector | None,
) -> Iterator[Entry]:
    root_of = dict[str, str]()
    for entry in entries:
        if not isinstance(entry, ImageFile) or split(entry.path)[1]:
            yield entry
            continue
        refuse_column(entry.metadata, entry.path, f"{entry.full}: ")
        known = table.of_picture(entry.root, entry.path)
        version = entry.size, entry.mtime_ns
        is_known = any(not item.box and item.version == version for item in known)
        if is_known:
            boxes = [item.box for item in known if item.box and item.version == version]
        else:
            boxes = _divided(gallery, entry, known, detector)
            first = root_of.setdefault(entry.path, entry.root)
            is_taken = first != entry.root or table.has_namesake(entry)
            name = str(entry.full) if is_taken else entry.path
            entry = entry._replace(metadata={**entry.metadata, PICTURE: name})
        if any(not item.box for item in known):  # parts without their picture are those of a table
            found.outdated += [item.id for item in known if item.box not in ("", *boxes)]
        for box in boxes:
            key = None if entry.id is None else entry.id + box
            yield entry._replace(path=entry.path + box, id=key)
        yield entry


def _divided(
    gallery: SearchableGallery, image: ImageFile, known: Sequence[PictureItem], detector: Detector | None
) -> list[str]:
    """Return the fragments of the parts of a picture; none if it cannot be read, which the run reports."""
    where = locate_item(str(gallery.folder), image.root, image.path)
    try:
        return parts_of_picture(read_bytes(where), str(where), detector)
    except ImageError as error:
        return [item.box for item in known if item.box] if error.reason in ImageError.UNREACHABLE else []


def parts_of_picture(data: bytes, name: str, detector: Detector | None) -> list[str]:
    """Return the fragments of the parts of a picture: of what a detector finds, or else of its tiles.

    Args:
        data: Bytes of the file.
        name: Name in error messages.
        detector: Detector; `None` for tiles.

    Raises:
        ImageError: The picture cannot be read.
        InputError: The detector fails.
    """
    opened = open_bytes(data, name, side=None if detector is None else detector.side)
    width, height = opened.upright_size
    boxes = [] if detector is None else _fragments(detector.boxes(opened.decode()[0]), width, height)
    if not boxes:
        covering = tiles(width, height)
        boxes = _fragments(covering, width, height) if len(covering) > 1 else []
    return boxes


def decode_parts(
    data: bytes, name: str, boxes: Iterable[str], preprocess: Preprocess
) -> Iterator[np.ndarray]:
    """Yield what the model sees of each part of a picture, uint8 [S, S, 3], as an indexing run does.

    Args:
        data: Bytes of the file.
        name: Name in error messages.
        boxes: Fragments of the parts.
        preprocess: Preprocessing of the model.

    Raises:
        ImageError: The picture is damaged.
    """
    shape, pixels = (0, 0), np.empty(0)
    for box in boxes:
        opened = open_bytes(data, name, side=preprocess.scaled, box=box)
        if opened.image.size != shape:  # else the same pixels
            shape, (pixels, _) = opened.image.size, opened.decode_whole()
        yield preprocess(opened.cut(pixels))


def _fragments(boxes: np.ndarray, width: int, height: int) -> list[str]:
    """Return the fragments of boxes, without the whole picture and what is too small to be an image."""
    found = dict.fromkeys(PartBox.of_fractions(box).fragment for box in boxes.tolist())
    return [fragment for fragment in found if _is_part(fragment, width, height)]


def _is_part(fragment: str, width: int, height: int) -> bool:
    box = parse(fragment)
    try:
        return box is not None and box.within(width, height) != (0.0, 0.0, 1.0, 1.0)
    except ValueError:
        return False


def refuse_column(metadata: Mapping[str, Value], picture: str | None, where: str = "") -> None:
    """Raise an `InputError` if metadata has another value in the column of the pictures than a picture's."""
    for name, value in metadata.items():
        if name.lower() == PICTURE and value != picture:
            what = f"{where}column {name!r}: by it, the parts of a picture know their picture in this gallery"
            raise InputError(f"{what}; give the column another name")


def with_changes_of_parts(
    writer: Writer, items: Sequence[StoredItem], changes: Sequence[Change]
) -> list[Change]:
    """Return changes of items, and behind them the same of the parts of those that are whole pictures.

    Args:
        writer: Writer of the gallery.
        items: The items as they are now.
        changes: A change of the label and the metadata of each.
    """
    found = [*changes]
    for item, change in zip(items, changes, strict=True):
        for part in writer.items(writer.parts_of([item])):
            stamp = None if change.stamp is None else part.stamp(change.stamp.label)
            found.append(replace(change, id=part.id, stamp=stamp))
    return found
