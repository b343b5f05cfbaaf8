"""Many rows at once: statements and checksums over columns of values.

A value that a column has in all rows is written once, into the statement or the template of the checksums;
most facts about imported vectors, which have no file, are such values. Columns that are the same, as keys and
paths mostly are, are bound once.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from json.encoder import encode_basestring_ascii
from typing import Any

from retrieval.storage.records import Value
from retrieval.storage.schema import FACTS, FIELD_SEPARATOR, quoted

_END = "\0"  # between the texts of items that are encoded at once
# Metadata of n items by column; `None` for missing values.
Columns = Mapping[str, Sequence[Value]]


def insert_rows(
    db: sqlite3.Connection,
    into: str,
    columns: Mapping[str, Sequence[Any]],
    *,
    then: str = "",
    which: Iterable[object] | None = None,
) -> None:
    """Insert rows given as columns, the first of which has a value of its own in each row.

    Args:
        db: Connection with an open transaction.
        into: Start of the statement, such as "INSERT INTO items".
        columns: Values by column.
        then: End of the statement.
        which: For each row whether to insert it; `None` for all.
    """
    given: list[Sequence[Any]] = []
    marks = []
    for values in columns.values():
        mark = _literal(values) if given else None
        if mark is None:
            place = next((i for i, other in enumerate(given) if are_same(values, other)), len(given))
            given += [values] if place == len(given) else []
            mark = f"?{place + 1}"
        marks.append(mark)
    rows: Iterable[tuple[Any, ...]] = zip(*given, strict=True)
    names = ", ".join(map(quoted, columns))
    db.executemany(
        f"{into} ({names}) VALUES ({', '.join(marks)}) {then}",
        rows if which is None else compress(rows, which),
    )


def item_crcs(ids: Sequence[int], facts: Sequence[Sequence[Any]], metadata: Sequence[str]) -> list[int]:
    """Return the checksum of each item, as `schema.item_crc` does.

    Args:
        ids: Item ids.
        facts: The other columns of `FACTS`, in order.
        metadata: Metadata of each item as `metadata_texts` returns it.
    """
    columns = [ids, *facts]
    assert len(columns) == len(FACTS)
    varying = [position for position, values in enumerate(columns) if position == 0 or not is_shared(values)]
    fields = [
        "%s" if position in varying else str(values[0]).replace("%", "%%")
        for position, values in enumerate(columns)
    ]
    given = [columns[position] for position in varying]
    if is_described := all(metadata):
        fields.append("%s")
        given.append(metadata)
    texts: Iterable[str] = map(FIELD_SEPARATOR.join(fields).__mod__, zip(*given, strict=True))
    if not is_described and any(metadata):
        texts = (
            f"{text}{FIELD_SEPARATOR}{more}" if more else text
            for text, more in zip(texts, metadata, strict=True)
        )
    whole = [*texts]
    encoded = _END.join(whole).encode("utf-8", "backslashreplace").split(_END.encode())
    if len(encoded) > len(whole):  # a value contains it
        encoded = [text.encode("utf-8", "backslashreplace") for text in whole]
    return [*map(zlib.crc32, encoded)]


def metadata_texts(columns: Columns, count: int) -> list[str]:
    """Return the metadata of each of `count` items as its checksum covers it; "" for none."""
    if not columns or not count:
        return [""] * count
    starts = [f"[{json.dumps(name)}, " for name in sorted(columns)]
    encoded = [json_texts(columns[name]) for name in sorted(columns)]
    if all(map(all, encoded)):
        cells = (f"{start.replace('%', '%%')}%s]" for start in starts)
        return [*map(f"[{', '.join(cells)}]".__mod__, zip(*encoded, strict=True))]
    filled = (
        [text and f"{start}{text}]" for text in texts] for start, texts in zip(starts, encoded, strict=True)
    )
    joined = map(", ".join, (filter(None, row) for row in zip(*filled, strict=True)))
    return [text and f"[{text}]" for text in joined]


def json_texts(values: Sequence[Value]) -> list[str]:
    """Return values as JSON; "" for missing ones."""
    types = {*map(type, values)}
    encode: Callable[[Any], str] = encode_basestring_ascii if types <= {str, type(None)} else json.dumps
    if types <= {int, float, type(None)}:
        encode = repr  # as in JSON, for finite numbers
    if type(None) not in types:
        return [*map(encode, values)]
    return ["" if value is None else encode(value) for value in values]


def are_same(values: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether two columns are of the same texts or whole numbers, and may be bound as one."""
    kinds = ({str}, {int})
    return values == others and {*map(type, values)} in kinds and {*map(type, others)} in kinds


def is_shared(values: Sequence[Any]) -> bool:
    """Return whether all rows have the same value; there is at least one."""
    first = values[0]
    return values[-1] == first and list(values).count(first) == len(values)


def _literal(values: Sequence[Any]) -> str | None:
    """Return the value that a column has in all rows as SQL; `None` if there are several."""
    if not is_shared(values):
        return None
    first = values[0]
    if first is None:
        return "NULL"
    if isinstance(first, str):
        return None if "\0" in first else "'" + first.replace("'", "''") + "'"
    return str(first) if type(first) is int else None
