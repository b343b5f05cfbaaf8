"""Conditions on the columns of items, as a syntax tree, and their SQL.

`retrieval.search.where` parses the text of a condition into this tree. A condition means what it means in
SQLite: a comparison with a missing value is unknown, so neither `price < 30` nor `not price < 30` holds for
an item without a price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retrieval.errors import InputError, did_you_mean
from retrieval.storage.schema import BUILT_IN, quoted

ConditionValue = str | int | float
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
_LISTED = 20  # columns that an error message names


@dataclass(frozen=True)
class ColumnName:
    """A column name, and its position in the text of the condition."""

    name: str
    position: int


@dataclass(frozen=True)
class Test:
    """A test of one column.

    Attributes:
        column: Column under test.
        operator: One of `COMPARISONS` (one value), "in" (any number), "like" (one), "between" (two) or
            "is null" (none).
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


def compile_condition(
    condition: Condition, columns: Mapping[str, str]
) -> tuple[str, tuple[ConditionValue, ...]]:
    """Return the SQL of a condition, with a question mark for each value, and the values to bind.

    Values never become part of the SQL text.

    Args:
        condition: Parsed condition.
        columns: SQL expression of each column by its name; names match in either case.

    Raises:
        InputError: An unknown column; the message names the nearest known one.
    """
    if isinstance(condition, Test):
        column = condition.column
        return (
            f"{resolve_column(column.name, columns, column.position)} {_test_sql(condition)}",
            condition.values,
        )
    if isinstance(condition, Not):
        sql, values = compile_condition(condition.term, columns)
        return f"NOT ({sql})", values
    parts = [compile_condition(term, columns) for term in condition.terms]
    joined = f" {condition.operator.upper()} ".join(f"({sql})" for sql, _ in parts)
    return joined, tuple(value for _, values in parts for value in values)


def _test_sql(test: Test) -> str:
    negation = "NOT " if test.negated else ""
    if test.operator == "is null":
        return f"IS {negation}NULL"
    if test.operator == "in":
        return f"{negation}IN ({', '.join('?' * len(test.values))})"
    if test.operator == "like":
        return f"{negation}LIKE ?"
    if test.operator == "between":
        return f"{negation}BETWEEN ? AND ?"
    assert test.operator in COMPARISONS, test.operator
    return f"{test.operator} ?"


def column_expressions(metadata_columns: Sequence[str]) -> dict[str, str]:
    """Return the SQL expression, over items and metadata, of each column that a condition may name."""
    built_in = {name: f"items.{quoted(name)}" for name in BUILT_IN}
    return built_in | {name: f"metadata.{quoted(name)}" for name in metadata_columns}


def resolve_column(name: str, columns: Mapping[str, str], position: int | None = None) -> str:
    """Return the SQL expression of a column, whose name matches in either case.

    Args:
        name: Column name.
        columns: SQL expression of each known column.
        position: Position of the name in the text of a condition, for the error message.

    Raises:
        InputError: An unknown column; the message names the nearest known one.
    """
    found = {known.lower(): sql for known, sql in columns.items()}.get(name.lower())
    if found is None:
        place = "" if position is None else f" at character {position + 1}"
        listed = [*list(columns)[:_LISTED], *(["..."] if len(columns) > _LISTED else [])]
        hint = did_you_mean(name, columns, f"columns: {', '.join(listed)}")
        raise InputError(f"no column {name!r}{place}; {hint}")
    return found


def tables_of(sql: str) -> str:
    """Return the FROM clause for an expression over items and metadata.

    An item has a row in both tables until its removal is compacted away, so the smaller one alone may do.
    """
    used = [table for table in ("items", "metadata") if f"{table}." in sql]
    return " JOIN ".join(used) + (" USING (id)" if len(used) > 1 else "")
