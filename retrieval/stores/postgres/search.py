"""Nearest neighbours in PostgreSQL, by the HNSW index or exactly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from retrieval.storage.conditions import Filter
from retrieval.stores.engine import Neighbours
from retrieval.stores.postgres.schema import Collection, condition_sql
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
    effort = None
    if collection.width is not None:
        rows = collection.rows
        matching = rows if condition is None else _estimate(session, table, collection, condition)
        if matching >= rows * collection.least_share:
            effort = effort_of(collection.width, rows, matching, k)
    found = search(session, table, collection, queries, k, where, parameters, effort)
    if effort is not None:
        # The index gave up before it found k items: there may be more.
        few = [n for n, one in enumerate(found) if len(one.ids) < min(k, collection.rows)]
        exact = search(session, table, collection, queries[few], k, where, parameters, None)
        for n, one in zip(few, exact, strict=True):
            found[n] = one
    return found


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
    # The score is that of float32 numbers, also where the index compares float16.
    dim = collection.manifest.dim
    own = "embedding" if collection.manifest.dtype == "float32" else f"embedding::vector({dim})"
    distance = f"({own} <#> $2::vector({dim}))"
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
        numbers = pa.array(np.arange(len(some), dtype=np.int32))
        starts = pa.array(np.arange(0, some.size + 1, dim, dtype=np.int32))
        vectors = pa.ListArray.from_arrays(starts, pa.array(np.ascontiguousarray(some, np.float32).ravel()))
        rows = session.run(sql, numbers, vectors, *parameters)
        query, ids, distances = (column.to_numpy() for column in rows.columns)
        ends = np.searchsorted(query, np.arange(len(some) + 1))
        found += [
            Neighbours(ids[a:b].astype(np.int64), -distances[a:b].astype(np.float32))
            for a, b in pairwise(ends)
        ]
    return found


def _estimate(session: Session, table: str, collection: Collection, condition: Filter) -> int:
    """Return the planner's estimate of the number of items that fulfil a filter."""
    where, parameters = condition_sql(condition, collection)
    ((plan,),) = session.rows(f"EXPLAIN (FORMAT JSON) SELECT 1 FROM {table} WHERE {where}", *parameters)
    return int(json.loads(plan)[0]["Plan"]["Plan Rows"])
