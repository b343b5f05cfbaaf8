"""Export of a gallery's vectors, and import of vectors computed by other programs.

A Parquet file has one row per image with the columns `id`, `path`, `label`, `width`, `height`, the metadata
columns and `vector`. A `.npy` file contains only the vectors, [N, D]; a CSV file of the same name has the
other columns. `retrieval.ingest.vector_files` describes what can be imported.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import numpy as np

from retrieval.errors import InputError
from retrieval.files import atomic_write, now
from retrieval.galleries.database import StoreGallery
from retrieval.galleries.database_folder import is_store, read_folder
from retrieval.galleries.files import Gallery
from retrieval.galleries.searchable import SearchableGallery
from retrieval.images.location import shown
from retrieval.ingest.indexing import index_new_vectors
from retrieval.ingest.store_transfer import StoreImport, chunks_of_store, kinds_of, types_of
from retrieval.ingest.tables import TableReport, import_pyarrow
from retrieval.ingest.vector_files import VECTOR, Chunk, NpyVectors, VectorFile, open_vectors
from retrieval.ingest.vector_items import COLUMNS, VectorItems
from retrieval.ingest.vector_shards import ShardVectors
from retrieval.model.embedder import Embedder
from retrieval.model.runtime import Runtime
from retrieval.progress import Progress
from retrieval.storage.identity import check_storage
from retrieval.storage.manifest import Manifest
from retrieval.storage.queries import column_type
from retrieval.storage.records import IndexSpec, Value
from retrieval.storage.store import Store
from retrieval.stores.address import Address

AT_ONCE = 16_384  # rows of an export in memory
_INTEGERS = ("width", "height")


# ---- export


def export_vectors(gallery: SearchableGallery, target: Path, *, show_progress: bool = False) -> int:
    """Export all items of a gallery, column by column in bounded memory; the files are written atomically.

    From a database, items that are added or removed meanwhile may or may not be among them.

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
    if target.suffix not in (".parquet", ".npy"):
        raise InputError(f"{target}: the file name must end in .parquet or .npy")
    if target.suffix == ".parquet":
        import_pyarrow(target)
    with Progress("exporting", len(gallery), "vectors", show=show_progress) as progress:
        if isinstance(gallery, StoreGallery):
            kinds = kinds_of(gallery)
            chunks = chunks_of_store(gallery, [*kinds], progress)
        else:
            assert isinstance(gallery, Gallery)
            kinds = {name: column_type(gallery.store, name) or "integer" for name in gallery.columns()}
            chunks = _chunks_of(gallery, progress)
        own = {name: "integer" if name in _INTEGERS else "text" for name in COLUMNS}
        write = _write_parquet if target.suffix == ".parquet" else _write_arrays
        return write(target, gallery.manifest.dim, {**own, **kinds}, chunks)


def _chunks_of(gallery: Gallery, progress: Progress) -> Iterator[Chunk]:
    state, paths = gallery.snapshot, gallery.paths
    rows = state.live_rows()
    for start in range(0, len(rows), AT_ONCE):
        some = rows[start : start + AT_ONCE]
        ids = state.item_ids(some)
        by_id = np.argsort(ids)
        known, facts, metadata = gallery.store.item_columns(ids[by_id].tolist())
        if len(known) < len(ids):
            raise InputError(f"{gallery.folder}: compacted during the export; run the export again")
        files = [*map(shown, map(paths.join, facts.root, facts.path))]
        values = (facts.key, files, facts.label, facts.width, facts.height)
        columns = {**dict(zip(COLUMNS, map(list, values), strict=True)), **metadata}
        yield Chunk(start, state.vectors(some[by_id]), {name: list(found) for name, found in columns.items()})
        progress.update(len(some))


def _write_arrays(target: Path, dim: int, kinds: Mapping[str, str], chunks: Iterable[Chunk]) -> int:
    """Write a `.npy` file, and a CSV file with the other columns; return the number of rows."""
    count = 0
    with (
        atomic_write(target.with_suffix(".csv")) as table,
        atomic_write(target) as draft,
        draft.open("wb") as file,
        table.open("w", newline="", encoding="utf-8") as text,
    ):
        _write_header(file, count, dim)
        lines = csv.writer(text)
        lines.writerow(kinds)
        for chunk in chunks:
            count += len(chunk.vectors)
            file.write(np.ascontiguousarray(chunk.vectors, "<f4").data)
            lines.writerows(zip(*(chunk.columns[name] for name in kinds), strict=True))
        file.seek(0)
        _write_header(file, count, dim)
    return count


def _write_header(file: IO[bytes], count: int, dim: int) -> None:
    """Write the header of a `.npy` file, whose length is the same for every number of rows."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (count, dim)}
    np.lib.format.write_array_header_1_0(file, header)


def _write_parquet(target: Path, dim: int, kinds: Mapping[str, str], chunks: Iterable[Chunk]) -> int:
    """Write a Parquet file, and return the number of rows."""
    pa, parquet = import_pyarrow(target)
    types = {"number": pa.float64(), "integer": pa.int64(), "text": pa.string()}
    fields = [(name, types[kind]) for name, kind in kinds.items()]
    layout = pa.schema([*fields, (VECTOR, pa.list_(pa.float32(), dim))])
    # Vectors neither repeat nor compress: trying both takes most of the time.
    options = {"use_dictionary": list(kinds), "compression": "NONE", "write_statistics": list(kinds)}
    count = 0
    with (
        atomic_write(target) as draft,
        closing(parquet.ParquetWriter(draft, layout, **options)) as file,
    ):
        for chunk in chunks:
            arrays = [pa.array(_cast(chunk.columns[name], kinds[name]), kind) for name, kind in fields]
            flat = pa.array(np.ascontiguousarray(chunk.vectors).reshape(-1))
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, dim))
            file.write_batch(pa.record_batch(arrays, schema=layout))
            count += len(chunk.vectors)
    return count


def _cast(values: list[Value], kind: str) -> list[Value]:
    """Return values of a column as one type: a column of text may have numbers from earlier versions."""
    if kind != "text" or {*map(type, values)} <= {str, type(None)}:
        return values
    return [None if value is None else str(value) for value in values]


# ---- import


@dataclass(frozen=True)
class ImportResult:
    """Result of an import.

    Attributes:
        added: Number of new items.
        replaced: Number of items whose key the gallery had, and whose vector is a new one now.
        unchanged: Number of rows that the gallery had already: rows without ids that an earlier import of the
            same file had added; in a database, all rows with the same contents as an item.
        table: What does not fit the types of the columns of a CSV file.
    """

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    table: TableReport = field(default_factory=TableReport)

    @property
    def counts(self) -> dict[str, int]:
        """All counts, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}


def import_vectors(
    folder: Path,
    source: Path,
    *,
    model: Path | None = None,
    name: str | None = None,
    store: Address | None = None,
    root: Path | None = None,
    prefix: str | None = None,
    index: IndexSpec | None = None,
    storage: str | None = None,
    runtime: Runtime | None = None,
    show_progress: bool = False,
) -> ImportResult:
    """Import vectors computed by another program; they are normalized and indexed.

    The gallery is created if necessary. The key of an item is the column `id`, or else `path`; an item with
    the same key is replaced. In a file with neither column, row 17 gets the key PREFIX-000000017. Such items
    are never replaced: if the gallery has their vectors already, the import continues after them.

    Rows are committed in the order of the file, about 30 MB of vectors at a time, 4096 rows in a database. An
    interrupted import leaves the rows committed so far; the same call continues. In a database, rows with the
    same contents as an item are left out.

    Args:
        folder: Gallery folder.
        source: `.parquet`, `.npy` (with an optional CSV file of the same name beside it) or `.npz` file, or a
            folder of vector shards.
        model: Model file that computed the vectors.
        name: Name of the embedding, if there is no model file; such a gallery can be searched by its items
            and by vectors only.
        store: Address of the collection of a new gallery in a database; `None` for a gallery in files, or one
            that exists.
        root: Base folder of relative paths; by default the folder of `source`.
        prefix: Start of the keys of rows without an id; by default the name of `source` without its suffix.
        index: Index to build; `None` keeps the present kind of index. A database takes the recall only.
        storage: Type of the stored numbers, "float32" or "float16"; `None` for that of the gallery.
        runtime: Device and provider of the model, and device of the index.
        show_progress: Print progress on stderr.

    Raises:
        InputError: The source is invalid; the message has the row. Or the gallery has other vectors under
            the keys of rows without ids. Nothing is changed.
        LookalikeError: As for `Gallery.build_index`; the vectors are imported.
    """
    file: VectorFile = ShardVectors(source) if source.is_dir() else open_vectors(source)
    runtime = runtime or Runtime()
    embedder = None if model is None else Embedder.open(model, runtime)
    if isinstance(file, ShardVectors) and embedder is not None:
        file.check_model(embedder)
    items = VectorItems(file, (root or source.parent).resolve(), prefix or source.stem)
    table = file.report if isinstance(file, NpyVectors) else TableReport()
    if store is not None or is_store(folder):
        target = _open_store(folder, items, embedder, name, store, storage, runtime, show_progress)
        run = StoreImport(target, items)
        run.run(None if index is None else index.recall, show_progress=show_progress)
        return ImportResult(run.added, run.replaced, run.unchanged, table)
    is_new = not (folder / "gallery.db").exists()
    if is_new:
        _check_origin(file, embedder, name)
        items.check(None, show_progress=show_progress)
        gallery = _create(folder, file.dim, embedder, name, storage or "float32", runtime)
    else:
        gallery = Gallery(folder, runtime=runtime)
        _check_same_origin(gallery, file.dim, embedder, name)
        check_storage(folder, gallery.store.manifest, storage)
    with gallery.store.writing():
        started = now()
        gallery.refresh()
        unchanged = 0 if is_new else items.check(gallery, show_progress=show_progress)
        result = _append(gallery, items, unchanged, started, show_progress)
        index_new_vectors(gallery, index, show_progress=show_progress)
    return replace(result, table=table)


def _append(
    gallery: Gallery, items: VectorItems, unchanged: int, started: str, show_progress: bool
) -> ImportResult:
    """Append the items after the first `unchanged` ones, record the run, and return its counts."""
    count, replaced, total = 0, 0, items.file.count
    try:
        with Progress("importing", total, "vectors", begun=unchanged, show=show_progress) as progress:
            for vectors, facts, metadata in items.chunks(gallery.store.uploads, unchanged):
                replaced += gallery.store.append(vectors, facts, metadata)
                count += len(facts)
                progress.update(len(facts))
    finally:
        result = ImportResult(count - replaced, replaced, unchanged)
        if count:
            gallery.store.record_run("import", started, result.counts)
            gallery.refresh()
    return result


def _check_origin(file: VectorFile, embedder: Embedder | None, name: str | None) -> None:
    """Raise an `InputError` unless a new gallery has a model of the same dimension, or a name for one."""
    if embedder is None and not name:
        raise InputError("origin of the vectors: pass --model FILE or --embedding NAME")
    if embedder is not None and embedder.dim != file.dim:
        raise InputError(f"{embedder.path}: has {embedder.dim} dimensions, but the vectors have {file.dim}")


def _create(
    folder: Path, dim: int, embedder: Embedder | None, name: str | None, storage: str, runtime: Runtime
) -> Gallery:
    if embedder is not None:
        return Gallery.create(folder, embedder, storage=storage)
    Store.create(folder, Manifest(f"embedding:{name}", dim, embedding=name, dtype=storage))
    return Gallery(folder, runtime=runtime)


def _open_store(
    folder: Path,
    items: VectorItems,
    embedder: Embedder | None,
    name: str | None,
    address: Address | None,
    storage: str | None,
    runtime: Runtime,
    show_progress: bool,
) -> StoreGallery:
    """Open or create the gallery in a database that rows are imported into, after their check."""
    if is_store(folder):
        if address is not None and str(address) != str(known := read_folder(folder).address):
            raise InputError(f"{folder}: its images are at {known}; omit --store, or choose another name")
        gallery = StoreGallery(folder, runtime=runtime, address=address)
        _check_same_origin(gallery, items.file.dim, embedder, name)
        check_storage(folder, gallery.manifest, storage)
        items.check_for_store(types_of(gallery), show_progress=show_progress)
        return gallery
    assert address is not None
    if (folder / "gallery.db").exists():
        raise InputError(f"{folder}: a gallery in files; choose another name, or omit --store")
    _check_origin(items.file, embedder, name)
    items.check_for_store({}, show_progress=show_progress)
    dtype = storage or "float32"
    if embedder is not None:
        return StoreGallery.create(folder, embedder, address, storage=dtype)
    return StoreGallery.create_for_embedding(folder, name or "", items.file.dim, address, storage=dtype)


def _check_same_origin(
    gallery: SearchableGallery, dim: int, embedder: Embedder | None, name: str | None
) -> None:
    """Raise an `InputError` unless a gallery's vectors have the same origin."""
    folder, manifest = gallery.folder, gallery.manifest
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
