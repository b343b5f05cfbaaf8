"""Modules of the page, one at a time in the browser: compared with Python, SQLite and csv."""

from __future__ import annotations

import colorsys
import csv
import io
import json
import sqlite3
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Page

from tests.e2e.page_modules import HOME, run

pytestmark = pytest.mark.browser

examples = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# What fits into an address: a lone surrogate does not.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n"), max_size=12)
fractions = st.floats(0, 1).map(lambda value: round(value, 4))
regions = st.none() | st.lists(fractions, min_size=4, max_size=4)
vectors = st.just({}) | st.builds(
    lambda text: {"vector": text}, st.from_regex(r"[0-9a-f]{4}\.[A-Za-z0-9_-]+", fullmatch=True)
)
views = st.builds(
    lambda kind, name, region, vector: {kind: name, "region": region, **vector},
    st.sampled_from(["picture", "shared", "url"]),
    st.text("abc019-_/:.", min_size=1, max_size=20),
    regions,
    vectors,
) | st.builds(lambda item, region: {"item": item, "region": region}, st.integers(0, 10**9), regions)


@given(
    state=st.fixed_dictionaries(
        {
            "like": st.lists(views, max_size=3),
            "unlike": st.lists(views, max_size=3),
            "picked": st.lists(texts, max_size=3),
            "highlight": st.lists(texts, max_size=3),
            "text": texts,
            "where": texts,
            "tab": texts,
            "min_score": st.none() | st.floats(-1, 1),
            "open": st.none() | st.integers(0, 10**9),
            "marks": st.booleans(),
        }
    )
)
@examples
def test_an_address_restores_its_state(tab: Page, state: dict[str, Any]) -> None:
    text, parsed = run(
        tab, "address", "const t = m.format({...m.EMPTY, ...a[0]}); return [t, m.parse(t)]", state
    )
    assert {name: parsed[name] for name in state} == state
    read = parse_qs(text.partition("#")[0].removeprefix("?"), keep_blank_values=True)
    assert {name: read.get(name, [""]) for name in ("text", "where", "tab")} == {
        name: [state[name]] for name in ("text", "where", "tab")
    }
    assert read.get("filter", []) == state["picked"]


@pytest.mark.parametrize(
    "address", ["", "?", "?like=x&like=picture&unlike=@1,2", "?open=z&min_score=high", "?a=b"]
)
def test_addresses_that_are_not_understood_are_the_first_page(tab: Page, address: str) -> None:
    parsed, empty = run(tab, "address", "return [m.parse(a[0]), m.EMPTY]", address)
    assert parsed == empty
    assert run(tab, "address", "return m.format(m.EMPTY)") == ""


COLUMNS = ("label", 'a "quoted" one', "größe=1~2")
words = st.sampled_from(["red", "it's", "", "%", "a..b", "x=y", "not red", "Ünï"])


@given(
    chosen=st.lists(st.tuples(st.sampled_from(COLUMNS), words), max_size=5),
    low=st.none() | st.integers(-5, 15),
    high=st.none() | st.integers(-5, 15),
    where=st.sampled_from(["", "label = 'red'", "re", "label is null or price < 3"]),
    rows=st.lists(st.tuples(words, words, words, st.integers(-5, 15)), min_size=5, max_size=20),
)
@examples
def test_filters_select_what_they_say(
    tab: Page,
    chosen: list[tuple[str, str]],
    low: int | None,
    high: int | None,
    where: str,
    rows: list[tuple[str, str, str, int]],
) -> None:
    """SQLite evaluates the condition; it is a part of SQL."""
    condition = run(
        tab,
        "conditions",
        "const [chosen, low, high, where] = a; const filters = chosen.map(one => m.valueFilter(...one));"
        "return m.condition([...filters, m.rangeFilter('price', low ?? '', high ?? '')], where)",
        chosen,
        low,
        high,
        where,
    )
    names = ", ".join('"' + name.replace('"', '""') + '"' for name in COLUMNS)
    with sqlite3.connect(":memory:") as database:
        database.execute(f"create table items ({names}, price)")
        database.executemany("insert into items values (?, ?, ?, ?)", rows)
        found = database.execute(f"select * from items where {condition or 'true'} order by rowid").fetchall()
    allowed = {name: {value for column, value in chosen if column == name} for name in COLUMNS}
    written = {
        "": lambda row: True,
        "label = 'red'": lambda row: row[0] == "red",
        "re": lambda row: "re" in row[0],
        "label is null or price < 3": lambda row: row[3] < 3,
    }[where]
    assert found == [
        row
        for row in rows
        if all(not allowed[name] or row[at] in allowed[name] for at, name in enumerate(COLUMNS))
        and (low is None or row[3] >= low)
        and (high is None or row[3] <= high)
        and written(row)
    ]


@given(
    wanted=st.text("ab%_\\'^~= ", max_size=6),
    rows=st.lists(st.text("ab%_\\'^~= ", max_size=8), min_size=1, max_size=20),
)
@examples
def test_text_has_all_words_of_a_filter(tab: Page, wanted: str, rows: list[str]) -> None:
    made = "return m.condition([m.wordsFilter('größe=1~2', a[0])], '')"
    condition = run(tab, "conditions", made, wanted)
    with sqlite3.connect(":memory:") as database:
        database.execute('create table items ("größe=1~2")')
        database.executemany("insert into items values (?)", [(row,) for row in rows])
        found = database.execute(f"select * from items where {condition or 'true'} order by rowid").fetchall()
    assert [row for (row,) in found] == [row for row in rows if all(word in row for word in wanted.split())]


@given(wanted=st.sets(st.integers(1, 60), min_size=1))
@examples
def test_chosen_items_are_selected(tab: Page, wanted: set[int]) -> None:
    made = "const f = m.itemsFilter(a[0]); return [f, m.condition([f], ''), m.filterWords(f)]"
    text, condition, spoken = run(tab, "conditions", made, sorted(wanted, reverse=True))
    with sqlite3.connect(":memory:") as database:
        database.execute("create table items (id)")
        database.executemany("insert into items values (?)", [(number,) for number in range(70)])
        found = database.execute(f"select id from items where {condition}").fetchall()
    assert {number for (number,) in found} == wanted
    assert spoken == f"{len(wanted)} chosen image{'s' * (len(wanted) > 1)}"
    assert run(tab, "conditions", "return m.parseFilter(a[0] + 'x')", text) is None


numbers = st.floats(-1e6, 1e6).map(lambda value: round(value, 3)) | st.integers(-20, 20)


@given(values=st.lists(st.none() | numbers, min_size=1, max_size=60))
@examples
def test_steps_of_a_scale_hold_their_values(tab: Page, values: list[float | None]) -> None:
    known = [value for value in values if value is not None]
    found = run(tab, "colouring", "return m.colouring(a[0], 'light')", values)
    *names, last = found["names"]
    assert last == "no value"
    assert len(found["colours"]) == len(found["names"]) <= 18
    assert [place == len(names) for place in found["category"]] == [value is None for value in values]
    if len(set(known)) < 2:
        return
    ends = [[float(end) for end in name.split(" to ")] for name in names]
    assert all(before[1] == after[0] for before, after in pairwise(ends))
    for value, place in zip(values, found["category"], strict=True):
        if value is not None:
            low, high = ends[place]
            room = 1e-5 * max(map(abs, known))  # edges are written with six digits
            assert low - room <= value <= high + room


def test_dates_and_texts_have_colours_of_their_own(tab: Page) -> None:
    days = ["2024-01-01", "2024-12-31", "2024-07-01T12:00:00+02:00", None, "2024-12-30"]
    found = run(tab, "colouring", "return m.colouring(a[0], 'dark')", days)
    assert found["names"][0] == "2024-01-01 to 2024-02-15"
    assert found["category"] == [0, 7, 3, 8, 7]
    assert len(set(found["colours"])) == 9
    texts = [f"{n % 300} things" for n in range(400)]
    found = run(tab, "colouring", "return m.colouring(a[0], 'dark')", texts)
    assert found["names"][-2:] == ["other values", "no value"]
    assert len(found["names"]) == 202
    assert [found["names"][place] for place in found["category"][:100]] == texts[:100]


@given(column=texts.filter(bool), value=texts)
@examples
def test_filters_are_read_back(tab: Page, column: str, value: str) -> None:
    filters = (
        "[m.valueFilter(...a), m.rangeFilter(a[0], 1, ''), m.rangeFilter(a[0], '', 2), m.wordsFilter(...a)]"
    )
    exact, above, below, inside = run(
        tab, "conditions", f"return {filters}.map(m.parseFilter)", column, value
    )
    assert exact == {"column": column, "value": value}
    assert above == {"column": column, "low": "1", "high": ""}
    assert below == {"column": column, "low": "", "high": "2"}
    assert inside == {"column": column, "words": value}
    spoken = run(tab, "conditions", f"return {filters}.map(m.filterWords)", column, value)
    assert spoken == [
        f"{column}: {value}",
        f"{column}: from 1",
        f"{column}: up to 2",
        f"{column} contains {value}",
    ]


@given(
    hits=st.lists(
        st.fixed_dictionaries(
            {
                "id": st.integers(0, 99),
                "key": texts,
                "label": st.none() | texts,
                "score": st.integers(-8, 8).map(lambda value: value / 8),
                "metadata": st.dictionaries(st.sampled_from(["maker", "größe"]), texts, max_size=2),
            }
        ),
        min_size=1,
        max_size=4,
    )
)
@examples
def test_tables_are_read_by_csv_and_hold_no_formula(tab: Page, hits: list[dict[str, Any]]) -> None:
    rows = list(csv.DictReader(io.StringIO(run(tab, "table", "return m.csv(a[0])", hits), newline="")))
    assert [(int(row["Rank"]), int(row["Item"])) for row in rows] == [
        (rank, hit["id"]) for rank, hit in enumerate(hits, 1)
    ]
    assert [float(row["Similarity"]) for row in rows] == [hit["score"] for hit in hits]
    for row, hit in zip(rows, hits, strict=True):
        for name, value in {"Key": hit["key"], "Label": hit["label"] or "", **hit["metadata"]}.items():
            assert row[name] in (value, f"'{value}")
            assert row[name][:1] not in tuple("=+@\t") or not row[name], "a spreadsheet would evaluate it"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_of_classes_are_their_hues(tab: Page, theme: str) -> None:
    colours = run(tab, "palette", "return m.classColours(...a)", 12, theme)
    lightness = {"light": (0.42, 0.54, 0.34), "dark": (0.66, 0.78, 0.56)}[theme]
    for number, colour in enumerate(colours):
        saturation = 0.55 if number % 2 else 0.75
        expected = colorsys.hls_to_rgb(number * 137.508 / 360 % 1, lightness[number % 3], saturation)
        found = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        assert found == pytest.approx(expected, abs=1 / 255)
    assert len({*colours}) == 12


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "toggle"]), st.integers(0, 5)), max_size=12))
@examples
def test_a_selection_is_a_set_that_tells_of_changes(tab: Page, changes: list[tuple[str, int]]) -> None:
    count, ids = run(
        tab,
        "selection",
        "const one = new m.Selection(); let count = 0; one.addEventListener('change', () => count++);"
        "for (const [method, id] of a[0]) one[method](method === 'toggle' ? id : [id]);"
        "return [count, one.ids]",
        changes,
    )
    expected: set[int] = set()
    for what, number in changes:
        kind = {
            "add": expected.union,
            "remove": expected.difference,
            "toggle": expected.symmetric_difference,
        }[what]
        expected = kind({number})
    assert set(ids) == expected
    assert count == len(changes)


@pytest.mark.parametrize("count", [0, 1, 200, 201, 1000])
def test_conditions_of_many_items_name_each_once(tab: Page, count: int) -> None:
    ids = list(range(7, 7 + count))
    parts = run(tab, "changes", "return m.conditions(a[0])", ids)
    assert [number for part in parts for number in part["ids"]] == ids
    for part in parts:
        assert (
            json.loads(part["where"].removeprefix("id in ").replace("(", "[").replace(")", "]"))
            == part["ids"]
        )


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (413, "", "This file is too large."),
        (500, "<html>", "The server answered with status 500. Try again."),
        (404, '{"detail": "there is no item 5"}', "There is no item 5."),
        (400, '{"detail": "x", "errors": [{"pointer": "#/k", "detail": "k: above 100"}]}', "K: above 100."),
        (422, '{"detail": "truncated", "reason": "damaged"}', "This picture cannot be used: truncated."),
    ],
)
def test_failures_of_the_api_are_sentences(tab: Page, status: int, body: str, message: str) -> None:
    tab.route(f"{HOME}/v1/items", lambda route: route.fulfill(status=status, body=body))
    asked = "try { await new m.Api('/v1').get('/items'); return null } catch (error) { return error.message }"
    try:
        assert run(tab, "api", asked) == message
    finally:
        tab.unroute(f"{HOME}/v1/items")


def test_a_server_that_is_gone_a_broken_connection_and_a_cancelled_request(tab: Page) -> None:
    asked = "try { await new m.Api('/v1').get('/gone'); return null } catch (error) { return error.message }"
    tab.route(f"{HOME}/v1/gone", lambda route: route.abort())
    assert run(tab, "api", asked) == "The connection was interrupted. Try again.", "the server is there"
    tab.route(f"{HOME}/healthz", lambda route: route.abort())
    assert run(tab, "api", asked).startswith("The server cannot be reached.")
    tab.unroute(f"{HOME}/healthz")
    assert run(tab, "connection", "return [await m.connection.check(), m.connection.away]") == [True, False]
    tab.unroute(f"{HOME}/v1/gone")
    cancelled = (
        "const stop = new AbortController(); stop.abort();"
        "try { await new m.Api('/v1').get('/x', {signal: stop.signal}) } catch (error) { return error.name }"
    )
    assert run(tab, "api", cancelled) == "AbortError"


REGION = """
document.body.innerHTML = '<div id=frame style="height: 100px"><button class=region></button></div>';
const told = [], frame = document.getElementById('frame'), shape = frame.querySelector('.region');
const region = new m.Region(frame, one => told.push(one));
region.draw(a[0]);
for (const [key, shiftKey] of a[1]) shape.dispatchEvent(new KeyboardEvent('keydown', {key, shiftKey}));
shape.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}));
return told;
"""
keys = st.tuples(st.sampled_from(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"]), st.booleans())


@given(pressed=st.lists(keys, min_size=1, max_size=40))
@examples
def test_a_region_moved_by_keys_stays_in_the_picture(tab: Page, pressed: list[tuple[str, bool]]) -> None:
    start = [0.1, 0.2, 0.5, 0.9]
    told = run(tab, "region", REGION, start, pressed)
    left, top, right, bottom = told[-1] if told else start
    assert 0 <= left < right <= 1
    assert 0 <= top < bottom <= 1
    if not any(shift for _, shift in pressed):
        assert [right - left, bottom - top] == pytest.approx([0.4, 0.7], abs=2e-4), (
            "it moves and keeps its size"
        )
