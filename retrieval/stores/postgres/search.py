"""Nearest neighbours in PostgreSQL, by the HNSW index or exactly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from retrieval.storage.conditions import Filter
from retrieval.stores.engine import NearestGroups, Neighbours
from retrieval.stores.postgres.schema import Collection, column_sql, condition_sql
from retrieval.stores.postgres.sessions import Parameter, Session

_COST = 20  # an item visited in the index costs as much time as this many of an exact search
_VISITS = (1000, 40_000)  # of one search in the index, at least and at most; the latter bounds its memory
_MOST_CANDIDATES = 1000  # limit of `hnsw.ef_search`
_MORE = 10  # candidates beyond k, so that equal scores are in the order of ids
_AT_ONCE = 256  # queries of one statement


def nearest(
    session: Session,
    table: str,
    collection: Collection,
    queries: np.ndarray,
    k: int,
    condition: Filter | None,
) -> list[Neighbours]:
    """Return the nearest items of each query that fulfil a filter; see `Engine.nearest`."""
    where, parameters = condition_sql(condition, collection, parameters=2)
    effort = _effort(session, table, collection, k, condition)
    found = search(session, table, collection, queries, k, where, parameters, effort)
    if effort is not None:
        # The index gave up before it found k items: there may be more.
        few = [n for n, one in enumerate(found) if len(one.ids) < min(k, collection.rows)]
        exact = search(session, table, collection, queries[few], k, where, parameters, None)
        for n, one in zip(few, exact, strict=True):
            found[n] = one
    return found


def nearest_groups(
    session: Session,
    table: str,
    collection: Collection,
    query: np.ndarray,
    k: int,
    condition: Filter | None,
    column: str,
) -> NearestGroups | None:
    """Return the nearest item of each of the k nearest groups, as `Engine.nearest_groups`.

    All items that fulfil the filter are compared and sorted, so it is `None` where the index is to be used.
    """
    if _effort(session, table, collection, k, condition) is not None:
        return None
    where, parameters = condition_sql(condition, collection, parameters=2)
    value, distance = column_sql(column, collection), _distance(collection)
    # Each item without a value is a group of its own.
    sql = (
        "SELECT $1::int, id, distance, n FROM (SELECT DISTINCT ON (value, alone) id, distance, "
        "count(*) OVER (PARTITION BY value, alone) AS n FROM (SELECT id, "
        f"{value} AS value, CASE WHEN {value} IS NULL THEN id END AS alone, {distance} AS distance "
        f"FROM {table} WHERE {where}) AS items ORDER BY value, alone, distance, id) AS best "
        f"ORDER BY distance, id LIMIT {k}"
    )
    rows = session.run(sql, *_given(query[None]), *parameters)
    _, ids, distances, counts = (found.to_numpy() for found in rows.columns)
    return NearestGroups(ids.astype(np.int64), -distances.astype(np.float32), counts.astype(np.int64))


def _effort(
    session: Session, table: str, collection: Collection, k: int, condition: Filter | None
) -> int | None:
    """Return `hnsw.ef_search` of a search; `None` for exact search."""
    if collection.width is None:
        return None
    rows = collection.rows
    matching = rows if condition is None else _estimate(session, table, collection, condition)
    few = matching < rows * collection.least_share
    return None if few else effort_of(collection.width, rows, matching, k)


def effort_of(width: int, rows: int, matching: int, k: int) -> int | None:
    """Return `hnsw.ef_search` of a search, which grows as a filter selects less; `None` for exact search.

    Args:
        width: Value that suffices without a filter.
        rows: Number of items.
        matching: Number of items that fulfil the filter.
        k: Number of wanted items.
    """
    wanted = max(width, k + _MORE) * rows
    few_visits = 0 < wanted <= _visits(rows) * matching
    return min(wanted // matching, _MOST_CANDIDATES) if few_visits else None


def _visits(rows: int) -> int:
    """Return how many items a search in the index visits at most; then an exact search is as fast."""
    return min(max(rows // _COST, _VISITS[0]), _VISITS[1])


def search(
    session: Session,
    table: str,
    collection: Collection,
    queries: np.ndarray,
    k: int,
    where: str,
    parameters: Sequence[Parameter],
    effort: int | None,
) -> list[Neighbours]:
    """Return the nearest items of each query.

    Args:
        session: Session.
        table: Table, quoted.
        collection: Collection.
        queries: float32 [N, D], unit length.
        k: Number of items.
        where: Condition, with parameters from $3.
        parameters: Its parameters.
        effort: `hnsw.ef_search`; `None` for exact search.
    """
    distance = _distance(collection)
    if effort is None:
        # A term that the index does not have, so that the planner cannot use it.
        sql = (
            f"SELECT $1::int, id, {distance} + 0 AS distance FROM {table} WHERE {where} "
            f"ORDER BY distance, id LIMIT {k}"
        )
    else:
        session.set("hnsw.ef_search", effort)
        session.set("hnsw.max_scan_tuples", _visits(collection.rows))
        compared = (
            f"{collection.indexed('embedding', column=True)} <#> {collection.indexed('$2', column=False)}"
        )
        sql = (
            f"SELECT $1::int, id, {distance} AS distance FROM (SELECT id, embedding FROM {table} "
            f"WHERE {where} ORDER BY {compared} LIMIT {k + _MORE}) AS candidates "
            f"ORDER BY distance, id LIMIT {k}"
        )
    found = []
    for first in range(0, len(queries), _AT_ONCE):
        some = queries[first : first + _AT_ONCE]
        rows = session.run(sql, *_given(some), *parameters)
        query, ids, distances = (column.to_numpy() for column in rows.columns)
        ends = np.searchsorted(query, np.arange(len(some) + 1))
        found += [
            Neighbours(ids[a:b].astype(np.int64), -distances[a:b].astype(np.float32))
            for a, b in pairwise(ends)
        ]
    return found


def _distance(collection: Collection) -> str:
    """Return the SQL of the distance to $2: of float32 numbers, also where the index compares float16."""
    dim = collection.manifest.dim
    own = "embedding" if collection.manifest.dtype == "float32" else f"embedding::vector({dim})"
    return f"({own} <#> $2::vector({dim}))"


def _given(queries: np.ndarray) -> tuple[pa.Array, pa.Array]:
    """Return $1 and $2 of a statement for each query: its number and its vector."""
    starts = pa.array(np.arange(0, queries.size + 1, queries.shape[1], dtype=np.int32))
    values = pa.array(np.ascontiguousarray(queries, np.float32).ravel())
    return pa.array(np.arange(len(queries), dtype=np.int32)), pa.ListArray.from_arrays(starts, values)


def _estimate(session: Session, table: str, collection: Collection, condition: Filter) -> int:
    """Return the planner's estimate of the number of items that fulfil a filter."""
    where, parameters = condition_sql(condition, collection)
    ((plan,),) = session.rows(f"EXPLAIN (FORMAT JSON) SELECT 1 FROM {table} WHERE {where}", *parameters)
    return int(json.loads(plan)[0]["Plan"]["Plan Rows"])
