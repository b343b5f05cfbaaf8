"""The operators of conditions, one row each: how they are written, what follows them, what they mean.

`holds` is the meaning for a value that is there, in Python: the reference for SQL and for databases. A new
operator is a row here, its SQL in `retrieval.storage.condition_sql`, and what each database says of it: one
that says nothing refuses it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from retrieval.storage.functions import fold_pattern, matcher

Name = Literal[
    "=", "<>", "<", "<=", ">", ">=", "in", "not in", "like", "not like", "between", "not between",
    "null", "not null",
]  # fmt: skip
# What follows an operator; a pattern is a text and perhaps its escape character.
Operands = Literal["value", "list", "ends", "pattern", "nothing"]


@dataclass(frozen=True)
class Operator:
    """An operator of a test of one column.

    Attributes:
        name: Name in filters.
        written: How a condition writes it, the usual form first.
        operands: What follows it.
        opposite: Operator that holds for the other values; of a missing value, both are false, except "null".
        holds: Whether it holds for a value with some operands of its type.
    """

    name: Name
    written: tuple[str, ...]
    operands: Operands
    opposite: Name
    holds: Callable[..., bool]


def _like(value: Any, pattern: str, escape: str | None = None) -> bool:
    return matcher(fold_pattern(pattern, escape))(str(value))


def _pair(
    one: Name, other: Name, operands: Operands, holds: Callable[..., bool], *written: tuple[str, ...]
) -> tuple[Operator, Operator]:
    """Return an operator and its opposite."""
    first, second = written or ((one,), (other,))
    return (
        Operator(one, first, operands, other, holds),
        Operator(other, second, operands, one, lambda *given: not holds(*given)),
    )


OPERATORS: Mapping[Name, Operator] = {
    row.name: row
    for pair in (
        _pair("=", "<>", "value", operator.eq, ("=", "=="), ("!=", "<>")),
        _pair("<", ">=", "value", operator.lt),
        _pair("<=", ">", "value", operator.le),
        _pair("in", "not in", "list", lambda value, *listed: value in listed),
        _pair("like", "not like", "pattern", _like),
        _pair("between", "not between", "ends", lambda value, low, high: low <= value <= high),
        _pair("null", "not null", "nothing", lambda value: value is None, ("is null",), ("is not null",)),
    )
    for row in pair
}
