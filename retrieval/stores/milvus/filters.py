"""Filters as expressions of Milvus.

Metadata is in one JSON field. The test of a key that an item lacks has no defined result there (some versions
find the item by `!=`), so every test of metadata begins with `exists`. Values are literals in the expression,
which every version takes; parameters are new in Milvus 2.5.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from retrieval.storage.conditions import ConditionValue, Filter, FilterGroup, FilterTest
from retrieval.storage.operators import Name
from retrieval.storage.schema import BUILT_IN
from retrieval.stores.conditions import unsupported

METADATA = "metadata"  # the JSON field
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,59}")
_INTEGERS = range(-(2**63) + 1, 2**63)  # -2^63 cannot be written: the minus sign is an operator
_EQUALITY = {"=": "==", "<>": "!="}
_EXPRESSED = ("=", "<>", "<", "<=", ">", ">=", "in", "not in", "null", "not null")
_NEVER, _ALWAYS = "(id < 0)", "(id >= 0)"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})


def key_of(column: str) -> str:
    """Return the key of a metadata column in the JSON field: letters, digits and underscores."""
    if _PLAIN.fullmatch(column):
        return column
    return f"_{hashlib.sha256(column.encode()).hexdigest()[:24]}"


def expression(condition: Filter) -> str:
    """Return the expression of a filter.

    Raises:
        InputError: It has a pattern, which Milvus compares with regard to case.
    """
    if isinstance(condition, FilterGroup):
        return joined(condition.operator, map(expression, condition.terms))
    if condition.operator not in _EXPRESSED:
        problem = f"Milvus has no {condition.operator}"
        if "like" in condition.operator:
            problem = "Milvus compares patterns with regard to case"
        remedy = f"use =, in or a comparison by order instead of {condition.operator.removeprefix('not ')}"
        raise unsupported(condition, problem, remedy)
    if condition.column in BUILT_IN:
        return _fact(condition)
    field = f'{METADATA}["{key_of(condition.column)}"]'
    exists = f"(exists {field})"
    if condition.operator == "null":
        return f"(not {exists})"
    if condition.operator == "not null":
        return exists
    return f"({exists} and {_metadata(field, condition)})"


def joined(operator: str, terms: Iterable[str]) -> str:
    """Return terms joined as a balanced tree: the depth of an expression is limited."""
    level = list(terms)
    while len(level) > 1:
        level = [f"({f' {operator} '.join(level[n : n + 2])})" for n in range(0, len(level), 2)]
    return level[0]


def any_of(field: str, values: Sequence[ConditionValue]) -> str:
    """Return the expression for a field with one of some values."""
    return f"({field} in [{', '.join(map(_literal, values))}])"


def _fact(test: FilterTest) -> str:
    field, operator, values = test.column, test.operator, test.values
    if operator in ("null", "not null"):
        if field == "label":
            return "(label is null)" if operator == "null" else "(label is not null)"
        return _NEVER if operator == "null" else _ALWAYS
    if BUILT_IN[field] == "number":
        operator, values = _of_integers(test)
    if operator in ("in", "not in"):
        if not values:
            found = _NEVER if operator == "in" else _ALWAYS
        else:
            found = any_of(field, values) if operator == "in" else f"(not {any_of(field, values)})"
    else:
        found = f"({field} {_EQUALITY.get(operator, operator)} {_literal(values[0])})"
    return f"((label is not null) and {found})" if field == "label" else found


def _of_integers(test: FilterTest) -> tuple[Name, tuple[ConditionValue, ...]]:
    """Return operator and values of the test of an integer field without fractions, which Milvus refuses."""
    operator = test.operator
    numbers = [value for value in test.values if not isinstance(value, str)]
    if operator in ("=", "<>", "in", "not in"):
        kept = [int(n) for n in numbers if math.isfinite(n) and n == int(n) and int(n) in _INTEGERS]
        return ("in" if operator in ("=", "in") else "not in"), tuple(kept)
    bound = min(max(numbers[0], _INTEGERS[0]), _INTEGERS[-1])
    return operator, (math.floor(bound) if operator in ("<=", ">") else math.ceil(bound),)


def _metadata(field: str, test: FilterTest) -> str:
    if test.operator in ("in", "not in"):
        equal, how = ("==", "or") if test.operator == "in" else ("!=", "and")
        terms = [f"({field} {equal} {_literal(value)})" for value in test.values]
        return joined(how, terms) if terms else (_NEVER if how == "or" else _ALWAYS)
    return f"({field} {_EQUALITY.get(test.operator, test.operator)} {_literal(test.values[0])})"


def _literal(value: ConditionValue) -> str:
    if isinstance(value, str):
        return f'"{value.translate(_ESCAPES)}"'
    if isinstance(value, int) and value not in _INTEGERS:
        value = float(value)
    if isinstance(value, float) and math.isinf(value):
        return _literal(math.copysign(1.7976931348623157e308, value))
    return repr(value)


def stored_values(metadata: Mapping[str, object]) -> dict[str, object]:
    """Return the values of an item by key of the JSON field, without the missing ones."""
    return {key_of(name): value for name, value in metadata.items() if value is not None}
