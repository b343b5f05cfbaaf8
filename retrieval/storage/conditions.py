"""Conditions on the columns of items, as a syntax tree, and their SQL.

`retrieval.search.where` parses the text of a condition into this tree. Values have a type: text, number or
date. A comparison is unknown if the value is missing or has another type, so neither `price < 30` nor
`not price < 30` holds for an item without a price; but `=`, `<>` and `in` find text and numbers different.
A comparison with a type of which a column has no value is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from retrieval.errors import ConditionError, InputError, did_you_mean
from retrieval.storage.functions import ESCAPE, fold_pattern
from retrieval.storage.schema import BUILT_IN, quoted

COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
_LISTED = 20  # columns that an error message names
_BOUND = 100  # values of a list that are bound one by one; longer lists are bound as JSON

Type = Literal["text", "number", "date"]


@dataclass(frozen=True)
class Instant:
    """A date or a time.

    Attributes:
        text: "YYYY-MM-DD HH:MM:SS.ffffff" in UTC, from `retrieval.storage.functions.instant`.
    """

    text: str


ConditionValue = str | int | float | Instant
SQLValue = str | int | float


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
    """A test of one column.

    Attributes:
        column: Column under test.
        operator: One of `COMPARISONS` (one value), "in" (any number), "like" (one, or two with the escape
            character), "between" (two of one type) or "is null" (none).
        values: Values to compare with.
        negated: Negate "in", "like", "between" or "is null".
    """

    column: ColumnName
    operator: str
    values: tuple[ConditionValue, ...] = ()
    negated: bool = False


@dataclass(frozen=True)
class Not:
    """Negation of a term; unknown if the term is unknown."""

    term: Condition


@dataclass(frozen=True)
class Joined:
    """Terms joined by "and" or by "or"."""

    operator: str
    terms: tuple[Condition, ...]


Condition = Test | Not | Joined
SQL = tuple[str, tuple[SQLValue, ...]]


def compile_condition(
    condition: Condition, columns: Mapping[str, Column], holds: Callable[[Column, str], bool]
) -> SQL:
    """Return the SQL of a condition, with a question mark for each value, and the values to bind.

    Values never become part of the SQL text.

    Args:
        condition: Parsed condition.
        columns: Columns by name; names match in either case.
        holds: Function that returns whether a test, an SQL expression, is true for any value of a column.

    Raises:
        InputError: An unknown column, where the message names the nearest known one, or a comparison with a
            type that the column does not hold.
    """
    return _compile(condition, columns, holds, negated=False)


def _compile(
    condition: Condition, columns: Mapping[str, Column], holds: Callable[[Column, str], bool], negated: bool
) -> SQL:
    if isinstance(condition, Not):
        sql, values = _compile(condition.term, columns, holds, negated=True)
        return f"NOT {_nested(condition.term, sql, 'not')}", values
    if isinstance(condition, Joined):
        parts = [(term, *_compile(term, columns, holds, negated)) for term in condition.terms]
        terms = [_nested(term, sql, condition.operator) for term, sql, _ in parts]
        return f" {condition.operator.upper()} ".join(terms), tuple(v for *_, values in parts for v in values)
    column = find_column(condition.column.name, columns, condition.column.position)
    for type_ in dict.fromkeys(map(type_of, condition.values)) if condition.operator != "like" else ():
        _check_type(column, type_, holds, condition.column.position)
    return _test(column.sql, condition, negated)


def _nested(term: Condition, sql: str, operator: str) -> str:
    """Return the SQL of a term, in parentheses where needed only: the stack of SQLite's parser is small."""
    looser = isinstance(term, Joined) and operator != term.operator and operator != "or"
    return f"({sql})" if looser else sql


def holds_for_missing_values(condition: Condition) -> bool | None:
    """Return the truth of a condition for an item whose columns are all missing; `None` for unknown."""
    if isinstance(condition, Test):
        return not condition.negated if condition.operator == "is null" else None
    if isinstance(condition, Not):
        truth = holds_for_missing_values(condition.term)
        return None if truth is None else not truth
    truths = {holds_for_missing_values(term) for term in condition.terms}
    decisive = condition.operator == "or"
    return decisive if decisive in truths else None if None in truths else not decisive


# ---- tests of one column


def _test(column: str, test: Test, negated: bool) -> SQL:
    """Return the SQL of a test; if not `negated`, false and unknown are the same."""
    negation = "NOT " if test.negated else ""
    if test.operator == "is null":
        return f"{column} IS {negation}NULL", ()
    if test.operator == "like":
        pattern = fold_pattern(*map(str, test.values))
        # SQLite's LIKE ignores the case of A to Z only: enough for ASCII, which has a byte per character.
        other = f"length({column}) <> length(CAST({column} AS BLOB))"
        sql = f"CASE WHEN {other} THEN like_folded(?, {column}) ELSE {column} LIKE ? ESCAPE '{ESCAPE}' END"
        return f"{negation}({sql})", (pattern, pattern)
    if test.operator == "in":
        lists = {type_: [v for v in test.values if type_of(v) == type_] for type_ in _TYPES}
        parts = [_in_list(column, type_, values) for type_, values in lists.items() if values]
        values = tuple(value for _, values in parts for value in values)
        return f"{negation}({' OR '.join(sql for sql, _ in parts)})", values
    type_, values = type_of(test.values[0]), tuple(map(_bindable, test.values))
    subject = comparable(column, type_)
    between = test.operator == "between"
    assert between or test.operator in COMPARISONS, test.operator
    sql = f"{subject} BETWEEN ? AND ?" if between else f"{subject} {test.operator} ?"
    if type_ == "date" or test.operator in ("=", "<>"):
        return (f"NOT ({sql})" if test.negated else sql), values
    # SQLite orders all numbers before all text.
    if negated or test.negated:
        other = "<>" if type_ == "number" else "="
        return f"{negation}CASE WHEN typeof({column}) {other} 'text' THEN {sql} END", values
    if type_ == "number" and ">" in test.operator:
        return f"({sql} AND {column} < '')", values
    if type_ == "text" and "<" in test.operator:
        return f"({sql} AND {column} >= '')", values
    return sql, values


def _in_list(column: str, type_: Type, values: Sequence[ConditionValue]) -> SQL:
    subject, bound = comparable(column, type_), [_bindable(value) for value in values]
    if len(bound) <= _BOUND:
        return f"{subject} IN ({', '.join('?' * len(bound))})", tuple(bound)
    # SQLite converts numbers of JSON to floating point with an error of up to one unit in the last place.
    exact = [repr(value) for value in bound if isinstance(value, float)]
    others = [value for value in bound if not isinstance(value, float)]
    sql = f"{subject} IN (SELECT value FROM json_each(?) UNION ALL SELECT float_of(value) FROM json_each(?))"
    return sql, (json.dumps(others, ensure_ascii=False), json.dumps(exact))


def comparable(column: str, type_: Type) -> str:
    """Return the SQL expression to compare with values of a type: the column, or its instant."""
    if type_ != "date":
        return column
    # Whole days and seconds in UTC, the usual ones, are converted without a call to Python.
    # The modifier makes SQLite compute the day, which otherwise is that of the text, such as February 30.
    day, second = f"date({column}, '0 days')", f"datetime({column}, '0 days')"
    return (
        f"CASE WHEN {column} IS NULL OR {column} < '0001' THEN NULL "
        f"WHEN {day} = {column} THEN {column} || ' 00:00:00.000000' "
        f"WHEN {second} = replace({column}, 'T', ' ') THEN {second} || '.000000' "
        f"ELSE instant({column}) END"
    )


# ---- types

_TYPES: tuple[Type, ...] = ("text", "number", "date")
_NOUNS = {"text": "text", "number": "numbers", "date": "dates"}
_REMEDIES = {
    "text": "compare it with a number, without quotes",
    "number": "put the value in single quotes, as in '42'",
    "date": "a date is stored as text of ISO 8601, as in 2024-05-01 or 2024-05-01T12:30:00Z",
}


def type_of(value: ConditionValue) -> Type:
    """Return the type of a value."""
    return "date" if isinstance(value, Instant) else "text" if isinstance(value, str) else "number"


def _bindable(value: ConditionValue) -> SQLValue:
    return value.text if isinstance(value, Instant) else value


def _check_type(column: Column, type_: Type, holds: Callable[[Column, str], bool], position: int) -> None:
    """Raise an `InputError` if a column holds values, but none of a type."""
    if type_ == "date":
        wrong = column.type == "number" or (
            not holds(column, f"{comparable(column.sql, type_)} IS NOT NULL")
            and holds(column, f"{column.sql} IS NOT NULL")
        )
    elif column.type is not None:
        wrong = column.type != type_
    else:
        ours, others = ("=", "<>") if type_ == "text" else ("<>", "=")
        wrong = not holds(
            column, f"typeof({column.sql}) {ours} 'text' AND {column.sql} IS NOT NULL"
        ) and holds(column, f"typeof({column.sql}) {others} 'text' AND {column.sql} IS NOT NULL")
    if wrong:
        raise wrong_type(column, type_, position)


def wrong_type(column: Column, type_: Type, position: int) -> ConditionError:
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


def tables_of(sql: str, *, for_missing_values: bool) -> str:
    """Return the FROM clause for an expression over items and metadata.

    An item has a row of metadata only if it has a value, so that table alone does unless the expression holds
    for missing values.
    """
    if "items." not in sql and not for_missing_values:
        return "metadata"
    return "items LEFT JOIN metadata USING (id)" if "metadata." in sql else "items"


def unindexed(tables: str) -> str:
    """Return a FROM clause that reads all rows in the order of their ids, without lookup indexes."""
    for table in ("items", "metadata"):
        tables = tables.replace(table, f"{table} NOT INDEXED")
    return tables
