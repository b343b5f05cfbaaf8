"""Store in a Milvus server, 2.5 or newer.

A collection has the facts of the items as typed fields, their metadata as one JSON field and the vectors in
an HNSW index (FLAT for exact search). The manifest, the metadata columns and the search parameters are
properties of the collection, each under a key of its own, so that several processes add columns without a
conflict.

Milvus has no transactions: an upsert is atomic per item. Reads ask for strong consistency, which shows every
acknowledged write.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
from pymilvus import DataType, MilvusClient, MilvusException

from retrieval.errors import InputError, LookalikeError, StoreError
from retrieval.progress import Progress
from retrieval.storage.conditions import Filter
from retrieval.storage.manifest import Manifest, parse_manifest
from retrieval.storage.records import StoredItem, Value
from retrieval.storage.schema import FACTS, ColumnType
from retrieval.stores.address import Address
from retrieval.stores.engine import (
    Amendment,
    Engine,
    Neighbours,
    connection_lost,
    no_collection,
    refused,
)
from retrieval.stores.milvus.filters import METADATA, any_of, expression, joined, key_of, stored_values
from retrieval.stores.milvus.tuning import EF, QUERIES, K, Sample, best, smallest_ef

_PREFIX = "lookalike."
_MANIFEST, _COLUMN, _SEARCH = f"{_PREFIX}manifest", f"{_PREFIX}column.", f"{_PREFIX}search"
_TEXTS = ("key", "root", "path", "content_sha256", "label")
_LOOKUPS, _LOOKUP = ("key", "content_sha256"), "INVERTED"  # indexed text fields, and how
_MOST_TEXT = 65_535  # bytes of a text field
_MOST_JSON = 65_536  # bytes of a JSON field
_MOST_DIM = 32_768
_MOST_ROWS = 16_384  # of one answer
_ROWS = 2_000  # of one request by ids or of one page
_BYTES = 16 << 20  # of one request, about; Milvus takes messages of up to 64 MB
_WAITS = (0.2, 0.5, 1.0, 2.0, 4.0)  # seconds before a request is repeated, while the server restarts
_PATIENCE = 3_600.0  # seconds for building an index
_COUNTED = 1_000_000  # most items whose values are counted
# Graph of the index: neighbours of each node, and candidates while it is built.
_GRAPH = {"M": 16, "efConstruction": 200}
_EXACT_SAMPLE = 200_000  # vectors up to which recall is measured against exact search
_SHARES = (0.5, 0.05, 0.01)  # of the items that filters keep while recall is measured
_VECTORS = ("id", "vector")  # fields
_TIES = 8  # more candidates than asked for
# Codes of errors; a collection that exists has none of its own.
_NO_CONNECTION, _NO_COLLECTION, _NOT_LOADED, _EXISTS = 2, 100, 101, "already exist"
_T = TypeVar("_T")

logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs errors that are raised as well


class MilvusEngine(Engine):
    """Items of one collection in Milvus; see `Engine` for the methods."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._name = address.collection
        self._columns: dict[str, tuple[str, ColumnType]] = {}  # name and type by key of the JSON field
        self._ef: int | None = None
        self._half: bool | None = None
        host = f"[{address.host}]" if ":" in address.host else address.host
        uri = f"http{'s' if address.secure else ''}://{host}:{address.port}"
        token = f"{address.user}:{address.password}" if address.user else address.password
        connect = partial(MilvusClient, uri, token=token, timeout=5, dedicated=True)
        self._client = self._repeated(connect, _WAITS[:3])

    # ---- the collection

    def manifest(self) -> Manifest | None:
        properties = self._properties()
        if properties is None:
            return None
        if _MANIFEST not in properties:
            what = f"{self.address}: a collection of another program"
            raise InputError(f"{what}; choose another name in the address")
        return parse_manifest(Path(self._name), json.loads(properties[_MANIFEST]).items())

    def create(self, manifest: Manifest) -> None:
        if manifest.dim > _MOST_DIM:
            what = f"{self.address}: Milvus takes vectors of at most {_MOST_DIM:,} dimensions"
            raise InputError(f"{what}, not {manifest.dim:,}; use a model with fewer")
        self._request(self._create, manifest)
        self._load()

    def _create(self, manifest: Manifest) -> None:
        half = manifest.dtype == "float16"
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        for name in FACTS[1:]:
            if name in _TEXTS:
                optional = name == "label"
                schema.add_field(name, DataType.VARCHAR, max_length=_MOST_TEXT, nullable=optional)
            else:
                schema.add_field(name, DataType.INT64)
        schema.add_field(METADATA, DataType.JSON)
        kind = DataType.FLOAT16_VECTOR if half else DataType.FLOAT_VECTOR
        schema.add_field("vector", kind, dim=manifest.dim)
        options = {"properties": {_MANIFEST: json.dumps(manifest.rows())}, "consistency_level": "Strong"}
        try:
            self._client.create_collection(self._name, schema=schema, **options)
        except MilvusException as error:
            if _EXISTS not in str(error):
                raise

    def use_manifest(self, manifest: Manifest) -> None:
        facts = {_MANIFEST: json.dumps(manifest.rows())}
        self._request(self._client.alter_collection_properties, self._name, properties=facts)

    def drop(self) -> None:
        if self.manifest() is not None:
            self._request(self._client.drop_collection, self._name)

    def close(self) -> None:
        self._client.close()

    def _properties(self) -> dict[str, str] | None:
        """Return the properties of the collection; `None` if there is none."""
        try:
            found = self._request(self._client.describe_collection, self._name)
        except LookalikeError as error:
            if getattr(error.__cause__, "code", None) != _NO_COLLECTION:
                raise
            return None
        types = {field["name"]: field["type"] for field in found["fields"]}
        self._half = types.get("vector") == DataType.FLOAT16_VECTOR
        properties = {str(key): str(value) for key, value in found.get("properties", {}).items()}
        self._ef = json.loads(properties.get(_SEARCH, "{}")).get("ef")
        columns = [
            (one["added"], one["name"], key.removeprefix(_COLUMN), one["type"])
            for key, value in properties.items()
            if key.startswith(_COLUMN)
            for one in [json.loads(value)]
        ]
        self._columns = {key: (name, kind) for _, name, key, kind in sorted(columns)}
        return properties

    # ---- writing

    def add_columns(self, columns: Mapping[str, ColumnType]) -> None:
        known = self.columns()
        now = time.time_ns()
        new = {
            f"{_COLUMN}{key_of(name)}": json.dumps({"name": name, "type": kind, "added": now + n})
            for n, (name, kind) in enumerate(columns.items())
            if name not in known
        }
        if new:
            self._request(self._client.alter_collection_properties, self._name, properties=new)
            self._properties()

    def put(self, items: Sequence[StoredItem], vectors: np.ndarray) -> None:
        rows = [self._row(item) for item in items]
        self._upsert(rows, vectors)

    def _row(self, item: StoredItem) -> dict[str, Any]:
        row: dict[str, Any] = dict(zip(FACTS, item[: len(FACTS)], strict=True))
        row[METADATA] = stored_values(item.metadata)
        size = len(json.dumps(row[METADATA], ensure_ascii=False).encode())
        if size > _MOST_JSON:
            what = f"item {item.key[:60]!r}: {size:,} bytes of metadata, Milvus takes {_MOST_JSON:,}"
            raise InputError(f"{what}; leave out or shorten long columns")
        for name in _TEXTS:
            if len((row[name] or "").encode()) > _MOST_TEXT:
                what = f"item {item.key[:60]!r}: the {name} is too long for Milvus"
                raise InputError(f"{what}; it takes {_MOST_TEXT:,} bytes")
        return row

    def _upsert(self, rows: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        full = [{**row, "vector": vector} for row, vector in zip(rows, self._typed(vectors), strict=True)]
        longest = max((len(str(row)) for row in rows), default=0)
        for some in _parts(full, self._rows_of(vectors.shape[1], longest)):
            self._request(self._client.upsert, self._name, some)

    def amend(self, amendments: Sequence[Amendment]) -> None:
        changes = {one.id: one for one in amendments}
        for ids in _parts([*changes]):
            rows = self._by_ids(ids, [*FACTS, METADATA])
            vectors = self.vectors([row["id"] for row in rows])
            kept = [row for row in rows if row["id"] in vectors]
            for row in kept:
                change = changes[row["id"]]
                gone = {*map(key_of, change.metadata)}
                left = {key: value for key, value in row[METADATA].items() if key not in gone}
                row.update(change.facts)
                row[METADATA] = {**left, **stored_values(change.metadata)}
            if kept:
                self._upsert(kept, np.stack([vectors[row["id"]] for row in kept]))

    def remove(self, ids: Sequence[int]) -> int:
        removed = 0
        for some in _parts(sorted({*ids})):
            there = [row["id"] for row in self._by_ids(some, ["id"])]
            if there:
                self._request(self._client.delete, self._name, ids=there)
            removed += len(there)
        return removed

    # ---- the index

    def optimize(self, recall: float, *, show_progress: bool = False) -> None:
        with Progress("indexing", self.count(), "items", show=show_progress) as progress:
            self._request(self._client.flush, self._name, timeout=_PATIENCE)
            exact = recall >= 1
            self._set_index("FLAT" if exact else "HNSW")
            self._wait(progress)
            ef = None if exact else self._tuned(recall)
            if not exact and ef is None:
                self._set_index("FLAT")
                self._wait(progress)
        facts = json.dumps({"recall": recall, "ef": ef})
        self._request(self._client.alter_collection_properties, self._name, properties={_SEARCH: facts})
        self._ef = ef

    def _index(self) -> dict[str, Any]:
        found = self._request(self._client.describe_index, self._name, "vector")
        return cast("dict[str, Any]", found or {})

    def _set_index(self, kind: str) -> None:
        if self._index().get("index_type") == kind:
            return
        self._request(self._client.release_collection, self._name)
        self._request(self._client.drop_index, self._name, "vector")
        self._load(kind)

    def _wait(self, progress: Progress) -> None:
        """Wait until every vector is in the index."""
        until, done = time.monotonic() + _PATIENCE, 0
        while True:
            facts = self._index()
            left = int(facts.get("pending_index_rows") or 0)
            indexed = max(done, int(facts.get("indexed_rows") or 0))
            progress.update(indexed - done)
            done = indexed
            if facts.get("state") in ("Finished", 3, "3") and not left:
                return
            if time.monotonic() > until:
                what = f"{self.address}: {left:,} vectors are not indexed after {_PATIENCE:.0f} s"
                raise StoreError(f"{what}; see the log of Milvus, and run the command again")
            time.sleep(0.5)

    def _tuned(self, recall: float) -> int | None:
        """Return the smallest ef that reaches a recall, also with filters; `None` if none does.

        The truth is exact search; above 200,000 items, it is a search with four times the largest ef.
        """
        count = self.count()
        start = int(np.random.default_rng(0).integers(1, 2**53))
        rows = self._page("", start, QUERIES, _VECTORS) or self._page("", 0, QUERIES, _VECTORS)
        if count < 1000 or not rows:
            return EF[0]
        queries = np.stack([_vector(row["vector"]) for row in rows])
        largest = partial(self._graph, ef=4 * EF[-1])
        # Filters: the items of a region, and shares of the ids, which are spread evenly.
        regions = [largest(queries[[n]], min(count // 100, _ROWS), "")[0].ids for n in (0, -1)]
        texts = ["", *(any_of("id", ids.tolist()) for ids in regions)]
        if count > _EXACT_SAMPLE:
            texts += [f"(id <= {int(share * 2**53)})" for share in _SHARES]
            truths = [largest(queries, K + 1, text) for text in texts]
        else:
            blocks = [(ids, queries @ vectors.T) for ids, vectors in self._blocks("")]
            ids, scores = (np.concatenate(parts, axis=-1) for parts in zip(*blocks, strict=True))
            bounds = [int(np.quantile(ids, share, method="lower")) for share in _SHARES]
            texts += [f"(id <= {bound})" for bound in bounds]
            kept = [ids > 0, *(np.isin(ids, some) for some in regions), *(ids <= bound for bound in bounds)]
            truths = [[best(ids[keep], row[keep], K + 1) for row in scores] for keep in kept]
        sample = Sample(queries, [row["id"] for row in rows], [*zip(texts, truths, strict=True)])
        return smallest_ef(recall, sample, self._graph)

    # ---- reading

    def columns(self) -> dict[str, ColumnType]:
        if self._properties() is None:
            raise no_collection(self.address)
        return dict(self._columns.values())

    def count(self, condition: Filter | None = None) -> int:
        return self._count("" if condition is None else expression(condition))

    def _count(self, condition: str) -> int:
        return int(self._query(condition, ["count(*)"])[0]["count(*)"])

    def items(self, ids: Sequence[int]) -> list[StoredItem]:
        return [self._item(row) for some in _parts(ids) for row in self._by_ids(some, [*FACTS, METADATA])]

    def vectors(self, ids: Sequence[int]) -> dict[int, np.ndarray]:
        found = {}
        at_once = 256
        start = 0
        while start < len(ids):
            for row in self._by_ids(ids[start : start + at_once], ["id", "vector"]):
                found[int(row["id"])] = _vector(row["vector"])
            start += at_once
            if found:
                at_once = self._rows_of(len(next(iter(found.values()))))
        return found

    def ids_by(self, column: Literal["key", "content_sha256"], values: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for some in _parts(values, 500):
            for rows in self._pages(any_of(column, some), ["id", column]):
                for row in rows:
                    found.setdefault(row[column], int(row["id"]))
        return found

    def scan(self, condition: Filter | None, after: int, limit: int) -> list[StoredItem]:
        text = "" if condition is None else expression(condition)
        found: list[StoredItem] = []
        for rows in self._pages(text, [*FACTS, METADATA], after, limit):
            found += map(self._item, rows)
        return found[:limit]

    def nearest(self, queries: np.ndarray, k: int, condition: Filter | None = None) -> list[Neighbours]:
        if self._half is None:
            self._properties()
        text = "" if condition is None else expression(condition)
        if not len(queries) or k < 1:
            return [Neighbours(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        if k > _MOST_ROWS:
            return self._exact(queries, k, text)
        found = self._graph(queries, k, text, self._ef or EF[0])
        # A graph may lose its way among the items that a filter leaves out.
        fewest = min(len(one.ids) for one in found)
        if text and fewest < k and fewest < self._count(text):
            return self._exact(queries, k, text)
        return found

    def _graph(self, queries: np.ndarray, k: int, condition: str, ef: int) -> list[Neighbours]:
        """Return what the index finds. Candidates beyond k show whether equal scores end at the k-th."""
        wanted = min(k + _TIES, _MOST_ROWS)
        at_once = max(min(64, 200_000 // wanted), 1)
        found = []
        for start in range(0, len(queries), at_once):
            hits = self._read(
                self._client.search,
                self._name,
                list(self._typed(queries[start : start + at_once])),
                filter=condition,
                limit=wanted,
                search_params={"metric_type": "COSINE", "params": {"ef": max(ef, 2 * wanted)}},
                anns_field="vector",
                consistency_level="Strong",
            )
            for query, row in zip(queries[start : start + at_once], hits, strict=True):
                pairs = sorted((-hit["distance"], int(hit["id"])) for hit in row)
                if k < len(pairs) == wanted < _MOST_ROWS and pairs[k - 1][0] == pairs[-1][0]:
                    (more,) = self._graph(query[None], 4 * wanted, condition, ef)
                    found.append(Neighbours(more.ids[:k], more.scores[:k]))
                else:
                    ids, scores = [number for _, number in pairs[:k]], [-score for score, _ in pairs[:k]]
                    found.append(Neighbours(np.array(ids, np.int64), np.array(scores, np.float32)))
        return found

    def _exact(self, queries: np.ndarray, k: int, condition: str) -> list[Neighbours]:
        """Return the nearest items by comparison with every vector that fulfils an expression."""
        found = [Neighbours(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        for ids, vectors in self._blocks(condition):
            found = [
                best(np.append(one.ids, ids), np.append(one.scores, row), k)
                for one, row in zip(found, queries @ vectors.T, strict=True)
            ]
        return found

    def _blocks(self, condition: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the ids and the unit vectors of all items that fulfil an expression, some at a time."""
        for rows in self._pages(condition, _VECTORS):
            vectors = np.stack([_vector(row["vector"]) for row in rows])
            yield np.array([row["id"] for row in rows]), vectors / np.linalg.norm(vectors, axis=1)[:, None]

    def value_counts(self, column: str, limit: int) -> list[tuple[Value, int]]:
        count = self.count()
        if count > _COUNTED:
            what = f"{self.address}: counts the values of at most {_COUNTED:,} items, not {count:,}"
            raise InputError(f"{what}; count the items of a filter instead")
        field, key = ("label", "") if column == "label" else (METADATA, key_of(column))
        counts: Counter[Value] = Counter()
        for rows in self._pages("", ["id", field]):
            values = (row[METADATA].get(key) if key else row["label"] for row in rows)
            counts.update(value for value in values if value is not None)
        ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        return ordered[:limit]

    def facts(self) -> dict[str, Any]:
        index = self._index()
        self._properties()
        return {
            "database": f"Milvus {self._request(self._client.get_server_version)}",
            "index": str(index.get("index_type", "")).lower(),
            "ef": self._ef,
        }

    # ---- requests

    def _item(self, row: Mapping[str, Any]) -> StoredItem:
        metadata = {}
        for key, value in row[METADATA].items():
            if key not in self._columns:
                self._properties()  # another process has added the column
            metadata[self._columns[key][0]] = value
        facts = {name: row[name] for name in FACTS}
        return StoredItem(**facts, vector=None, metadata=metadata)

    def _by_ids(self, ids: Sequence[int], fields: Sequence[str]) -> list[dict[str, Any]]:
        return self._query(any_of("id", [*map(int, ids)]), fields) if ids else []

    def _pages(
        self, condition: str, fields: Sequence[str], after: int = 0, limit: int | None = None
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield rows by ascending id, a page at a time."""
        at_once, left = 256 if "vector" in fields else _ROWS, limit
        while left is None or left > 0:
            rows = self._page(condition, after, at_once if left is None else min(at_once, left), fields)
            if not rows:
                return
            yield rows
            after = rows[-1]["id"]
            left = None if left is None else left - len(rows)
            if "vector" in fields:
                at_once = self._rows_of(len(_vector(rows[0]["vector"])))

    def _page(self, condition: str, after: int, limit: int, fields: Sequence[str]) -> list[dict[str, Any]]:
        """Return rows with the lowest ids above one; fewer than the limit also if there are more."""
        above = f"(id > {after})"
        text = joined("and", [above, condition]) if condition else above
        rows = self._query(text, fields, limit=limit, iterator="True", reduce_stop_for_best="True")
        return sorted(rows, key=lambda row: cast("int", row["id"]))

    def _query(self, condition: str, fields: Sequence[str], **options: Any) -> list[dict[str, Any]]:
        rows = self._read(
            self._client.query,
            self._name,
            filter=condition,
            output_fields=list(fields),
            consistency_level="Strong",
            **options,
        )
        return [dict(row) for row in rows]

    def _typed(self, vectors: np.ndarray) -> np.ndarray:
        if self._half is None:
            self._properties()
        return np.asarray(vectors, np.float16 if self._half else np.float32)

    def _rows_of(self, dim: int, rest: int = 1024) -> int:
        """Return how many rows with vectors, and `rest` characters of other values, are sent at once."""
        return max(min(_ROWS, _BYTES // (4 * dim + rest)), 1)

    def _load(self, kind: str = "HNSW") -> None:
        """Load the collection into the memory of the server; indexes that are missing are built before."""
        there = self._request(self._client.list_indexes, self._name)
        vector = {"index_type": kind, "metric_type": "COSINE", "params": _GRAPH if kind == "HNSW" else {}}
        options: dict[str, dict[str, Any]] = {
            "vector": vector,
            **{key: {"index_type": _LOOKUP} for key in _LOOKUPS},
        }
        indexes = self._client.prepare_index_params()
        for field in options.keys() - {*there}:
            indexes.add_index(field, index_name=field, **options[field])
        if len(indexes):
            self._request(self._client.create_index, self._name, indexes)
        self._request(self._client.load_collection, self._name)

    def _read(self, call: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
        """Read; if the collection is not in the memory of the server, load it first."""
        read = partial(call, *arguments, **options)
        try:
            return self._repeated(read, _WAITS)
        except LookalikeError as error:
            if getattr(error.__cause__, "code", None) != _NOT_LOADED:
                raise
        self._load()
        return self._repeated(read, _WAITS)

    def _request(self, call: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
        return self._repeated(partial(call, *arguments, **options), _WAITS)

    def _repeated(self, call: partial[_T], waits: Sequence[float]) -> _T:
        """Return the result of a request; without a connection, repeat it after each wait."""
        for wait in (*waits, None):
            try:
                return call()
            except MilvusException as error:
                if error.code != _NO_CONNECTION or wait is None:
                    raise self._error(error, call.keywords.get("filter", "")) from error
                time.sleep(wait)
        raise AssertionError

    def _error(self, error: MilvusException, expression: str) -> LookalikeError:
        code, reason = error.code, str(error.message or error)
        if expression:
            reason = reason.replace(expression, "...")
        reason = reason.strip().partition("\n")[0][:300]
        lower = f"{reason} {error.__cause__}".lower()
        if "unauthenticated" in lower or "auth check failure" in lower:
            return StoreError(f"{self.address}: wrong user or password; see $LOOKALIKE_STORE_PASSWORD")
        if code == _NO_COLLECTION:
            return no_collection(self.address)
        if code == _NO_CONNECTION or "unavailable" in lower:
            if hasattr(self, "_client"):
                return connection_lost(self.address, "no answer to repeated requests")
            return StoreError(f"{self.address}: no answer; start Milvus, and check host and port")
        return refused(self.address, reason or type(error).__name__)


def _parts(values: Sequence[_T], at_once: int = _ROWS) -> Iterator[list[_T]]:
    return ([*values[start : start + at_once]] for start in range(0, len(values), at_once))


def _vector(value: Any) -> np.ndarray:
    """Return a vector as float32 [D]; Milvus sends float16 as bytes."""
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        value = value[0]
    if isinstance(value, bytes):
        return np.frombuffer(value, np.float16).astype(np.float32)
    return np.asarray(value, np.float32)
