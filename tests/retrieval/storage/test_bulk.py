"""Bulk insertion: checksums against those of one item at a time, and rows read back from SQLite."""

from __future__ import annotations

import json
import sqlite3
import zlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.storage import bulk, schema

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(
    ["%s", "'", "100 %", "\0"]
)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.none() | TEXT | NUMBERS | st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[list[Any]], dict[str, list[Any]]]:
    """Return facts and metadata of some items as columns, several of them with one value in all rows."""
    count = draw(st.integers(1, 5))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(
            st.lists(values, min_size=count, max_size=count) | values.map(lambda value: [value] * count)
        )

    facts = [
        column(kind)
        for kind in (TEXT, TEXT, TEXT, NUMBERS, NUMBERS, TEXT, NUMBERS, NUMBERS, st.none() | TEXT)
    ]
    for place in draw(st.sets(st.integers(1, 8))):  # the same as another column, or only equal to it
        convert = draw(st.sampled_from([list, lambda values: [*map(_as_float, values)]]))
        facts[place] = convert(facts[0 if place < 3 else place - 1])
    metadata = {name: column(VALUES) for name in draw(st.sets(st.sampled_from(["b", 'a "%', "Ä"])))}
    return [list(range(7, 7 + count)), *facts], metadata


def _as_float(value: Any) -> Any:
    return float(value) if isinstance(value, int) and abs(value) < 2**53 else value


def stored_crc(row: tuple[Any, ...], metadata: dict[str, Any]) -> int:
    """Return the checksum that galleries have stored since format 3."""
    fields = [*map(str, row)]
    if given := sorted((name, value) for name, value in metadata.items() if value is not None):
        fields.append(json.dumps(given))
    return zlib.crc32("\x1f".join(fields).encode())


@settings(max_examples=150)
@given(tables())
def test_rows_and_checksums(table: tuple[list[list[Any]], dict[str, list[Any]]]) -> None:
    facts, metadata = table
    texts = bulk.metadata_texts(metadata, len(facts[0]))
    rows = list(zip(*facts, strict=True))
    values = [{name: column[row] for name, column in metadata.items()} for row in range(len(rows))]
    expected = [stored_crc(row, given) for row, given in zip(rows, values, strict=True)]
    assert [schema.item_crc(row, given) for row, given in zip(rows, values, strict=True)] == expected
    assert bulk.item_crcs(facts[0], facts[1:], texts) == expected
    assert [text != "" for text in texts] == [any(v is not None for v in given.values()) for given in values]
    db = sqlite3.connect(":memory:")
    db.execute(f"CREATE TABLE items ({', '.join(schema.FACTS)})")
    bulk.insert_rows(db, "INSERT INTO items", dict(zip(schema.FACTS, facts, strict=True)))
    found = db.execute("SELECT * FROM items").fetchall()
    assert found == rows
    assert [[*map(type, row)] for row in found] == [[*map(type, row)] for row in rows]
    db.execute("DELETE FROM items")
    odd = [number % 2 for number in facts[0]]
    bulk.insert_rows(db, "INSERT INTO items", dict(zip(schema.FACTS, facts, strict=True)), which=odd)
    assert db.execute("SELECT * FROM items").fetchall() == rows[::2]
