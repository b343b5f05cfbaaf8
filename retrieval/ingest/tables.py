"""Tables about pictures: a CSV or Parquet file with a row for each.

The column `path` says which; `id`, if there is one, is the owner's id and never empty; `label`, if there is
one, the label; every other column is metadata. In a CSV file a column is whole numbers, numbers or text,
whichever fits all its values; an empty field is no value; numbers with leading zeros are text.
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
class Row:
    """What a table says about one picture.

    Attributes:
        place: where it says so, for messages: "FILE, line 3".
        label: `None` also where a label column leaves it empty, which `has_label` tells apart.
    """

    place: str
    path: str
    id: str | None
    label: str | None
    has_label: bool
    metadata: Mapping[str, Value]


def read(file: Path) -> list[Row]:
    """The rows of a CSV or Parquet file (`.parquet`).

    Raises:
        InputError: what is wrong with it, and in which line or row.
    """
    found = rows(_parquet(file) if file.suffix.lower() == ".parquet" else _csv(file))
    if not found:
        raise InputError(f"{file}: it lists no images")
    return found


def rows(given: Iterable[tuple[str, Mapping[str, object]]]) -> list[Row]:
    """Rows of values by column, each with what to call it in messages; errors as for `read`."""
    read, seen = [], dict[str, str]()
    for place, values in given:
        found = row(values, place)
        if not found.path:
            raise InputError(f"{place}: it has no path")
        if _ID in values:
            if not found.id:
                raise InputError(f"{place}: it has no id, and other rows have one")
            if found.id in seen:
                raise InputError(f"{place}: the id {found.id!r} is in use already, in {seen[found.id]}")
            seen[found.id] = place
        read.append(found)
    return read


def row(values: Mapping[str, object], place: str) -> Row:
    """Take apart what is said about one picture."""
    path, key, label = (_text(values.get(name)) for name in (_PATH, _ID, _LABEL))
    metadata = {
        name: _plain(value, f"{place}, column {name!r}")
        for name, value in values.items()
        if name not in (_PATH, _ID, _LABEL)
    }
    return Row(place, path or "", key, label, _LABEL in values, metadata)


def check_types(
    given: Iterable[tuple[object, Mapping[str, Value]]], there: Mapping[str, str]
) -> dict[str, str]:
    """One column, one type: "number" or "text".

    Args:
        given: what each row is called in messages, and its values.
        there: type of the columns that a gallery has already, by name.

    Returns:
        The type of every column.

    Raises:
        InputError: a column that holds both.
    """
    types, first = dict(there), dict.fromkeys(there, "the gallery")
    for place, values in given:
        for name, value in values.items():
            if value is None:
                continue
            kind = "text" if isinstance(value, str) else "number"
            if types.setdefault(name, kind) != kind:
                what = f"column {name!r} is {kind} here ({value!r}), but {types[name]} in {first[name]}"
                raise InputError(f"{place}: {what}; make it one of them, or use two columns")
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
                    what = f"it has {len(fields)} fields, the first line has {len(header)} columns"
                    raise InputError(f"{place}: {what}; put quotes around values with commas")
                rows.append((place, fields))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file}: cannot be read as a CSV file in UTF-8 ({error})") from error
    convert = [_converter(name, (fields[i] for _, fields in rows)) for i, name in enumerate(header)]
    for place, fields in rows:
        values = (change(field) if field else None for change, field in zip(convert, fields, strict=True))
        yield place, dict(zip(header, values, strict=True))


def _converter(name: str, fields: Iterable[str]) -> type[int] | type[float] | type[str]:
    """The narrowest type that fits every field of a column; ids, labels and paths are text."""
    given = [field for field in fields if field]
    if name in (_PATH, _ID, _LABEL) or not given:
        return str
    if all(_INTEGER.fullmatch(field) for field in given):
        return int
    finite = all(_NUMBER.fullmatch(field) and math.isfinite(float(field)) for field in given)
    return float if finite else str


def _parquet(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        hint = "pip install 'lookalike[parquet]'"
        raise InputError(f"{file}: reading Parquet needs pyarrow: {hint}") from error
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
        hint = did_you_mean(_PATH, names, f"there are: {', '.join(map(repr, names[:10])) or 'none'}")
        raise InputError(f"{file}: it has no column 'path'; {hint}")
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise InputError(f"{file}: two columns are called {twice!r}; rename one")


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _plain(value: object, place: str) -> Value:
    """A value as a gallery keeps it."""
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, (float, decimal.Decimal)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    raise InputError(f"{place}: a {type(value).__name__} is neither text nor a number; leave the column out")
