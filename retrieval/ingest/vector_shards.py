"""Vector shards: Parquet files of embedded images, written one by one by the workers of an indexing run.

They are in one folder, local or in object storage: any file system that pyarrow opens by a URI, such as
`s3://bucket/folder`. A shard is written under a temporary name and renamed, so that it is complete or absent.
It has one row per file, with the columns of `lookalike index export` (`id`, `path`, `label`, `width`,
`height`, the metadata, `vector`) and

| column | contents |
|---|---|
| `_content_sha256` | SHA-256 of the file |
| `_size`, `_mtime_ns` | size in bytes and modification time in nanoseconds when the run was planned |
| `_reason`, `_detail` | why the file is unusable; then `vector` is null. Otherwise null |

The model and the version of the decoding policy are in the metadata of the schema. The same file may be in
several shards: the row in the last one, by name, counts.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.arrow import VECTOR
from retrieval.errors import ImageError, InputError
from retrieval.ingest.pipeline import Embedded
from retrieval.ingest.tables import arrow_values, import_pyarrow
from retrieval.ingest.vector_files import Chunk
from retrieval.ingest.vector_items import COLUMNS, CONTENT, MTIME, SIZE
from retrieval.model.embedder import Embedder
from retrieval.storage.records import Value

REASON, DETAIL = "_reason", "_detail"
OWN_COLUMNS = (CONTENT, SIZE, MTIME, REASON, DETAIL)
_SUFFIX = ".parquet"
_ORIGIN = b"lookalike.shard"  # key in the metadata of the schema
_USABLE, _UNUSABLE, _UNREACHABLE = range(3)  # kinds of files


@dataclass(frozen=True)
class ShardOrigin:
    """How the vectors of a shard were computed.

    Attributes:
        model: SHA-256 of the model file.
        decode_policy: Version of the decoding policy; see `retrieval.images.load`.
        dim: Length of a vector.
    """

    model: str
    decode_policy: int
    dim: int

    @property
    def schema_metadata(self) -> dict[bytes, bytes]:
        """The origin as metadata of a schema."""
        return {_ORIGIN: json.dumps(asdict(self)).encode()}


class VectorShards:
    """A folder of shards.

    Attributes:
        address: Absolute path or URI of the folder.

    Args:
        address: Folder, or URI of a folder.

    Raises:
        InputError: pyarrow is not installed, or has no file system for the URI.
    """

    def __init__(self, address: str | Path) -> None:
        text = str(address)
        self._arrow, self._parquet = import_pyarrow(Path(text))
        self.address = text.rstrip("/") if "://" in text else str(Path(text).absolute())
        self._footers: dict[str, Any] = {}  # of files of blocks
        with self._errors("opened"):
            self.files, self._folder = open_file_system(self.address)

    def path(self, name: str) -> str:
        """Return the path of a file of this folder in the file system `files`."""
        return f"{self._folder}/{name}"

    def names(self) -> list[str]:
        """Return the names of all shards in order; none if there is no such folder."""
        return [name for name in self._files() if name.endswith(_SUFFIX)]

    def _files(self) -> list[str]:
        from pyarrow.fs import FileSelector

        with self._errors("listed"):
            found = self.files.get_file_info(FileSelector(self._folder, allow_not_found=True))
        return sorted(file.base_name for file in found if file.is_file)

    def has(self, name: str) -> bool:
        """Return whether a shard exists."""
        with self._errors("read", name):
            return bool(self.files.get_file_info(self.path(name)).is_file)

    def create(self) -> None:
        """Create the folder if necessary."""
        with self._errors("created"):
            self.files.create_dir(self._folder, recursive=True)

    def mark(self, name: str) -> None:
        """Create an empty file."""
        with self._errors("written"):
            self.files.open_output_stream(self.path(name)).close()

    def delete(self, name: str) -> None:
        """Delete a file."""
        with self._errors("changed"):
            self.files.delete_file(self.path(name))

    def delete_rest(self, run: str) -> None:
        """Delete the files of a run that are not shards: those whose names begin with `run`."""
        for name in self._files():
            if name.startswith(run) and not name.endswith(_SUFFIX):
                self.delete(name)

    def write(self, name: str, table: Any) -> None:
        """Write a table of pyarrow as a shard, whole or not at all.

        Raises:
            InputError: It cannot be written.
        """
        sink = self._arrow.BufferOutputStream()
        texts = [column for column in table.column_names if column != VECTOR]
        # Vectors neither repeat nor compress: trying both takes most of the time.
        compression = {column: "SNAPPY" if column != VECTOR else "NONE" for column in table.column_names}
        self._parquet.write_table(
            table, sink, use_dictionary=texts, compression=compression, write_statistics=False
        )
        draft = f"{self.path(name)}.tmp-{uuid.uuid4().hex}"
        with self._errors("written"):
            with self.files.open_output_stream(draft) as file:
                file.write(sink.getvalue())
            self.files.move(draft, self.path(name))

    def read(self, name: str, columns: Sequence[str] | None = None) -> Any:
        """Return a shard, or some of its columns, as a table of pyarrow.

        Raises:
            InputError: It cannot be read.
        """
        with self._errors("read", name):
            return self._parquet.read_table(self.path(name), filesystem=self.files, columns=columns)

    def write_blocks(self, name: str, schema: Any, tables: Iterable[Any]) -> int:
        """Write tables of pyarrow as row groups of one file, which is not a shard; return their number."""
        self.create()
        count = 0
        with (
            self._errors("written"),
            self.files.open_output_stream(self.path(name)) as sink,
            closing(self._parquet.ParquetWriter(sink, schema)) as file,
        ):
            for count, table in enumerate(tables, 1):  # noqa: B007
                file.write_table(table, row_group_size=len(table))
        return count

    def read_block(self, name: str, block: int) -> Any:
        """Return a row group of a file that `write_blocks` wrote. Thread-safe."""
        with self._errors("read", name):
            if name not in self._footers:
                self._footers[name] = self._parquet.read_metadata(self.path(name), filesystem=self.files)
            with self._parquet.ParquetFile(
                self.path(name), filesystem=self.files, metadata=self._footers[name]
            ) as file:
                return file.read_row_group(block)

    def schema(self, name: str) -> Any:
        """Return the schema of a Parquet file of this folder."""
        with self._errors("read", name):
            return self._parquet.read_schema(self.path(name), filesystem=self.files)

    @contextmanager
    def _errors(self, verb: str, name: str = "") -> Iterator[None]:
        """Convert errors of the file system and of pyarrow about a file, or about the folder."""
        try:
            yield
        except (OSError, self._arrow.ArrowException) as error:
            remedy = "; delete it if it is damaged" if verb == "read" else ""
            raise InputError(f"{self.address}/{name}: cannot be {verb} ({error}){remedy}") from error


class ShardedFiles:
    """The files in the shards of one origin, each at its last row.

    Memory use: 41 bytes per row.

    Attributes:
        names: Names of these shards.
        usable: Number of files that have a vector.

    Args:
        shards: Folder of the shards.
        origin: Shards of other models or policies are left out.
    """

    def __init__(self, shards: VectorShards, origin: ShardOrigin) -> None:
        self.names = [name for name in shards.names() if _origin(shards.schema(name)) == origin]
        hashes, stamps = [np.empty(0, np.int64)], [np.empty((0, 2), np.int64)]
        places, kinds = [np.empty((0, 2), np.int64)], [np.empty(0, np.int8)]
        for number, name in enumerate(self.names):
            table = shards.read(name, ["path", SIZE, MTIME, REASON])
            hashes.append(_hashes(table["path"].to_pylist()))
            stamps.append(np.stack([table[SIZE].to_numpy(), table[MTIME].to_numpy()], 1))
            places.append(np.stack([np.full(len(table), number), np.arange(len(table))], 1))
            kinds.append(np.array([_kind(reason) for reason in table[REASON].to_pylist()], np.int8))
        # The first of equal values in the reversed order is the last row of a file.
        self._hashes, last = np.unique(np.concatenate(hashes)[::-1], return_index=True)
        self._stamps: np.ndarray = np.concatenate(stamps)[::-1][last]
        self._places: np.ndarray = np.concatenate(places)[::-1][last]
        self._kinds: np.ndarray = np.concatenate(kinds)[::-1][last]
        self.usable = int((self._kinds == _USABLE).sum())

    def find(
        self, paths: Sequence[str], sizes: Sequence[int], times: Sequence[int], *, retry: bool = False
    ) -> np.ndarray:
        """Return the place of each file of that size and modification time, int64 [n, 2].

        A place is the number of the shard in `names` and the row in it; -1 for a file that has none. Files
        are found by a hash of their path: compare the path when you read the row. A file that could not be
        reached is not found.

        Args:
            paths: Full paths.
            sizes: Sizes in bytes.
            times: Modification times in nanoseconds.
            retry: Do not find unusable files.
        """
        places = np.full((len(paths), 2), -1, np.int64)
        if not len(self._hashes):
            return places
        hashes = _hashes(paths)
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        stamps = np.stack([np.array(sizes, np.int64), np.array(times, np.int64)], 1)
        same = (self._hashes[at] == hashes) & (self._stamps[at] == stamps).all(1)
        same &= self._kinds[at] <= (_USABLE if retry else _UNUSABLE)
        places[same] = self._places[at[same]]
        return places

    def usable_rows(self, shard: int) -> np.ndarray:
        """Return the rows of a shard that are the last ones of usable files, ascending, int64 [n]."""
        start, end = np.searchsorted(self._ordered[:, 0], [shard, shard + 1])
        rows: np.ndarray = self._ordered[start:end, 1]
        return rows

    @cached_property
    def _ordered(self) -> np.ndarray:
        """Places of the usable files, ascending, int64 [n, 2]."""
        places = self._places[self._kinds == _USABLE]
        ordered: np.ndarray = places[np.lexsort((places[:, 1], places[:, 0]))]
        return ordered


class ShardVectors:
    """The usable images in a folder of shards, as a `VectorFile`.

    Use it to load the vectors into another database: `chunks` yields ids, paths, labels, metadata and
    vectors in bounded memory, and the checksums, sizes and modification times of the image files, which are
    not in `names`.

    Attributes:
        path, count, dim, names: See `retrieval.ingest.vector_files.VectorFile`.
        origin: Model that computed the vectors.

    Args:
        folder: Folder of the shards, or its URI.

    Raises:
        InputError: There are no shards, or shards of several models.
    """

    def __init__(self, folder: str | Path) -> None:
        self._shards = VectorShards(folder)
        self.path = Path(self._shards.address)
        origins: set[ShardOrigin] = set()
        columns: dict[str, None] = {}
        for schema in map(self._shards.schema, self._shards.names()):
            if origin := _origin(schema):
                origins.add(origin)
                columns |= dict.fromkeys(schema.names)
        if not origins:
            raise InputError(f"{folder}: contains no vector shards")
        if len(origins) > 1:
            models = ", ".join(sorted({origin.model[:12] for origin in origins}))
            raise InputError(f"{folder}: shards of several models ({models}); move them to separate folders")
        (self.origin,) = origins
        self.dim = self.origin.dim
        self._files = ShardedFiles(self._shards, self.origin)
        self.count = self._files.usable
        own = {*COLUMNS, *OWN_COLUMNS, VECTOR}
        self.names = (*COLUMNS, *(name for name in columns if name not in own))

    def check_model(self, embedder: Embedder) -> None:
        """Raise an `InputError` if another model computed the vectors."""
        if embedder.fingerprint != self.origin.model:
            raise InputError(f"{self.path}: vectors of another model than {embedder.path}")

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """Yield all rows in chunks of up to `rows`, in the order of the shards."""
        import pyarrow as pa

        waiting, start = pa.table({}), 0
        for number, name in enumerate(self._files.names):
            table = self._shards.read(name).take(pa.array(self._files.usable_rows(number)))
            waiting = self._joined([waiting, table]) if len(waiting) else table
            while len(waiting) >= rows:
                yield self._chunk(waiting[:rows], start)
                waiting, start = waiting[rows:], start + rows
        if len(waiting):
            yield self._chunk(waiting, start)

    def _joined(self, tables: Sequence[Any]) -> Any:
        import pyarrow as pa

        try:
            return pa.concat_tables(tables, promote_options="permissive")
        except pa.ArrowException as error:
            raise InputError(f"{self.path}: a column has another type in some shards ({error})") from error

    def _chunk(self, table: Any, start: int) -> Chunk:
        columns: dict[str, list[Value]] = {
            name: arrow_values(table[name].combine_chunks(), f"{self.path}, column {name!r}", start)
            if name in table.column_names
            else [None] * len(table)
            for name in (*self.names, CONTENT, SIZE, MTIME)
        }
        return Chunk(start, vectors_of(table), columns)


def open_file_system(address: str) -> tuple[Any, str]:
    """Return the file system of pyarrow for an absolute path or a URI, and the path in it."""
    from pyarrow.fs import FileSystem, LocalFileSystem

    found: tuple[Any, str] = (
        FileSystem.from_uri(address) if "://" in address else (LocalFileSystem(), address)
    )
    return found


def shard_table(
    files: Any, found: Sequence[Embedded | ImageError], vectors: np.ndarray, origin: ShardOrigin
) -> Any:
    """Return a shard as a table of pyarrow.

    Args:
        files: Table of the files: `id`, `path`, `label`, metadata, `_size`, `_mtime_ns`.
        found: What was found in each file.
        vectors: Vectors of those that are `Embedded`, in order, float32 [n, D].
        origin: How the vectors were computed.
    """
    import pyarrow as pa

    is_bad = np.array([isinstance(file, ImageError) for file in found], bool)
    filled = np.zeros((len(found), origin.dim), np.float32)
    filled[~is_bad] = vectors
    flat = pa.array(filled.reshape(-1))
    images = [None if isinstance(file, ImageError) else file for file in found]
    errors = [file if isinstance(file, ImageError) else None for file in found]
    columns = {name: files[name] for name in files.column_names}
    columns |= {
        "width": pa.array([image and image.width for image in images], pa.int64()),
        "height": pa.array([image and image.height for image in images], pa.int64()),
        CONTENT: pa.array([image and image.content_sha256 for image in images], pa.string()),
        REASON: pa.array([error and error.reason for error in errors], pa.string()),
        DETAIL: pa.array([error and error.detail for error in errors], pa.string()),
        VECTOR: pa.FixedSizeListArray.from_arrays(flat, origin.dim, mask=pa.array(is_bad)),
    }
    metadata = [name for name in files.column_names if name not in (*COLUMNS, *OWN_COLUMNS)]
    order = [*COLUMNS, *metadata, *OWN_COLUMNS, VECTOR]
    return pa.table({name: columns[name] for name in order}).replace_schema_metadata(origin.schema_metadata)


def found_in(table: Any) -> list[Embedded | ImageError]:
    """Return what was found in each file of a shard, given as a table of pyarrow."""
    names = ("path", CONTENT, "width", "height", REASON, DETAIL)
    rows = zip(*(table[name].to_pylist() for name in names), strict=True)
    return [
        Embedded(content, width, height) if reason is None else ImageError(path, reason, detail)
        for path, content, width, height, reason, detail in rows
    ]


def vectors_of(table: Any) -> np.ndarray:
    """Return the column `vector` of a table without null vectors, float32 [n, D]."""
    column = table[VECTOR].combine_chunks()
    vectors: np.ndarray = column.flatten().to_numpy(zero_copy_only=False)
    return vectors.reshape(len(column), column.type.list_size)


def _origin(schema: Any) -> ShardOrigin | None:
    """Return the origin in a schema of pyarrow; `None` if it is not that of a shard."""
    try:
        return ShardOrigin(**json.loads((schema.metadata or {})[_ORIGIN]))
    except (KeyError, TypeError, ValueError):
        return None


def _kind(reason: str | None) -> int:
    if reason is None:
        return _USABLE
    return _UNREACHABLE if reason in ImageError.UNREACHABLE else _UNUSABLE


def _hashes(paths: Sequence[str]) -> np.ndarray:
    """Return a hash of each path that is the same only within this process, int64 [n]."""
    return np.fromiter(map(hash, paths), np.int64, len(paths))
