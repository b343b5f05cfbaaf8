"""Replay of the decisions that people made by hand, when a gallery is brought up to date with its folders.

A decision is about an image with a key and certain bytes. It does not apply to other bytes under the same
key. Decisions about uploaded images and items without a file are not replayed: no folder brings them back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from retrieval.errors import ImageError
from retrieval.galleries.writer import Writer
from retrieval.images.load import content_sha256, read_bytes
from retrieval.images.location import locate_item
from retrieval.ingest.picture_parts import with_changes_of_parts
from retrieval.ingest.sources import Entry, Scan
from retrieval.storage.decisions import Decision, DecisionLog
from retrieval.storage.planning import ImageFile
from retrieval.storage.records import UPLOADS, Change, StoredItem

_AT_ONCE = 1000  # items read at a time


def withhold(folder: Path, found: Scan) -> None:
    """Leave the files of images that were removed by hand out of a scan, which counts them.

    A file of another size or modification time is read, and is left out if its bytes are the removed ones.

    Args:
        folder: Gallery folder.
        found: Scan that has not been iterated over yet.

    Raises:
        LookalikeError: The log of decisions is damaged.
    """
    home = folder.resolve()
    last = {one.key: one for one in DecisionLog(folder).in_effect()}
    removed = {_place(home, one.root, one.path): one for one in last.values() if one.action == "remove"}
    if removed:
        found.entries = _others(found, found.entries, removed, home)


def _others(
    found: Scan, entries: Iterable[Entry], removed: Mapping[str, Decision], home: Path
) -> Iterator[Entry]:
    for entry in entries:
        decision = removed.get(_place(home, entry.root, entry.path)) if isinstance(entry, ImageFile) else None
        if isinstance(entry, ImageFile) and decision is not None and _is_same(entry, decision, home):
            found.withheld += 1
        else:
            yield entry


def _place(home: Path, root: str, path: str) -> str:
    """Return the full path of a file, however its root is written."""
    return os.path.normpath(os.path.join(home, root, path))


def _is_same(image: ImageFile, decision: Decision, home: Path) -> bool:
    if (image.size, image.mtime_ns) == (decision.size, decision.mtime_ns):
        return True
    try:
        where = locate_item(str(home), image.root, image.path)
        data = read_bytes(where)
    except ImageError:
        return False  # the run reports it
    return content_sha256(data, where.box) == decision.content


@dataclass
class Replay:
    """Result of `replay`.

    Attributes:
        relabelled: Images whose label is the one decided on again.
        removed: Images that were removed again.
    """

    relabelled: int = 0
    removed: int = 0


def replay(writer: Writer) -> Replay:
    """Carry out the decisions that are not in effect in a gallery. Call it inside `writer.running()`.

    A label is changed if it is one of those that decisions have replaced: a label that came from elsewhere
    since, as from a table, stays. Replaying again changes nothing.

    Raises:
        LookalikeError: The log of decisions is damaged.
    """
    done = Replay()
    histories: dict[str, list[Decision]] = {}
    for decision in DecisionLog(writer.folder).in_effect():
        if decision.path and decision.root != UPLOADS:
            histories.setdefault(decision.key, []).append(decision)
    keys = [*histories]
    for start in range(0, len(keys), _AT_ONCE):
        ids = writer.ids_by_key(keys[start : start + _AT_ONCE])
        removed, changes, relabelled = list[int](), list[Change](), list[StoredItem]()
        for item in writer.items([*ids.values()]):
            history = [one for one in histories[item.key] if one.content == item.content_sha256]
            if history and history[-1].action == "remove":
                removed.append(item.id)
            elif (label := _label(item, history)) != item.label:
                changes.append(Change(item.id, item.stamp(label)))
                relabelled.append(item)
        if changes:
            writer.amend(with_changes_of_parts(writer, relabelled, changes))
        if removed:
            writer.remove(writer.with_parts(removed))
        done.relabelled += len(changes)
        done.removed += len(removed)
    return done


def _label(item: StoredItem, history: Iterable[Decision]) -> str | None:
    """Return the label that an item should have, given the decisions about it, oldest first."""
    changes = [one for one in history if one.action == "label"]
    return changes[-1].new if item.label in {one.old for one in changes} else item.label
