"""Metadata tables: CSV and Parquet files with one row per image.

The column `path` is required. The optional column `id` is the key and must not be empty; the optional column
`label` is the label; all other columns are metadata. In a CSV file an empty field is a missing value, and a
column has numbers, integer or float, if at least 90% of its other fields are numbers; the rest of them are
reported and left empty. Otherwise it is text, and so are columns with a number that has leading zeros.

A table with the four columns `box_x`, `box_y`, `box_width` and `box_height` is about parts of pictures: see
`retrieval.images.boxes`. A row with an empty box is about the whole picture.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.arrow import load_pyarrow
from retrieval.errors import InputError, did_you_mean
from retrieval.images import boxes
from retrieval.storage.records import Value

_PATH, _ID, _LABEL = "path", "id", "label"
_AT_ONCE, _PART = 65_536, 256  # rows of a block, and of the parts in which it is read
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,17})")
_LINE_END = re.compile(r"\r\n|\r|\n")
_NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")

# In lines of fields, not all of which are numbers. What passes is a number if Python reads it as one.
_NOT_NUMBERS = re.compile(r"[^0-9.eE+\-\n]|^[+-]?0[0-9]", re.MULTILINE)
_FRACTION, _DIGITS = re.compile(r"[.eE]"), 18
_PADDED = re.compile(r"[+-]?0[0-9]+")
_MAJORITY, _MIXED = 0.9, 0.5  # shares of numbers: of a column of numbers, and of one whose type is reported

# The type of a CSV column.
_Type = type[int] | type[float] | type[str]


@dataclass(frozen=True)
class BadCell:
    """A field in a column of numbers that is none.

    Attributes:
        place: Position in error messages: "FILE, line 3".
        column: Name of the column.
        value: Its text in the table.
    """

    place: str
    column: str
    value: str

    def __str__(self) -> str:
        return f"{self.place}, column {self.column!r}: {self.value[:60]!r}"


@dataclass
class TableReport:
    """What does not fit the types of the columns of a table.

    Attributes:
        bad: Fields in columns of numbers that were left empty.
        mixed: Columns that are text, although most of their values are numbers: one line each.
    """

    bad: list[BadCell] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TableRow:
    """One row of a metadata table.

    Attributes:
        place: Position in error messages: "FILE, line 3".
        path: Path of the image, as written in the table.
        id: Key; `None` without a column `id`.
        label: Label; `None` if empty or without a column `label`.
        has_label: The table has a column `label`.
        metadata: Values of the other columns, those of the box among them.
        box: Fragment of the part of the picture, see `retrieval.images.boxes`; empty for the whole.
        problem: Why the box cannot be used; `box` is then its text as it is in the table.
    """

    place: str
    path: str
    id: str | None
    label: str | None
    has_label: bool
    metadata: Mapping[str, Value]
    box: str = ""
    problem: str | None = None


def read_table(file: Path, report: TableReport) -> list[TableRow]:
    """Read a CSV or Parquet (`.parquet`) file.

    Args:
        file: The table.
        report: Is given what does not fit the types of the columns.

    Raises:
        InputError: The file is invalid; the message has the line or row.
    """
    rows = parse_rows(_rows(file, (_PATH,), report))
    if not rows:
        raise InputError(f"{file}: lists no images")
    return rows


def read_rows(file: Path) -> Iterator[tuple[str, Mapping[str, Value]]]:
    """Yield the values by column of each row of a CSV or Parquet file, with its position in error messages.

    The values of a CSV file are text.

    Raises:
        InputError: The file is invalid; the message has the line or row.
    """
    yield from _rows(file, (), None)


def _rows(
    file: Path, required: Sequence[str], report: TableReport | None
) -> Iterator[tuple[str, Mapping[str, Value]]]:
    if file.suffix.lower() == ".parquet":
        yield from _parquet(file, required)
    else:
        yield from _csv(file, required, report)


def parse_rows(rows: Iterable[tuple[str, Mapping[str, object]]]) -> list[TableRow]:
    """Parse rows of values by column, each with its position in error messages.

    Raises:
        InputError: A row has no path, no id although there is a column `id`, or the id of another row.
    """
    parsed, seen = [], dict[str, str]()
    for place, values in rows:
        row = parse_row(values, place)
        if not row.path:
            raise InputError(f"{place}: no path")
        if _ID in values:
            if not row.id:
                raise InputError(f"{place}: no id, but other rows have one")
            if row.id in seen:
                raise InputError(f"{place}: the id {row.id!r} is already used in {seen[row.id]}")
            seen[row.id] = place
        parsed.append(row)
    return parsed


def parse_row(values: Mapping[str, object], place: str) -> TableRow:
    """Split the values of a row into path, id, label and metadata."""
    path, key, label = (_text(values.get(name)) for name in (_PATH, _ID, _LABEL))
    metadata = {
        name: _plain(value, f"{place}, column {name!r}")
        for name, value in values.items()
        if name not in (_PATH, _ID, _LABEL)
    }
    found = _box(values) if all(name in values for name in boxes.COLUMNS) else ()
    metadata.update(zip(boxes.COLUMNS, found, strict=False))
    box, problem = "", None
    if found and found != (None,) * 4:
        try:
            box = boxes.PartBox.of_values(_numbers(found)).fragment
        except ValueError as error:
            box = boxes.MARK + ",".join("" if one is None else str(one)[:20] for one in found)
            problem = f"its box {error} ({place})"
    return TableRow(place, path or "", key, label, _LABEL in values, metadata, box, problem)


def _box(values: Mapping[str, object]) -> tuple[Value, ...]:
    """Return the four values of a box: numbers, also those of a CSV file, where they are no text."""
    found = (_plain(values[name], name) for name in boxes.COLUMNS)
    return tuple(
        (int(one) if _INTEGER.fullmatch(one) else float(one) if _is_number(one) else one)
        if isinstance(one, str)
        else one
        for one in found
    )


def _numbers(values: Sequence[Value]) -> list[float]:
    if not all(isinstance(value, (int, float)) for value in values):
        raise ValueError("is not four numbers")
    return [float(value) for value in values if value is not None]


def plain_values(values: list[Any], place: str, start: int) -> list[Value]:
    """Return the values of a column as ones that a gallery can store.

    Args:
        values: Values as numpy or Arrow return them.
        place: File and column in error messages.
        start: Row of the first value, from 0.

    Raises:
        InputError: A value is neither text, a number, a date nor missing.
    """
    types = {*map(type, values)} - {type(None)}
    if types <= {str, int} or (types <= {int, float} and all(map(math.isfinite, filter(None, values)))):
        return values
    return [_plain(value, f"{place}, row {row}") for row, value in enumerate(values, start + 1)]


def arrow_values(column: Any, place: str, start: int) -> list[Value]:
    """Return the values of an Arrow array as `plain_values` does."""
    import pyarrow

    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        return arrow_values(column.dictionary_decode(), place, start)
    is_text = pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)
    is_number = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)
    if is_text or (is_number and not column.null_count):  # several times faster than `to_pylist`
        return plain_values(column.to_numpy(zero_copy_only=False).tolist(), place, start)
    return plain_values(column.to_pylist(), place, start)


class CsvTable:
    """A CSV file that is read column by column, in blocks of rows; nothing of it stays in memory.

    Attributes:
        file: The file, which is read once for the types and once for each use of `blocks`.
        names: Names of the columns.
        count: Number of rows.
        report: What does not fit the types of the columns.

    Args:
        file: CSV file in UTF-8 with a header.

    Raises:
        InputError: The file is invalid; the message has the line.
    """

    def __init__(self, file: Path) -> None:
        blocks = _csv_blocks(file, _AT_ONCE)
        self.file, self.names, self.count = file, _header(file, blocks), 0
        self._columns = [_Column(file, name) for name in self.names]
        for *columns, lines in blocks:
            self.count += len(lines)
            for column, fields in zip(self._columns, columns, strict=True):
                column.count(fields)
        self.report = TableReport(mixed=_mixed(self._columns))
        if any(column.has_bad for column in self._columns):
            for _ in self._read(_AT_ONCE, self.report):
                pass

    def blocks(self, count: int) -> Iterator[dict[str, list[Value]]]:
        """Yield the values by column of up to `count` rows at a time."""
        yield from self._read(count, TableReport())

    def _read(self, count: int, report: TableReport) -> Iterator[dict[str, list[Value]]]:
        for *columns, lines in islice(_csv_blocks(self.file, count), 1, None):
            values = [
                one.converted(fields, lines, report)
                for one, fields in zip(self._columns, columns, strict=True)
            ]
            yield dict(zip(self.names, values, strict=True))


def _csv(
    file: Path, required: Sequence[str], report: TableReport | None
) -> Iterator[tuple[str, dict[str, Value]]]:
    """Yield rows with typed values, or without a report, with text."""
    found_blocks = _csv_blocks(file, _AT_ONCE)
    names = _header(file, found_blocks)
    check_columns(str(file), names, required)
    blocks = list(found_blocks)  # read once: it may be a pipe
    columns = [_Column(file, name, is_text=_is_box(name, names)) for name in names]
    if report is not None:
        for *fields, _ in blocks:
            for column, some in zip(columns, fields, strict=True):
                column.count(some)
        report.mixed += _mixed(columns)
    found = report or TableReport()
    for *fields, lines in blocks:
        typed = (
            column.converted(some, lines, found) if report is not None else _texts(some)
            for column, some in zip(columns, fields, strict=True)
        )
        for line, *values in zip(lines, *typed, strict=True):
            yield f"{file}, line {line}", dict(zip(names, values, strict=True))


def _csv_blocks(file: Path, count: int) -> Iterator[list[Any]]:
    """Yield the header, then up to `count` rows at a time as columns; empty lines are left out.

    A block has a list of fields for each name, and one of the line numbers at which the rows end.
    """
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.reader(lines, strict=True)
            header = next(reader, [])
            yield header
            while True:
                block: list[list[Any]] = [[] for _ in [*header, "line"]]
                # In small parts: a list per row, of many rows at a time, keeps the garbage collector busy.
                while (left := count - len(block[-1])) > 0:
                    before = reader.line_num
                    part = list(islice(reader, min(_PART, left)))
                    if not part:
                        break
                    numbers: Sequence[int] = range(before + 1, reader.line_num + 1)
                    if len(numbers) != len(part) or {*map(len, part)} != {len(header)}:
                        part, numbers = _numbered(file, part, before, len(header))
                    for column, values in zip(block, zip(*part, strict=True), strict=False):
                        column += values
                    block[-1] += numbers
                if not block[-1]:
                    return
                yield block
    except FileNotFoundError as error:
        raise InputError(f"{file}: there is no such file") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file}: cannot be read as a CSV file in UTF-8 ({error})") from error


def _numbered(
    file: Path, rows: Iterable[list[str]], line: int, columns: int
) -> tuple[list[list[str]], list[int]]:
    """Return the rows that are not empty, and the line number at which each ends, given that before them."""
    kept, numbers = [], []
    for fields in rows:
        line += 1 + sum(len(_LINE_END.findall(field)) for field in fields)
        if len(fields) == columns:
            kept.append(fields)
            numbers.append(line)
        elif fields:
            what = f"{len(fields)} fields, but the header has {columns} columns"
            raise InputError(f"{file}, line {line}: {what}; quote values that contain commas")
    return kept, numbers


def _header(file: Path, blocks: Iterator[list[Any]]) -> list[str]:
    names = [*next(blocks)]
    _check_unique(file, names)
    return names


class _Column:
    """A column of a CSV file, whose type is decided once all its fields are counted.

    Args:
        file: The file.
        name: Name of the column.
        is_text: It is text, whatever its fields are.
    """

    def __init__(self, file: Path, name: str, *, is_text: bool = False) -> None:
        self.file, self.name = file, name
        self._filled = self._integers = self._numbers = 0
        self._is_text = is_text or name in (_PATH, _ID, _LABEL)

    def count(self, fields: Sequence[str]) -> None:
        """Count the kinds of some fields."""
        if self._is_text:
            return
        filled = fields if all(fields) else [field for field in fields if field]
        self._filled += len(filled)
        if (kind := _kind_of(filled)) is not None:
            self._numbers += len(filled)
            self._integers += len(filled) if kind is int else 0
            return
        for text, times in Counter(filled).items():
            if _INTEGER.fullmatch(text):
                self._integers += times
                self._numbers += times
            elif _is_number(text):
                self._numbers += times
            elif _PADDED.fullmatch(text):
                self._is_text = True

    @property
    def kind(self) -> _Type:
        """The type of its values."""
        if self._is_text or self._numbers < _MAJORITY * self._filled:
            return str
        return int if self._integers == self._numbers else float

    @property
    def has_bad(self) -> bool:
        """Whether some fields have no value of its type."""
        return self.kind is not str and self._numbers < self._filled

    @property
    def mixed(self) -> str | None:
        """A line on a column of text most of whose values are numbers."""
        if self._is_text or self.kind is not str or self._numbers < _MIXED * self._filled:
            return None
        share = f"{self._numbers} of {self._filled} values are numbers, fewer than {_MAJORITY:.0%}"
        return f"{self.file}, column {self.name!r}: taken as text, since {share}"

    def converted(self, fields: Sequence[str], lines: Sequence[int], report: TableReport) -> list[Value]:
        """Return the values of some fields, and report those that have none."""
        kind = self.kind
        if kind is str:
            return _texts(fields)
        if not self.has_bad:
            convert: Callable[[str], Value] = kind
            return [*map(convert, fields)] if all(fields) else [convert(f) if f else None for f in fields]
        values = [kind(field) if _is_number(field) else None for field in fields]
        report.bad += [
            BadCell(f"{self.file}, line {line}", self.name, field)
            for line, field, value in zip(lines, fields, values, strict=True)
            if field and value is None
        ]
        return values


def _mixed(columns: Iterable[_Column]) -> list[str]:
    return [line for column in columns if (line := column.mixed)]


def _is_box(name: str, names: Sequence[str]) -> bool:
    """Return whether a column is one of the four of a box, whose numbers are read row by row."""
    return name in boxes.COLUMNS and all(column in names for column in boxes.COLUMNS)


def _texts(fields: Sequence[str]) -> list[Value]:
    return [*fields] if all(fields) else [field or None for field in fields]


def _kind_of(fields: Sequence[str]) -> type[int] | type[float] | None:
    """Return the type of some fields, float if one of them has a fraction; `None` if unclear."""
    lines = "\n".join(fields)
    if not lines or lines.count("\n") >= len(fields) or _NOT_NUMBERS.search(lines):
        return None
    try:
        if not all(map(math.isfinite, map(float, fields))):
            return None
    except ValueError:
        return None
    if _FRACTION.search(lines):
        return float
    return int if max(map(len, fields)) <= _DIGITS else None


def _is_number(field: str) -> bool:
    return _NUMBER.fullmatch(field) is not None and math.isfinite(float(field))


def import_pyarrow(file: Path) -> tuple[Any, Any]:
    """Return the modules `pyarrow` and `pyarrow.parquet`.

    Raises:
        InputError: pyarrow is not installed, which `file` needs.
    """
    pyarrow = load_pyarrow(f"{file}: Parquet")
    return pyarrow, import_module("pyarrow.parquet")


def _parquet(file: Path, required: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    pyarrow, parquet = import_pyarrow(file)
    try:
        table = parquet.ParquetFile(file)
        names = table.schema_arrow.names
        check_columns(str(file), names, required)
        _check_unique(file, names)
        number = 0
        for batch in table.iter_batches():
            for values in batch.to_pylist():
                number += 1
                yield f"{file}, row {number}", values
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{file}: cannot be read as a Parquet file ({error})") from error


def check_columns(place: str, names: Sequence[str], required: Sequence[str]) -> None:
    """Check that a table has some columns.

    Args:
        place: What the table is, as the beginning of a message.
        names: Columns of the table.
        required: Columns that it should have.

    Raises:
        InputError: One is missing; the message names those that are there, or what separates them.
    """
    for column in required:
        if column not in names:
            hint = did_you_mean(column, names, f"columns: {', '.join(map(repr, names[:10])) or 'none'}")
            raise InputError(f"{place}: no column {column!r}; {separator_hint(names) or hint}")


def separator_hint(names: Sequence[str]) -> str | None:
    """Return what splits the only column of a table into several, and what to do; `None` if nothing does."""
    if len(names) == 1 and (mark := next((mark for mark in ";\t|" if mark in names[0]), None)):
        return f"its fields are separated by {mark!r}; save it with commas"
    return None


def _check_unique(file: Path, names: list[str]) -> None:
    repeated = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if repeated is not None:
        raise InputError(f"{file}: two columns are named {repeated!r}; rename one")


def _text(value: object) -> str | None:
    value = _without_numpy(value)
    return None if value is None or value != value else str(value)  # NaN stands for a missing text, too


def _without_numpy(value: Any) -> Any:
    """Return a value of NumPy as one of Python's own, and the `None` of a table of pandas."""
    if type(value).__name__ in ("NAType", "NaTType"):  # not imported, and NA has no truth value
        return None
    return value.item() if isinstance(value, np.generic) else value


def _plain(value: object, place: str) -> Value:
    """Return a value as one that a gallery can store."""
    if value is None or type(value) in (str, int):
        return value  # type: ignore[return-value]
    value = _without_numpy(value)
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, (float, decimal.Decimal)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    raise InputError(f"{place}: a {type(value).__name__} is neither text nor a number; drop the column")
