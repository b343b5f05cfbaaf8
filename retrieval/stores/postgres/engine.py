"""Store in PostgreSQL 14 or newer with pgvector 0.8 or newer.

An item is a row of the collection's table: facts, metadata and vector in columns of their own, so that
PostgreSQL's planner and indexes work with them. See `retrieval.stores.postgres.schema`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa

from retrieval.errors import InputError
from retrieval.storage.conditions import Filter, FilterTest
from retrieval.storage.manifest import Manifest, parse_manifest
from retrieval.storage.records import StoredItem, Value
from retrieval.storage.schema import ColumnType, quoted
from retrieval.stores.address import Address
from retrieval.stores.conditions import both
from retrieval.stores.engine import Amendment, Engine, NearestGroups, Neighbours, no_collection
from retrieval.stores.postgres.index import PostgresIndex
from retrieval.stores.postgres.schema import (
    FACTS,
    REGISTRY,
    REGISTRY_OF_COLUMNS,
    SQL_TYPES,
    Collection,
    StoreColumn,
    column_identifier,
    columns_of,
    condition_sql,
    number_text,
    parse_number,
    table_definition,
    vector_type,
)
from retrieval.stores.postgres.search import nearest, nearest_groups
from retrieval.stores.postgres.sessions import Session, Sessions

_SECONDS = 5.0  # after which facts of the collection are read again
_ESTIMATED = 1_000_000  # items, from which the number is an estimate
_REGISTERING = 7_203_115  # key of the advisory lock of changes to the registry
_LOCK_TIMEOUT = 5000  # milliseconds
_CASEFOLD = 18_00_00  # version of the server that has it
_OLDEST = (0, 8)  # pgvector with iterative scans
_T = TypeVar("_T")


class PostgresEngine(Engine):
    """Collection in a PostgreSQL database; see `Engine`.

    Args:
        address: Address of the collection.
    """

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._name = address.collection
        self._table = quoted(address.collection)
        self._sessions = Sessions(address)
        self._known: Collection | None = None
        self._read_at = 0.0
        self._sessions.do(lambda session: session.run("SELECT 1"))

    def close(self) -> None:
        """Close all connections."""
        self._sessions.close()

    # ---- the collection

    def manifest(self) -> Manifest | None:
        """Return the facts about the collection; `None` if there is none."""
        found = self._sessions.do(self._read)
        return None if found is None else found.manifest

    def create(self, manifest: Manifest) -> None:
        """Create the collection; another process may have done so meanwhile."""
        vector_type(manifest)  # refuses too many dimensions
        facts = json.dumps(manifest.rows())

        def create(session: Session) -> None:
            session.run("BEGIN")
            session.run(f"SELECT pg_advisory_xact_lock({_REGISTERING})")
            self._prepare(session)
            added = session.rows(
                "INSERT INTO lookalike_collections (name, manifest) VALUES ($1, $2::jsonb) "
                "ON CONFLICT DO NOTHING RETURNING name",
                *(self._name, facts),
            )
            if added:
                if session.rows("SELECT 1 WHERE to_regclass($1) IS NOT NULL", self._table):
                    raise self._foreign()
                session.run(table_definition(self._name, manifest))
                session.run(f"CREATE INDEX ON {self._table} (content_sha256) WHERE content_sha256 <> ''")
            session.run("COMMIT")

        self._sessions.do(create)
        self._known = None

    def use_manifest(self, manifest: Manifest) -> None:
        """Replace the facts about the collection."""
        sql = "UPDATE lookalike_collections SET manifest = $2::jsonb WHERE name = $1"
        facts = json.dumps(manifest.rows())
        self._sessions.do(lambda session: session.run(sql, self._name, facts))
        self._known = None

    def drop(self) -> None:
        """Delete the collection, if there is one."""

        def drop(session: Session) -> None:
            session.run("BEGIN")
            session.run(f"DROP TABLE IF EXISTS {self._table}")
            session.run("DELETE FROM lookalike_collections WHERE name = $1", self._name)
            session.run("COMMIT")

        if self.manifest() is not None:
            self._sessions.do(drop)
        self._known = None

    def _prepare(self, session: Session) -> None:
        """Create extension and registry, unless they are there."""
        version = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
        if not session.rows(version):
            session.run("CREATE EXTENSION vector")
        ((found,),) = session.rows(version)
        if tuple(map(int, found.split(".")[:2])) < _OLDEST:
            hint = "update it, then run `ALTER EXTENSION vector UPDATE`"
            raise InputError(f"{self.address}: pgvector {found} is older than 0.8; {hint}")
        ((encoding,),) = session.rows("SELECT current_setting('server_encoding')")
        if encoding != "UTF8":
            hint = "create one with `createdb --encoding UTF8 --template template0`"
            raise InputError(f"{self.address}: the database's encoding is {encoding}, not UTF8; {hint}")
        session.run(REGISTRY)
        session.run(REGISTRY_OF_COLUMNS)

    def _foreign(self) -> InputError:
        what = f"the database has another table {self._name!r}"
        return InputError(f"{self.address}: {what}; choose another name for the collection")

    def _read(self, session: Session) -> Collection | None:
        """Read the facts of the collection; `None` if there is none."""
        ((registered, there),) = session.rows(
            "SELECT to_regclass('lookalike_collections') IS NOT NULL, to_regclass($1) IS NOT NULL",
            self._table,
        )
        rows = registered and session.rows(
            "SELECT manifest::text, recall, width, least_share, measured, (SELECT reltuples::bigint FROM "
            "pg_class WHERE oid = to_regclass($2)), current_setting('server_version_num')::int, "
            "EXISTS (SELECT 1 FROM pg_collation WHERE collname = 'und-x-icu') "
            "FROM lookalike_collections WHERE name = $1",
            self._name,
            self._table,
        )
        if not rows:
            if there:
                raise self._foreign()
            return None
        ((facts, recall, width, share, measured, count, version, icu),) = rows
        columns = session.rows(
            "SELECT name, type, identifier FROM lookalike_columns WHERE collection = $1 ORDER BY number",
            self._name,
        )
        fold = "lower({})"
        if icu:
            fold = 'lower({} COLLATE "und-x-icu")'
        if version >= _CASEFOLD:
            fold = "casefold({} COLLATE pg_unicode_fast)"
        self._known = Collection(
            parse_manifest(self.address, json.loads(facts).items()),
            {name: StoreColumn(type_, identifier) for name, type_, identifier in columns},
            width,
            share or 0.0,
            recall,
            measured,
            max(count or 0, 0),
            fold,
        )
        self._read_at = time.monotonic()
        return self._known

    def _collection(self, session: Session, needed: Sequence[str] = (), *, fresh: bool = False) -> Collection:
        """Return the facts of the collection, not much older than a few seconds, with some columns."""
        known = None if fresh or time.monotonic() > self._read_at + _SECONDS else self._known
        if known is None or any(name not in FACTS and name not in known.columns for name in needed):
            known = self._read(session)
        if known is None:
            raise no_collection(self.address)
        return known

    def _do(self, action: Callable[[Session, Collection], _T], condition: Filter | None = None) -> _T:
        """Call a function with a session and the collection."""
        names = [] if condition is None else [*columns_of(condition)]
        return self._sessions.do(lambda session: action(session, self._collection(session, names)))

    # ---- writing

    def add_columns(self, columns: Mapping[str, ColumnType]) -> None:
        """Add metadata columns, unless they are there already."""

        def add(session: Session) -> None:
            session.run("BEGIN")
            # Searches wait behind a change of the table, which itself waits while an index is built.
            session.run(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT}")
            session.run("SELECT 1 FROM lookalike_collections WHERE name = $1 FOR UPDATE", self._name)
            there = self._collection(session, fresh=True).columns
            for number, name in enumerate([name for name in columns if name not in there], len(there) + 1):
                identifier = column_identifier(number, name)
                session.run(
                    "INSERT INTO lookalike_columns VALUES ($1, $2::int, $3, $4, $5)",
                    *(self._name, number, name, columns[name], identifier),
                )
                type_ = SQL_TYPES[columns[name]]
                session.run(f"ALTER TABLE {self._table} ADD COLUMN {quoted(identifier)} {type_}")
            session.run("COMMIT")

        self._sessions.do(add)
        self._known = None

    def put(self, items: Sequence[StoredItem], vectors: np.ndarray) -> None:
        """Write items with their vectors in one batch."""
        if not items:
            return

        def put(session: Session) -> None:
            session.run("BEGIN")
            # A column that is added now waits: an item replaces all values of the former one.
            session.run("SELECT 1 FROM lookalike_collections WHERE name = $1 FOR SHARE", self._name)
            collection = self._collection(session, fresh=True)
            session.copy("lookalike_put", self._rows(collection, items, vectors))
            names = [*FACTS, *(column.identifier for column in collection.columns.values()), "embedding"]
            targets = ", ".join(map(quoted, names))
            values = [
                *FACTS,
                *(
                    f"{quoted(column.identifier)}::{'numeric' if column.type == 'number' else 'text'}"
                    for column in collection.columns.values()
                ),
                f"embedding::{collection.storage}",
            ]
            replaced = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in names[1:])
            # Rows are locked in the order of their ids, so that two writers do not wait for each other.
            session.run(
                f"INSERT INTO {self._table} ({targets}) SELECT {', '.join(values)} "
                f"FROM pg_temp.lookalike_put ORDER BY id ON CONFLICT (id) DO UPDATE SET {replaced}"
            )
            session.run("DROP TABLE pg_temp.lookalike_put")
            session.run("COMMIT")

        self._sessions.do(put)

    def _rows(self, collection: Collection, items: Sequence[StoredItem], vectors: np.ndarray) -> pa.Table:
        """Return items with their vectors as a table; numbers of metadata as text."""
        whole = {"bigint": pa.int64(), "integer": pa.int32(), "text": pa.string()}
        table = {
            name: pa.array([getattr(item, name) for item in items], whole[type_])
            for name, type_ in FACTS.items()
        }
        for name, column in collection.columns.items():
            values = (self._text(name, column, item.metadata.get(name)) for item in items)
            table[column.identifier] = pa.array(values, pa.string())
        starts = np.arange(0, vectors.size + 1, vectors.shape[1], dtype=np.int32)
        flat = np.ascontiguousarray(vectors, np.float32).ravel()
        table["embedding"] = pa.ListArray.from_arrays(pa.array(starts), pa.array(flat))
        return pa.table(table)

    def _text(self, name: str, column: StoreColumn, value: Value) -> str | None:
        if value is None or isinstance(value, str) == (column.type == "text"):
            return value if value is None or isinstance(value, str) else number_text(value)
        what = f"column {name!r} has {column.type}, not {value!r}: another process added it meanwhile"
        raise InputError(f"{self.address}: {what}; use one type or two columns")

    def amend(self, amendments: Sequence[Amendment]) -> None:
        """Change values of items; unknown ids are left out."""
        names = sorted({name for one in amendments for name in one.metadata})
        facts = sorted({name for one in amendments for name in one.facts})
        if not names and not facts:
            return

        def amend(session: Session) -> None:
            columns = self._collection(session, names).columns
            given = [
                {
                    **{
                        f"f {name}": None if value is None else str(value)
                        for name, value in one.facts.items()
                    },
                    **{
                        f"m {name}": self._text(name, columns[name], one.metadata[name])
                        for name in one.metadata
                    },
                }
                for one in amendments
            ]
            targets = {f"f {name}": (name, FACTS[name]) for name in facts}
            for name in names:
                type_ = "numeric" if columns[name].type == "number" else "text"
                targets[f"m {name}"] = columns[name].identifier, type_
            changes, keys = [], [*targets]
            for n, (target, type_) in enumerate(targets.values(), 1):
                key, own = f"($3::text[])[{n}]", f"items.{quoted(target)}"
                value = f"(new.given ->> {key})::{type_}"
                changes.append(f"{quoted(target)} = CASE WHEN new.given ? {key} THEN {value} ELSE {own} END")
            session.run(
                f"UPDATE {self._table} AS items SET {', '.join(changes)} FROM (SELECT id, given::jsonb "
                "AS given FROM unnest($1::bigint[], $2::text[]) AS rows (id, given)) AS new "
                "WHERE items.id = new.id",
                [one.id for one in amendments],
                [json.dumps(one) for one in given],
                keys,
            )

        self._sessions.do(amend)

    def remove(self, ids: Sequence[int]) -> int:
        """Remove items, and return how many there were."""
        removed = f"DELETE FROM {self._table} WHERE id = ANY($1::bigint[]) RETURNING 1"
        sql = f"WITH removed AS ({removed}) SELECT count(*) FROM removed"
        return self._number(lambda session: session.rows(sql, sorted(ids)))

    def optimize(self, recall: float, *, show_progress: bool = False) -> None:
        """Build the HNSW index, and choose the effort of its searches."""
        collection = self._do(lambda session, found: found)
        index = PostgresIndex(self._sessions, self._name, collection)
        self._sessions.explain(lambda: index.optimize(recall, show_progress=show_progress))
        self._known = None

    # ---- reading

    def _number(self, action: Callable[[Session], list[tuple[Any, ...]]]) -> int:
        ((number,),) = self._sessions.do(action)
        return int(number)

    def columns(self) -> dict[str, ColumnType]:
        """Return the metadata columns with their types, oldest first."""
        found = self._sessions.do(lambda session: self._collection(session, fresh=True))
        return {name: column.type for name, column in found.columns.items()}

    def count(self, condition: Filter | None = None) -> int:
        """Return the number of items that fulfil a filter; without one, an estimate above a million."""

        def count(session: Session, collection: Collection) -> int:
            if condition is None:
                estimate = "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass($1)"
                ((found,),) = session.rows(estimate, self._table)
                if found >= _ESTIMATED:
                    return int(found)
            where, parameters = condition_sql(condition, collection)
            ((found,),) = session.rows(f"SELECT count(*) FROM {self._table} WHERE {where}", *parameters)
            return int(found)

        return self._do(count, condition)

    def items(self, ids: Sequence[int]) -> list[StoredItem]:
        """Return items by id; unknown ids are left out."""
        return self._do(lambda session, known: self._items(session, known, "id = ANY($1::bigint[])", [*ids]))

    def scan(self, condition: Filter | None, after: int, limit: int) -> list[StoredItem]:
        """Return the first items that fulfil a filter and have an id above `after`, by ascending id."""

        def scan(session: Session, collection: Collection) -> list[StoredItem]:
            where, parameters = condition_sql(condition, collection, parameters=2)
            rows = f"{where} AND id > $1 ORDER BY id LIMIT $2"
            return self._items(session, collection, rows, after, limit, *parameters)

        return self._do(scan, condition)

    def _items(
        self, session: Session, collection: Collection, rows: str, *parameters: Any
    ) -> list[StoredItem]:
        """Return the items of a condition with all their columns, also those that others have just added."""
        columns = collection.columns
        names = ", ".join([*FACTS, *(quoted(column.identifier) for column in columns.values())])
        known = f"(SELECT count(*) FROM lookalike_columns WHERE collection = '{self._name}')"
        found = session.rows(f"SELECT {names}, {known} FROM {self._table} WHERE {rows}", *parameters)
        if found and found[0][-1] > len(columns):
            return self._items(session, self._collection(session, fresh=True), rows, *parameters)
        facts = len(FACTS)
        numbers = [column.type == "number" for column in columns.values()]
        return [
            StoredItem._make(
                (
                    *row[:facts],
                    None,
                    {
                        name: parse_number(value) if number else value
                        for name, value, number in zip(columns, row[facts:-1], numbers, strict=True)
                        if value is not None
                    },
                )
            )
            for row in found
        ]

    def vectors(self, ids: Sequence[int]) -> dict[int, np.ndarray]:
        """Return vectors by id, float32 [D] each; unknown ids are left out."""
        sql = f"SELECT id, embedding::real[] FROM {self._table} WHERE id = ANY($1::bigint[])"
        found = self._sessions.do(lambda session: session.run(sql, [*ids]))
        if not found.num_rows:
            return {}
        flat = found.column(1).combine_chunks().flatten().to_numpy(zero_copy_only=False)
        rows = flat.astype(np.float32, copy=False).reshape(found.num_rows, -1)
        return dict(zip(found.column(0).to_pylist(), rows, strict=True))

    def ids_by(self, column: Literal["key", "content_sha256"], values: Sequence[str]) -> dict[str, int]:
        """Return the lowest id for each value of a fact; values without an item are left out."""
        given = [value for value in {*values} if value or column == "key"]
        sql = f"SELECT {column}, min(id) FROM {self._table} WHERE {column} = ANY($1) GROUP BY {column}"
        return dict(self._sessions.do(lambda session: session.rows(sql, given))) if given else {}

    def value_counts(self, column: str, limit: int) -> list[tuple[Value, int]]:
        """Return the most frequent values of a column with the number of items that have it."""

        def count(session: Session, collection: Collection) -> list[tuple[Value, int]]:
            known = collection.columns.get(column) if column != "label" else None
            name = column if known is None else known.identifier
            found = session.rows(
                f"SELECT {quoted(name)}, count(*) AS n FROM {self._table} WHERE {quoted(name)} IS NOT NULL "
                f"GROUP BY 1 ORDER BY n DESC, 1 LIMIT $1",
                limit,
            )
            number = known is not None and known.type == "number"
            return [(parse_number(value) if number else value, n) for value, n in found]

        return self._sessions.do(lambda session: count(session, self._collection(session, [column])))

    def nearest(self, queries: np.ndarray, k: int, condition: Filter | None = None) -> list[Neighbours]:
        """Return the nearest items of each query that fulfil a filter."""
        return self._do(
            lambda session, known: nearest(session, self._table, known, queries, k, condition), condition
        )

    def nearest_groups(
        self, query: np.ndarray, k: int, condition: Filter | None, column: str
    ) -> NearestGroups | None:
        """Return the nearest item of each of the k nearest groups; `None` if the index is to be used."""

        def find(session: Session, collection: Collection) -> NearestGroups | None:
            return nearest_groups(session, self._table, collection, query, k, condition, column)

        return self._do(find, both(condition, FilterTest(column, "not null")))

    def facts(self) -> dict[str, Any]:
        """Return facts about the database: versions, index, bytes."""

        def read(session: Session, collection: Collection) -> dict[str, Any]:
            ((server, vector, size),) = session.rows(
                "SELECT current_setting('server_version'), (SELECT extversion FROM pg_extension "
                "WHERE extname = 'vector'), pg_total_relation_size(to_regclass($1))",
                self._table,
            )
            indexed: dict[str, Any] = {}
            if collection.width is not None:
                indexed = {"index": "hnsw", "recall": collection.recall, "ef_search": collection.width}
            if indexed and collection.least_share:
                indexed["exact filters"] = f"below {collection.least_share:.0%} of the images"
            return {
                "database": f"PostgreSQL {server}, pgvector {vector}",
                "index": "flat",
                "recall": 1.0,
                "bytes": size,
                **indexed,
            }

        return self._do(read)
