"""Conditions on the columns of items, as a syntax tree, and filters: conditions that fit some columns.

`retrieval.search.where` parses the text of a condition into the tree. Values have a type: text, number or
date. A comparison is unknown if the value is missing or has another type, so neither `price < 30` nor
`not price < 30` holds for an item without a price; but `=`, `<>` and `in` find text and numbers different.
A comparison with a type of which a column has no value is an error.

`resolve` makes a filter of it: a tree of "and" and "or" over tests, without any negation of terms, since
`not price < 30` is `price >= 30`. Each test is false where it is unknown. This has the same result, since an
item is found only if its condition is true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from retrieval.errors import ConditionError, InputError, did_you_mean
from retrieval.storage.functions import instant
from retrieval.storage.operators import OPERATORS, Name
from retrieval.storage.schema import BUILT_IN, quoted

_LISTED = 20  # columns that an error message names

Type = Literal["text", "number", "date"]


class Instant(str):
    """A date or a time: "YYYY-MM-DD HH:MM:SS.ffffff" in UTC, from `retrieval.storage.functions.instant`."""


ConditionValue = str | int | float


@dataclass(frozen=True)
class ColumnName:
    """A column name, and its position in the text of the condition."""

    name: str
    position: int


@dataclass(frozen=True)
class Column:
    """A column of items or metadata.

    Attributes:
        name: Column name.
        sql: SQL expression over the tables items and metadata.
        type: Type of all values, "text" or "number"; `None` if each value has its own.
    """

    name: str
    sql: str
    type: Type | None = None


@dataclass(frozen=True)
class Test:
    """A test of one column by an operator of `retrieval.storage.operators`, with its operands."""

    column: ColumnName
    operator: Name
    values: tuple[ConditionValue, ...] = ()


@dataclass(frozen=True)
class Not:
    """Negation of a term; unknown if the term is unknown."""

    term: Condition


@dataclass(frozen=True)
class Joined:
    """Terms joined by "and" or by "or"."""

    operator: Literal["and", "or"]
    terms: tuple[Condition, ...]


Condition = Test | Not | Joined


# ---- filters


@dataclass(frozen=True)
class FilterTest:
    """A test of one column, false for a missing value unless the operator is "null".

    Attributes:
        column: Metadata column, or a fact: id, key, label, path, width or height.
        operator: Operator.
        values: Its operands. Text is compared by code points, and by "like" without regard to case.
    """

    column: str
    operator: Name
    values: tuple[ConditionValue, ...] = ()

    def holds(self, value_of: Callable[[str], Any]) -> bool:
        """Return whether it holds for an item, given the value of each column; `None` is a missing one."""
        value = value_of(self.column)
        if self.values and all(isinstance(limit, Instant) for limit in self.values):
            value = instant(value)
        if value is None:
            return self.operator == "null"
        return OPERATORS[self.operator].holds(value, *self.values)


@dataclass(frozen=True)
class FilterGroup:
    """Filters joined by "and" or by "or"; one or more."""

    operator: Literal["and", "or"]
    terms: tuple[Filter, ...]

    def holds(self, value_of: Callable[[str], Any]) -> bool:
        """Return whether it holds for an item; see `FilterTest.holds`."""
        return (all if self.operator == "and" else any)(term.holds(value_of) for term in self.terms)


Filter = FilterTest | FilterGroup


def resolve(
    condition: Condition,
    columns: Mapping[str, Column],
    fits: Callable[[Column, Type], bool],
    *,
    negated: bool = False,
) -> Filter:
    """Return the filter of a condition.

    Args:
        condition: Parsed condition.
        columns: Columns by name; names match in either case.
        fits: Function that returns whether values of a type can be compared with those of a column.
        negated: Return the filter of the negation.

    Raises:
        InputError: An unknown column, where the message names the nearest known one, or a comparison with a
            type that the column does not hold.
    """
    if isinstance(condition, Not):
        return resolve(condition.term, columns, fits, negated=not negated)
    if isinstance(condition, Joined):
        terms = tuple(resolve(term, columns, fits, negated=negated) for term in condition.terms)
        return FilterGroup("or" if (condition.operator == "and") == negated else "and", terms)
    column = find_column(condition.column.name, columns, condition.column.position)
    row = OPERATORS[condition.operator]
    for type_ in dict.fromkeys(map(type_of, condition.values)) if row.operands != "pattern" else ():
        if not fits(column, type_):
            raise _wrong_type(column, type_, condition.column.position)
    return FilterTest(column.name, row.opposite if negated else row.name, condition.values)


# ---- types

_NOUNS = {"text": "text", "number": "numbers", "date": "dates"}
_REMEDIES = {
    "text": "compare it with a number, without quotes",
    "number": "put the value in single quotes, as in '42'",
    "date": "a date is stored as text of ISO 8601, as in 2024-05-01 or 2024-05-01T12:30:00Z",
}


def type_of(value: ConditionValue) -> Type:
    """Return the type of a value."""
    return "date" if isinstance(value, Instant) else "text" if isinstance(value, str) else "number"


def _wrong_type(column: Column, type_: Type, position: int) -> ConditionError:
    """Return the error of a comparison of a column with a type of which it has no value."""
    held = (
        "no dates"
        if type_ == "date"
        else f"{_NOUNS['number' if type_ == 'text' else 'text']}, not {_NOUNS[type_]}"
    )
    place = f"where: column {column.name!r} at character {position + 1}"
    return ConditionError(f"{place}: it holds {held}; {_REMEDIES[type_]}")


# ---- columns


def item_columns(metadata_columns: Sequence[str]) -> dict[str, Column]:
    """Return the columns that a condition may name, by name."""
    built_in = {name: Column(name, f"items.{quoted(name)}", type_) for name, type_ in BUILT_IN.items()}
    return built_in | {name: Column(name, f"metadata.{quoted(name)}") for name in metadata_columns}


def find_column(name: str, columns: Mapping[str, Column], position: int | None = None) -> Column:
    """Return a column, whose name matches in either case.

    Args:
        name: Column name.
        columns: Known columns by name.
        position: Position of the name in the text of a condition, for the error message.

    Raises:
        InputError: An unknown column; the message names the nearest known one.
    """
    found = {known.lower(): column for known, column in columns.items()}.get(name.lower())
    if found is None:
        what = f"no column {name!r}"
        listed = [*list(columns)[:_LISTED], *(["..."] if len(columns) > _LISTED else [])]
        hint = did_you_mean(name, columns, f"columns: {', '.join(listed)}")
        if position is None:
            raise InputError(f"{what}; {hint}")
        raise ConditionError(f"where: {what} at character {position + 1}; {hint}")
    return found
