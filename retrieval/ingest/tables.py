"""Metadata tables: CSV and Parquet files with one row per image.

The column `path` is required. The optional column `id` is the key and must not be empty; the optional column
`label` is the label; all other columns are metadata. In a CSV file the type of a column is integer, float or
text, the first that fits all its values; an empty field is a missing value; numbers with leading zeros are
text.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.errors import InputError, did_you_mean
from retrieval.storage.records import Value

_PATH, _ID, _LABEL = "path", "id", "label"
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class TableRow:
    """One row of a metadata table.

    Attributes:
        place: Position in error messages: "FILE, line 3".
        path: Path of the image, as written in the table.
        id: Key; `None` without a column `id`.
        label: Label; `None` if empty or without a column `label`.
        has_label: The table has a column `label`.
        metadata: Values of the other columns.
    """

    place: str
    path: str
    id: str | None
    label: str | None
    has_label: bool
    metadata: Mapping[str, Value]


def read_table(file: Path) -> list[TableRow]:
    """Read a CSV or Parquet (`.parquet`) file.

    Raises:
        InputError: The file is invalid; the message has the line or row.
    """
    rows = parse_rows(_parquet(file) if file.suffix.lower() == ".parquet" else _csv(file))
    if not rows:
        raise InputError(f"{file}: lists no images")
    return rows


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
    return TableRow(place, path or "", key, label, _LABEL in values, metadata)


def check_types(
    rows: Iterable[tuple[object, Mapping[str, Value]]], existing: Mapping[str, str]
) -> dict[str, str]:
    """Check that all values of a column are numbers or all are text.

    Args:
        rows: For each row its position in error messages and its values.
        existing: Types of the columns that the gallery has, "number" or "text", by name.

    Returns:
        The type of every column.

    Raises:
        InputError: A column contains both.
    """
    types, first = dict(existing), dict.fromkeys(existing, "the gallery")
    for place, values in rows:
        for name, value in values.items():
            if value is None:
                continue
            kind = "text" if isinstance(value, str) else "number"
            if types.setdefault(name, kind) != kind:
                what = f"column {name!r} is {kind} here ({value!r}), but {types[name]} in {first[name]}"
                raise InputError(f"{place}: {what}; use one type or two columns")
            first.setdefault(name, str(place))
    return types


def _csv(file: Path) -> Iterator[tuple[str, dict[str, Value]]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.reader(lines, strict=True)
            header = next(reader, [])
            _check_header(file, header)
            rows = []
            for fields in reader:
                place = f"{file}, line {reader.line_num}"
                if not fields:  # an empty line
                    continue
                if len(fields) != len(header):
                    what = f"{len(fields)} fields, but the header has {len(header)} columns"
                    raise InputError(f"{place}: {what}; quote values that contain commas")
                rows.append((place, fields))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file}: cannot be read as a CSV file in UTF-8 ({error})") from error
    converters = [_converter(name, (fields[i] for _, fields in rows)) for i, name in enumerate(header)]
    for place, fields in rows:
        pairs = zip(converters, fields, strict=True)
        values = (convert(field) if field else None for convert, field in pairs)
        yield place, dict(zip(header, values, strict=True))


def _converter(name: str, fields: Iterable[str]) -> type[int] | type[float] | type[str]:
    """Return the narrowest type that fits every field of a column; ids, labels and paths are text."""
    filled = [field for field in fields if field]
    if name in (_PATH, _ID, _LABEL) or not filled:
        return str
    if all(_INTEGER.fullmatch(field) for field in filled):
        return int
    finite = all(_NUMBER.fullmatch(field) and math.isfinite(float(field)) for field in filled)
    return float if finite else str


def _parquet(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise InputError(
            f"{file}: reading Parquet needs pyarrow: pip install 'lookalike[parquet]'"
        ) from error
    try:
        table = pyarrow.parquet.ParquetFile(file)
        _check_header(file, table.schema_arrow.names)
        number = 0
        for batch in table.iter_batches():
            for values in batch.to_pylist():
                number += 1
                yield f"{file}, row {number}", values
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{file}: cannot be read as a Parquet file ({error})") from error


def _check_header(file: Path, names: list[str]) -> None:
    if _PATH not in names:
        hint = did_you_mean(_PATH, names, f"columns: {', '.join(map(repr, names[:10])) or 'none'}")
        raise InputError(f"{file}: no column 'path'; {hint}")
    repeated = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if repeated is not None:
        raise InputError(f"{file}: two columns are named {repeated!r}; rename one")


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _plain(value: object, place: str) -> Value:
    """Return a value as one that a gallery can store."""
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, (float, decimal.Decimal)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    raise InputError(f"{place}: a {type(value).__name__} is neither text nor a number; drop the column")
