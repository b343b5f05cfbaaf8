"""Files of vectors from other programs, read in chunks of bounded memory, column by column.

A Parquet file has one row per image: a column `vector`, and any others. A `.npy` file contains only the
vectors, [N, D]; a CSV file of the same name beside it has the other columns. A `.npz` file has the array
`vectors`, and an array [N] for each other column.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from retrieval.arrow import VECTOR
from retrieval.errors import InputError
from retrieval.files import ARRAY_ERRORS
from retrieval.ingest.tables import CsvTable, TableReport, arrow_values, import_pyarrow, plain_values
from retrieval.storage.records import Value

UNITS = b"lookalike.units"  # key in the metadata of the schema
_VECTORS = "vectors"  # array of a .npz file
_BUFFER = 2**20
_SUFFIXES = (".parquet", ".npy", ".npz")


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a file.

    Attributes:
        start: Number of the first row, from 0.
        vectors: Vectors of any floating-point type, [n, D].
        columns: Values by column, n each.
    """

    start: int
    vectors: np.ndarray
    columns: dict[str, list[Value]]


class VectorFile(Protocol):
    """A file of vectors.

    Attributes:
        path: The file.
        count: Number of vectors.
        dim: Their dimension.
        names: Names of the other columns.
    """

    path: Path
    count: int
    dim: int
    names: tuple[str, ...]

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """Yield all rows in chunks of up to `rows`.

        Raises:
            InputError: The file is invalid; the message has the row.
        """
        ...


def open_vectors(path: Path) -> VectorFile:
    """Open a `.parquet`, `.npy` or `.npz` file of vectors.

    Raises:
        InputError: There is no such file, or it has no vectors.
    """
    if path.suffix not in _SUFFIXES or not path.is_file():
        raise InputError(f"{path}: not a file of type {', '.join(_SUFFIXES)}")
    file: VectorFile
    if path.suffix == ".parquet":
        file = ParquetVectors(path)
    else:
        file = NpyVectors(path) if path.suffix == ".npy" else NpzVectors(path)
    if not file.count or not file.dim:
        raise InputError(f"{path}: contains no vectors")
    return file


class NpyVectors:
    """Vectors of a `.npy` file, with the columns of the CSV file beside it, if there is one.

    Attributes:
        report: What does not fit the types of the columns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _readable(path), path.open("rb") as file:
            self.count, self.dim = _check_vectors(path, _Array(path, "the array", file))
        beside = path.with_suffix(".csv")
        self._table = CsvTable(beside) if beside.is_file() else None
        self.names = () if self._table is None else tuple(self._table.names)
        self.report = TableReport() if self._table is None else self._table.report
        if self._table is not None and self._table.count != self.count:
            raise InputError(f"{beside}: {self._table.count} rows, but {path.name} has {self.count} vectors")

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """Yield all rows; see `VectorFile`."""
        blocks = iter(()) if self._table is None else self._table.blocks(rows)
        with _readable(self.path), self.path.open("rb") as file:
            array = _Array(self.path, "the array", file)
            for start in range(0, self.count, rows):
                yield Chunk(start, array.read(rows), next(blocks, {}))


class NpzVectors:
    """Vectors and columns of a `.npz` file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._arrays() as arrays:
            if _VECTORS not in arrays:
                raise InputError(f"{path}: no array {_VECTORS!r}; arrays: {', '.join(arrays)}")
            self.count, self.dim = _check_vectors(path, arrays[_VECTORS])
            for name, array in arrays.items():
                if name != _VECTORS and array.shape != (self.count,):
                    shape = list(array.shape)
                    raise InputError(f"{path}: array {name!r} is {shape}, not one value per vector")
            self.names = tuple(_column_name(name) for name in arrays if name != _VECTORS)

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """Yield all rows; see `VectorFile`."""
        with self._arrays() as arrays:
            for start in range(0, self.count, rows):
                read = {name: array.read(rows) for name, array in arrays.items()}
                vectors = read.pop(_VECTORS)
                columns = {
                    _column_name(name): plain_values(values.tolist(), f"{self.path}, array {name!r}", start)
                    for name, values in read.items()
                }
                yield Chunk(start, vectors, columns)

    @contextmanager
    def _arrays(self) -> Iterator[dict[str, _Array]]:
        with _readable(self.path), ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(self.path))
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            files = [stack.enter_context(archive.open(name)) for name in archive.namelist()]
            yield {
                name: _Array(self.path, f"array {name!r}", file)
                for name, file in zip(names, files, strict=True)
            }


class ParquetVectors:
    """Vectors and columns of a Parquet file.

    Attributes:
        units: What the file says of `Manifest.units`; it may be wrong.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        pa, parquet = import_pyarrow(path)
        with _readable(path, pa.ArrowException):
            file = self._open(parquet)
            names = file.schema_arrow.names
            if VECTOR not in names:
                raise InputError(f"{path}: no column {VECTOR!r}; columns: {', '.join(names[:10])}")
            self.count = file.metadata.num_rows
            self.names = tuple(name for name in names if name != VECTOR)
            self.units = _units((file.schema_arrow.metadata or {}).get(UNITS))
            first = next(file.iter_batches(1, columns=[VECTOR]), None)
            self.dim = 0 if first is None else self._vectors(first.column(0), 0).shape[1]

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """Yield all rows; see `VectorFile`."""
        pa, parquet = import_pyarrow(self.path)
        start = 0
        with _readable(self.path, pa.ArrowException):
            for batch in self._open(parquet).iter_batches(rows):
                columns = {
                    name: arrow_values(batch.column(name), f"{self.path}, column {name!r}", start)
                    for name in self.names
                }
                vectors = self._vectors(batch.column(VECTOR), start)
                if vectors.shape[1] != self.dim:
                    raise InputError(
                        f"{self.path}, rows from {start + 1}: vectors of {vectors.shape[1]} dimensions, "
                        f"but the first has {self.dim}"
                    )
                yield Chunk(start, vectors, columns)
                start += len(vectors)

    def _open(self, parquet: Any) -> Any:
        # Read in parts; by default a whole row group, which may be the whole file, is read at once.
        return parquet.ParquetFile(self.path, pre_buffer=False, buffer_size=_BUFFER)

    def _vectors(self, column: Any, start: int) -> np.ndarray:
        import pyarrow as pa

        kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        if not any(is_kind(column.type) for is_kind in kinds):
            raise InputError(f"{self.path}: the column {VECTOR!r} is {column.type}, not lists of numbers")
        lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
        if column.null_count or len(lengths) > 1:
            raise InputError(
                f"{self.path}, rows from {start + 1}: missing vectors, or vectors of different lengths"
            )
        flat: np.ndarray = column.flatten().to_numpy(zero_copy_only=False)
        _check_floating(self.path, flat.dtype)
        return flat.reshape(len(column), -1)


class _Array:
    """An array in numpy's format that is read from the start on, in parts."""

    def __init__(self, path: Path, name: str, file: IO[bytes]) -> None:
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(np.lib.format.read_magic(file))
        if read_header is None:
            raise InputError(f"{path}: {name} is in a format that is not supported")
        self._file = file
        self.shape, self._by_columns, self.dtype = read_header(file)
        if self.dtype.hasobject:
            raise InputError(f"{path}: {name} contains pickled objects, which are not loaded")
        self._left = self.shape[0] if self.shape else 0
        self._all: np.ndarray | None = None

    def read(self, rows: int) -> np.ndarray:
        """Return the next rows, at most `rows`; an array in Fortran order is read as a whole."""
        rows = min(rows, self._left)
        if self._by_columns and self._all is None:
            self._all = self._next(self.shape[::-1]).T
        self._left -= rows
        if self._all is None:
            return self._next((rows, *self.shape[1:]))
        start = len(self._all) - self._left - rows
        return self._all[start : start + rows]

    def _next(self, shape: tuple[int, ...]) -> np.ndarray:
        count = int(np.prod(shape))
        data = self._file.read(count * self.dtype.itemsize)
        if len(data) < count * self.dtype.itemsize:
            raise ValueError("it ends too early")
        return np.frombuffer(data, self.dtype).reshape(shape)


def _units(text: bytes | None) -> Mapping[str, object]:
    """Return the units that the metadata of a schema names; none if another program has written them."""
    try:
        found = json.loads(text or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def _readable(path: Path, *more: type[Exception]) -> Iterator[None]:
    caught: tuple[type[Exception], ...] = (*ARRAY_ERRORS, zipfile.BadZipFile, *more)
    try:
        yield
    except caught as error:
        raise InputError(f"{path}: cannot be read as a file of vectors ({error})") from error


def _check_vectors(path: Path, array: _Array) -> tuple[int, int]:
    """Return the number of vectors and their dimension."""
    if len(array.shape) != 2:
        raise InputError(f"{path}: vectors must be [N, D], got {list(array.shape)}")
    _check_floating(path, array.dtype)
    return array.shape[0], array.shape[1]


def _check_floating(path: Path, kind: np.dtype[Any]) -> None:
    if not np.issubdtype(kind, np.floating):
        raise InputError(f"{path}: vectors must be floating-point, [N, D]; got {kind}")


def _column_name(array: str) -> str:
    return "id" if array == "ids" else array
