"""Store operations in terms of Qdrant's points, the same for the server and the embedded engine."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from retrieval.errors import InputError
from retrieval.storage.conditions import Filter, FilterTest
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import StoredItem, Value
from retrieval.storage.schema import ColumnType
from retrieval.stores.engine import Amendment, Engine, Neighbours, no_collection
from retrieval.stores.qdrant.payload import (
    FACT_INDEXES,
    Condition,
    Payload,
    PayloadColumn,
    PayloadIndex,
    changes_of,
    column_facts,
    columns_of,
    field_of,
    inexact_columns,
    item_of,
    manifest_facts,
    manifest_of,
    payload_of,
    translated,
    value_fields,
    value_of,
)

_AT_ONCE = 1000  # ids or points of one request
_NUMBERS = 500_000  # of the vectors of one write request: about 10 MB as JSON
_VALUES = 500  # values of one condition
_QUERIES = 32  # of one search request
_PAGE = 10_000  # points of which one field is read in one request
_ESTIMATED = 1_000_000  # collections with more points are not counted exactly
_SIDES = 65_536  # Qdrant's largest dimension
# Largest share of selected items with which a search uses ACORN (Patel et al., 2024): it looks at neighbours
# of neighbours. Without it, filters of 30 % far from the query had recall 0.87 at 90,000 vectors, else 0.99.
ACORN = 1.0
_EF = 128  # before the first tuning
_EFS = (64, 128, 256, 512, 1024)
_SHARES = (0.01, 0.05, 0.5)  # of the items that the filters of the tuning select
_NEIGHBOURS = 10
_TRIALS = 64  # queries of the tuning
_LARGE = 5_000_000  # points beyond which the tuning compares a quarter of the queries
_SAMPLED = 1000
_TIES = 1000  # equal scores at the end of a result that are put in order
_TOLERANCE = 1e-6  # of scores that count as equal


@dataclass(frozen=True)
class Point:
    """A stored point.

    Attributes:
        id: Item id.
        payload: Payload, or some of its fields.
        vector: float32 [D]; `None` if it was not asked for.
    """

    id: int
    payload: Payload
    vector: np.ndarray | None = None


class PointsEngine(Engine):
    """Items as points of a Qdrant collection.

    Beside the points, a collection has facts about itself as JSON by name: the rows of its manifest
    ("manifest"), its columns (one name each, so that two processes can add some at the same time), and the
    parameters of searches ("search").
    """

    # ---- operations of Qdrant

    @abstractmethod
    def _facts(self) -> Mapping[str, Any]:
        """Return the facts about the collection, perhaps those of some seconds ago."""

    @abstractmethod
    def _fresh_facts(self) -> Mapping[str, Any]:
        """Return the facts about the collection."""

    @abstractmethod
    def _state(self, facts: Mapping[str, Any]) -> None:
        """Store facts about the collection; others keep their value."""

    @abstractmethod
    def _index(self, fields: Mapping[str, PayloadIndex]) -> None:
        """Create indexes of the payload, unless they are there."""

    @abstractmethod
    def _upsert(self, ids: Sequence[int], vectors: np.ndarray, payloads: Sequence[Payload]) -> None:
        """Write points."""

    @abstractmethod
    def _set(self, changes: Sequence[tuple[Sequence[int], Payload]]) -> None:
        """Set fields of the payloads of points that exist."""

    @abstractmethod
    def _delete(self, ids: Sequence[int]) -> None:
        """Delete points."""

    @abstractmethod
    def _retrieve(self, ids: Sequence[int], *, payload: bool, vectors: bool) -> list[Point]:
        """Return points by id; unknown ids are left out."""

    @abstractmethod
    def _scroll(
        self, condition: Condition | None, first: int, limit: int, fields: Sequence[str] | None
    ) -> list[Point]:
        """Return the first points from an id on, ascending, with all or some fields of their payload."""

    @abstractmethod
    def _count(self, condition: Condition | None, *, exact: bool) -> int:
        """Return the number of points."""

    @abstractmethod
    def _search(
        self, queries: np.ndarray, k: int, condition: Condition | None, ef: int | None
    ) -> list[list[tuple[int, float]]]:
        """Return id and score of the nearest points of each query; `ef` of HNSW, `None` for exact search."""

    @abstractmethod
    def _sample(self, count: int) -> list[int]:
        """Return the ids of random points."""

    @abstractmethod
    def _facet(self, field: str, limit: int) -> list[tuple[str, int]]:
        """Return the most frequent texts of a field, most frequent first, equal counts by text."""

    @abstractmethod
    def _build(self, *, show_progress: bool) -> None:
        """Build the HNSW graphs that are due, and wait for it."""

    # ---- the collection

    def manifest(self) -> Manifest | None:
        facts = self._fresh_facts()
        if not facts:
            return None
        return manifest_of(facts, self.address)

    def use_manifest(self, manifest: Manifest) -> None:
        self._state(manifest_facts(manifest))

    def _check(self, manifest: Manifest) -> None:
        if manifest.dim > _SIDES:
            what = f"vectors of {manifest.dim} dimensions, Qdrant takes at most {_SIDES}"
            raise InputError(f"{self.address}: {what}; use a model with a smaller embedding")

    # ---- writing

    def add_columns(self, columns: Mapping[str, ColumnType]) -> None:
        known = columns_of(self._fresh_facts())
        self._add([PayloadColumn(name, type_) for name, type_ in columns.items() if name not in known])

    def put(self, items: Sequence[StoredItem], vectors: np.ndarray) -> None:
        self._admit([item.metadata for item in items])
        vectors = np.ascontiguousarray(vectors, np.float32)
        step = max(1, min(_AT_ONCE, _NUMBERS // max(1, vectors.shape[1])))
        for n in range(0, len(items), step):
            some = items[n : n + step]
            payloads = [payload_of(item) for item in some]
            self._upsert([item.id for item in some], vectors[n : n + step], payloads)

    def amend(self, amendments: Sequence[Amendment]) -> None:
        self._admit([one.metadata for one in amendments])
        for some in _parts(amendments, _AT_ONCE):
            known = {
                point.id for point in self._retrieve([one.id for one in some], payload=False, vectors=False)
            }
            same: dict[str, list[int]] = defaultdict(list)
            for one in some:
                if one.id in known:
                    same[json.dumps(changes_of(one), sort_keys=True)].append(one.id)
            self._set([(ids, json.loads(changes)) for changes, ids in same.items()])

    def remove(self, ids: Sequence[int]) -> int:
        removed = 0
        for some in _parts([*dict.fromkeys(ids)], _AT_ONCE):
            known = [point.id for point in self._retrieve(some, payload=False, vectors=False)]
            if known:
                self._delete(known)
            removed += len(known)
        return removed

    def _admit(self, rows: Sequence[Mapping[str, Value]]) -> None:
        """Note in the facts which columns are about to get their first inexact number."""
        if names := inexact_columns(rows):
            known = columns_of(self._facts())
            self._add([PayloadColumn(name, "number", True) for name in names if not known[name].inexact])

    def _add(self, columns: Sequence[PayloadColumn]) -> None:
        if columns:
            self._index({path: index for one in columns for path, index in one.indexes.items()})
            self._state(column_facts(columns))

    # ---- tuning

    def optimize(self, recall: float, *, show_progress: bool = False) -> None:
        columns = columns_of(self._fresh_facts()).values()
        self._index(
            {**FACT_INDEXES, **{path: index for one in columns for path, index in one.indexes.items()}}
        )
        self._build(show_progress=show_progress)
        self._state({"search": {"recall": recall, "ef": None if recall >= 1 else self._tuned(recall)}})

    def _tuned(self, recall: float) -> int | None:
        """Return the lowest `ef` with some recall on stored vectors, with and without filters.

        The filters select random items, for which the graph has no edges of its own, unlike for the columns.
        """
        ids = sorted(self._sample(_SAMPLED))
        if len(ids) <= _NEIGHBOURS:
            return _EF
        trials = _TRIALS if self._count(None, exact=False) <= _LARGE else _TRIALS // 4
        chosen = np.random.default_rng(0).permutation(ids)[:trials].tolist()
        queries = np.stack([*self.vectors(chosen).values()])
        limits = [ids[int(share * len(ids))] for share in _SHARES]
        conditions: list[Condition | None] = [None]
        conditions += [translated(FilterTest("id", "<=", (limit,)), {}) for limit in limits]
        exact = [self._nearest(queries, condition, None) for condition in conditions]
        for ef in _EFS:
            found = [self._nearest(queries, condition, ef) for condition in conditions]
            if min(map(_recall, found, exact)) >= recall:
                return ef
        return None

    def _nearest(
        self, queries: np.ndarray, condition: Condition | None, ef: int | None
    ) -> list[list[tuple[int, float]]]:
        return [
            row
            for some in _parts(queries, _QUERIES)
            for row in self._search(some, _NEIGHBOURS, condition, ef)
        ]

    # ---- reading

    def columns(self) -> dict[str, ColumnType]:
        if not self._fresh_facts():
            raise no_collection(self.address)
        return {one.name: one.type for one in columns_of(self._facts()).values()}

    def count(self, condition: Filter | None = None) -> int:
        if condition is None and (estimate := self._count(None, exact=False)) > _ESTIMATED:
            return estimate
        return self._count(self._translated(condition), exact=True)

    def items(self, ids: Sequence[int]) -> list[StoredItem]:
        return [
            item_of(point.id, point.payload)
            for some in _parts(ids, _AT_ONCE)
            for point in self._retrieve(some, payload=True, vectors=False)
        ]

    def vectors(self, ids: Sequence[int]) -> dict[int, np.ndarray]:
        return {
            point.id: point.vector
            for some in _parts(ids, _AT_ONCE)
            for point in self._retrieve(some, payload=False, vectors=True)
            if point.vector is not None
        }

    def ids_by(self, column: Literal["key", "content_sha256"], values: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for some in _parts([*dict.fromkeys(values)], _VALUES):
            left = len(some)
            for point in self._each({"must": [{"key": column, "match": {"any": [*some]}}]}, [column]):
                if point.payload[column] not in found:
                    found[point.payload[column]] = point.id
                    left -= 1
                if not left:
                    break
        return found

    def scan(self, condition: Filter | None, after: int, limit: int) -> list[StoredItem]:
        wanted = self._translated(condition)
        found: list[StoredItem] = []
        while len(found) < limit:
            size = min(limit - len(found), _PAGE)
            points = self._scroll(wanted, after + 1, size, None)
            found += [item_of(point.id, point.payload) for point in points]
            if len(points) < size:
                break
            after = points[-1].id
        return found

    def nearest(self, queries: np.ndarray, k: int, condition: Filter | None = None) -> list[Neighbours]:
        queries = np.ascontiguousarray(queries, np.float32)
        wanted = self._translated(condition)
        ef = self._facts().get("search", {"ef": _EF})["ef"]
        if k < 1:
            return [Neighbours(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        found = []
        for some in _parts(queries, _QUERIES):
            for query, row in zip(some, self._search(some, k + 1, wanted, ef), strict=True):
                count = k + 1
                while len(row) == count < k + _TIES and row[k - 1][1] == row[-1][1]:
                    count = min(4 * count, k + _TIES)  # equal scores at the end are to be those of lowest id
                    (row,) = self._search(query[None], count, wanted, ef)
                row = sorted(row, key=lambda hit: (-hit[1], hit[0]))[:k]
                ids = np.array([hit[0] for hit in row], np.int64)
                found.append(Neighbours(ids, np.array([hit[1] for hit in row], np.float32)))
        return found

    def value_counts(self, column: str, limit: int) -> list[tuple[Value, int]]:
        known = columns_of(self._fresh_facts())
        counts: Mapping[Any, int]
        if column == "label" or known[column].type == "text":
            field = column if column == "label" else field_of(column)
            counts = {value: n for value, n in self._facet(field, limit) if n}  # not of removed items
        else:  # Qdrant counts the values of texts only
            fields = value_fields(column)
            values = (value_of(point.payload, column) for point in self._each(None, fields))
            counts = Counter(value for value in values if value is not None)
        return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]

    def _each(self, condition: Condition | None, fields: Sequence[str]) -> Iterator[Point]:
        first = 1
        while points := self._scroll(condition, first, _PAGE, fields):
            yield from points
            if len(points) < _PAGE:
                return
            first = points[-1].id + 1

    def _translated(self, condition: Filter | None) -> Condition | None:
        if condition is None:
            return None
        return translated(condition, columns_of(self._facts()))


def _recall(
    found: Sequence[Sequence[tuple[int, float]]], exact: Sequence[Sequence[tuple[int, float]]]
) -> float:
    """Return the mean share of the exact neighbours that were found; equal scores count as the same."""
    shares = [
        sum(score >= best[-1][1] - _TOLERANCE for _, score in row) / len(best)
        for row, best in zip(found, exact, strict=True)
        if best
    ]
    return float(np.mean(shares)) if shares else 1.0


def _parts(values: Any, size: int) -> Iterator[Any]:
    for n in range(0, len(values), size):
        yield values[n : n + size]
