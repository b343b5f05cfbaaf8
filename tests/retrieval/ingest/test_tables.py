"""Types of the columns of CSV tables, and fields that do not fit them."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval import Gallery, InputError
from retrieval.ingest.tables import CsvTable, TableReport, read_table
from tests.conftest import lookalike_here

FIELDS = st.sampled_from(["1", "-7", "+3", "2.5", "1e3", ".5", "abc", "1,000", "", "1e999", "nan", "12 cm"])


def write(folder: Path, fields: list[str], column: str = "price") -> Path:
    lines = [f'{number}.jpg,"{field}"' for number, field in enumerate(fields)]
    (folder / "t.csv").write_text("\n".join([f"path,{column}", *lines]) + "\n")
    return folder / "t.csv"


def is_number(field: str) -> bool:
    """Decide by Python's own reader of numbers."""
    try:
        return math.isfinite(float(field))
    except ValueError:
        return False


@settings(max_examples=60)
@given(st.lists(FIELDS, min_size=1, max_size=60), st.integers(0, 300))
def test_the_majority_decides(tmp_path_factory: pytest.TempPathFactory, some: list[str], more: int) -> None:
    """Of both readers: in a column of numbers each number has its value, and other fields are reported."""
    fields = some + ["4"] * more
    file = write(tmp_path_factory.mktemp("t"), fields)
    report = TableReport()
    values = [row.metadata["price"] for row in read_table(file, report)]
    table = CsvTable(file)
    assert [value for block in table.blocks(7) for value in block["price"]] == values
    assert table.report == report
    filled = [field for field in fields if field]
    numbers = [field for field in filled if is_number(field)]
    if len(numbers) >= 0.9 * len(filled):
        assert values == [float(field) if field and is_number(field) else None for field in fields]
        assert [(cell.place, cell.value) for cell in report.bad] == [
            (f"{file}, line {line}", field)
            for line, field in enumerate(fields, 2)
            if field and not is_number(field)
        ]
        assert report.mixed == []
    else:
        assert values == [field or None for field in fields]
        assert report.bad == []
        assert len(report.mixed) == (len(numbers) >= 0.5 * len(filled))


@settings(max_examples=150)
@given(
    st.lists(st.text("0123456789+-.eE_ \n\0١a", max_size=4) | st.sampled_from(["1" * 18, "1" * 19, "1e999"]))
)
def test_types_of_whole_columns_are_those_of_their_fields(
    tmp_path_factory: pytest.TempPathFactory, fields: list[str]
) -> None:
    """Many fields at once, against each of them by the pattern of a number."""
    (column,) = CsvTable(write(tmp_path_factory.mktemp("t"), [*fields, ""]))._columns[1:]
    filled = [field for field in fields if field]
    number = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
    numbers = [one for one in filled if number.fullmatch(one) and math.isfinite(float(one))]
    whole = [one for one in numbers if re.fullmatch(r"[+-]?(0|[1-9][0-9]{0,17})", one)]
    if any(re.fullmatch(r"[+-]?0[0-9]+", one) for one in filled) or len(numbers) < 0.9 * len(filled):
        assert column.kind is str
    else:
        assert column.kind is (int if len(whole) == len(numbers) else float)


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["1", "x", "", "a\nb", "a\r\nb", "a\rb\n", "\n\n", None]), max_size=600))
def test_lines_of_fields_and_of_rows_with_too_many(
    tmp_path_factory: pytest.TempPathFactory, fields: list[str | None]
) -> None:
    """Fields of several lines and empty lines, `None`, against the line numbers of Python's own reader."""
    folder = tmp_path_factory.mktemp("t")
    lines = ["" if field is None else f'p,"{field}"' for field in fields]
    (folder / "t.csv").write_text("\n".join(["path,price", *lines, *["p,2"] * 6000]) + "\n", newline="")
    with (folder / "t.csv").open(newline="") as file:
        reader = csv.reader(file)
        expected = [(reader.line_num, row[1]) for row in reader if row][1:]
    report = CsvTable(folder / "t.csv").report
    bad = [
        (f"{folder / 't.csv'}, line {line}", field) for line, field in expected if field not in ("1", "2", "")
    ]
    assert [(cell.place, cell.value) for cell in report.bad] == bad
    with (folder / "t.csv").open("a", newline="") as file:
        file.write("\np,1,1\n")
    with pytest.raises(InputError, match=f"line {expected[-1][0] + 2}: 3 fields"):
        CsvTable(folder / "t.csv")


def test_integers_stay_integers_beside_a_bad_field(tmp_path: Path) -> None:
    report = TableReport()
    rows = read_table(write(tmp_path, ["3"] * 20 + ["abc"]), report)
    assert {type(row.metadata["price"]) for row in rows} == {int, type(None)}
    assert list(map(str, report.bad)) == [f"{tmp_path / 't.csv'}, line 22, column 'price': 'abc'"]


def test_leading_zeros_make_text_of_a_column(tmp_path: Path) -> None:
    report = TableReport()
    rows = read_table(write(tmp_path, ["10115"] * 50 + ["01067"], "code"), report)
    assert [row.metadata["code"] for row in rows] == ["10115"] * 50 + ["01067"]
    assert report == TableReport()


def test_a_bad_field_is_listed_and_the_column_can_be_filtered(
    shop: Path, model_file: Path, tmp_path: Path
) -> None:
    """At build, and again when the table is corrected."""
    paths = sorted(str(file.relative_to(shop)) for file in shop.rglob("*.png"))
    prices = ["abc" if number == 7 else str(number) for number in range(len(paths))]
    table = tmp_path / "shop.csv"
    table.write_text(
        "path,price\n" + "".join(f"{row[0]},{row[1]}\n" for row in zip(paths, prices, strict=True))
    )
    words = [str(tmp_path / "g"), str(shop), "--metadata", str(table)]
    done = lookalike_here("index", "build", *words, "--model", str(model_file), code=3)
    assert "1 field in columns of numbers left empty; correct the table" in done.stderr
    assert f"  {table}, line 9, column 'price': 'abc'" in done.stderr
    assert len(Gallery(tmp_path / "g").select(where="price > 20")) == 3
    again = json.loads(lookalike_here("index", "add", *words, "--json", code=3).stdout)
    assert again["table"]["bad"] == [{"place": f"{table}, line 9", "column": "price", "value": "abc"}]
    table.write_text(table.read_text().replace("abc", "99"))
    lookalike_here("index", "add", *words)
    assert len(Gallery(tmp_path / "g").select(where="price > 20")) == 4


def test_a_bad_field_beside_imported_vectors_is_listed(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32))
    (tmp_path / "v.csv").write_text("price\n" + "5\n" * 38 + "abc\n6\n")
    words = ["index", "import", str(tmp_path / "g"), str(tmp_path / "v.npy"), "--embedding", "e"]
    done = lookalike_here(*words, code=3)
    assert f"  {tmp_path / 'v.csv'}, line 40, column 'price': 'abc'" in done.stderr
    assert len(Gallery(tmp_path / "g").select(where="price >= 5")) == 39


def test_a_mixed_column_is_named(tmp_path: Path, shop: Path, model_file: Path) -> None:
    paths = sorted(str(file.relative_to(shop)) for file in shop.rglob("*.png"))
    sizes = ["XL" if number % 4 == 0 else str(number) for number in range(len(paths))]
    table = tmp_path / "shop.csv"
    table.write_text(
        "path,size\n" + "".join(f"{row[0]},{row[1]}\n" for row in zip(paths, sizes, strict=True))
    )
    words = [str(tmp_path / "g"), str(shop), "--metadata", str(table), "--model", str(model_file)]
    done = lookalike_here("index", "build", *words)
    line = f"{table}, column 'size': taken as text, since 18 of 24 values are numbers, fewer than 90%\n"
    assert line in done.stderr
