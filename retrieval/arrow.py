"""Tables in the format of Arrow, which pandas, polars, DuckDB and pyarrow take from any object that has
`__arrow_c_stream__` (the Arrow PyCapsule interface), and which Parquet files are written from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.machine.extras import needs

VECTOR = "vector"  # name of the column of vectors
AT_ONCE = 16_384  # rows of a batch
# Kind of a column -> name of its type. A score is a cosine, computed in this precision.
_TYPES = {"integer": "int64", "number": "float64", "score": "float32", "text": "string"}


def load_pyarrow(what: str) -> Any:
    """Return the module `pyarrow`.

    Raises:
        InputError: It is not installed, which `what` needs.
    """
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise InputError(f"{what} {needs('pyarrow')}") from error
    return pyarrow


def table_schema(kinds: Mapping[str, str], dim: int | None = None) -> Any:
    """Return the schema of a table, a `pyarrow.Schema`.

    Args:
        kinds: Kind of each column: "integer", "number", "score" or "text".
        dim: Length of the vectors in a last column, `VECTOR`; `None` for none.
    """
    pa = load_pyarrow("an Arrow table")
    fields = [(name, getattr(pa, _TYPES[kind])()) for name, kind in kinds.items()]
    return pa.schema(fields if dim is None else [*fields, (VECTOR, pa.list_(pa.float32(), dim))])


def record_batch(
    schema: Any, columns: Mapping[str, Sequence[Any] | np.ndarray], vectors: np.ndarray | None = None
) -> Any:
    """Return rows as a `pyarrow.RecordBatch`. Vectors, float32 [n, D], are not copied if contiguous.

    Raises:
        LookalikeError: A value is of another type than its column, which was changed after the schema was
            made.
    """
    pa = load_pyarrow("an Arrow table")
    arrays = []
    for field in schema:
        if field.name == VECTOR and vectors is not None:
            flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, field.type.list_size))
            continue
        values = columns[field.name]
        if field.type == pa.string() and not {*map(type, values)} <= {str, type(None)}:
            # A column of text may have numbers from earlier versions.
            values = [None if value is None else str(value) for value in values]
        try:
            arrays.append(pa.array(values, field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            what = f"column {field.name!r}: changed while it was read ({error})"
            raise LookalikeError(f"{what}; read it again") from error
    return pa.record_batch(arrays, schema=schema)


def stream(schema: Any, batches: Iterable[Any], requested_schema: object | None = None) -> object:
    """Return record batches as a capsule for `__arrow_c_stream__`; they are made as the consumer asks.

    Args:
        schema: Their schema.
        batches: Record batches.
        requested_schema: Capsule of the schema that the consumer asks for.
    """
    reader = load_pyarrow("an Arrow table").RecordBatchReader.from_batches(schema, batches)
    return reader.__arrow_c_stream__(requested_schema)


def slices(count: int) -> Iterator[slice]:
    """Yield the rows of each batch of a table of `count` rows."""
    return (slice(start, start + AT_ONCE) for start in range(0, count, AT_ONCE))
