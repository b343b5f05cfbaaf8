"""Payload of Qdrant's points: items as plain values, and filters as Qdrant's JSON.

A point has the id and the vector of its item. The payload has the facts under their own names, and the value
of metadata column X as `m_X`. In paths, Qdrant gives a meaning to most characters, so all but letters, digits
and underscores are written as "-" and two hexadecimal digits for each byte.

Qdrant compares numbers as 64-bit floats, and reads them from JSON with an error in the last place, unless
they have at most 15 digits or so (it uses serde_json without `float_roundtrip`). Numbers that are *inexact*
in this sense are exact all the same: fractions are stored as text too, in `x_X`, and a comparison tests the
numbers near the limit one by one.
"""

from __future__ import annotations

import math
import operator
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from retrieval.errors import InputError
from retrieval.storage.conditions import ConditionValue, Filter, FilterGroup, FilterTest
from retrieval.storage.manifest import Manifest, parse_manifest
from retrieval.storage.operators import OPERATORS, Name
from retrieval.storage.records import StoredItem, Value
from retrieval.storage.schema import BUILT_IN, ColumnType
from retrieval.stores.conditions import unsupported
from retrieval.stores.engine import Amendment

Payload = dict[str, Any]
Condition = dict[str, Any]  # a condition or a filter, as in Qdrant's REST interface

FACTS = ("key", "root", "path", "size", "mtime_ns", "content_sha256", "width", "height", "label")
_MANIFEST, _COLUMN, _INEXACT = "manifest", "column", "inexact"  # names of facts about the collection
_EXACT = 2**53
_EXACT_POWER = 22  # 10^22 is the highest power of 10 that a 64-bit float holds exactly
_NEAR = 16  # units in the last place within which a comparison tests number by number
_CERTAIN = 8  # units beyond which Qdrant's comparison is right: more than its two readings can be off
_BOUNDS: Mapping[Name, str] = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}


@dataclass(frozen=True)
class PayloadIndex:
    """Index of a field of the payload.

    Attributes:
        kind: "keyword" or "float".
        selective: Whether a value is that of one or few items. Such a field gets no edges of its own in the
            HNSW graph, and its index stays on disk.
    """

    kind: Literal["keyword", "float"]
    selective: bool = False


FACT_INDEXES: Mapping[str, PayloadIndex] = {
    "id": PayloadIndex("float", selective=True),
    "key": PayloadIndex("keyword", selective=True),
    "path": PayloadIndex("keyword", selective=True),
    "content_sha256": PayloadIndex("keyword", selective=True),
    "label": PayloadIndex("keyword"),
    "width": PayloadIndex("float"),
    "height": PayloadIndex("float"),
}


@dataclass(frozen=True)
class PayloadColumn:
    """A metadata column.

    Attributes:
        name: Column name.
        type: Type of its values.
        inexact: Whether it has, or once had, inexact numbers.
    """

    name: str
    type: ColumnType
    inexact: bool = False

    @property
    def indexes(self) -> dict[str, PayloadIndex]:
        """Indexes of its fields, by path."""
        found = {field_of(self.name): PayloadIndex("keyword" if self.type == "text" else "float")}
        if self.inexact:
            found[_exact_field_of(self.name)] = PayloadIndex("keyword", selective=True)
        return found


# ---- facts about the collection


def manifest_facts(manifest: Manifest) -> dict[str, Any]:
    """Return the facts about a collection that say what it holds."""
    return {_MANIFEST: manifest.rows()}


def manifest_of(facts: Mapping[str, Any], address: str) -> Manifest:
    """Return the manifest from the facts about a collection.

    Raises:
        InputError: The collection is not one of this program, or has another format.
    """
    if _MANIFEST not in facts:
        raise InputError(f"{address}: there is another collection under this name; choose another name")
    return parse_manifest(Path(address), facts[_MANIFEST].items())


def column_facts(columns: Sequence[PayloadColumn]) -> dict[str, Any]:
    """Return the facts about a collection that add columns, in their order, or mark them as inexact."""
    facts: dict[str, Any] = {}
    for n, one in enumerate(columns):
        field = field_of(one.name)
        if one.inexact:
            facts[f"{_INEXACT} {field}"] = True
        else:
            facts[f"{_COLUMN} {field}"] = {"name": one.name, "type": one.type, "added": time.time_ns() + n}
    return facts


def columns_of(facts: Mapping[str, Any]) -> dict[str, PayloadColumn]:
    """Return the columns by name, in the order in which they were added."""
    added = [fact for name, fact in facts.items() if name.startswith(f"{_COLUMN} ")]
    return {
        fact["name"]: PayloadColumn(
            fact["name"], fact["type"], f"{_INEXACT} {field_of(fact['name'])}" in facts
        )
        for fact in sorted(added, key=operator.itemgetter("added"))
    }


# ---- items


def field_of(column: str) -> str:
    """Return the field of the payload with the values of a metadata column."""
    return f"m_{_encoded(column)}"


def payload_of(item: StoredItem) -> Payload:
    """Return the payload of an item."""
    payload: Payload = {"id": item.id, **{name: getattr(item, name) for name in FACTS}}
    if item.label is None:
        del payload["label"]
    for column, value in item.metadata.items():
        if value is not None:
            payload[field_of(column)] = value
            if isinstance(value, float) and is_inexact(value):
                payload[_exact_field_of(column)] = repr(value)
    return payload


def changes_of(amendment: Amendment) -> Payload:
    """Return the fields of the payload that an amendment sets; null removes a field."""
    changes: Payload = dict(amendment.facts)
    for column, value in amendment.metadata.items():
        changes[field_of(column)] = value
        if not isinstance(value, str):
            exact = isinstance(value, float) and is_inexact(value)
            changes[_exact_field_of(column)] = repr(value) if exact else None
    return changes


def item_of(number: int, payload: Payload) -> StoredItem:
    """Return the item of a point."""
    metadata: dict[str, Value] = {}
    for field, value in payload.items():
        if field.startswith("m_") and value is not None:
            exact = payload.get(f"x_{field[2:]}")
            metadata[_decoded(field[2:])] = value if exact is None else float(exact)
    return StoredItem(
        number,
        payload["key"],
        payload["root"],
        payload["path"],
        payload["size"],
        payload["mtime_ns"],
        payload["content_sha256"],
        payload["width"],
        payload["height"],
        payload.get("label"),
        None,
        metadata,
    )


def value_of(payload: Payload, column: str) -> Value:
    """Return the value of a metadata column in a payload that has its fields; `None` if it is missing."""
    exact = payload.get(_exact_field_of(column))
    value: Value = payload.get(field_of(column)) if exact is None else float(exact)
    return value


def value_fields(column: str) -> list[str]:
    """Return the fields that have the value of a metadata column."""
    return [field_of(column), _exact_field_of(column)]


def is_inexact(value: float) -> bool:
    """Return whether Qdrant may read or compare a number inexactly."""
    if isinstance(value, int):
        return abs(value) > _EXACT
    if abs(value) < 1e9 and round(value, 6) == value:
        return False
    _, digits, exponent = Decimal(repr(value)).as_tuple()
    significand = int("".join(map(str, digits)))
    return significand > _EXACT or abs(int(exponent)) > _EXACT_POWER


def inexact_columns(values: Iterable[Mapping[str, Value]]) -> set[str]:
    """Return the columns that have inexact numbers, in some rows of values by column."""
    return {
        column
        for row in values
        for column, value in row.items()
        if isinstance(value, int | float) and is_inexact(value)
    }


def _exact_field_of(column: str) -> str:
    return f"x_{_encoded(column)}"


@lru_cache(1024)
def _encoded(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", lambda found: "".join(f"-{byte:02x}" for byte in found[0].encode()), name)


def _decoded(name: str) -> str:
    return re.sub(r"(?:-[0-9a-f]{2})+", lambda found: bytes.fromhex(found[0].replace("-", "")).decode(), name)


# ---- filters


def translated(filter_: Filter, columns: Mapping[str, PayloadColumn]) -> Condition:
    """Return a filter as Qdrant's JSON.

    Args:
        filter_: Filter.
        columns: Metadata columns by name.

    Raises:
        InputError: Qdrant cannot do it: `like`, or text compared by order.
    """
    found = _condition(filter_, columns)
    return found if found.keys() <= {"must", "should", "must_not"} else {"must": [found]}


def _condition(filter_: Filter, columns: Mapping[str, PayloadColumn]) -> Condition:
    if isinstance(filter_, FilterGroup):
        joined = "must" if filter_.operator == "and" else "should"
        return {joined: [_condition(term, columns) for term in filter_.terms]}
    fact = filter_.column in BUILT_IN
    path = filter_.column if fact else field_of(filter_.column)
    sign, missing = filter_.operator, {"is_empty": {"key": path}}
    if sign == "null":
        return missing
    if sign == "not null":
        return {"must_not": [missing]}
    if sign in ("<>", "not in"):
        same = FilterTest(filter_.column, "in", filter_.values)
        return {"must_not": [missing, _condition(same, columns)]}
    text = (BUILT_IN[filter_.column] if fact else columns[filter_.column].type) == "text"
    equal = sign in ("=", "in")
    if text and equal:
        return _any_of(path, filter_.values)
    if text and sign in _BOUNDS:
        remedy = "use =, <> or in, a column of numbers, or date '...' for dates; or PostgreSQL"
        raise unsupported(filter_, f"Qdrant cannot compare text by {sign}", remedy)
    if not equal and sign not in _BOUNDS:
        remedy = "compare it by =, <> or in, or keep the gallery in files or PostgreSQL"
        problem = "search text by a pattern" if "like" in sign else f"compare by {sign}"
        raise unsupported(filter_, f"Qdrant cannot {problem}", remedy)
    numbers = [value for value in filter_.values if isinstance(value, int | float)]
    if filter_.column == "id" and equal:
        return {
            "has_id": [int(number) for number in numbers if 0 < number < _EXACT and number == int(number)]
        }
    exact = None if fact or not columns[filter_.column].inexact else _exact_field_of(filter_.column)
    if equal:
        return {"should": [_compared(path, exact, "=", number) for number in numbers] or [{"has_id": []}]}
    return _compared(path, exact, sign, numbers[0])


def _any_of(path: str, values: Sequence[ConditionValue]) -> Condition:
    return {"key": path, "match": {"any": [*values]}} if values else {"has_id": []}


def _equal(path: str, number: float) -> Condition:
    return {"key": path, "range": {"gte": number, "lte": number}}


def _compared(path: str, exact: str | None, sign: Name, limit: float) -> Condition:
    """Return the condition that a number compares with a limit.

    Args:
        path: Field of the numbers.
        exact: Field of the exact texts of inexact fractions; `None` if there are no inexact numbers.
        sign: Operator: =, <, <=, > or >=.
        limit: Limit.
    """
    if exact is None and not is_inexact(limit):
        bound = _BOUNDS.get(sign)
        return _equal(path, limit) if bound is None else {"key": path, "range": {bound: limit}}
    floats = _floats_near(float(limit))
    whole = _whole_numbers(floats[0], floats[-1]) if exact else range(0)
    holds = OPERATORS[sign].holds
    fulfil = [number for number in floats if holds(number, limit)]
    others = [number for number in whole if not holds(number, limit)]
    found: list[Condition] = []
    certain = _moved(float(limit), -_CERTAIN if sign.startswith("<") else _CERTAIN)
    if sign != "=" and math.isfinite(certain):
        found.append({"key": path, "range": {"lt" if sign.startswith("<") else "gt": certain}})
    for number in fulfil:
        if not is_inexact(number):
            terms: Condition = {"must": [_equal(path, number)]}
            if exact:
                terms["must"].append({"is_empty": {"key": exact}})
            if others:
                terms["must_not"] = [_any_of(path, others)]
            found.append(terms)
    if exact:
        found.append(_any_of(exact, [repr(number) for number in fulfil if is_inexact(number)]))
        found.append(_any_of(path, [number for number in whole if holds(number, limit)]))
    return {"should": found or [{"has_id": []}]}


def _floats_near(number: float) -> list[float]:
    """Return the finite floats within `_NEAR` units in the last place, ascending."""
    found = [_moved(number, units) for units in range(-_NEAR, _NEAR + 1)]
    return [one for one in found if math.isfinite(one)]


def _moved(number: float, units: int) -> float:
    for _ in range(abs(units)):
        number = math.nextafter(number, math.copysign(math.inf, units))
    return number


def _whole_numbers(first: float, last: float) -> range:
    """Return the whole numbers of 64 bits from one float to another, if they are inexact."""
    if max(abs(first), abs(last)) <= _EXACT:
        return range(0)
    return range(max(int(first), -(2**63)), min(int(last), 2**63 - 1) + 1)
