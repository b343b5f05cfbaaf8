"""Conditions: random ones against plain Python, typing errors, and SQL injection."""

from __future__ import annotations

import random
import re
import sqlite3
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import InputError
from retrieval.search.where import MAX_DEPTH, MAX_TESTS, parse_condition
from retrieval.storage import functions
from retrieval.storage.condition_sql import SQL, filter_sql, resolve_stored
from retrieval.storage.conditions import Column

COLUMNS = {
    "label": Column("label", 't."label"', "text"),
    "id": Column("id", 't."id"', "number"),
    "price": Column("price", 't."price"'),
    "Größe in cm": Column("Größe in cm", 't."Größe in cm"'),
    'a"b': Column('a"b', 't."a""b"'),
}
NAMES = {"price": "PRICE", "Größe in cm": '"Größe in cm"', 'a"b': '"a""b"'}
Row = dict[str, Any]
Truth = bool | None

# Few values, so that tests of equality often hold; text that looks like SQL and dates among them.
numbers = st.integers(-3, 3) | st.sampled_from([-1.5, 0.5, 2.0, 2**62, -(2**63), 2**70])
texts = st.sampled_from(
    ["", "a", "A", "ab", "É", "ß", "ẞs", "K", "it's", "%", "x'; DROP TABLE t; --", '"', "1", "🦊"]
)
DATES = [
    *(
        "2024-05-01",
        "2024-05-01T00:00",
        "2024-05-01 00:00:00",
        "2024-05-01T02:00:00+02:00",
        "2024-05-01T00:00:00Z",
    ),
    *(
        "2024-04-30T23:59:59.999999",
        "2024-05-01T12:30:00",
        "2024-05-01T12:30:00.5Z",
        "0001-01-01",
        "9999-12-31",
    ),
]
NO_DATES = [
    *("2024-02-30", "2024-5-1", "now", "12:30", "2460000.5", "2024-05-01 ", "2024-05-01T25:00", "0000-01-01"),
    *("20240501", "2024-W18-3", "2024-05-01T12:30:00+2", "2024-05-01T12:30:61", "0001-01-01T00:00+01:00"),
    *("2024-05-01x12:30:00", "2024-05-01T12:30:0x", "２024-05-01", "2024-05-01T24:00:00", "2024-05-01Z"),
]
cells = st.none() | st.integers(-3, 3) | st.sampled_from([-1.5, 0.5, 2.0]) | texts
cells |= st.sampled_from([*DATES, *NO_DATES])


class Date(str):
    """A date literal."""


values = numbers | texts | st.sampled_from(DATES).map(Date)


def literal(value: str | float) -> str:
    if not isinstance(value, str):
        return repr(value)
    return "date " * isinstance(value, Date) + "'" + value.replace("'", "''") + "'"


def kind(value: str | float) -> str:
    return "date" if isinstance(value, Date) else "text" if isinstance(value, str) else "number"


PADDED = re.compile("[0-9]{4}(-[0-9]{2}){2}($|[T ][0-9]{2}:[0-9]{2}($|[Z+-]|:[0-9]{2}))")


def moment(cell: Any) -> datetime | None:
    """Return the date or time that a text is, by the formats of `strptime`."""
    for form in (
        "%Y-%m-%d",
        *(f"%Y-%m-%d{t}%H:%M{s}{z}" for t in "T " for s in ("", ":%S", ":%S.%f") for z in ("", "%z")),
    ):
        with suppress(ValueError, TypeError, OverflowError):
            found = datetime.strptime(cell, form)
            if PADDED.match(cell):  # strptime takes 2024-5-1 as well
                return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    return None


def compare(operator: str, cell: Any, value: Any) -> Truth:
    if isinstance(value, Date):
        cell, value = moment(cell), moment(value)
    if cell is None:
        return None
    if operator in ("=", "!="):
        return (cell == value) == (operator == "=")
    if isinstance(cell, str) != isinstance(value, str):
        return None
    return {"<": cell < value, "<=": cell <= value, ">": cell > value, ">=": cell >= value}[operator]


def negate(truth: Truth) -> Truth:
    return None if truth is None else not truth


def tokens_of(pattern: str, escape: str) -> list[str]:
    """Return wildcards as they are, and characters in quotes."""
    found, letters = [], iter(pattern)
    for letter in letters:
        escaped = escape and letter == escape
        found.append("'" + next(letters) if escaped else letter if letter in "%_" else "'" + letter)
    return found


def like(cell: Any, pattern: str, escape: str = "") -> Truth:
    """Match by brute force; a place in the text is a character and an offset into its folded form."""
    if cell is None:
        return None
    folded = [letter.casefold() for letter in str(cell)]
    ahead = {
        (n, at): (n, at + 1) if at + 1 < len(f) else (n + 1, 0)
        for n, f in enumerate(folded)
        for at in range(len(f))
    }
    places = {(0, 0)}
    for token in tokens_of(pattern, escape):
        if token == "%":
            reached = list(places)
            for place in reached:
                if place in ahead and ahead[place] not in places:
                    places.add(ahead[place])
                    reached.append(ahead[place])
        elif token == "_":
            places = {(n + 1, 0) for n, at in places if at == 0 and n < len(folded)}
        else:
            for letter in token[1:].casefold():
                places = {ahead[n, at] for n, at in places if n < len(folded) and folded[n][at] == letter}
    return (len(folded), 0) in places


Meaning = tuple[str, Callable[[Row], Truth], list[tuple[str, str]]]  # text, truth, types that columns need


@st.composite
def leaves(draw: st.DrawFn) -> Meaning:
    """Draw a test as text with its truth function over rows."""
    column = draw(st.sampled_from(sorted(NAMES)))
    name, what = NAMES[column], draw(st.sampled_from(["compare", "in", "like", "between", "null"]))
    word, flip = draw(st.sampled_from([("", lambda t: t), (" NOT", negate)]))
    if what == "compare":
        operator, value = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="])), draw(values)
        needs = [(column, kind(value))]
        return f"{name}{operator}{literal(value)}", lambda row: compare(operator, row[column], value), needs
    if what == "in":
        several = draw(st.lists(values, min_size=1, max_size=4)) * draw(st.sampled_from([1, 1, 50]))
        inside = ",".join(map(literal, several))
        return (
            f"{name}{word} in ({inside})",
            lambda row: flip(any_of([compare("=", row[column], value) for value in several])),
            [(column, kind(value)) for value in several],
        )
    if what == "like":
        escape = draw(st.sampled_from(["", "!", "\\"]))
        letter = st.sampled_from(
            [*"aAbsSkK%_Éß1.🦊", *([escape + "%", escape + "_", escape * 2] if escape else [])]
        )
        pattern = draw(st.lists(letter, max_size=5).map("".join))
        text = f"{name}{word} Like {literal(pattern)}" + (f" ESCAPE '{escape}'" if escape else "")
        return text, lambda row: flip(like(row[column], pattern, escape)), []
    if what == "between":
        low = draw(values)
        high = draw(values.filter(lambda value: kind(value) == kind(low)))
        return (
            f"{name}{word} between {literal(low)} and {literal(high)}",
            lambda row: flip(both(compare(">=", row[column], low), compare("<=", row[column], high))),
            [(column, kind(low))],
        )
    return f"{name} is{word} null", lambda row: bool(flip(row[column] is None)), []


def both(a: Truth, b: Truth) -> Truth:
    return False if a is False or b is False else None if a is None or b is None else True


def either(a: Truth, b: Truth) -> Truth:
    return negate(both(negate(a), negate(b)))


def any_of(truths: Sequence[Truth]) -> Truth:
    return True if True in truths else None if None in truths else False


def combine(inner: st.SearchStrategy[Meaning]) -> st.SearchStrategy[Meaning]:
    def joined(a: Meaning, b: Meaning, c: Meaning) -> Meaning:
        # Without parentheses: "and" binds more closely than "or", and "not" more closely than both.
        return (
            f"({a[0]}) or NOT ({b[0]}) and ({c[0]})",
            lambda row: either(a[1](row), both(negate(b[1](row)), c[1](row))),
            a[2] + b[2] + c[2],
        )

    return st.builds(joined, inner, inner, inner)


def lacks(column: Sequence[Any], needed: str) -> bool:
    """Return whether a column has values, but none of the needed type."""
    held = [cell for cell in column if cell is not None]
    if needed == "date":
        return bool(held) and not any(moment(cell) for cell in held)
    return bool(held) and not any(kind(cell) == needed for cell in held)


@given(
    st.recursive(leaves(), combine, max_leaves=8),
    st.lists(st.tuples(cells, cells, cells), max_size=8),
    st.booleans(),
)
def test_random_conditions_match_plain_python(
    meaning: Meaning, drawn: list[tuple[Any, ...]], all_types: bool
) -> None:
    text, holds, needs = meaning
    if all_types:  # a condition that fits is more interesting than one that is refused
        drawn = [*drawn, (1, 1, 1), ("2024-05-01",) * 3]
    rows = [{"price": a, "Größe in cm": b, 'a"b': c} for a, b, c in drawn]
    if any(lacks([row[column] for row in rows], needed) for column, needed in needs):
        with pytest.raises(InputError, match="it holds"):
            select(text, rows)
    else:
        assert select(text, rows) == [i for i, row in enumerate(rows) if holds(row) is True]


# Of columns of one type, text of ASCII, conditions without dates are SQL as they are.
simple_texts = st.text("aAbB%_'1", max_size=3)
words = st.sampled_from(["", "not"])
orders = st.sampled_from(["=", "!=", "<>", "<", "<=", ">", ">="])
simple_tests = st.one_of(
    st.builds("price {} {}".format, orders, numbers),
    st.builds("label {} {}".format, orders, simple_texts.map(literal)),
    st.builds("label {} like {}".format, words, simple_texts.map(literal)),
    st.builds("price {} between {} and {}".format, words, numbers, numbers),
    st.builds(lambda w, v: f"price {w} in ({', '.join(map(repr, v))})", words, st.lists(numbers, min_size=1)),
    st.builds("{} is {} null".format, st.sampled_from(["price", "label"]), words),
)
simple_conditions = st.recursive(
    simple_tests,
    lambda inner: st.builds(
        "({}) {} {}".format, inner, st.sampled_from(["and", "or", "and not", "or not"]), inner
    ),
    max_leaves=6,
)


@given(
    simple_conditions,
    st.lists(st.tuples(st.none() | simple_texts, st.none() | numbers.filter(lambda n: n < 2**63))),
)
def test_conditions_mean_what_they_mean_in_sqlite(text: str, pairs: list[tuple[Any, Any]]) -> None:
    rows = [{"label": label, "price": price} for label, price in pairs]
    rows.append({"label": "a", "price": 1})
    with filled(rows) as db:
        expected = [n for (n,) in db.execute(f"SELECT n FROM t WHERE {text} ORDER BY n")]
    assert select(text, rows) == expected


def filled(rows: list[Row]) -> sqlite3.Connection:
    """Return a table with rows in memory."""
    db = sqlite3.connect(":memory:")
    functions.register(db)
    db.execute('CREATE TABLE t (n, label TEXT, id INTEGER, price, "Größe in cm", "a""b")')
    lines = [(i, *(row.get(name) for name in COLUMNS)) for i, row in enumerate(rows)]
    db.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?)", lines)
    return db


def compiled(text: str, columns: dict[str, Column], holds: Callable[[Column, str], bool]) -> SQL:
    return filter_sql(resolve_stored(parse_condition(text), columns, holds), columns)


def select(text: str, rows: list[Row]) -> list[int]:
    """Return the rows that SQLite finds by a condition."""
    with filled(rows) as db:

        def holds(column: Column, test: str) -> bool:
            return bool(db.execute(f"SELECT EXISTS (SELECT 1 FROM t WHERE {test})").fetchone()[0])

        sql, bound = compiled(text, COLUMNS, holds)
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "price = 42",
            "column 'price' at character 1: it holds text, not numbers; put the value in single quotes",
        ),
        ("label = 'a' or price in (42, 'a')", "column 'price' at character 16: it holds text, not numbers"),
        ("price > date '2024-05-01'", "it holds no dates; a date is stored as text of ISO 8601"),
        ("price = true", "holds text, not numbers"),
        (
            '"a""b" < \'abc\'',
            "column 'a\"b' at character 1: it holds numbers, not text; compare it with a number",
        ),
        ("\"a\"\"b\" between 'a' and 'b'", "holds numbers, not text"),
        ('"a""b" = date \'2024-05-01\'', "holds no dates"),
        ("label = 7", "column 'label' at character 1: it holds text, not numbers"),
        ("id < 'abc'", "column 'id' at character 1: it holds numbers, not text"),
    ],
)
def test_comparison_with_a_type_that_a_column_does_not_hold_is_refused(text: str, message: str) -> None:
    rows = [{"price": None, 'a"b': 3}, {"price": "0042", 'a"b': None}]
    with pytest.raises(InputError, match=message):
        select(text, rows)


def test_column_without_values_takes_any_type() -> None:
    for value in ("42", "'a'", "date '2024-05-01'"):
        assert select(f"price = {value} or price in ({value})", [{"price": None}]) == []


def test_mixed_column_compares_each_value_with_its_own_type() -> None:
    rows = [{"price": 10}, {"price": "n/a"}, {"price": 50}, {"price": None}]
    assert select("price > 20", rows) == [2], "SQLite has text after all numbers"
    assert select("not price > 20", rows) == [0]
    assert select("price < 'z'", rows) == [1], "and numbers before all text"
    assert select("price != 'n/a'", rows) == [0, 2]
    assert select("price in (10, 'n/a')", rows) == [0, 1]


def test_like_folds_case_and_escapes() -> None:
    rows = [
        {"price": text}
        for text in ("ÜNÏ", "Straße", "50% off", "500 off", "a_b", "axb", "STRASSE", "K\n1", 50)
    ]
    assert select("price like 'ünï%'", rows) == [0]
    assert select("price like 'strasse'", rows) == select("price like 'STRAßE'", rows) == [1, 6]
    assert select("price like 'stra_e'", rows) == [1], "an underscore is one character as stored"
    assert select(r"price like '50\%%' escape '\'", rows) == [2]
    assert select("price not like '%!_%' escape '!' and price like 'a_b'", rows) == [5]
    assert select("price like 'k_1'", rows) == [7], "the sign of Kelvin folds to k, and _ is any character"
    assert select("price like '5_'", rows) == [8], "a number as it is written"


def test_like_takes_linear_time() -> None:
    assert select(f"price like '{'%a' * 40}%é'", [{"price": "é" + "a" * 10_000}]) == []


@pytest.mark.parametrize("text", DATES)
def test_dates_are_instants(text: str) -> None:
    rows = [{"price": cell} for cell in [*DATES, *NO_DATES, 2024, None]]
    for operator in ("=", "!=", "<", "<=", ">", ">="):
        expected = [i for i, row in enumerate(rows) if compare(operator, row["price"], Date(text)) is True]
        assert select(f"price {operator} date '{text}'", rows) == expected, operator
        assert set(expected) <= set(range(len(DATES)))


def test_column_may_be_named_like_a_word_of_the_language() -> None:
    columns = {name: Column(name, f't."{name}"') for name in ("date", "escape")}
    sql, bound = compiled("date >= DATE '2024-05-01' and escape = 1", columns, lambda *_: True)
    assert bound == ("2024-05-01 00:00:00.000000", 1)
    assert 't."escape" = ?' in sql


def test_list_of_any_number_of_values() -> None:
    chosen = random.Random(0)
    doubles = [struct.unpack("<d", chosen.randbytes(8))[0] for _ in range(2000)]
    doubles = [d for d in doubles if d - d == 0]  # finite
    held = [*doubles, *range(2**53, 2**53 + 3000), *(f"it's {n}" for n in range(3000))]
    chosen.shuffle(held)
    listed = [*chosen.sample(held, 4000), *doubles, "2024-05-01", Date("2024-05-01")]
    rows = [{"price": value} for value in [*held, "2024-05-01T00:00Z", None]]
    text = f"price in ({', '.join(map(literal, listed))})"
    known = set(listed)
    assert select(text, rows) == [i for i, value in enumerate([*held, listed[-1]]) if value in known]
    assert select(f"not {text}", rows) == []


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
        ("price = date 5", "the date in single quotes"),
        ("price = date '2024-02-30'", "at character 9, '2024-02-30' is no date or time of ISO 8601"),
        ("price between 1 and 'a'", "different types"),
        ("label like 'a' escape 'ab'", "must be one character"),
        ("label like 'a' escape 5", "the escape character in single quotes"),
        ("label like 'a!b' escape '!'", "pattern at character 12: '!' must be followed by"),
        ("label like 'a!' escape '!'", "must be followed by"),
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
        ("zzz = 1", "columns: label, id, price"),
        ("label = '\0'", "database cannot store"),
        ("label = '\ud800'", "database cannot store"),
        ("(" * (MAX_DEPTH + 1) + "price = 1", f"more than {MAX_DEPTH} levels"),
        ("not " * 200 + "price = 1", f"more than {MAX_DEPTH} levels"),
        (" or ".join(["price = 1"] * (MAX_TESTS + 1)), f"more than {MAX_TESTS} tests"),
    ],
)
def test_errors_name_the_position(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compiled(text, COLUMNS, lambda *_: True)


def test_sqlite_accepts_the_largest_conditions() -> None:
    rows = [{"price": "2024-05-01"}, {"price": None}]
    test = "price > date '2024-04-30'"
    assert select(" or ".join([test] * MAX_TESTS), rows) == [0]
    for unit in ("{} and ({} or (", "{0} and not ({0} or not (", "not (", "{} and (", "{} and ({} or not ("):
        opened = unit.format(test, test)
        depth = MAX_DEPTH // (opened.count("(") + opened.count("not"))
        several = " and ".join([test] * (MAX_TESTS - depth * opened.count("date")))
        select(opened * depth + several + ")" * (depth * opened.count("(")), rows)
    assert select("(" * MAX_DEPTH + test + ")" * MAX_DEPTH, rows) == [0]


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
        compiled(text, COLUMNS, lambda *_: True)


TOKENS = st.sampled_from(
    [
        *(
            "label",
            "price",
            '"a""b"',
            "and",
            "OR",
            "not",
            "in",
            "like",
            "is",
            "null",
            "between",
            "true",
            "date",
            "escape",
        ),
        *("=", "!=", "<", ">=", "(", ")", ",", "1", "-2.5", "'x'", "'it''s'", "'", '"', ";", "--", " ", "\n"),
    ]
)


@given(st.text() | st.lists(TOKENS).map(" ".join) | st.lists(TOKENS).map("".join))
def test_any_text_parses_or_raises_input_error(text: str) -> None:
    with suppress(InputError):
        select(text, [{"label": "a", "price": 1}])
