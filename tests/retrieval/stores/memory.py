"""The smallest store: items in the memory of this process, compared by brute force.

It is registered as another package would do it: by the metadata of a distribution on `sys.path`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from retrieval import plugins
from retrieval.storage.conditions import Filter
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import StoredItem, Value
from retrieval.storage.schema import ColumnType
from retrieval.stores.engine import Amendment, Engine, Neighbours, no_collection
from retrieval.stores.ranking import value_of
from tests.retrieval.stores.server import EmbeddedServer, Server


@dataclass
class Collection:
    """Items and vectors by id."""

    manifest: Manifest
    columns: dict[str, ColumnType] = field(default_factory=dict)
    items: dict[int, StoredItem] = field(default_factory=dict)
    vectors: dict[int, np.ndarray] = field(default_factory=dict)


_collections: dict[str, Collection] = {}


class MemoryEngine(Engine):
    """A collection of this process."""

    form = "memory://HOST/COLLECTION"

    def _found(self) -> Collection:
        if self.address not in _collections:
            raise no_collection(self.address)
        return _collections[self.address]

    def manifest(self) -> Manifest | None:
        found = _collections.get(self.address)
        return found and found.manifest

    def create(self, manifest: Manifest) -> None:
        _collections.setdefault(self.address, Collection(manifest))

    def use_manifest(self, manifest: Manifest) -> None:
        self._found().manifest = manifest

    def drop(self) -> None:
        _collections.pop(self.address, None)

    def close(self) -> None:
        pass

    def add_columns(self, columns: Mapping[str, ColumnType]) -> None:
        for name, kind in columns.items():
            self._found().columns.setdefault(name, kind)

    def put(self, items: Sequence[StoredItem], vectors: np.ndarray) -> None:
        dtype = self._found().manifest.dtype
        for one, vector in zip(items, vectors, strict=True):
            kept = {name: value for name, value in one.metadata.items() if value is not None}
            self._found().items[one.id] = one._replace(metadata=kept)
            self._found().vectors[one.id] = np.asarray(vector, dtype).astype(np.float32)

    def amend(self, amendments: Sequence[Amendment]) -> None:
        items = self._found().items
        for change in amendments:
            if one := items.get(change.id):
                merged = {**one.metadata, **change.metadata}
                kept = {name: value for name, value in merged.items() if value is not None}
                items[one.id] = one._replace(**change.facts, metadata=kept)

    def remove(self, ids: Sequence[int]) -> int:
        there = self._found().items.keys() & set(ids)
        for number in there:
            del self._found().items[number], self._found().vectors[number]
        return len(there)

    def optimize(self, recall: float, *, show_progress: bool = False) -> None:
        pass

    def columns(self) -> dict[str, ColumnType]:
        return dict(self._found().columns)

    def _matching(self, condition: Filter | None) -> list[StoredItem]:
        items = sorted(self._found().items.values())
        return [one for one in items if condition is None or condition.holds(partial(value_of, one))]

    def count(self, condition: Filter | None = None) -> int:
        return len(self._matching(condition))

    def items(self, ids: Sequence[int]) -> list[StoredItem]:
        return [self._found().items[number] for number in ids if number in self._found().items]

    def vectors(self, ids: Sequence[int]) -> dict[int, np.ndarray]:
        return {number: self._found().vectors[number] for number in ids if number in self._found().vectors}

    def ids_by(self, column: Literal["key", "content_sha256"], values: Sequence[str]) -> dict[str, int]:
        wanted, found = set(values), dict[str, int]()
        for one in self._matching(None):
            if getattr(one, column) in wanted:
                found.setdefault(getattr(one, column), one.id)
        return found

    def scan(self, condition: Filter | None, after: int, limit: int) -> list[StoredItem]:
        return [one for one in self._matching(condition) if one.id > after][:limit]

    def nearest(self, queries: np.ndarray, k: int, condition: Filter | None = None) -> list[Neighbours]:
        ids = np.array([one.id for one in self._matching(condition)], np.int64)
        vectors = [self._found().vectors[number] for number in ids.tolist()]
        scores = queries @ np.reshape(vectors, (-1, self._found().manifest.dim)).astype(np.float32).T
        orders = [np.lexsort((ids, -row))[:k] for row in scores]
        return [Neighbours(ids[order], row[order]) for order, row in zip(orders, scores, strict=True)]

    def value_counts(self, column: str, limit: int) -> list[tuple[Value, int]]:
        label = column == "label"
        counts = Counter(one.label if label else one.metadata.get(column) for one in self._matching(None))
        del counts[None]
        return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]  # type: ignore[arg-type]

    def facts(self) -> dict[str, Any]:
        return {"database": "memory", "index": "flat"}


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Register the engine while it is in use."""
    installed = folder / "lookalike_memory-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: lookalike-memory\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(f"[lookalike.stores]\nmemory = {__name__}:MemoryEngine\n")
    sys.path.append(str(folder))
    plugins._entry_points.cache_clear()
    try:
        yield EmbeddedServer("memory://here")
    finally:
        sys.path.remove(str(folder))
        plugins._entry_points.cache_clear()
        _collections.clear()
