"""Filters of stores: on columns of one type, in the simple form that every database can express.

Stored text that is a date has its instant in a number column beside it, named by `instant_column`, so that a
comparison with `date '...'` is one of numbers. A test of a range becomes two comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

from retrieval.errors import InputError
from retrieval.storage import conditions
from retrieval.storage.conditions import (
    Column,
    Condition,
    ConditionValue,
    Filter,
    FilterGroup,
    FilterTest,
    Instant,
    Type,
)
from retrieval.storage.functions import instant
from retrieval.storage.operators import Name
from retrieval.storage.schema import BUILT_IN

_INSTANT = " as instant"  # suffix of the columns with the instants of dates


def resolve(condition: Condition, columns: Mapping[str, Type]) -> Filter:
    """Return the filter of a condition, without dates and ranges.

    Args:
        condition: Parsed condition.
        columns: Type of each metadata column by name, the columns of instants among them.

    Raises:
        InputError: An unknown column, where the message names the nearest known one, or a comparison with a
            type that the column does not hold.
    """

    def fits(column: Column, type_: Type) -> bool:
        return instant_column(column.name) in columns if type_ == "date" else column.type == type_

    shown = {name: type_ for name, type_ in columns.items() if not is_hidden(name)}
    known = {name: Column(name, "", type_) for name, type_ in {**BUILT_IN, **shown}.items()}
    return _simplified(conditions.resolve(condition, known, fits))


def without(filter_: Filter | None, column: str, values: tuple[ConditionValue, ...]) -> Filter:
    """Return a filter that in addition leaves out the items with some values of a column."""
    rest = FilterGroup("or", (FilterTest(column, "not in", values), FilterTest(column, "null")))
    return both(filter_, rest)


def both(one: Filter | None, other: Filter) -> Filter:
    """Return a filter of the items that fulfil two filters; `None` is fulfilled by all."""
    return other if one is None else FilterGroup("and", (one, other))


def unsupported(test: FilterTest, problem: str, remedy: str) -> InputError:
    """Return the error for a test that a database cannot express; no database answers something else."""
    return InputError(f"column {test.column!r}: {problem}; {remedy}")


def _simplified(filter_: Filter) -> Filter:
    if isinstance(filter_, FilterGroup):
        return replace(filter_, terms=tuple(map(_simplified, filter_.terms)))
    if filter_.operator == "between":
        return _simplified(_range(filter_, "and", ">=", "<="))
    if filter_.operator == "not between":
        return _simplified(_range(filter_, "or", "<", ">"))
    dates = tuple(_microseconds(value) for value in filter_.values if isinstance(value, Instant))
    if not dates:
        return filter_
    found = FilterTest(instant_column(filter_.column), filter_.operator, dates)
    others = tuple(value for value in filter_.values if not isinstance(value, Instant))
    if not others:
        return found
    rest = replace(filter_, values=others)
    return FilterGroup("or" if filter_.operator == "in" else "and", (rest, found))


def _range(test: FilterTest, joined: Literal["and", "or"], low: Name, high: Name) -> FilterGroup:
    first, last = test.values
    return FilterGroup(
        joined, (FilterTest(test.column, low, (first,)), FilterTest(test.column, high, (last,)))
    )


# ---- instants


def instant_column(column: str) -> str:
    """Return the name of the number column with the instants of a column's dates."""
    return f"{column}{_INSTANT}"


def is_hidden(column: str) -> bool:
    """Return whether a column has instants, which users do not see."""
    return column.endswith(_INSTANT)


def microseconds(date: str) -> int | None:
    """Return the instant of a date of ISO 8601, in microseconds since 1970; `None` for other text."""
    text = instant(date)
    return None if text is None else _microseconds(text)


def _microseconds(instant_text: str) -> int:
    since = datetime.fromisoformat(f"{instant_text}+00:00") - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
