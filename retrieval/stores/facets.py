"""Counts of the values of columns in a database, over a random sample of many items.

No two databases count values with a filter, or ranges, in the same way. Ids are hashes of keys, so the first
items by id are a random sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np

from retrieval.storage.conditions import Filter
from retrieval.storage.facets import BINS, Facet, Facets, iso
from retrieval.storage.functions import instant
from retrieval.storage.records import StoredItem, Value
from retrieval.stores.engine import Engine

SAMPLE = 50_000  # items that are counted
_CHUNK = 4096  # items in memory at a time


def count_store_facets(
    engine: Engine, columns: Sequence[str], condition: Filter | None, limit: int
) -> Facets:
    """Return the counts of up to `SAMPLE` items.

    Args:
        engine: Database.
        columns: Columns, all of which it has.
        condition: Filter that the items fulfil; `None` for all items.
        limit: Largest number of values of a column.
    """
    counts: dict[str, Counter[Value]] = {column: Counter() for column in columns}
    counted, last = 0, 0
    while counted < SAMPLE and (some := engine.scan(condition, last, min(_CHUNK, SAMPLE - counted))):
        counted, last = counted + len(some), some[-1].id
        for column, values in counts.items():
            values.update(_value(item, column) for item in some)
    total = counted if counted < SAMPLE else max(counted, engine.count(condition))
    return Facets(total, counted, [_facet(column, values, limit) for column, values in counts.items()])


def _value(item: StoredItem, column: str) -> Value:
    if column in ("label", "width", "height"):
        return getattr(item, column) or None
    return item.metadata.get(column)


def _facet(column: str, counts: Counter[Value], limit: int) -> Facet:
    missing = counts.pop(None, 0)
    # Numbers are before text, as in SQLite; a column has one of the two.
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], isinstance(pair[0], str), pair[0]))
    numbers = [value for value in counts if isinstance(value, int | float)]
    days = [instant(value) for value in counts]
    known = [day for day in days if day is not None]
    are_dates = bool(known) and len(known) == len(days)
    places: dict[Value, float] = {value: value for value in numbers}
    if are_dates:
        places |= zip(counts, map(_seconds, known), strict=True)
    return Facet(
        column,
        ordered[:limit],
        len(counts),
        missing,
        (min(numbers), max(numbers)) if numbers else None,
        (iso(min(known)), iso(max(known))) if are_dates else None,
        _histogram(places, counts),
    )


def _seconds(day: str) -> float:
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()


def _histogram(places: Mapping[Value, float], counts: Mapping[Value, int]) -> list[int] | None:
    if len(set(places.values())) < 2:
        return None
    weights = [counts[value] for value in places]
    found, _ = np.histogram(list(places.values()), BINS, weights=weights)
    return [int(count) for count in found]
