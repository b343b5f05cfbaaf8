"""What an indexing run has to do: which pictures are new, which are known, and whose vector will do."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from retrieval.ingest import tables
from retrieval.ingest.sources import ImageFile
from retrieval.storage import schema
from retrieval.storage.queries import column_type, embedded_contents, existing_items
from retrieval.storage.records import OWN, BadFile, Change, ExistingItem, StoredItem, Value
from retrieval.storage.store import Store


@dataclass
class Plan:
    """What is to be done about the pictures of some sources.

    Attributes:
        todo: to be read, and embedded unless the gallery knows the bytes.
        changes: of labels and metadata alone.
        unchanged: pictures that are there as they are.
        bad: known to be unusable, and not changed since.
        outdated: items that go once `todo` is done: their picture is listed under another id now.
        present: what the gallery holds, by root and path.
    """

    todo: list[ImageFile] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    unchanged: int = 0
    bad: list[BadFile] = field(default_factory=list)
    outdated: list[int] = field(default_factory=list)
    present: Mapping[tuple[str, str], ExistingItem] = field(default_factory=dict)


def make_plan(store: Store, pictures: Iterable[ImageFile], *, retry: bool) -> Plan:
    """Compare pictures with a gallery, by size and time of change.

    Args:
        retry: whether files that were unusable are tried again although they have not changed.

    Raises:
        InputError: metadata that does not fit the gallery's columns.
    """
    pictures = _by_our_names(store, pictures)
    plan = Plan(present=existing_items(store))
    known_bad = {file.stamp.key: file for file in store.bad_files()}
    told: dict[int, ImageFile] = {}
    for picture in pictures:
        there, seen = plan.present.get(picture.key), (picture.size, picture.mtime_ns)
        renamed = there is not None and picture.id not in (None, there.key)
        bad = known_bad.get(picture.key)
        if there and there.embedded and not renamed and (there.size, there.mtime_ns) == seen:
            plan.unchanged += 1
            if picture.told or picture.metadata:
                told[there.id] = picture
        elif bad and not retry and (bad.stamp.size, bad.stamp.mtime_ns) == seen:
            plan.bad.append(bad)
        else:
            plan.todo.append(picture)
            if there and renamed:
                plan.outdated.append(there.id)
    check_columns(store, pictures)
    plan.changes = list(_differences(store, told))
    return plan


def _by_our_names(store: Store, pictures: Iterable[ImageFile]) -> list[ImageFile]:
    """Pictures, with those that the gallery keeps itself named as it names them, however they were found."""
    if not store.own.is_dir():
        return list(pictures)
    own = f"{store.own}/"
    named = ((os.path.join(one.root, one.path), one) for one in pictures)
    return [
        replace(one, root=OWN, path=full.removeprefix(own)) if full.startswith(own) else one
        for full, one in named
    ]


class ContentIndex:
    """The bytes that a gallery has embedded already, by their SHA-256. Threads may share it."""

    def __init__(self, store: Store) -> None:
        rows = embedded_contents(store)
        self._digests = np.array(
            [digest for digest, _ in rows], "S64"
        )  # a set would take three times as much
        self._ids = np.array([item for _, item in rows], np.int64)

    def __contains__(self, digest: str) -> bool:
        start, stop = self._range(digest)
        return start < stop

    def ids(self, digest: str) -> list[int]:
        """The items whose files held these bytes, oldest first."""
        return self._ids[slice(*self._range(digest))].tolist()

    def _range(self, digest: str) -> tuple[int, int]:
        wanted = np.array(digest, "S64")
        start, stop = (np.searchsorted(self._digests, wanted, side) for side in ("left", "right"))
        return int(start), int(stop)


def follow_file(picture: ImageFile, item: StoredItem) -> Change:
    """The change that lets an item follow its file to another path.

    The id follows where it was the path, and the label where it was the folder.
    """
    folder = Path(item.path).parent.as_posix()
    keeps_label = not picture.told and item.label not in (None, folder)
    stamp = replace(picture.file, label=item.label) if keeps_label else picture.file
    key = picture.id or (picture.path if item.key == item.path else None)
    return Change(item.id, stamp, picture.metadata, key)


def check_columns(store: Store, pictures: Iterable[ImageFile]) -> None:
    """Refuse metadata that does not fit the gallery's columns, with an `InputError`."""
    with_facts = [picture for picture in pictures if picture.metadata]
    if not with_facts:
        return
    columns = store.columns()
    names = schema.check_columns({name for p in with_facts for name in p.metadata}, columns)
    there = {}
    for column in set(columns) & set(names.values()):
        kind = column_type(store, column)
        if kind is not None:
            there[column] = "text" if kind == "text" else "number"
    given = (
        (
            picture.full,
            {names[name]: schema.check_value(name, value) for name, value in picture.metadata.items()},
        )
        for picture in with_facts
    )
    tables.check_types(given, there)


def _differences(store: Store, told: Mapping[int, ImageFile]) -> Iterator[Change]:
    """What the owner says about pictures that the gallery has otherwise."""
    for item in store.items(list(told)):
        picture = told[item.id]
        label = picture.label if picture.told else item.label
        news: dict[str, Value] = {
            name: value for name, value in picture.metadata.items() if item.metadata.get(name) != value
        }
        if news or label != item.label:
            yield Change(item.id, replace(picture.file, label=label), news)
