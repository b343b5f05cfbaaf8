"""Conditions: random ones against plain Python, typing errors, and SQL injection."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import InputError
from retrieval.search.where import MAX_DEPTH, MAX_LENGTH, MAX_VALUES, parse_condition
from retrieval.storage.conditions import compile_condition

COLUMNS = {"label": 't."label"', "price": 't."price"', "Größe in cm": 't."Größe in cm"', 'a"b': 't."a""b"'}
NAMES = {"label": "label", "price": "PRICE", "Größe in cm": '"Größe in cm"', 'a"b': '"a""b"'}
Row = dict[str, Any]
Truth = bool | None

# Few values, so that tests of equality often hold; text that looks like SQL among them.
numbers = st.integers(-3, 3) | st.sampled_from([-1.5, 0.5, 2.0, 2**62, 2**70])
texts = st.sampled_from(["", "a", "A", "ab", "É", "it's", "%", "x'; DROP TABLE t; --", '"', "1", "🦊"])
values = numbers | texts
cells = st.none() | st.integers(-3, 3) | st.sampled_from([-1.5, 0.5, 2.0]) | texts


def literal(value: str | float) -> str:
    return repr(value) if not isinstance(value, str) else "'" + value.replace("'", "''") + "'"


def rank(value: str | float) -> tuple[int, Any]:
    """Return SQLite's sort key for values of different types: all numbers before all text."""
    return (1, value) if isinstance(value, str) else (0, value)


def compare(operator: str, cell: Any, value: Any) -> Truth:
    if cell is None:
        return None
    a, b = rank(cell), rank(value)
    return {"=": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[operator]


def negate(truth: Truth) -> Truth:
    return None if truth is None else not truth


def like(cell: Any, pattern: str) -> Truth:
    if cell is None:
        return None
    regex = "".join({"%": ".*", "_": "."}.get(letter, re.escape(letter)) for letter in pattern)
    return re.fullmatch(regex, str(cell), re.IGNORECASE | re.ASCII | re.DOTALL) is not None


Meaning = tuple[str, Callable[[Row], Truth]]


@st.composite
def leaves(draw: st.DrawFn) -> Meaning:
    """Draw a test as text with its truth function over rows."""
    # A column of text turns the numbers it is compared with into text; the others take values as they are.
    column = draw(st.sampled_from([name for name in COLUMNS if name != "label"]))
    name, kind = NAMES[column], draw(st.sampled_from(["compare", "in", "like", "between", "null"]))
    word, flip = draw(st.sampled_from([("", lambda t: t), (" NOT", negate)]))
    if kind == "compare":
        operator, value = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="])), draw(values)
        return f"{name}{operator}{literal(value)}", lambda row: compare(operator, row[column], value)
    if kind == "in":
        several = draw(st.lists(values, min_size=1, max_size=4))
        inside = ",".join(map(literal, several))
        return f"{name}{word} in ({inside})", lambda row: flip(
            None if row[column] is None else any(rank(row[column]) == rank(value) for value in several)
        )
    if kind == "like":
        pattern = draw(st.text("aAb%_É'", max_size=5))
        return f"{name}{word} Like {literal(pattern)}", lambda row: flip(like(row[column], pattern))
    if kind == "between":
        low, high = draw(values), draw(values)
        return f"{name}{word} between {literal(low)} and {literal(high)}", lambda row: flip(
            None if row[column] is None else rank(low) <= rank(row[column]) <= rank(high)
        )
    return f"{name} is{word} null", lambda row: bool(flip(row[column] is None))


def both(a: Truth, b: Truth) -> Truth:
    return False if a is False or b is False else None if a is None or b is None else True


def either(a: Truth, b: Truth) -> Truth:
    return negate(both(negate(a), negate(b)))


def combine(inner: st.SearchStrategy[Meaning]) -> st.SearchStrategy[Meaning]:
    def joined(a: Meaning, b: Meaning, c: Meaning) -> Meaning:
        # Without parentheses: "and" binds more closely than "or", and "not" more closely than both.
        return (
            f"({a[0]}) or NOT ({b[0]}) and ({c[0]})",
            lambda row: either(a[1](row), both(negate(b[1](row)), c[1](row))),
        )

    return st.builds(joined, inner, inner, inner)


@given(st.recursive(leaves(), combine, max_leaves=8), st.lists(st.tuples(cells, cells, cells), max_size=8))
def test_random_conditions_match_plain_python(meaning: Meaning, cells: list[tuple[Any, ...]]) -> None:
    text, holds = meaning
    rows = [{"price": a, "Größe in cm": b, 'a"b': c} for a, b, c in cells]
    assert select(text, rows) == [i for i, row in enumerate(rows) if holds(row) is True]


def select(text: str, rows: list[Row]) -> list[int]:
    """Return the rows that SQLite finds by a condition."""
    sql, bound = compile_condition(parse_condition(text), COLUMNS)
    with sqlite3.connect(":memory:") as db:
        db.execute('CREATE TABLE t (n, label TEXT, price, "Größe in cm", "a""b")')
        filled = [(i, *(row.get(name) for name in COLUMNS)) for i, row in enumerate(rows)]
        db.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", filled)
        found = [n for (n,) in db.execute(f"SELECT n FROM t WHERE {sql} ORDER BY n", bound)]
        assert db.execute("SELECT count(*) FROM t").fetchone() == (len(rows),)
    db.close()
    return found


def test_comparison_with_a_missing_value_is_unknown() -> None:
    rows = [{"price": 10}, {"price": 50}, {"price": None}]
    assert select("price < 30", rows) == [0]
    assert select("not price < 30", rows) == [1]
    assert select("price < 30 or price is null", rows) == [0, 2]
    assert select("price in (10, 50)", rows) == [0, 1]


def test_label_of_digits_equals_its_number() -> None:
    assert select("label = 7", [{"label": "7"}, {"label": "07"}]) == [0]


def test_true_and_false_are_one_and_zero() -> None:
    assert select("price = true", [{"price": 1}, {"price": 0}]) == [0]
    assert select("price = FALSE", [{"price": 1}, {"price": 0}]) == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at character 1, expected the name of a column"),
        ("label = red", "at character 9, expected a value: .* text in single quotes; got 'red'"),
        ("label", "at character 6, expected =, !=, <.*; got the end"),
        ("list price < 3", 'at character 6, expected .*name with blanks goes in "double quotes"'),
        ("price < ", "at character 9, expected a value"),
        ("price = null", "is null"),
        ("(price = 1", r"expected 'and', 'or' or '\)'; got the end"),
        ("price = 1)", r"expected 'and', 'or' or the end; got '\)'"),
        ("price = 1 label = 2", "at character 11, expected 'and'"),
        ("price in ()", "expected a value"),
        ("price in (1 2)", r"expected ',' or '\)'"),
        ("price between 1 or 2", "expected 'and' and the upper end"),
        ("label like 5", "pattern in single quotes"),
        ("price not = 5", "expected 'in', 'like' or 'between'"),
        ("price is 5", "'null'"),
        ("label = 'red", "text is not closed by ', at character 9"),
        ('"label = 1', 'a name is not closed by ", at character 1'),
        ("price = 5; DROP TABLE items", "';' is not allowed, at character 10"),
        ("price = 1e999", "too large, at character 9"),
        ("and = 1", "expected the name of a column"),
        ("lable = 'red'", r"no column 'lable' at character 1; did you mean 'label'"),
        ("zzz = 1", "columns: label, price"),
        ("label = '\0'", "database cannot store"),
        ("label = '\ud800'", "database cannot store"),
        ("(" * (MAX_DEPTH + 1) + "price = 1", f"more than {MAX_DEPTH} levels"),
        ("not " * 200 + "price = 1", f"more than {MAX_DEPTH} levels"),
        (f"price in ({','.join('1' * (MAX_VALUES + 1))})", f"more than {MAX_VALUES} values"),
        ("x" * (MAX_LENGTH + 1), f"at most {MAX_LENGTH}"),
    ],
)
def test_errors_name_the_position(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compile_condition(parse_condition(text), COLUMNS)


def test_sqlite_accepts_the_largest_conditions() -> None:
    assert select(
        " or ".join(["price is null"] * (MAX_LENGTH // len("price is null or "))),
        [{"price": 1}, {"price": None}],
    ) == [1]
    assert select("(" * MAX_DEPTH + "price = 1" + ")" * MAX_DEPTH, [{"price": 1}]) == [0]
    assert select(f"price in ({','.join('1' * MAX_VALUES)})", [{"price": 1}]) == [0]


@pytest.mark.parametrize(
    "text",
    [
        "label = '' OR 1=1 --'",
        "label = ''; DELETE FROM t; --",
        "label = 'x' UNION SELECT sql FROM sqlite_master",
        "label in (SELECT label FROM t)",
        "load_extension('x') = 1",
        "label = char(65)",
        't."label" = 1',
        "label = ?",
        "label = :name",
        "label = x'41'",
        "label = 1 /* */",
        "rowid = 1",
        '"label"" = 1 or ""a" = 1',
    ],
)
def test_sql_injection_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        compile_condition(parse_condition(text), COLUMNS)


TOKENS = st.sampled_from(
    [
        *("label", "price", '"a""b"', "and", "OR", "not", "in", "like", "is", "null", "between", "true"),
        *("=", "!=", "<", ">=", "(", ")", ",", "1", "-2.5", "'x'", "'it''s'", "'", '"', ";", "--", " ", "\n"),
    ]
)


@given(st.text() | st.lists(TOKENS).map(" ".join) | st.lists(TOKENS).map("".join))
def test_any_text_parses_or_raises_input_error(text: str) -> None:
    with suppress(InputError):
        select(text, [{"label": "a", "price": 1}])
