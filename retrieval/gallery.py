"""Gallery: images with their embeddings, in a folder of files or in a database, with one set of operations.

`Gallery.open` and `Gallery.create` return the kind that a folder or an address asks for. What is searched is
in `retrieval.galleries`; what changes a gallery is in `retrieval.ingest`, `retrieval.curation` and
`retrieval.upkeep`, which are built on it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

from retrieval.curation.duplicate_groups import NearDuplicates
from retrieval.curation.duplicates import find_in_files
from retrieval.curation.store_duplicates import find_in_database
from retrieval.curation.thinning import Thinning, remove_from_database, remove_from_files
from retrieval.errors import InputError
from retrieval.files import now
from retrieval.galleries.database import DatabaseView
from retrieval.galleries.database_folder import is_gallery, is_store, read_folder
from retrieval.galleries.files import FilesView
from retrieval.galleries.inapplicable import inapplicable
from retrieval.galleries.searchable import SearchableGallery
from retrieval.galleries.writer import FileWriter
from retrieval.ingest import sync as syncing
from retrieval.ingest.editor import Editor
from retrieval.ingest.indexing import MAX_BAD, BadFilePolicy, BatchSource, IngestResult, add_images
from retrieval.ingest.sources import Sources
from retrieval.ingest.store_transfer import rows_of_database
from retrieval.ingest.transfer import (
    ImportResult,
    Origin,
    export_vectors,
    import_into_database,
    import_into_files,
    rows_of_files,
)
from retrieval.ingest.watch import watch
from retrieval.model.embedder import Embedder
from retrieval.model.layer import Layer
from retrieval.model.runtime import Runtime
from retrieval.search.index import IndexWork
from retrieval.search.options import NEAR_DUPLICATE, Duplicates
from retrieval.storage.identity import check_storage
from retrieval.storage.manifest import check_dtype
from retrieval.storage.records import IndexSpec
from retrieval.stores.address import Address
from retrieval.stores.opening import parse_address
from retrieval.upkeep import reprojection
from retrieval.upkeep.bridge import Sample, bridge
from retrieval.upkeep.compact import Compaction, compact
from retrieval.upkeep.rebuild import RebuildResult, rebuild
from retrieval.upkeep.snapshot import GalleryCopy, copy_gallery
from retrieval.upkeep.store_rebuild import rebuild_database
from retrieval.upkeep.store_reprojection import reproject_database, undo_database
from retrieval.upkeep.store_verify import verify_database
from retrieval.upkeep.verify import Verification
from retrieval.upkeep.verify import verify as verify_files


class Gallery(SearchableGallery):
    """A gallery, opened for searches and changes.

    One in files shows the state in which it was opened until `refresh()`; other processes may write
    meanwhile. One in a database shows what any process has written at once. What has no meaning for a
    database raises an `InputError` that says what to do instead; see `retrieval.galleries.inapplicable`.

    Args:
        folder: Gallery folder.
        root: Folder of the image files, if they were moved after they were added.
        runtime: Device, provider, batch size and threads of the gallery's model.

    Raises:
        InputError: The folder is not a gallery, or a gallery of another format.
        LookalikeError: The gallery is damaged, or its database cannot be reached.
    """

    def __new__(cls, folder: str | Path, *_: Any, **__: Any) -> Self:
        """Return an object of the kind that the folder is of; `Gallery(folder)` is `Gallery.open(folder)`."""
        return super().__new__(cls.kind(folder) if cls is Gallery else cls)  # type: ignore[return-value]

    # ---- opening

    @classmethod
    def kind(cls, folder: str | Path, store: Address | None = None) -> type[FileGallery | DatabaseGallery]:
        """Return the kind of a gallery: in a database if its folder or an address says so, else in files."""
        return FileGallery if store is None and not is_store(Path(folder)) else DatabaseGallery

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        root: str | Path | None = None,
        runtime: Runtime | None = None,
        store: Address | None = None,
    ) -> Gallery:
        """Open a gallery; for the other arguments and errors see `Gallery`.

        Args:
            folder: Gallery folder.
            root: Folder of the image files, if they were moved.
            runtime: Runtime of the model.
            store: Address of the collection with its password; by default that in the folder.
        """
        return cls.kind(folder)._at(Path(folder), runtime, store, root)

    @classmethod
    def create(
        cls,
        folder: str | Path,
        model: Embedder | str | Path,
        *,
        storage: str = "float32",
        store: Address | str | None = None,
    ) -> Gallery:
        """Create an empty gallery for a model, whose file is copied into it.

        Args:
            folder: Gallery folder, which must be empty or not exist.
            model: Model, or model file.
            storage: Type of the stored numbers, "float32" or "float16".
            store: Address of the collection of a gallery in a database; `None` for one in files.

        Raises:
            InputError: The folder or the collection is not empty, the model cannot be used, or the type is
                unknown.
            LookalikeError: The database cannot be reached.
        """
        check_dtype(storage)
        embedder = model if isinstance(model, Embedder) else Embedder(model)
        if store is None:
            return FileGallery.new(Path(folder), embedder, storage=storage)
        address = parse_address(store) if isinstance(store, str) else store
        return DatabaseGallery.new(Path(folder), embedder, address, storage=storage)

    @classmethod
    def open_or_create(
        cls,
        folder: str | Path,
        model: Embedder,
        *,
        storage: str | None = None,
        store: Address | None = None,
    ) -> tuple[Gallery, bool]:
        """Open the gallery of a model, or create it if it is not there; return it, and whether it is new.

        Args:
            folder: Gallery folder.
            model: Model.
            storage: Type of the stored numbers; `None` for any, or "float32" for a new gallery.
            store: Address of the collection of a gallery in a database; `None` for that in the folder.

        Raises:
            InputError: The folder is that of another gallery, or has another model or type.
            LookalikeError: The gallery is damaged, or its database cannot be reached.
        """
        folder = Path(folder)
        if not is_gallery(folder):
            return cls.create(folder, model, storage=storage or "float32", store=store), True
        found = cls.open(folder, runtime=model.runtime, store=store)
        found.use_model(model)
        check_storage(folder, found.manifest, storage)
        return found, False

    @classmethod
    @abstractmethod
    def _at(
        cls, folder: Path, runtime: Runtime | None, store: Address | None, root: str | Path | None
    ) -> Gallery:
        """Open a gallery of this kind; raise an `InputError` if its items are not at an address."""

    @classmethod
    def import_vectors(
        cls,
        folder: str | Path,
        source: str | Path,
        *,
        model: str | Path | None = None,
        name: str | None = None,
        store: Address | None = None,
        root: str | Path | None = None,
        prefix: str | None = None,
        index: IndexSpec | None = None,
        storage: str | None = None,
        runtime: Runtime | None = None,
        show_progress: bool = False,
    ) -> ImportResult:
        """Import vectors computed by another program; they are normalized and indexed.

        The gallery is created if necessary. The key of an item is the column `id`, or else `path`; an item
        with the same key is replaced. In a file with neither column, row 17 gets the key PREFIX-000000017.
        Such items are never replaced: if the gallery has their vectors already, the import continues after
        them.

        Rows are committed in the order of the file, about 30 MB of vectors at a time, 4096 rows in a
        database. An interrupted import leaves the rows committed so far; the same call continues. In a
        database, rows with the same contents as an item are left out.

        Args:
            folder: Gallery folder.
            source: `.parquet`, `.npy` (with an optional CSV file of the same name beside it) or `.npz` file,
                or a folder of vector shards.
            model: Model file that computed the vectors.
            name: Name of the embedding, if there is no model file; such a gallery can be searched by its
                items and by vectors only.
            store: Address of the collection of a new gallery in a database; `None` for a gallery in files,
                or one that exists.
            root: Base folder of relative paths; by default the folder of `source`.
            prefix: Start of the keys of rows without an id; by default the name of `source` without its
                suffix.
            index: Index to build; `None` keeps the present kind of index. A database takes the recall only.
            storage: Type of the stored numbers, "float32" or "float16"; `None` for that of the gallery.
            runtime: Device and provider of the model, and device of the index.
            show_progress: Print progress on stderr.

        Raises:
            InputError: The source is invalid; the message has the row. Or the gallery has other vectors under
                the keys of rows without ids. Nothing is changed.
            LookalikeError: The index cannot be built; the vectors are imported. Or the database fails.
        """
        folder = Path(folder)
        check_dtype(storage)
        kind, spec = cls.kind(folder, store), index or IndexSpec()
        kind.check_index(spec, folder)
        origin = Origin.read(Path(source), model=model, name=name, root=root, prefix=prefix, runtime=runtime)
        return kind._import(folder, origin, store, spec, storage, show_progress)

    @classmethod
    @abstractmethod
    def _import(
        cls,
        folder: Path,
        origin: Origin,
        store: Address | None,
        index: IndexSpec,
        storage: str | None,
        show_progress: bool,
    ) -> ImportResult: ...

    def check_reachable(self) -> None:
        """Raise a `StoreError` if the database of the gallery, if it has one, does not answer."""

    @classmethod
    def check_has(cls, name: str, folder: Path) -> None:
        """Raise an `InputError` if galleries of this kind do not have an operation or option."""

    @classmethod
    def check_index(cls, index: IndexSpec, folder: Path) -> None:
        """Raise an `InputError` if galleries of this kind cannot have such an index."""
        for name in ("kind", "memory", "dim"):
            if getattr(index, name) is not None:
                cls.check_has(name, folder)

    # ---- images

    def add(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        metadata: str | Path | Sequence[Mapping[str, object]] | None = None,
        root: str | Path | None = None,
        index: IndexSpec | None = None,
        reindex: bool = False,
        retry: bool = False,
        max_bad: float | None = None,
        duplicates: Duplicates = "keep",
        show_progress: bool = False,
    ) -> IngestResult:
        """Embed and add new and changed images.

        Args:
            paths: Image files, folders, glob patterns, tar shards and URLs (s3://, https://), or one of them.
            metadata: CSV or Parquet file, or the values by column for each of `paths`, which then are files.
            root: Folder that relative paths in the metadata table refer to.
            index: Index to build; `None` keeps the present kind of index.
            reindex: Index all new vectors at the end; otherwise only if many are not indexed yet.
            retry: Retry files that were unusable in an earlier run and have not changed since.
            max_bad: Stop if a larger share of the files, counted over at least 100, is unusable; `None` for
                the default of `lookalike index add`.
            duplicates: "refuse" leaves out new images that are near-duplicates of others, in the gallery or
                among those added before them.
            show_progress: Print progress on stderr.

        Raises:
            InputError: A path does not exist or contains no image, or the metadata is invalid.
            LookalikeError: Too many files are unusable, another process is writing, or the database fails.
        """
        places = [paths] if isinstance(paths, str | Path) else list(paths)
        return self.add_sources(
            Sources(places, metadata=metadata, root=None if root is None else Path(root)),
            index=index,
            reindex=reindex,
            policy=BadFilePolicy(retry, MAX_BAD if max_bad is None else max_bad),
            duplicates=duplicates,
            show_progress=show_progress,
        )

    def add_sources(
        self,
        sources: Sources,
        *,
        index: IndexSpec | None = None,
        reindex: bool = False,
        policy: BadFilePolicy | None = None,
        embed: BatchSource | None = None,
        command: str = "add",
        duplicates: Duplicates = "keep",
        ignore_decisions: bool = False,
        show_progress: bool = False,
    ) -> IngestResult:
        """Embed and add the new and changed images of some sources; see `retrieval.ingest.indexing`.

        Args:
            sources: Images and metadata.
            index: Index to build; `None` keeps the present kind of index.
            reindex: Index all new vectors at the end; otherwise only if many are not indexed yet.
            policy: Treatment of unusable files.
            embed: Embeds the images; `None` for this process.
            command: Name of this run in the gallery's history.
            duplicates: What becomes of new images that are near-duplicates of others.
            ignore_decisions: Add images that were removed by hand, and keep labels as the sources have them.
            show_progress: Print progress on stderr.

        Raises:
            InputError, LookalikeError, KeyboardInterrupt: As for `retrieval.ingest.indexing.add_images`.
        """
        self.check_index(index or IndexSpec(), self.folder)
        if embed is not None:
            self.check_has("ray", self.folder)
        return add_images(
            self,
            sources,
            index=index,
            reindex=reindex,
            policy=policy,
            source=embed,
            command=command,
            duplicates=duplicates,
            ignore_decisions=ignore_decisions,
            show_progress=show_progress,
        )

    # Functions whose first argument is the gallery, as methods.
    sync = syncing.sync
    difference = syncing.folder_difference
    update = syncing.update
    watch = watch

    @abstractmethod
    def editor(self) -> Editor:
        """Return what changes a few items at a time and logs the decisions.

        Raises:
            InputError: The folder is no longer a gallery.
        """

    def export(self, target: str | Path, *, show_progress: bool = False) -> int:
        """Export all items; see `retrieval.ingest.transfer.export_vectors`."""
        return export_vectors(self, self._rows, Path(target), show_progress=show_progress)

    @property
    @abstractmethod
    def _rows(self) -> Any:
        """All items as columns: `retrieval.ingest.transfer.Rows`."""

    # ---- curation

    def duplicates(
        self, min_score: float = NEAR_DUPLICATE, *, exact: bool = False, show_progress: bool = False
    ) -> NearDuplicates:
        """Find groups of near-duplicates.

        A group is a connected component of all pairs of images with a cosine similarity of at least
        `min_score`, and of all pairs of files with the same bytes.

        Args:
            min_score: Lowest cosine similarity of a pair, from -1 to 1.
            exact: Compare all pairs whatever the number of images.
            show_progress: Report progress on stderr.

        Raises:
            InputError: The threshold is out of range.
        """
        if not -1 <= min_score <= 1:
            raise InputError(f"minimum score {min_score}: must be from -1 to 1")
        return self._duplicates(min_score, exact, show_progress)

    @abstractmethod
    def _duplicates(self, min_score: float, exact: bool, show_progress: bool) -> NearDuplicates: ...

    @abstractmethod
    def remove_surplus(self, thinning: Thinning) -> int:
        """Remove the surplus images of a thinning; see `retrieval.curation.thinning`."""

    # ---- upkeep

    @abstractmethod
    def optimize(self, index: IndexSpec | None = None, *, show_progress: bool = False) -> IndexWork:
        """Bring the index up to what is asked for, and return what was done.

        Args:
            index: Kind, recall and memory; what it leaves open is as in the previous call.
            show_progress: Report progress on stderr.

        Raises:
            InputError, LookalikeError: The index cannot be built, or another process is writing.
        """

    @property
    def index_card(self) -> dict[str, Any] | None:
        """Facts about the index; `None` for exact search, and for the index of a database."""
        return None

    @classmethod
    @abstractmethod
    def verify_at(
        cls,
        folder: Path,
        *,
        repair: bool = False,
        runtime: Runtime | None = None,
        show_progress: bool = False,
    ) -> Verification:
        """Check a gallery that may be too damaged to be opened; see `retrieval.upkeep.verify`."""

    @abstractmethod
    def verify(self, *, repair: bool = False, show_progress: bool = False) -> Verification:
        """Check vectors, index and model, and repair what can be repaired; see `retrieval.upkeep.verify`."""

    @abstractmethod
    def snapshot(self, target: str | Path, *, show_progress: bool = False) -> GalleryCopy:
        """Copy the last committed state into a new folder; see `retrieval.upkeep.snapshot`."""

    @abstractmethod
    def compact(self, *, show_progress: bool = False) -> Compaction:
        """Drop removed items and free disk space; see `retrieval.upkeep.compact`."""

    @abstractmethod
    def rebuild(
        self,
        model: Embedder,
        *,
        keep_old: bool = True,
        policy: BadFilePolicy | None = None,
        accept: Callable[[Any], None] | None = None,
        show_progress: bool = False,
    ) -> RebuildResult:
        """Embed all images with another model; see `retrieval.upkeep.rebuild`."""

    @abstractmethod
    def bridge(
        self,
        model: Embedder,
        count: int,
        *,
        keep_old: bool = True,
        accept: Callable[[Sample], object] | None = None,
        serving: Callable[[], object] | None = None,
        show_progress: bool = False,
    ) -> RebuildResult:
        """Serve another model at once by a map of the stored vectors; see `retrieval.upkeep.bridge`."""

    def check_projectable(self, *, drop_old: bool = False) -> None:
        """Raise an `InputError` if `reproject` would refuse the gallery, before a layer is learned."""
        reprojection.check_projectable(self, drop_old=drop_old)

    @abstractmethod
    def reproject(
        self,
        layer: Layer | None,
        model: Embedder,
        *,
        command: str,
        counts: Mapping[str, int] | None = None,
        drop_old: bool = False,
        show_progress: bool = False,
    ) -> reprojection.Reprojection:
        """Put every stored vector through a layer; see `retrieval.upkeep.reprojection.reproject`."""

    @abstractmethod
    def undo_reprojection(self, *, show_progress: bool = False) -> SearchableGallery:
        """Restore the state before the last layer; see `retrieval.upkeep.reprojection.undo`."""


class FileGallery(FilesView, Gallery):
    """A gallery in a folder of its own; for the arguments see `Gallery`."""

    @classmethod
    def _at(
        cls, folder: Path, runtime: Runtime | None, store: Address | None, root: str | Path | None
    ) -> Gallery:
        if store is not None:
            raise InputError(f"{folder}: a gallery in files; choose another name, or omit --store")
        return cls(folder, root=root, runtime=runtime)

    @classmethod
    def _import(
        cls,
        folder: Path,
        origin: Origin,
        store: Address | None,
        index: IndexSpec,
        storage: str | None,
        show_progress: bool,
    ) -> ImportResult:
        return import_into_files(folder, origin, index=index, storage=storage, show_progress=show_progress)

    def editor(self) -> Editor:
        """See `Gallery.editor`."""
        return Editor(FileWriter(self.folder))

    @property
    def _rows(self) -> Any:
        return partial(rows_of_files, self)

    def _duplicates(self, min_score: float, exact: bool, show_progress: bool) -> NearDuplicates:
        return find_in_files(self, min_score, exact=exact, show_progress=show_progress)

    remove_surplus = remove_from_files

    def optimize(self, index: IndexSpec | None = None, *, show_progress: bool = False) -> IndexWork:
        """See `Gallery.optimize`."""
        started = now()
        with self.store.writing():
            work = self.optimize_index(index, show_progress=show_progress)
            if work.done != "nothing":
                self.store.record_run("optimize", started, {"indexed": len(self)})
                self.store.clear_leftovers()
        return work

    @property
    def index_card(self) -> dict[str, Any] | None:
        """Facts about the index; `None` for exact search."""
        return None if self.index is None else self.index.card

    @classmethod
    def verify_at(
        cls,
        folder: Path,
        *,
        repair: bool = False,
        runtime: Runtime | None = None,
        show_progress: bool = False,
    ) -> Verification:
        """See `retrieval.upkeep.verify.verify`."""
        return verify_files(folder, repair=repair, runtime=runtime, show_progress=show_progress)

    def verify(self, *, repair: bool = False, show_progress: bool = False) -> Verification:
        """See `retrieval.upkeep.verify.verify`."""
        return verify_files(self.folder, repair=repair, runtime=self._runtime, show_progress=show_progress)

    def snapshot(self, target: str | Path, *, show_progress: bool = False) -> GalleryCopy:
        """See `retrieval.upkeep.snapshot.copy_gallery`."""
        return copy_gallery(self.folder, Path(target), show_progress=show_progress)

    compact = compact
    rebuild = rebuild
    bridge = bridge
    reproject = reprojection.reproject
    undo_reprojection = reprojection.undo


def _refusal(name: str) -> Callable[..., NoReturn]:
    """Return a method that raises the error for an operation of `retrieval.galleries.inapplicable`."""

    def refuse(gallery: DatabaseGallery, *_: Any, **__: Any) -> NoReturn:
        raise inapplicable(name, gallery.folder, gallery._known.address)

    return refuse


class DatabaseGallery(DatabaseView, Gallery):
    """A gallery whose items are in a database; for the arguments see `Gallery`."""

    @classmethod
    def _at(
        cls, folder: Path, runtime: Runtime | None, store: Address | None, root: str | Path | None
    ) -> Gallery:
        if store is not None and str(store) != str(known := read_folder(folder).address):
            raise InputError(f"{folder}: its images are at {known}; omit --store, or choose another name")
        return cls(folder, root=root, runtime=runtime, address=store)

    @classmethod
    def _import(
        cls,
        folder: Path,
        origin: Origin,
        store: Address | None,
        index: IndexSpec,
        storage: str | None,
        show_progress: bool,
    ) -> ImportResult:
        return import_into_database(
            folder, origin, store, recall=index.recall, storage=storage, show_progress=show_progress
        )

    def check_reachable(self) -> None:
        """Raise a `StoreError` if the database does not answer."""
        self.refresh()

    @classmethod
    def check_has(cls, name: str, folder: Path) -> None:
        """Raise an `InputError` if `retrieval.galleries.inapplicable` lists an operation or option."""
        raise inapplicable(name, folder)

    def editor(self) -> Editor:
        """See `Gallery.editor`."""
        return Editor(self.writer)

    @property
    def _rows(self) -> Any:
        return partial(rows_of_database, self)

    def _duplicates(self, min_score: float, exact: bool, show_progress: bool) -> NearDuplicates:
        if exact:
            raise inapplicable("exact", self.folder)
        return find_in_database(self, min_score, show_progress=show_progress)

    remove_surplus = remove_from_database

    def optimize(self, index: IndexSpec | None = None, *, show_progress: bool = False) -> IndexWork:
        """See `Gallery.optimize`."""
        index = index or IndexSpec()
        self.check_index(index, self.folder)
        self.complete_index(index.recall, show_progress=show_progress)
        self.refresh()
        return IndexWork("completed", "")

    @classmethod
    def verify_at(
        cls,
        folder: Path,
        *,
        repair: bool = False,
        runtime: Runtime | None = None,
        show_progress: bool = False,
    ) -> Verification:
        """See `retrieval.upkeep.store_verify.verify_database`."""
        return cls(folder, runtime=runtime).verify(repair=repair, show_progress=show_progress)

    def verify(self, *, repair: bool = False, show_progress: bool = False) -> Verification:
        """See `retrieval.upkeep.store_verify.verify_database`."""
        found = verify_database(self, show_progress=show_progress)
        if not repair or not found.problems:
            return found
        if found.unembedded:
            syncing.embed_again(self, found.unembedded, show_progress=show_progress)
        if found.unindexed:
            self.complete_index(show_progress=show_progress)
        return replace(found, left=verify_database(self, show_progress=show_progress).left)

    snapshot = _refusal("snapshot")
    compact = _refusal("compact")
    bridge = _refusal("bridge")
    rebuild = rebuild_database
    undo_reprojection = undo_database

    def reproject(
        self,
        layer: Layer | None,
        model: Embedder,
        *,
        command: str,
        counts: Mapping[str, int] | None = None,
        drop_old: bool = False,
        show_progress: bool = False,
    ) -> reprojection.Reprojection:
        """See `retrieval.upkeep.store_reprojection.reproject_database`; a database keeps no history."""
        return reproject_database(self, layer, model, drop_old=drop_old, show_progress=show_progress)
