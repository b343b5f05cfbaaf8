"""Many rows at once: statements and checksums over columns of values.

A value that a column has in all rows is written once, into the statement or the template of the checksums;
most facts about imported vectors, which have no file, are such values.
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
    shared = {name: _literal(values) for name, values in list(columns.items())[1:]}
    given = [values for name, values in columns.items() if shared.get(name) is None]
    marks = ", ".join(shared.get(name) or "?" for name in columns)
    rows: Iterable[tuple[Any, ...]] = zip(*given, strict=True)
    names = ", ".join(map(quoted, columns))
    db.executemany(
        f"{into} ({names}) VALUES ({marks}) {then}", rows if which is None else compress(rows, which)
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
    varying = [position for position, values in enumerate(columns) if position == 0 or not _is_shared(values)]
    fields = [
        "%s" if position in varying else str(values[0]).replace("%", "%%")
        for position, values in enumerate(columns)
    ]
    template = FIELD_SEPARATOR.join(fields)
    texts: Iterable[str] = map(
        template.__mod__, zip(*(columns[position] for position in varying), strict=True)
    )
    if any(metadata):
        texts = (
            f"{text}{FIELD_SEPARATOR}{more}" if more else text
            for text, more in zip(texts, metadata, strict=True)
        )
    return [zlib.crc32(text.encode("utf-8", "backslashreplace")) for text in texts]


def metadata_texts(columns: Columns, count: int) -> list[str]:
    """Return the metadata of each of `count` items as its checksum covers it; "" for none."""
    cells = [_cells(name, columns[name]) for name in sorted(columns)]
    if not cells:
        return [""] * count
    if all(map(all, cells)):
        return [*map(f"[{', '.join(['%s'] * len(cells))}]".__mod__, zip(*cells, strict=True))]
    joined = map(", ".join, (filter(None, row) for row in zip(*cells, strict=True)))
    return [text and f"[{text}]" for text in joined]


def _cells(name: str, values: Sequence[Value]) -> list[str]:
    start, types = f"[{json.dumps(name)}, ", {*map(type, values)} - {type(None)}
    encode: Callable[[Any], str] = encode_basestring_ascii if types == {str} else json.dumps
    if types <= {int, float}:
        encode = repr  # as in JSON, for finite numbers
    return ["" if value is None else f"{start}{encode(value)}]" for value in values]


def _is_shared(values: Sequence[Any]) -> bool:
    first = values[0]
    return values[-1] == first and list(values).count(first) == len(values)


def _literal(values: Sequence[Any]) -> str | None:
    """Return the value that a column has in all rows as SQL; `None` if there are several."""
    if not _is_shared(values):
        return None
    first = values[0]
    if first is None:
        return "NULL"
    if isinstance(first, str):
        return None if "\0" in first else "'" + first.replace("'", "''") + "'"
    return str(first) if type(first) is int else None
