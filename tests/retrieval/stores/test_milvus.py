"""Milvus: what only this engine does; the rest is in the suite of all engines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import InputError, StoreError
from retrieval.storage.conditions import FilterGroup, FilterTest
from retrieval.storage.schema import RESERVED, match_columns
from retrieval.stores.engine import Engine
from retrieval.stores.milvus.filters import expression, key_of
from tests.retrieval.stores.test_engines import create, item, random_vectors

text = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


def read_literal(found: str) -> str:
    """Read a string literal by the grammar of Milvus (Plan.g4) and the rules of Go's strconv.Unquote."""
    assert found[0] == found[-1] == '"'
    body, out = iter(found[1:-1]), []
    for char in body:
        assert char not in '"\n\r'
        out.append({"n": "\n", "r": "\r", '"': '"', "\\": "\\"}[next(body)] if char == "\\" else char)
    return "".join(out)


@given(text)
def test_a_text_is_one_literal_of_the_expression(value: str) -> None:
    before, after = expression(FilterTest("label", "=", (value,))).split("label ==", 1)
    assert before == "((label is not null) and ("
    assert read_literal(after.strip().removesuffix("))")) == value


@given(st.lists(text.filter(lambda name: bool(name.strip()) and name.isprintable()), unique_by=str.casefold))
def test_columns_have_different_plain_keys(names: list[str]) -> None:
    columns = match_columns([name for name in names if len(name) <= 100 and name.lower() not in RESERVED], [])
    keys = [*map(key_of, columns)]
    assert len({*keys}) == len(keys)
    assert all(key.isascii() and key.replace("_", "a").isalnum() for key in keys)


@pytest.mark.parametrize(
    ("test", "found"),
    [
        (FilterTest("width", ">", (2.5,)), "(width > 2)"),
        (FilterTest("width", "<", (2.5,)), "(width < 3)"),
        (FilterTest("width", "<=", (-2.5,)), "(width <= -3)"),
        (FilterTest("width", "=", (2.5,)), "(id < 0)"),
        (FilterTest("width", "<>", (3.0,)), "(not (width in [3]))"),
        (FilterTest("price", "=", (-(2**63),)), '((exists metadata["price"]) and (metadata["price"] == -9.2'),
    ],
)
def test_numbers_are_written_as_milvus_takes_them(test: FilterTest, found: str) -> None:
    assert expression(test).startswith(found)


def test_long_lists_are_balanced_trees() -> None:
    values = tuple(range(5000))
    found = expression(FilterGroup("and", (FilterTest("price", "in", values),)))
    depth = deepest = 0
    for char in found:
        depth += {"(": 1, ")": -1}.get(char, 0)
        deepest = max(deepest, depth)
    assert depth == 0
    assert deepest < 20
    assert found.count("==") == 5000


def test_patterns_are_refused() -> None:
    with pytest.raises(InputError, match="column 'brand': Milvus compares patterns with regard to case; use"):
        expression(FilterTest("brand", "like", ("a%",)))


@pytest.mark.parametrize("database", ["milvus"], indirect=True)
def test_refusals_are_one_line_without_the_expression(engine: Engine) -> None:
    create(engine, {})
    engine.put([item(1)], random_vectors(1))
    for text in ('label == "secret" and (', 'secret == "x"'):
        with pytest.raises(StoreError) as error:
            engine._query(text, ["id"])  # type: ignore[attr-defined]
        message = str(error.value)
        assert message.startswith(f"{engine.address}: the database refused an operation (")
        assert message.endswith("); see its log")
        assert "\n" not in message
        assert text not in message
    engine._client.drop_collection(engine._name)  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="there is no such collection"):
        engine.count()
