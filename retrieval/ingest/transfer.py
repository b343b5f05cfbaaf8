"""Take a gallery's vectors elsewhere, and take in vectors that were made elsewhere.

A Parquet file has a row for each picture: `id`, `path`, `label`, `width`, `height`, a column for each of the
metadata, and `vector`. A `.npy` file has the vectors alone, [N, D], and a CSV file of the same name the rest
(to be read again, every row must have a path). A `.npz` file has `vectors` and, if need be, an array [N] for
each of the other columns.
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
from retrieval.storage.records import OWN, FileStamp, NewItem, StoredItem, Value
from retrieval.storage.store import Store

BATCH = 4096
_VECTOR, _VECTORS = "vector", "vectors"
_FACTS = ("id", "path", "label", "width", "height")
_SUFFIXES = (".parquet", ".npy", ".npz")


@dataclass(frozen=True)
class Batch:
    """Some rows of a source: what is known about each, and their vectors, float32 or float64 [n, D]."""

    start: int
    values: list[dict[str, Any]]
    vectors: np.ndarray


# ---- out


def export(gallery: Gallery, target: Path, *, show_progress: bool = False) -> int:
    """Write everything alive to `target`, `.parquet` or `.npy` (with a CSV file beside it) -> how many.

    Memory stays bounded; the files appear complete or not at all.

    Raises:
        InputError: another suffix, or pyarrow is not installed for `.parquet`.
        LookalikeError: something is damaged.
    """
    columns = [*_FACTS, *gallery.store.columns()]
    with Progress("exporting", len(gallery), "vectors", show=show_progress) as progress:
        batches = _batches_of(gallery, progress)
        if target.suffix == ".parquet":
            _write_parquet(gallery, target, columns, batches)
        elif target.suffix == ".npy":
            _write_arrays(gallery, target, columns, batches)
        else:
            raise InputError(f"{target}: the name must end in .parquet or .npy")
    return len(gallery)


def _batches_of(gallery: Gallery, progress: Progress) -> Iterator[Batch]:
    state = gallery.snapshot
    rows = np.flatnonzero(state.ids)
    for start in range(0, len(rows), BATCH):
        some = rows[start : start + BATCH]
        ids = state.ids[some].tolist()
        found = {item.id: item for item in gallery.store.items(ids)}
        if len(found) < len(ids):
            raise InputError(f"{gallery.folder}: it was compacted meanwhile; run the export again")
        yield Batch(start, [_flat(gallery, found[i]) for i in ids], state.vectors(some))
        progress.update(len(some))


def _flat(gallery: Gallery, item: StoredItem) -> dict[str, Value]:
    facts = (item.key, gallery.paths.of(item), item.label, item.width, item.height)
    return {**dict(zip(_FACTS, facts, strict=True)), **item.metadata}


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
    fields = [(name, pa.string()) for name in _FACTS[:3]] + [(name, pa.int64()) for name in _FACTS[3:]]
    kinds = {name: column_type(gallery.store, name) or "integer" for name in columns[len(_FACTS) :]}
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


# ---- in


def import_vectors(
    folder: Path,
    source: Path,
    *,
    model: Path | None = None,
    name: str | None = None,
    root: Path | None = None,
    show_progress: bool = False,
) -> int:
    """Take in vectors that were made elsewhere -> how many; they are normalised.

    The gallery is made if it is not there: for a model file, whose vectors they must be, or else for an
    embedding that is known by name alone, whose gallery is searched by its items or by vectors. Rows are
    `id` (or else `path`, or else the number of the row), and replace those with the same id.

    Args:
        source: `.parquet`, `.npy` (with a CSV file of the same name beside it, if there is one) or `.npz`.
        model: the model file that made the vectors.
        name: what made them, where it is not a model file.
        root: what paths are relative to; the folder of `source` where it is left out.

    Raises:
        InputError: what is wrong with the source, and in which row; nothing is changed then.
    """
    if source.suffix not in _SUFFIXES or not source.is_file():
        raise InputError(f"{source}: no file with the name of a source: {', '.join(_SUFFIXES)}")
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
    """Look at every row before any is taken -> how many, and of how many dimensions."""
    count, dim, seen = 0, 0, set[str]()
    for batch in _read(source):
        vectors = batch.vectors
        if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
            raise InputError(f"{source}: vectors must be numbers with a point, [N, D]; got {vectors.dtype}")
        dim = dim or vectors.shape[1]
        if vectors.shape[1] != dim:
            raise InputError(f"{source}: vectors of {dim} and of {vectors.shape[1]} dimensions")
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
        for wrong, what in ((~np.isfinite(norms), "is not finite"), (norms == 0, "is zero")):
            if wrong.any():
                row = batch.start + int(np.argmax(wrong)) + 1
                raise InputError(f"{source}, row {row}: its vector {what}")
        names = dict.fromkeys(name for values in batch.values for name in values if name not in _FACTS)
        schema.check_columns(names, ())
        for number, values in enumerate(batch.values, batch.start):
            for name in names:
                schema.check_value(name, values.get(name))
            key = schema.check_key(_key(values, number))
            if key in seen:
                raise InputError(f"{source}, row {number + 1}: the id {key!r} is in use already")
            seen.add(key)
        count += len(vectors)
    if not count or not dim:
        raise InputError(f"{source}: it has no vectors")
    return count, dim


def _gallery(folder: Path, dim: int, model: Path | None, name: str | None) -> Gallery:
    embedder = None if model is None else Embedder(model)
    if (folder / "gallery.db").exists():
        gallery = Gallery(folder)
        manifest = gallery.store.manifest
        if manifest.dim != dim:
            what = f"{folder}: it holds vectors of {manifest.dim} dimensions, these have {dim}"
            raise InputError(f"{what}; make a gallery of their own for them")
        if embedder is not None:
            gallery.check_model(embedder)
        elif name != manifest.embedding:
            hint = (
                f"--embedding {manifest.embedding!r}"
                if manifest.embedding
                else "--model with the model file of the gallery"
            )
            raise InputError(f"{folder}: say that the vectors are of the kind it holds: {hint}")
        return gallery
    if embedder is not None:
        if embedder.dim != dim:
            raise InputError(f"{model}: it makes {embedder.dim} dimensions, the vectors have {dim}")
        return Gallery.create(folder, embedder)
    if not name:
        raise InputError("say what made the vectors: --model FILE, or --embedding NAME")
    Store.create(folder, Manifest(f"embedding:{name}", dim, embedding=name))
    return Gallery(folder)


def _key(values: Mapping[str, Any], number: int) -> str:
    given = values.get("id") if values.get("id") is not None else values.get("path")
    return str(number) if given in (None, "") else str(given)


def _item(values: Mapping[str, Any], number: int, base: Path, store: Store) -> NewItem:
    stamp = FileStamp("", "", 0, 0)
    if values.get("path"):
        full = base / str(values["path"])
        root = base if full.is_relative_to(base) else Path(full.anchor)
        found = full.stat() if full.is_file() else None
        facts = (found.st_size, found.st_mtime_ns) if found else (0, 0)
        if full.parent == store.own:
            stamp = FileStamp(OWN, full.name, *facts)
        else:
            stamp = FileStamp(str(root), full.relative_to(root).as_posix(), *facts)
    label = values.get("label")
    stamp = replace(stamp, label=None if label is None else str(label))
    metadata = {name: value for name, value in values.items() if name not in _FACTS}
    width, height = (int(values.get(side) or 0) for side in ("width", "height"))
    return NewItem(stamp, "", width, height, metadata, key=_key(values, number))


# ---- sources


def _read(source: Path) -> Iterator[Batch]:
    """The rows of a source, a few thousand at a time."""
    return _read_parquet(source) if source.suffix == ".parquet" else _read_arrays(source)


def _read_arrays(source: Path) -> Iterator[Batch]:
    try:
        loaded = np.load(source, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{source}: not a file of arrays that can be read ({error})") from error
    if source.suffix == ".npy":
        vectors, rows = loaded, _beside(source, len(loaded) if loaded.ndim else 0)
    else:
        arrays = {name: _array(source, loaded, name) for name in loaded.files}
        if _VECTORS not in arrays:
            raise InputError(f"{source}: it has no array {_VECTORS!r}; there are: {', '.join(arrays)}")
        vectors = arrays.pop(_VECTORS)
        for name, array in arrays.items():
            if array.shape != vectors.shape[:1]:
                raise InputError(f"{source}: array {name!r} is {list(array.shape)}, not one value a vector")
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
        raise InputError(f"{source}: array {name!r} cannot be read without running code in it") from error


def _beside(source: Path, count: int) -> Iterator[dict[str, Any]]:
    """The rows of the CSV file beside a `.npy` file."""
    table = source.with_suffix(".csv")
    if not table.is_file():
        return ({} for _ in range(count))
    rows = [{"id": r.id, "path": r.path, "label": r.label, **r.metadata} for r in tables.read_table(table)]
    if len(rows) != count:
        raise InputError(f"{table}: it has {len(rows)} rows, {source.name} has {count} vectors")
    return iter(rows)


def _read_parquet(source: Path) -> Iterator[Batch]:
    pa, parquet = _pyarrow(source)
    try:
        file = parquet.ParquetFile(source)
        names = file.schema_arrow.names
        if _VECTOR not in names:
            raise InputError(f"{source}: it has no column {_VECTOR!r}; there are: {', '.join(names[:10])}")
        start = 0
        for batch in file.iter_batches(BATCH):
            column = batch.column(_VECTOR)
            lengths = set(column.value_lengths().to_pylist()) if pa.types.is_list(column.type) else {1}
            if column.null_count or len(lengths) > 1:
                raise InputError(f"{source}, rows from {start + 1} on: vectors of several lengths, or none")
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
