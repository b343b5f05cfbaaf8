"""Filters of stores: conditions on known columns, in the simple form that every database can express.

A parsed condition becomes a tree of "and" and "or" over tests without any negation of terms: `not price < 30`
becomes `price >= 30`. Each test is false for a missing value, except "is null". This has the same result as
the three-valued logic of SQL, where an item is found only if its condition is true.

Stored text that is a date has its instant in a number column beside it, named by `instant_column`, so that a
comparison with `date '...'` is one of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from retrieval.storage.conditions import (
    Column,
    Condition,
    Instant,
    Joined,
    Not,
    Type,
    find_column,
    type_of,
    wrong_type,
)
from retrieval.storage.functions import instant
from retrieval.storage.schema import BUILT_IN

Operator = Literal["=", "<>", "<", "<=", ">", ">=", "in", "not in", "like", "not like", "null", "not null"]
FilterValue = str | int | float
_PAIRS: tuple[tuple[Operator, Operator], ...] = (
    ("=", "<>"),
    ("<", ">="),
    (">", "<="),
    ("in", "not in"),
    ("like", "not like"),
    ("null", "not null"),
)
_OPPOSITE = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
_OPERATORS: dict[str, Operator] = {**{name: name for name in _OPPOSITE}, "is null": "null"}
_INSTANT = " as instant"  # suffix of the columns with the instants of dates


@dataclass(frozen=True)
class FilterTest:
    """A test of one column, false for a missing value unless the operator is "null".

    Attributes:
        column: Metadata column, or a fact: id, key, label, path, width or height.
        operator: Comparison with one value, "in" or "not in" with any number, "like" or "not like" with a
            pattern and perhaps its escape character, "null" or "not null" without a value.
        values: Values, all of the type of the column. Text is compared by code points, and by "like" without
            regard to case.
    """

    column: str
    operator: Operator
    values: tuple[FilterValue, ...] = ()


@dataclass(frozen=True)
class FilterGroup:
    """Filters joined by "and" or by "or"; one or more."""

    operator: Literal["and", "or"]
    terms: tuple[Filter, ...]


Filter = FilterTest | FilterGroup


def resolve(condition: Condition, columns: Mapping[str, Type]) -> Filter:
    """Return the filter of a condition.

    Args:
        condition: Parsed condition.
        columns: Type of each metadata column by name, the columns of instants among them.

    Raises:
        InputError: An unknown column, where the message names the nearest known one, or a comparison with a
            type that the column does not hold.
    """
    shown = {name: type_ for name, type_ in columns.items() if not is_hidden(name)}
    known = {name: Column(name, "", type_) for name, type_ in {**BUILT_IN, **shown}.items()}
    return _resolve(condition, known, columns, negated=False)


def without(filter_: Filter | None, column: str, values: tuple[FilterValue, ...]) -> Filter:
    """Return a filter that in addition leaves out the items with some values of a column."""
    rest = FilterGroup("or", (FilterTest(column, "not in", values), FilterTest(column, "null")))
    return rest if filter_ is None else FilterGroup("and", (filter_, rest))


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


# ---- resolving


def _resolve(
    condition: Condition, known: Mapping[str, Column], columns: Mapping[str, Type], negated: bool
) -> Filter:
    if isinstance(condition, Not):
        return _resolve(condition.term, known, columns, not negated)
    if isinstance(condition, Joined):
        joined = "or" if (condition.operator == "and") == negated else "and"
        terms = tuple(_resolve(term, known, columns, negated) for term in condition.terms)
        return FilterGroup("and" if joined == "and" else "or", terms)
    column = find_column(condition.column.name, known, condition.column.position)
    name = column.name
    types = {} if condition.operator == "like" else dict.fromkeys(map(type_of, condition.values))
    for type_ in types:
        wrong = column.type != type_ if type_ != "date" else instant_column(name) not in columns
        if wrong:
            raise wrong_type(column, type_, condition.column.position)
    if "date" in types:
        name = instant_column(name)
    values = tuple(_microseconds(v.text) if isinstance(v, Instant) else v for v in condition.values)
    negated ^= condition.negated
    if condition.operator == "between":
        ends = (FilterTest(name, ">=", values[:1]), FilterTest(name, "<=", values[1:]))
        if negated:
            return FilterGroup("or", (FilterTest(name, "<", values[:1]), FilterTest(name, ">", values[1:])))
        return FilterGroup("and", ends)
    operator = _OPERATORS[condition.operator]
    return FilterTest(name, _OPPOSITE[operator] if negated else operator, values)
