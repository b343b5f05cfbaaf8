"""Export of a gallery's vectors, and import of vectors computed by other programs.

A Parquet file has one row per image with the columns `id`, `path`, `label`, `width`, `height`, the metadata
columns and `vector`; its schema says which columns name the products and how pictures are divided. A `.npy`
file contains only the vectors, [N, D]; a CSV file of the same name has the other columns.
`retrieval.ingest.vector_files` describes what can be imported.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from retrieval.arrow import AT_ONCE, record_batch, table_schema
from retrieval.errors import InputError
from retrieval.files import atomic_write, now
from retrieval.galleries.database import DatabaseView
from retrieval.galleries.database_folder import is_store, read_folder
from retrieval.galleries.files import FilesView
from retrieval.galleries.searchable import SearchableGallery
from retrieval.images.location import shown
from retrieval.ingest.store_transfer import StoreImport, types_of
from retrieval.ingest.tables import TableReport, import_pyarrow
from retrieval.ingest.vector_files import UNITS, Chunk, NpyVectors, ParquetVectors, VectorFile, open_vectors
from retrieval.ingest.vector_items import COLUMNS, VectorItems
from retrieval.ingest.vector_shards import ShardVectors
from retrieval.model.embedder import Embedder
from retrieval.model.runtime import Runtime
from retrieval.progress import Progress
from retrieval.storage.conditions import item_columns
from retrieval.storage.identity import check_storage
from retrieval.storage.manifest import known_units
from retrieval.storage.records import IndexSpec
from retrieval.stores.address import Address

_INTEGERS = ("width", "height")
_FILLED = 10_000  # vectors from which a new gallery is filled; fewer are indexed as fast one by one


# ---- export


Rows = Callable[[Progress], tuple[Mapping[str, str], Iterator[Chunk]]]
"""Function that returns the kind of each metadata column of a gallery, "text", "integer" or "number", and all
items by ascending id, as columns with their vectors, in bounded memory; it updates the progress."""


def export_vectors(
    gallery: SearchableGallery, rows: Rows, target: Path, *, show_progress: bool = False
) -> int:
    """Export all items of a gallery, column by column in bounded memory; the files are written atomically.

    From a database, items that are added or removed meanwhile may or may not be among them.

    Args:
        gallery: Gallery to export.
        rows: Its rows.
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
        kinds, chunks = rows(progress)
        own = {name: "integer" if name in _INTEGERS else "text" for name in COLUMNS}
        columns, dim = {**own, **kinds}, gallery.manifest.dim
        if target.suffix == ".npy":
            return _write_arrays(target, dim, columns, chunks)
        return _write_parquet(target, dim, columns, chunks, gallery.manifest.units)


def rows_of_files(gallery: FilesView, progress: Progress) -> tuple[Mapping[str, str], Iterator[Chunk]]:
    """Return the kinds of the metadata columns, and all items by id; see `Rows`."""
    return gallery.contents.kinds(), _chunks_of(gallery, progress)


def _chunks_of(gallery: FilesView, progress: Progress) -> Iterator[Chunk]:
    state, paths = gallery.state, gallery.paths
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


def _write_parquet(
    target: Path, dim: int, kinds: Mapping[str, str], chunks: Iterable[Chunk], units: Mapping[str, Any]
) -> int:
    """Write a Parquet file, and return the number of rows."""
    _, parquet = import_pyarrow(target)
    layout = table_schema(kinds, dim).with_metadata({UNITS: json.dumps(units)})
    # Vectors neither repeat nor compress: trying both takes most of the time.
    options = {"use_dictionary": list(kinds), "compression": "NONE", "write_statistics": list(kinds)}
    count = 0
    with (
        atomic_write(target) as draft,
        closing(parquet.ParquetWriter(draft, layout, **options)) as file,
    ):
        for chunk in chunks:
            file.write_batch(record_batch(layout, chunk.columns, chunk.vectors))
            count += len(chunk.vectors)
    return count


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


@dataclass(frozen=True)
class Origin:
    """Where the vectors of a file come from, and the rows of the file.

    Attributes:
        items: Rows of the file.
        model: Model that computed the vectors; `None` for an external embedding.
        name: Name of the embedding, if there is no model file.
        runtime: Device and provider of the model, and device of the index.
    """

    items: VectorItems
    model: Embedder | None
    name: str | None
    runtime: Runtime

    @classmethod
    def read(
        cls,
        source: Path,
        *,
        model: str | Path | None = None,
        name: str | None = None,
        root: str | Path | None = None,
        prefix: str | None = None,
        runtime: Runtime | None = None,
    ) -> Origin:
        """Open a file of vectors; see `retrieval.gallery.Gallery.import_vectors`."""
        file: VectorFile = ShardVectors(source) if source.is_dir() else open_vectors(source)
        runtime = runtime or Runtime()
        embedder = None if model is None else Embedder.open(model, runtime)
        if isinstance(file, ShardVectors) and embedder is not None:
            file.check_model(embedder)
        items = VectorItems(file, Path(root or source.parent).resolve(), prefix or source.stem)
        return cls(items, embedder, name, runtime)

    @property
    def table(self) -> TableReport:
        """What does not fit the types of the columns of a CSV file."""
        file = self.items.file
        return file.report if isinstance(file, NpyVectors) else TableReport()

    def check(self) -> None:
        """Raise an `InputError` unless there is a model of the same dimension, or a name for one."""
        if self.model is None and not self.name:
            raise InputError("origin of the vectors: pass --model FILE or --embedding NAME")
        dim = self.items.file.dim
        if self.model is not None and self.model.dim != dim:
            raise InputError(
                f"{self.model.path}: has {self.model.dim} dimensions, but the vectors have {dim}"
            )

    def check_same(self, gallery: SearchableGallery, storage: str | None) -> None:
        """Raise an `InputError` unless a gallery's vectors have the same origin and type of numbers."""
        folder, manifest, dim = gallery.folder, gallery.manifest, self.items.file.dim
        if manifest.dim != dim:
            raise InputError(
                f"{folder}: has vectors of {manifest.dim} dimensions, not {dim}; use another gallery"
            )
        if self.model is not None:
            gallery.check_model(self.model)
        elif self.name != manifest.embedding:
            hint = (
                f"--embedding {manifest.embedding!r}"
                if manifest.embedding
                else "--model with the model file of the gallery"
            )
            raise InputError(
                f"{folder}: confirm that the vectors have the same origin as those in the gallery: {hint}"
            )
        check_storage(folder, manifest, storage)


def import_into_files(
    folder: Path,
    origin: Origin,
    *,
    index: IndexSpec | None = None,
    storage: str | None = None,
    show_progress: bool = False,
) -> ImportResult:
    """Import vectors into a gallery in files; see `retrieval.gallery.Gallery.import_vectors`."""
    items, model = origin.items, origin.model
    is_new = not (folder / "gallery.db").exists()
    if is_new:
        origin.check()
        items.check(None, show_progress=show_progress)
        dtype, runtime = storage or "float32", origin.runtime
        gallery = (
            FilesView.new(folder, model, storage=dtype)
            if model is not None
            else FilesView.new_for_embedding(
                folder, origin.name or "", items.file.dim, runtime, storage=dtype
            )
        )
        _use_units(gallery, items.file)
    else:
        gallery = FilesView(folder, runtime=origin.runtime)
        origin.check_same(gallery, storage)
    with gallery.store.writing():
        started = now()
        gallery.refresh()
        unchanged = 0 if is_new else items.check(gallery, show_progress=show_progress)
        result = _append(gallery, items, unchanged, started, show_progress)
        gallery.index_new(index, reindex=False, added=result.added, show_progress=show_progress)
    return replace(result, table=origin.table)


def import_into_database(
    folder: Path,
    origin: Origin,
    address: Address | None,
    *,
    recall: float | None = None,
    storage: str | None = None,
    show_progress: bool = False,
) -> ImportResult:
    """Import vectors into a gallery in a database; see `retrieval.gallery.Gallery.import_vectors`."""
    items, model = origin.items, origin.model
    if is_store(folder):
        if address is not None and str(address) != str(known := read_folder(folder).address):
            raise InputError(f"{folder}: its images are at {known}; omit --store, or choose another name")
        gallery = DatabaseView(folder, runtime=origin.runtime, address=address)
        origin.check_same(gallery, storage)
        items.check_for_store(types_of(gallery), show_progress=show_progress)
    else:
        assert address is not None
        if (folder / "gallery.db").exists():
            raise InputError(f"{folder}: a gallery in files; choose another name, or omit --store")
        origin.check()
        items.check_for_store({}, show_progress=show_progress)
        dtype, dim = storage or "float32", items.file.dim
        gallery = (
            DatabaseView.new(folder, model, address, storage=dtype)
            if model is not None
            else DatabaseView.new_for_embedding(folder, origin.name or "", dim, address, storage=dtype)
        )
        _use_units(gallery, items.file)
    run = StoreImport(gallery, items)
    run.run(recall, show_progress=show_progress)
    return ImportResult(run.added, run.replaced, run.unchanged, origin.table)


def _use_units(gallery: SearchableGallery, file: VectorFile) -> None:
    """Give a new gallery the products and parts of pictures that the exported one had."""
    said = file.units if isinstance(file, ParquetVectors) else {}
    if units := known_units(said, item_columns(file.names)):
        gallery.writer.use_manifest(replace(gallery.manifest, **units))
        gallery.refresh()


def _append(
    gallery: FilesView, items: VectorItems, unchanged: int, started: str, show_progress: bool
) -> ImportResult:
    """Append the items after the first `unchanged` ones, record the run, and return its counts."""
    count, replaced, total = 0, 0, items.file.count
    store = gallery.store
    try:
        with (
            store.filling() if total >= _FILLED and store.is_new() else nullcontext(),
            Progress("importing", total, "vectors", begun=unchanged, show=show_progress) as progress,
        ):
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
