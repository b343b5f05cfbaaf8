"""What an indexing run has to do: which pictures are new, which are known, and whose vector will do."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from retrieval.ingest import tables
from retrieval.ingest.sources import ImageFile
from retrieval.storage import schema
from retrieval.storage.records import OWN, BadFile, Change, StoredItem, Value
from retrieval.storage.store import Store


@dataclass(frozen=True)
class ExistingItem:
    """A picture that the gallery holds.

    Attributes:
        embedded: False where its vector was lost to damage.
    """

    id: int
    key: str
    size: int
    mtime_ns: int
    label: str | None
    embedded: bool


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


def existing_items(store: Store) -> dict[tuple[str, str], ExistingItem]:
    """The live items that have a file, by root and path."""
    query = (
        "SELECT root, path, id, key, size, mtime_ns, label, seg IS NOT NULL FROM items "
        "WHERE deleted_at IS NULL AND path != ''"
    )
    return {(root, path): ExistingItem(*facts) for root, path, *facts in store.rows(query)}


class ContentIndex:
    """The bytes that a gallery has embedded already, by their SHA-256. Threads may share it."""

    def __init__(self, store: Store) -> None:
        query = (
            f"SELECT content_sha256, id FROM items WHERE {schema.SEARCHABLE} "
            "AND content_sha256 != '' ORDER BY content_sha256, id"
        )
        rows = store.rows(query)
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


def duplicates(store: Store, after: int) -> list[list[str]]:
    """Keys of live items whose files hold the same bytes, in groups with an item newer than `after`."""
    query = (
        "SELECT content_sha256, key FROM items WHERE deleted_at IS NULL AND content_sha256 IN "
        "(SELECT content_sha256 FROM items WHERE deleted_at IS NULL AND content_sha256 != '' AND id > ?) "
        "ORDER BY id"
    )
    groups: dict[str, list[str]] = defaultdict(list)
    for digest, key in store.rows(query, (after,)):
        groups[digest].append(key)
    return [keys for keys in groups.values() if len(keys) > 1]


def check_columns(store: Store, pictures: Iterable[ImageFile]) -> None:
    """Refuse metadata that does not fit the gallery's columns, with an `InputError`."""
    with_facts = [picture for picture in pictures if picture.metadata]
    if not with_facts:
        return
    columns = store.columns()
    names = schema.check_columns({name for p in with_facts for name in p.metadata}, columns)
    there = {}
    for column in set(columns) & set(names.values()):
        found = {
            kind for (kind,) in store.rows(f"SELECT DISTINCT typeof({schema.quoted(column)}) FROM metadata")
        }
        if found - {"null"}:
            there[column] = "text" if "text" in found else "number"
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
