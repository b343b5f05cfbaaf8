"""Filters of stores against conditions of the embedded gallery."""

from __future__ import annotations

import operator
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import InputError
from retrieval.search.where import parse_condition
from retrieval.storage.conditions import Filter, FilterGroup
from retrieval.stores.conditions import instant_column, microseconds, resolve
from retrieval.stores.opening import parse_address
from tests.retrieval.search.test_where import like

COLUMNS = {"price": "number", "brand": "text", "added": "text", instant_column("added"): "number"}
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def holds(filter_: Filter, values: Mapping[str, Any]) -> bool:
    """Return whether a filter holds for an item, by the values of its columns."""
    if isinstance(filter_, FilterGroup):
        return (all if filter_.operator == "and" else any)(holds(term, values) for term in filter_.terms)
    value, operator = values.get(filter_.column), filter_.operator
    if operator in ("null", "not null"):
        return (value is None) == (operator == "null")
    if value is None:
        return False
    if operator in ("in", "not in"):
        return (value in filter_.values) == (operator == "in")
    if operator in ("like", "not like"):
        return like(value, *map(str, filter_.values)) is (operator == "like")
    return COMPARE[operator](value, filter_.values[0])


number = st.integers(-2, 2)
tests = st.one_of(
    st.builds("price {} {}".format, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), number),
    st.builds("price {}between {} and {}".format, st.sampled_from(["", "not "]), number, number),
    st.builds("brand {}in ('a', 'b')".format, st.sampled_from(["", "not "])),
    st.builds("{} is {}null".format, st.sampled_from(["price", "brand"]), st.sampled_from(["", "not "])),
)
conditions = st.recursive(
    tests,
    lambda inner: st.one_of(
        st.builds("not ({})".format, inner),
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["and", "or"]), inner),
    ),
    max_leaves=6,
)


@given(conditions)
def test_filter_without_negations_equals_the_logic_of_sql(text: str) -> None:
    rows = [(price, brand) for price in (None, -1, 0, 1, 2) for brand in (None, "a", "b", "c")]
    with sqlite3.connect(":memory:") as db:
        db.execute("CREATE TABLE items (price, brand)")
        db.executemany("INSERT INTO items VALUES (?, ?)", rows)
        expected = db.execute(f"SELECT price, brand FROM items WHERE {text} ORDER BY rowid").fetchall()
    found = resolve(parse_condition(text), COLUMNS)
    values = [dict(zip(("price", "brand"), row, strict=True)) for row in rows]
    assert [row for row, one in zip(rows, values, strict=True) if holds(found, one)] == expected
    assert [row for row, one in zip(rows, values, strict=True) if found.holds(one.get)] == expected


def test_dates_are_compared_as_instants() -> None:
    found = resolve(parse_condition("added >= date '2024-05-01T02:00:00+02:00'"), COLUMNS)
    dates = ["2024-05-01", "2024-04-30T23:59:59.999999Z", "2024-05-01T01:00:00+01:00", "1812-01-01", "soon"]
    rows = [{instant_column("added"): microseconds(date)} for date in dates]
    assert [holds(found, row) for row in rows] == [True, False, True, False, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pice = 1", "no column 'pice' at character 1; did you mean 'price'"),
        ("price = '1'", "column 'price' at character 1: it holds numbers, not text"),
        ("brand in ('a', 1)", "column 'brand' at character 1: it holds text, not numbers"),
        ("brand > date '2024-05-01'", "column 'brand' at character 1: it holds no dates"),
        ('"added as instant" = 1', "no column 'added as instant'"),
    ],
)
def test_wrong_columns_and_types(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        resolve(parse_condition(text), COLUMNS)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:secret@h/shop?sslmode=require", "postgresql://me@h:5432/shop?sslmode=require&"),
        ("postgres://h:1/shop?collection=birds", "postgresql://h:1/shop?collection=birds"),
        ("qdrant://h/birds", "qdrant://h:6333/birds"),
        ("qdrant+https://h:443/birds", "qdrant+https://h:443/birds"),
        ("qdrant:///data/my birds", "qdrant:///data/my%20birds"),
        ("milvus://user:secret@[::1]/birds", "milvus://user@[::1]:19530/birds"),
    ],
)
def test_addresses(text: str, shown: str) -> None:
    address = parse_address(text)
    assert str(address).startswith(shown)
    assert "secret" not in f"{address} {address!r}"
    assert parse_address(str(address)) == parse_address(text.replace(":secret", ""))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pastgresql://h/shop", "unknown kind of store; did you mean 'postgresql'"),
        ("milvus:///file.db", "write milvus://HOST:19530/COLLECTION"),
        ("postgresql://me:secret@h:port/shop", "write postgresql://USER@HOST/DATABASE"),
        ("qdrant://h/a-b", "collection 'a-b': use letters"),
        ("qdrant://h", "write qdrant://HOST:6333/COLLECTION"),
    ],
)
def test_invalid_addresses(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_address(text)
    assert message in str(error.value)
    assert "secret" not in str(error.value)
