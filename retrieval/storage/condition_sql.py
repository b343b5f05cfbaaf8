"""SQL of conditions, for SQLite. Values are bound and never become part of the text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from retrieval.storage.conditions import (
    Column,
    Condition,
    ConditionValue,
    Filter,
    FilterGroup,
    FilterTest,
    Type,
    resolve,
    type_of,
)
from retrieval.storage.functions import ESCAPE, fold_pattern

_BOUND = 100  # values of a list that are bound one by one; longer lists are bound as JSON
# SQLite orders all numbers before all text, so these comparisons need a test of the type as well.
_MIXED = {"number": (">", ">=", "not between"), "text": ("<", "<=", "not between"), "date": ()}
_IS_TYPE = {"number": "{} < ''", "text": "{} >= ''"}
_TYPES: tuple[Type, ...] = ("text", "number", "date")

SQL = tuple[str, tuple[ConditionValue, ...]]


def resolve_stored(
    condition: Condition, columns: Mapping[str, Column], holds: Callable[[Column, str], bool]
) -> Filter:
    """Return the filter of a condition on columns whose values have types of their own.

    Args:
        condition: Parsed condition.
        columns: Columns by name; names match in either case.
        holds: Function that returns whether a test, an SQL expression, is true for any value of a column.

    Raises:
        InputError: An unknown column, or a comparison with a type of which a column has no value.
    """

    def fits(column: Column, type_: Type) -> bool:
        if type_ == "date":
            return column.type != "number" and (
                holds(column, f"{comparable(column.sql, type_)} IS NOT NULL")
                or not holds(column, f"{column.sql} IS NOT NULL")
            )
        if column.type is not None:
            return column.type == type_
        ours, others = ("=", "<>") if type_ == "text" else ("<>", "=")
        test = f"typeof({column.sql}) {{}} 'text' AND {column.sql} IS NOT NULL"
        return holds(column, test.format(ours)) or not holds(column, test.format(others))

    return resolve(condition, columns, fits)


def filter_sql(condition: Filter, columns: Mapping[str, Column]) -> SQL:
    """Return the SQL of a filter, with a question mark for each value, and the values to bind."""
    if isinstance(condition, FilterTest):
        return _test(columns[condition.column].sql, condition)
    terms: list[str] = []
    bound: list[ConditionValue] = []
    for term in condition.terms:
        sql, values = filter_sql(term, columns)
        # In parentheses where needed only: the stack of SQLite's parser is small.
        looser = isinstance(term, FilterGroup) and (condition.operator, term.operator) == ("and", "or")
        terms.append(f"({sql})" if looser else sql)
        bound += values
    return f" {condition.operator.upper()} ".join(terms), tuple(bound)


def _test(column: str, test: FilterTest) -> SQL:
    """Return the SQL of a test, where false and unknown are the same."""
    operator, negated = test.operator.removeprefix("not "), test.operator.startswith("not ")
    negation = "NOT " * negated
    if operator == "null":
        return f"{column} IS {negation}NULL", ()
    if operator == "like":
        pattern = fold_pattern(*map(str, test.values))
        # SQLite's LIKE ignores the case of A to Z only: enough for ASCII, which has a byte per character.
        other = f"length({column}) <> length(CAST({column} AS BLOB))"
        sql = f"CASE WHEN {other} THEN like_folded(?, {column}) ELSE {column} LIKE ? ESCAPE '{ESCAPE}' END"
        return f"{negation}({sql})", (pattern, pattern)
    if operator == "in":
        lists = {type_: [v for v in test.values if type_of(v) == type_] for type_ in _TYPES}
        parts = [_in_list(column, type_, values) for type_, values in lists.items() if values]
        values = tuple(value for _, values in parts for value in values)
        return f"{negation}({' OR '.join(sql for sql, _ in parts)})", values
    type_ = type_of(test.values[0])
    operands = "BETWEEN ? AND ?" if operator == "between" else f"{operator} ?"
    sql = f"{comparable(column, type_)} {negation}{operands}"
    if test.operator in _MIXED[type_]:
        sql = f"({sql} AND {_IS_TYPE[type_].format(column)})"
    return sql, test.values


def _in_list(column: str, type_: Type, values: Sequence[ConditionValue]) -> SQL:
    subject, bound = comparable(column, type_), list(values)
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


# ---- tables


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
