"""Items of a store from files and values: ids, columns, and what a replaced item keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from retrieval.errors import InputError
from retrieval.search.where import is_text
from retrieval.storage import schema
from retrieval.storage.records import NewItem, StoredItem, Value
from retrieval.storage.schema import ColumnType
from retrieval.stores.conditions import instant_column, is_hidden, microseconds
from retrieval.stores.engine import Amendment, Engine

_ID_BITS = 53  # JavaScript reads larger whole numbers of JSON inexactly


class ItemWriter:
    """Writes items to a database. An item keeps its id as long as its key; several processes may write.

    The id of a key is computed from its SHA-256, so that no process has to hand out numbers, and a repeated
    write has no further effect. If another key has that id, the next of a fixed sequence is taken.

    Args:
        engine: Database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._columns = engine.columns()

    def put(self, items: Sequence[NewItem], vectors: np.ndarray) -> list[StoredItem]:
        """Write items with their vectors, and return them.

        An item replaces the one with the same key, and keeps its label and other metadata unless it has its
        own.

        Args:
            items: Items with keys that differ.
            vectors: float32 [n, D], unit length.

        Raises:
            InputError: A key, column or value that cannot be stored; nothing is written.
        """
        keys = [schema.check_key(item.key or item.stamp.path) for item in items]
        for key, item in zip(keys, items, strict=True):
            _check_texts(f"item {key[:60]!r}", (key, item.stamp.root, item.stamp.path, item.stamp.label))
        if len(set(keys)) < len(keys):
            twice = next(key for n, key in enumerate(keys) if key in keys[:n])
            raise InputError(f"key {twice[:60]!r}: two items cannot have the same key")
        given = self._values([(key, item.metadata) for key, item in zip(keys, items, strict=True)])
        ids, former = self._identify(keys)
        stored = []
        for key, item, values in zip(keys, items, given, strict=True):
            before = former.get(key)
            kept = {} if before is None else before.metadata
            stamp = item.stamp
            metadata: dict[str, Value] = {
                name: value for name, value in {**kept, **values}.items() if value is not None
            }
            stored.append(
                StoredItem(
                    ids[key],
                    key,
                    stamp.root,
                    stamp.path,
                    stamp.size,
                    stamp.mtime_ns,
                    item.content_sha256,
                    item.width,
                    item.height,
                    before.label if stamp.label is None and before is not None else stamp.label,
                    None,
                    metadata,
                )
            )
        self._engine.put(stored, vectors)
        return [visible(item) for item in stored]

    def amend(self, changes: Sequence[Amendment]) -> None:
        """Change facts and metadata of items.

        Raises:
            InputError: A column or value that cannot be stored; nothing is written.
        """
        checked = self._values([(f"item {one.id}", one.metadata) for one in changes])
        for one in changes:
            _check_texts(f"item {one.id}", one.facts.values())
        self._engine.amend(
            [Amendment(one.id, one.facts, values) for one, values in zip(changes, checked, strict=True)]
        )

    # ---- ids

    def _identify(self, keys: Sequence[str]) -> tuple[dict[str, int], dict[str, StoredItem]]:
        """Return the id of each key, and the items that have some of the keys already."""
        ids = self._engine.ids_by("key", keys)
        former = {item.key: item for item in self._engine.items([*ids.values()])}
        left, attempt = [key for key in keys if key not in ids], 0
        taken = set(ids.values())
        while left:
            wanted = {key: item_id(key, attempt) for key in left}
            occupied = {item.id for item in self._engine.items([*wanted.values()])} | taken
            for key, number in wanted.items():
                if number not in occupied:
                    ids[key] = number
                    occupied.add(number)
                    taken.add(number)
            left, attempt = [key for key in left if key not in ids], attempt + 1
        return ids, former

    # ---- columns

    def _values(self, rows: Sequence[tuple[str, Mapping[str, Value]]]) -> list[dict[str, Value]]:
        """Return checked values by column, with the instants of dates; new columns are added."""
        names = sorted({name for _, values in rows for name in values})
        if not names:
            return [{} for _ in rows]
        if hidden := next(filter(is_hidden, names), None):
            raise InputError(f"metadata column {hidden!r}: the name is reserved; rename the column")
        known = [name for name in self._columns if not is_hidden(name)]
        chosen = schema.match_columns(names, known)
        checked = []
        for place, values in rows:
            row = {chosen[name]: schema.check_value(name, value) for name, value in values.items()}
            _check_texts(place, row.values())
            checked.append((place, row))
        types = schema.check_types(checked, self._columns)
        complete = [{**row, **self._instants(row, types)} for _, row in checked]
        if new := {name: type_ for name, type_ in types.items() if name not in self._columns}:
            self._engine.add_columns(new)
            self._columns = self._engine.columns()
        return complete

    def _instants(self, row: Mapping[str, Value], types: dict[str, ColumnType]) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for name, value in row.items():
            instant = microseconds(value) if isinstance(value, str) else None
            if instant is not None:
                types[instant_column(name)] = "number"
            if instant is not None or instant_column(name) in types:
                found[instant_column(name)] = instant
        return found


def visible(item: StoredItem) -> StoredItem:
    """Return an item without the columns that users do not see."""
    if not any(map(is_hidden, item.metadata)):
        return item
    return item._replace(metadata={k: v for k, v in item.metadata.items() if not is_hidden(k)})


def item_id(key: str, attempt: int = 0) -> int:
    """Return the id of a key: 1 to 2^53 - 1. If another key has it, the next attempt gives another id."""
    digest = hashlib.sha256(f"{attempt}:{key}".encode()).digest()
    return (int.from_bytes(digest[:7]) >> (56 - _ID_BITS)) or 1


def _check_texts(place: str, values: Iterable[object]) -> None:
    for value in values:
        if isinstance(value, str) and not is_text(value):
            raise InputError(f"{place}: {value[:60]!r} has a character that databases cannot store")
