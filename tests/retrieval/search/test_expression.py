"""Expressions of an order, against Python's own arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval import InputError
from retrieval.search.expression import Expression, is_expression

NAMES = ["a", "b", "odd name"]
FUNCTIONS = {
    "abs": abs,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "ln": math.log,
    "log1p": math.log1p,
    "least": min,
    "greatest": max,
}


def grown(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(st.sampled_from("+-*/"), parts, parts),
        st.tuples(st.just("minus"), parts),
        st.tuples(st.sampled_from(["abs", "sqrt", "exp", "ln", "log1p"]), parts),
        st.tuples(st.sampled_from(["least", "greatest", "coalesce"]), parts, parts),
    )


TREES = st.recursive(st.one_of(st.sampled_from(NAMES), st.floats(0, 9).map(lambda x: round(x, 2))), grown)


def written(tree: Any) -> str:
    if isinstance(tree, str):
        return f'"{tree}"' if " " in tree else tree
    if isinstance(tree, float):
        return repr(tree)
    name, *parts = tree
    texts = [written(part) for part in parts]
    if name in "+-*/":
        return f"({texts[0]} {name} {texts[1]})"
    return f"(-{texts[0]})" if name == "minus" else f"{name}({', '.join(texts)})"


def computed(tree: Any, row: dict[str, float | None]) -> float | None:
    """The value of one hit, by Python; `None` where it is missing or no finite number."""
    if isinstance(tree, str | float):
        return row[tree] if isinstance(tree, str) else tree
    name, *parts = tree
    values = [computed(part, row) for part in parts]
    if name == "coalesce":
        return values[0] if values[0] is not None else values[1]
    if None in values:
        return None
    (a, *rest) = (float(value) for value in values if value is not None)
    try:
        if name == "minus":
            return -a
        if name in FUNCTIONS:
            found = float(FUNCTIONS[name](a, *rest))  # type: ignore[operator]
        else:
            found = (
                a / rest[0] if name == "/" else {"+": a + rest[0], "-": a - rest[0], "*": a * rest[0]}[name]
            )
    except (ZeroDivisionError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


@given(tree=TREES, rows=st.lists(st.tuples(*[st.none() | st.integers(-3, 9)] * 3), min_size=1, max_size=5))
def test_values_are_those_of_python(tree: Any, rows: list[tuple[int | None, ...]]) -> None:
    columns = {
        name: np.array([row[i] for row in rows], np.float64)  # None becomes NaN
        for i, name in enumerate(NAMES)
    }
    found = Expression(written(tree)).of(columns, len(rows))
    for row, value in zip(rows, found.tolist(), strict=True):
        expected = computed(tree, dict(zip(NAMES, row, strict=True)))
        if expected is None:
            assert math.isnan(value)
        else:
            assert value == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_missing_value_makes_the_whole_missing_unless_it_is_replaced() -> None:
    values = {"a": np.array([1.0, np.nan]), "b": np.array([2.0, 5.0])}
    assert np.isnan(Expression("a + 2 * b").of(values, 2)).tolist() == [False, True]
    assert Expression("coalesce(a, 10) + 2 * b").of(values, 2).tolist() == [5, 20]
    assert Expression("2 - 3 - -1 * 4 / 8").of({}, 2).tolist() == [-0.5, -0.5]


def test_columns_are_named_in_order() -> None:
    expression = Expression('score + 0.1 * in_stock - "odd ""name" + score')
    assert expression.columns == ("score", "in_stock", 'odd "name')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a +", "at character 4, expected a number, a column or a function; got the end"),
        ("a b", "at character 3, expected an operator or the end; got 'b'"),
        ("(a", "expected ')'; got the end"),
        ("a ; b", "the character ';' at 3 is not allowed"),
        ("sqrt(a, b)", "sqrt takes 1 arguments, not 2"),
        ("least(a)", "least takes 2 or more arguments, not 1"),
        ("sqr(a)", "no function 'sqr' at character 1; did you mean 'sqrt'"),
        ("(" * 40 + "a" + ")" * 40, "more than 32 levels"),
        ("+".join(["a"] * 200), "more than 200 parts"),
        ("__import__('os')", "not allowed"),
    ],
)
def test_invalid_expressions(text: str, message: str) -> None:
    with pytest.raises(InputError, match="order: ") as failed:
        Expression(text)
    assert message in str(failed.value)


def test_the_name_of_a_column_is_no_expression() -> None:
    assert not is_expression("price")
    assert not is_expression('"a-b"')
    assert is_expression("-price")
