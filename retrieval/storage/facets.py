"""Counts of the values of columns, over the items that fulfil a condition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from retrieval.errors import InputError
from retrieval.storage.condition_sql import comparable
from retrieval.storage.conditions import Column, Condition, find_column, item_columns
from retrieval.storage.queries import BOTH, compiled
from retrieval.storage.records import Value
from retrieval.storage.store import Store

_OWN = ("id", "key", "path")  # columns of which every item has its own value
_EMPTY = {"label": "''", "width": "0", "height": "0"}  # what stands for a missing value, in SQL
_MAYBE_DATE = "[0-9][0-9][0-9][0-9]-*"
BINS = 24  # of a histogram


@dataclass(frozen=True)
class Facet:
    """The values of one column.

    Attributes:
        column: Column name.
        values: The most frequent values with their numbers of items, equal counts by value.
        distinct: Number of different values.
        missing: Items without a value; an empty label and a size of 0 are none.
        numbers: Lowest and highest number; `None` without numbers.
        dates: First and last instant, ISO 8601 in UTC; `None` unless every value is a date.
        histogram: Items in `BINS` parts of equal width of the range of numbers or dates; `None` without a
            range.
    """

    column: str
    values: list[tuple[Value, int]]
    distinct: int
    missing: int
    numbers: tuple[float, float] | None = None
    dates: tuple[str, str] | None = None
    histogram: list[int] | None = None


@dataclass(frozen=True)
class Facets:
    """The values of several columns.

    Attributes:
        items: Items that fulfil the condition.
        counted: Items whose values are counted: all of these, or a random sample.
        facets: The columns.
    """

    items: int
    counted: int
    facets: list[Facet]


def facet_columns(names: Sequence[str], columns: Iterable[Column]) -> list[Column]:
    """Return the columns with some names, each once.

    Raises:
        InputError: An unknown column, or one of which every item has its own value.
    """
    known = {column.name: column for column in columns}
    found = [find_column(name, known) for name in names]
    if own := next((column.name for column in found if column.name in _OWN), None):
        raise InputError(f"columns: every image has its own {own}; list the images instead")
    return list({column.name: column for column in found}.values())


def count_facets(store: Store, names: Sequence[str], condition: Condition | None, limit: int) -> Facets:
    """Return the counts of the searchable items; each column takes one pass over all items.

    Args:
        store: Gallery store.
        names: Names of the columns.
        condition: Condition that the items fulfil; `None` for all items.
        limit: Largest number of values of a column.

    Raises:
        InputError: The gallery has no such column, or a column cannot be counted.
    """
    columns = facet_columns(names, item_columns(store.columns()).values())
    test, bound = compiled(store, condition)
    ((total,),) = store.select(f"SELECT count(*) {BOTH} AND ({test})", bound)
    facets = []
    for column in columns:
        empty = _EMPTY.get(column.name)
        value = column.sql if empty is None else f"nullif({column.sql}, {empty})"
        day = f"CASE WHEN v GLOB '{_MAYBE_DATE}' THEN {comparable('v', 'date')} END"
        facts, *others = store.select(
            f"WITH counted AS MATERIALIZED "
            f"(SELECT {value} AS v, count(*) AS n {BOTH} AND ({test}) GROUP BY 1), "
            f"placed AS MATERIALIZED (SELECT v, n, CASE WHEN typeof(v) <> 'text' THEN v END AS number, "
            f"{day} AS day FROM counted), "
            "facts AS MATERIALIZED (SELECT count(v) AS distinct_, "
            "coalesce(sum(n) FILTER (WHERE v IS NULL), 0), min(number) AS low, max(number) AS high, "
            "count(day) AS days, min(day) AS first, max(day) AS last FROM placed) "
            "SELECT 'facts', * FROM facts UNION ALL "
            "SELECT 'value', v, n, 0, 0, 0, 0, 0 FROM "
            "(SELECT v, n FROM counted WHERE v IS NOT NULL ORDER BY n DESC, v LIMIT ?) UNION ALL "
            f"SELECT 'bin', min(CAST({BINS} * share AS INTEGER), {BINS - 1}), sum(n), 0, 0, 0, 0, 0 FROM "
            "(SELECT n, CASE WHEN low IS NOT NULL THEN (number - low) * 1.0 / (high - low) "
            "WHEN days = distinct_ THEN (julianday(day) - julianday(first)) "
            "/ (julianday(last) - julianday(first)) END AS share FROM placed, facts) "
            "WHERE share IS NOT NULL GROUP BY 2",
            (*bound, limit),
        )
        _, distinct, missing, low, high, days, first, last = facts
        dates = (iso(first), iso(last)) if distinct and days == distinct else None
        numbers = None if low is None else (low, high)
        counts = [(v, n) for kind, v, n, *_ in others if kind == "value"]
        bins = {place: n for kind, place, n, *_ in others if kind == "bin"}
        histogram = [bins.get(place, 0) for place in range(BINS)] if bins else None
        facets.append(Facet(column.name, counts, distinct, missing, numbers, dates, histogram))
    return Facets(total, total, facets)


def iso(instant: str) -> str:
    """Return an instant of `retrieval.storage.functions` as a date, or as a time in UTC, of ISO 8601."""
    day, time = instant.split(" ")
    return day if time == "00:00:00.000000" else f"{day}T{time.removesuffix('.000000')}Z"
