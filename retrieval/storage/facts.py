"""Facts about the items of a segment: a file of encoded rows, which is mapped into memory.

    32 bytes          magic, number of rows n, bytes of the file, CRC-32 of these three, zeros
    int64 [n + 1]     where each text starts in the file, and where the last one ends
    uint32 [n]        CRC-32 of each text
    bytes             the texts: for each row, JSON of the id, the columns of `Facts`, and the metadata

A search reads the facts about its hits here, in a tenth of the time that the database takes. That has all
facts as well, and alone those that changed since the segment was written. A lost database is rebuilt from
these files. A text is checked when it is read.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate, chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from retrieval.files import atomic_write
from retrieval.storage.bulk import Columns, are_same, is_shared, json_texts
from retrieval.storage.records import Facts, Value
from retrieval.storage.schema import FACTS

_MAGIC = b"LKFACTS1"
_SIZES = struct.Struct("<8sQQ")
_HEADER = struct.Struct("<24sI")
_START = 32  # of the offsets
EARLIER = ".items.json"  # suffix of a file of the earlier format, until the segment is rewritten
_EARLIER_START = b'{"crc":"%08x",'
_ONE_BY_ONE = 8  # rows per segment, below which they are read one by one
AT_ONCE = 1 << 13  # rows encoded or copied at once

# Id, the facts in the order of `Facts`, and the metadata.
Row = tuple[Any, ...]
_KEY, _CONTENT = FACTS.index("key"), FACTS.index("content_sha256")


class DamagedError(Exception):
    """A file of a segment is missing or damaged; the message is its path."""


def encoded(ids: Sequence[int], facts: Facts, metadata: Columns) -> Iterator[list[bytes]]:
    """Yield the texts of rows, some thousands at a time.

    Args:
        ids: Ids of n items.
        facts: Facts about them.
        metadata: Their metadata: n values by column.
    """
    for start in range(0, len(ids), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        described = {name: values[some] for name, values in metadata.items()}
        yield _texts(ids[some], facts[some], described)


def write(path: Path, count: int, texts: Iterable[Sequence[bytes]]) -> None:
    """Write a file of facts atomically.

    Args:
        path: File to write.
        count: Number of rows n.
        texts: Their texts, in several lists.
    """
    offsets, checksums = np.zeros(count + 1, "<i8"), np.zeros(count, "<u4")
    offsets[0] = _START + offsets.nbytes + checksums.nbytes
    with atomic_write(path) as draft, draft.open("wb") as file:
        file.seek(int(offsets[0]))
        start = 0
        for some in texts:
            end = start + len(some)
            offsets[start + 1 : end + 1] = np.fromiter(map(len, some), np.int64, len(some))
            checksums[start:end] = np.fromiter(map(zlib.crc32, some), np.int64, len(some))
            file.write(b"".join(some))
            start = end
        assert start == count, (start, count)
        np.cumsum(offsets, out=offsets)
        file.seek(0)
        file.write(_header(count, int(offsets[-1])))
        file.write(offsets.tobytes())
        file.write(checksums.tobytes())


def _texts(ids: Sequence[int], facts: Facts, metadata: Columns) -> list[bytes]:
    """Return the text of each row. What a column has in all rows is written into the template."""
    given = list[Sequence[str]]()

    def field(cells: Sequence[str]) -> str:
        if is_shared(cells):
            return cells[0].replace("%", "%%")
        given.append(cells)
        return "%s"

    def fact(values: Sequence[Any]) -> str:
        if is_shared(values):  # there is nothing equal to it of another type
            return field([json_texts(values[:1])[0] or "null"])
        if are_same(values, facts.key):
            return field(keys)
        return field([cell or "null" for cell in json_texts(values)])

    keys = json_texts(facts.key)
    fields = [*map(fact, (ids, *facts.columns))]
    described = {json.dumps(name): json_texts(values) for name, values in metadata.items()}
    if all(map(all, described.values())):
        named = (f"{name.replace('%', '%%')}:{field(cells)}" for name, cells in described.items())
        fields.append(f"{{{','.join(named)}}}")
    else:
        fields.append(field([*_objects(described)]))
    template = f"[{','.join(fields)}]"
    rows = zip(*given, strict=True) if given else repeat((), len(ids))
    return [text.encode() for text in map(template.__mod__, rows)]


def _objects(described: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield JSON objects of the cells by name, both as JSON, without the empty ones."""
    for cells in zip(*described.values(), strict=True):
        both = zip(described, cells, strict=True)
        yield f"{{{','.join(f'{name}:{cell}' for name, cell in both if cell)}}}"


class FactsFile:
    """A file of facts, mapped into memory: it stays readable after it was deleted. Thread-safe.

    Args:
        path: File.
        count: Number of rows n.

    Raises:
        DamagedError: The file is missing, or not one of n rows.
    """

    def __init__(self, path: Path, count: int) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise DamagedError(path) from error
        view = memoryview(self._map)
        checksums = _START + 8 * (count + 1)
        texts = checksums + 4 * count
        if bytes(view[:_START]) != _header(count, len(view)):
            raise DamagedError(path)
        self._offsets = np.frombuffer(view[_START:checksums], "<i8")
        self._checksums = np.frombuffer(view[checksums:texts], "<u4")
        if self._offsets[count] != len(view):
            raise DamagedError(path)

    def text(self, row: int) -> bytes:
        """Return the text of a row.

        Raises:
            DamagedError: It is damaged.
        """
        start, end = self._offsets[row : row + 2].tolist()
        found = self._map[start:end]
        if zlib.crc32(found) != self._checksums[row]:
            raise DamagedError(self._path)
        return found

    def texts(self, at: Sequence[int] | np.ndarray) -> list[bytes]:
        """Return the texts of rows.

        Raises:
            DamagedError: One of them is damaged.
        """
        data, rows = self._map, np.array(at, np.int64)
        ends = zip(self._offsets[rows].tolist(), self._offsets[rows + 1].tolist(), strict=True)
        found = [data[start:end] for start, end in ends]
        if [*map(zlib.crc32, found)] != self._checksums[rows].tolist():
            raise DamagedError(self._path)
        return found


# Types of the values of a row, and of metadata. A file from somebody else may have others.
_TYPES = frozenset((int, str, str, str, int, int, str, int, int, label, dict) for label in (str, type(None)))
_VALUES = frozenset((str, int, float, type(None)))


def _are_rows(found: Sequence[Any]) -> bool:
    """Return whether JSON values have the types of rows."""
    try:
        shapes = {(*map(type, row),) for row in found}
        return shapes <= _TYPES and {*map(type, chain(*(row[-1].values() for row in found)))} <= _VALUES
    except TypeError:
        return False


def parse(texts: Sequence[bytes]) -> list[Row | None]:
    """Return the rows of texts that match their checksums; `None` for one that is no row all the same."""
    joined = b"[%b]" % b",".join(texts)
    with suppress(ValueError, RecursionError):
        found: list[Row | None]
        try:
            found = orjson.loads(joined)  # in 40 % of the time
        except orjson.JSONDecodeError:  # numbers that are not finite, or halves of surrogate pairs
            found = json.loads(joined)
        if len(found) == len(texts) and _are_rows(found):
            return found
    return [None] if len(texts) == 1 else [parse([text])[0] for text in texts]


def identity(row: Row) -> tuple[int, str, str]:
    """Return id, key and SHA-256 of the content of a row."""
    return row[0], row[_KEY], row[_CONTENT]


def _header(count: int, size: int) -> bytes:
    """Return the header of a file of a number of rows and of bytes."""
    sizes = _SIZES.pack(_MAGIC, count, size)
    return _HEADER.pack(sizes, zlib.crc32(sizes)).ljust(_START, b"\0")


class StoredFacts:
    """The facts about the items of a gallery's rows, which are numbered over all segments.

    Args:
        files: File of each segment; `None` for those whose facts only the database has.
        counts: Rows of each segment.
        amended: Ids of the items whose facts only the database has, int64 [a].
    """

    def __init__(
        self, files: Sequence[FactsFile | None], counts: Sequence[int], amended: np.ndarray | None = None
    ) -> None:
        self._files = files
        self._starts = [0, *accumulate(counts)]
        self._given = np.empty(0, np.int64) if amended is None else amended

    @property
    def complete(self) -> bool:
        """Whether the facts about all rows are here."""
        return not len(self._given) and None not in self._files

    @cached_property
    def _amended(self) -> frozenset[int]:
        return frozenset(self._given.tolist())

    def rows(self, at: Sequence[int]) -> list[Row | None]:
        """Return the facts about the items of rows; `None` for those that only the database has."""
        texts = self._texts(at)
        known = parse([*filter(None, texts)])
        left, amended = iter(known), self._amended
        rows = known if len(known) == len(at) else [next(left) if text else None for text in texts]
        return [row if row and row[1] and row[0] not in amended else None for row in rows]

    def content(self, row: int) -> str | None:
        """Return the SHA-256 of the file that the vector of a row was made from; `None` without one."""
        (known,) = parse([*filter(None, self._texts([row]))]) or (None,)
        return (known[_CONTENT] if known else None) or None

    def _texts(self, at: Sequence[int]) -> list[bytes]:
        """Return the texts of rows; an empty one where only the database has the facts."""
        files, starts = self._files, self._starts
        if len(files) == 1 and files[0]:
            with suppress(DamagedError):
                return files[0].texts(at)
        if len(at) < _ONE_BY_ONE * len(files):
            return [self._text(row, bisect_right(starts, row) - 1) for row in at]
        rows, found = np.array(at, np.int64), [b""] * len(at)
        parts = np.searchsorted(starts, rows, side="right") - 1
        for part in np.unique(parts).tolist():
            places = np.flatnonzero(parts == part)
            for place, text in zip(places.tolist(), self._texts_in(rows[places], part), strict=True):
                found[place] = text
        return found

    def _texts_in(self, rows: np.ndarray, part: int) -> list[bytes]:
        """Return the texts of rows of one segment, as `_texts` does."""
        file = self._files[part]
        if file:
            with suppress(DamagedError):
                return file.texts(rows - self._starts[part])
        return [self._text(row, part) for row in rows.tolist()]

    def _text(self, row: int, part: int) -> bytes:
        """Return the text of a row of a segment, as `_texts` does."""
        file = self._files[part]
        try:
            return file.text(row - self._starts[part]) if file else b""
        except DamagedError:  # which `verify` reports
            return b""


def check(path: Path, count: int) -> None:
    """Raise a `DamagedError` if a file of facts is missing or damaged."""
    if not path.exists() and path.with_suffix(EARLIER).exists():
        _earlier_rows(path.with_suffix(EARLIER))
        return
    file = FactsFile(path, count)
    for start in range(0, count, AT_ONCE):
        if None in parse(file.texts(range(start, min(start + AT_ONCE, count)))):
            raise DamagedError(path)


def intact_rows(path: Path, count: int) -> list[Row | None]:
    """Return the rows of a file; `None` for each that is damaged."""
    found: list[Row | None] = [None] * count
    with suppress(DamagedError):
        if not path.exists():
            earlier = _earlier_rows(path.with_suffix(EARLIER))
            return [*earlier, *found][:count]
        file = FactsFile(path, count)
        for at in range(count):
            with suppress(DamagedError):
                found[at] = parse(file.texts([at]))[0]
    return found


def _earlier_rows(path: Path) -> list[Row]:
    """Return the rows of a file of the earlier format, which has neither ids nor metadata.

    It is a JSON object of columns, whose first value is the CRC-32 of what follows.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamagedError(path) from error
    start = len(_EARLIER_START % 0)
    if data[:start] != _EARLIER_START % zlib.crc32(data[start:]):
        raise DamagedError(path)
    try:
        _, *known = json.loads(data).values()
        found = [(0, *row, {}) for row in zip(*known, strict=True)]
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(path) from error
    if not _are_rows(found):
        raise DamagedError(path)
    return found


def columns(rows: Sequence[Row]) -> tuple[Facts, dict[str, list[Value]]]:
    """Return facts and metadata of rows as columns."""
    parts = [*zip(*rows, strict=True)] or [()] * (len(FACTS) + 1)
    names = dict.fromkeys(name for values in parts[-1] for name in values)
    return Facts(*parts[1:-1]), {name: [values.get(name) for values in parts[-1]] for name in names}
