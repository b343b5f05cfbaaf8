"""Export of a gallery's vectors, and import of vectors computed by other programs.

A Parquet file has one row per image with the columns `id`, `path`, `label`, `width`, `height`, the metadata
columns and `vector`. A `.npy` file contains only the vectors, [N, D]; a CSV file of the same name has the
other columns (to import it, every row needs a path). A `.npz` file has the array `vectors` and optionally an
array [N] for each other column.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.embedder import Embedder
from retrieval.errors import InputError
from retrieval.files import atomic_write, now
from retrieval.gallery import Gallery
from retrieval.ingest import tables
from retrieval.progress import Progress
from retrieval.storage import schema
from retrieval.storage.manifest import Manifest
from retrieval.storage.queries import column_type
from retrieval.storage.records import UPLOADS, FileStamp, NewItem, StoredItem, Value
from retrieval.storage.store import Store

BATCH = 4096
_VECTOR, _VECTORS = "vector", "vectors"
_COLUMNS = ("id", "path", "label", "width", "height")
_SUFFIXES = (".parquet", ".npy", ".npz")


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of a source.

    Attributes:
        start: Number of the first row, from 0.
        values: Values of each row, by column.
        vectors: Vectors, float32 or float64 [n, D].
    """

    start: int
    values: list[dict[str, Any]]
    vectors: np.ndarray


# ---- export


def export_vectors(gallery: Gallery, target: Path, *, show_progress: bool = False) -> int:
    """Export all items of a gallery, in batches of bounded memory; the files are written atomically.

    Args:
        gallery: Gallery to export.
        target: `.parquet` file, or `.npy` file with a CSV file beside it.
        show_progress: Print progress on stderr.

    Returns:
        Number of items.

    Raises:
        InputError: The suffix is another one, or pyarrow is not installed for `.parquet`.
        LookalikeError: The gallery is damaged.
    """
    columns = [*_COLUMNS, *gallery.store.columns()]
    with Progress("exporting", len(gallery), "vectors", show=show_progress) as progress:
        batches = _batches_of(gallery, progress)
        if target.suffix == ".parquet":
            _write_parquet(gallery, target, columns, batches)
        elif target.suffix == ".npy":
            _write_arrays(gallery, target, columns, batches)
        else:
            raise InputError(f"{target}: the file name must end in .parquet or .npy")
    return len(gallery)


def _batches_of(gallery: Gallery, progress: Progress) -> Iterator[Batch]:
    state = gallery.snapshot
    rows = state.live_rows()
    for start in range(0, len(rows), BATCH):
        some = rows[start : start + BATCH]
        ids = state.item_ids(some).tolist()
        found = {item.id: item for item in gallery.store.items(ids)}
        if len(found) < len(ids):
            raise InputError(f"{gallery.folder}: compacted during the export; run the export again")
        yield Batch(start, [_row(gallery, found[i]) for i in ids], state.vectors(some))
        progress.update(len(some))


def _row(gallery: Gallery, item: StoredItem) -> dict[str, Value]:
    values = (item.key, gallery.paths.of(item), item.label, item.width, item.height)
    return {**dict(zip(_COLUMNS, values, strict=True)), **item.metadata}


def _write_arrays(gallery: Gallery, target: Path, columns: Sequence[str], batches: Iterable[Batch]) -> None:
    shape = (len(gallery), gallery.snapshot.stored.dim)
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    with (
        atomic_write(target.with_suffix(".csv")) as table,
        atomic_write(target) as draft,
        draft.open("wb") as file,
        table.open("w", newline="", encoding="utf-8") as text,
    ):
        np.lib.format.write_array_header_1_0(file, header)
        lines = csv.DictWriter(text, columns, restval="")
        lines.writeheader()
        for batch in batches:
            file.write(np.ascontiguousarray(batch.vectors, "<f4").tobytes())
            lines.writerows(batch.values)


def _write_parquet(gallery: Gallery, target: Path, columns: Sequence[str], batches: Iterable[Batch]) -> None:
    pa, parquet = _pyarrow(target)
    types = {"number": pa.float64(), "integer": pa.int64(), "text": pa.string()}
    fields = [(name, pa.string()) for name in _COLUMNS[:3]] + [(name, pa.int64()) for name in _COLUMNS[3:]]
    kinds = {name: column_type(gallery.store, name) or "integer" for name in columns[len(_COLUMNS) :]}
    fields += [(name, types[kind]) for name, kind in kinds.items()]
    dim = gallery.snapshot.stored.dim
    layout = pa.schema([*fields, (_VECTOR, pa.list_(pa.float32(), dim))])
    with atomic_write(target) as draft, closing(parquet.ParquetWriter(draft, layout)) as file:
        for batch in batches:
            arrays = [
                pa.array([_cast(row.get(name), kinds.get(name)) for row in batch.values], kind)
                for name, kind in fields
            ]
            flat = pa.array(np.ascontiguousarray(batch.vectors).reshape(-1))
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, dim))
            file.write_batch(pa.record_batch(arrays, schema=layout))


def _cast(value: Value, kind: str | None) -> Value:
    return str(value) if kind == "text" and value is not None else value


# ---- import


def import_vectors(
    folder: Path,
    source: Path,
    *,
    model: Path | None = None,
    name: str | None = None,
    root: Path | None = None,
    show_progress: bool = False,
) -> int:
    """Import vectors computed by another program; they are normalized.

    The gallery is created if necessary. The key of an item is the column `id`, or else `path`, or else the
    row number; an item with the same key is replaced.

    Args:
        folder: Gallery folder.
        source: `.parquet`, `.npy` (with an optional CSV file of the same name beside it) or `.npz` file.
        model: Model file that computed the vectors.
        name: Name of the embedding, if there is no model file; such a gallery can be searched by its items
            and by vectors only.
        root: Base folder of relative paths; by default the folder of `source`.
        show_progress: Print progress on stderr.

    Returns:
        Number of vectors.

    Raises:
        InputError: The source is invalid; the message has the row. Nothing is changed.
    """
    if source.suffix not in _SUFFIXES or not source.is_file():
        raise InputError(f"{source}: not a file of type {', '.join(_SUFFIXES)}")
    count, dim = _check(source)
    gallery = _gallery(folder, dim, model, name)
    base = (root or source.parent).resolve()
    started = now()
    with gallery.store.writing(), Progress("importing", count, "vectors", show=show_progress) as progress:
        for batch in _read(source):
            vectors = batch.vectors.astype(np.float64)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            items = [
                _item(values, batch.start + i, base, gallery.store) for i, values in enumerate(batch.values)
            ]
            gallery.store.commit(vectors.astype(np.float32), items)
            progress.update(len(items))
        gallery.store.record_run("import", started, {"added": count})
        gallery.refresh()
    return count


def _check(source: Path) -> tuple[int, int]:
    """Check all rows before the first is imported; return the number of vectors and their dimension."""
    count, dim, seen = 0, 0, set[str]()
    for batch in _read(source):
        vectors = batch.vectors
        if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
            raise InputError(f"{source}: vectors must be floating-point, [N, D]; got {vectors.dtype}")
        dim = dim or vectors.shape[1]
        if vectors.shape[1] != dim:
            raise InputError(f"{source}: vectors of {dim} and {vectors.shape[1]} dimensions")
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
        for invalid, problem in ((~np.isfinite(norms), "not finite"), (norms == 0, "zero")):
            if invalid.any():
                row = batch.start + int(np.argmax(invalid)) + 1
                raise InputError(f"{source}, row {row}: the vector is {problem}")
        names = dict.fromkeys(name for values in batch.values for name in values if name not in _COLUMNS)
        schema.match_columns(names, ())
        for number, values in enumerate(batch.values, batch.start):
            for name in names:
                schema.check_value(name, values.get(name))
            key = schema.check_key(_key(values, number))
            if key in seen:
                raise InputError(f"{source}, row {number + 1}: the id {key!r} is already used")
            seen.add(key)
        count += len(vectors)
    if not count or not dim:
        raise InputError(f"{source}: contains no vectors")
    return count, dim


def _gallery(folder: Path, dim: int, model: Path | None, name: str | None) -> Gallery:
    embedder = None if model is None else Embedder(model)
    if (folder / "gallery.db").exists():
        gallery = Gallery(folder)
        manifest = gallery.store.manifest
        if manifest.dim != dim:
            raise InputError(
                f"{folder}: has vectors of {manifest.dim} dimensions, not {dim}; use another gallery"
            )
        if embedder is not None:
            gallery.check_model(embedder)
        elif name != manifest.embedding:
            hint = (
                f"--embedding {manifest.embedding!r}"
                if manifest.embedding
                else "--model with the model file of the gallery"
            )
            raise InputError(
                f"{folder}: confirm that the vectors have the same origin as those in the gallery: {hint}"
            )
        return gallery
    if embedder is not None:
        if embedder.dim != dim:
            raise InputError(f"{model}: has {embedder.dim} dimensions, but the vectors have {dim}")
        return Gallery.create(folder, embedder)
    if not name:
        raise InputError("origin of the vectors: pass --model FILE or --embedding NAME")
    Store.create(folder, Manifest(f"embedding:{name}", dim, embedding=name))
    return Gallery(folder)


def _key(values: Mapping[str, Any], number: int) -> str:
    key = values.get("id") if values.get("id") is not None else values.get("path")
    return str(number) if key in (None, "") else str(key)


def _item(values: Mapping[str, Any], number: int, base: Path, store: Store) -> NewItem:
    stamp = FileStamp("", "", 0, 0)
    if values.get("path"):
        full = base / str(values["path"])
        root = base if full.is_relative_to(base) else Path(full.anchor)
        found = full.stat() if full.is_file() else None
        version = (found.st_size, found.st_mtime_ns) if found else (0, 0)
        if full.parent == store.uploads:
            stamp = FileStamp(UPLOADS, full.name, *version)
        else:
            stamp = FileStamp(str(root), full.relative_to(root).as_posix(), *version)
    label = values.get("label")
    stamp = replace(stamp, label=None if label is None else str(label))
    metadata = {name: value for name, value in values.items() if name not in _COLUMNS}
    width, height = (int(values.get(side) or 0) for side in ("width", "height"))
    return NewItem(stamp, "", width, height, metadata, key=_key(values, number))


# ---- readers


def _read(source: Path) -> Iterator[Batch]:
    """Read a source in batches of a few thousand rows."""
    return _read_parquet(source) if source.suffix == ".parquet" else _read_arrays(source)


def _read_arrays(source: Path) -> Iterator[Batch]:
    try:
        loaded = np.load(source, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{source}: cannot be read as a file of arrays ({error})") from error
    if source.suffix == ".npy":
        vectors, rows = loaded, _sidecar_rows(source, len(loaded) if loaded.ndim else 0)
    else:
        arrays = {name: _array(source, loaded, name) for name in loaded.files}
        if _VECTORS not in arrays:
            raise InputError(f"{source}: no array {_VECTORS!r}; arrays: {', '.join(arrays)}")
        vectors = arrays.pop(_VECTORS)
        for name, array in arrays.items():
            if array.shape != vectors.shape[:1]:
                raise InputError(f"{source}: array {name!r} is {list(array.shape)}, not one value per vector")
        lists = {"id" if name == "ids" else name: array.tolist() for name, array in arrays.items()}
        rows = (dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True))
        rows = rows if lists else ({} for _ in range(len(vectors)))
    if vectors.ndim != 2:
        raise InputError(f"{source}: vectors must be [N, D], got {list(vectors.shape)}")
    for start in range(0, len(vectors), BATCH):
        some = np.asarray(vectors[start : start + BATCH])
        yield Batch(start, list(islice(rows, len(some))), some)


def _array(source: Path, loaded: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(loaded[name])
    except ValueError as error:
        raise InputError(
            f"{source}: array {name!r} contains pickled objects, which are not loaded"
        ) from error


def _sidecar_rows(source: Path, count: int) -> Iterator[dict[str, Any]]:
    """Return the rows of the CSV file beside a `.npy` file; empty rows if there is none."""
    table = source.with_suffix(".csv")
    if not table.is_file():
        return ({} for _ in range(count))
    rows = [{"id": r.id, "path": r.path, "label": r.label, **r.metadata} for r in tables.read_table(table)]
    if len(rows) != count:
        raise InputError(f"{table}: {len(rows)} rows, but {source.name} has {count} vectors")
    return iter(rows)


def _read_parquet(source: Path) -> Iterator[Batch]:
    pa, parquet = _pyarrow(source)
    try:
        file = parquet.ParquetFile(source)
        names = file.schema_arrow.names
        if _VECTOR not in names:
            raise InputError(f"{source}: no column {_VECTOR!r}; columns: {', '.join(names[:10])}")
        start = 0
        for batch in file.iter_batches(BATCH):
            column = batch.column(_VECTOR)
            lengths = set(column.value_lengths().to_pylist()) if pa.types.is_list(column.type) else {1}
            if column.null_count or len(lengths) > 1:
                raise InputError(
                    f"{source}, rows from {start + 1}: missing vectors, or vectors of different lengths"
                )
            flat = column.flatten().to_numpy(zero_copy_only=False)
            rows = batch.drop_columns([_VECTOR]).to_pylist()
            yield Batch(start, rows, flat.reshape(len(rows), -1))
            start += len(rows)
    except (OSError, pa.ArrowException, AttributeError) as error:
        raise InputError(f"{source}: cannot be read as a Parquet file of vectors ({error})") from error


def _pyarrow(file: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise InputError(f"{file}: Parquet needs pyarrow: pip install 'lookalike[parquet]'") from error
    return pyarrow, pyarrow.parquet
