"""A gallery in a folder of files: its committed state, opened for searches, and its index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.files import now
from retrieval.galleries.items import Item, ItemValues, Once, Ranked, item_values, ranked
from retrieval.galleries.searchable import Contents, Neighbours, Queries, SearchableGallery
from retrieval.galleries.writer import FileWriter
from retrieval.images.load import DECODE_POLICY
from retrieval.model.embedder import Embedder
from retrieval.model.runtime import Runtime
from retrieval.search.embeddings import StoredEmbeddings, read_embeddings
from retrieval.search.filters import Filters, State
from retrieval.search.index import BuiltIndex, Index, IndexWork, build_index, work_needed, write_index
from retrieval.search.options import Names, SearchOptions
from retrieval.search.query import Searcher
from retrieval.search.selection import Selection
from retrieval.search.snapshot import Snapshot
from retrieval.search.where import parse_condition
from retrieval.storage.facets import Facets, count_facets
from retrieval.storage.facts import StoredFacts
from retrieval.storage.identity import probe_pixels
from retrieval.storage.inventory import inventory
from retrieval.storage.listing import Order, Place, list_items
from retrieval.storage.lookups import create_lookups
from retrieval.storage.manifest import Manifest
from retrieval.storage.merging import merge_small
from retrieval.storage.paths import ItemPaths, StorePaths
from retrieval.storage.queries import (
    column_type,
    count_bridged,
    image_sizes,
    label_counts,
    live_ids,
    state_digest,
    value_counts,
)
from retrieval.storage.records import ActiveIndex, BadFile, GalleryState, IndexSpec, StoredItem, Value
from retrieval.storage.store import Store

_TRIES = 5
_WAITING = 10_000  # vectors that may be outside the index


class FileContents(Contents):
    """What is in a gallery in files; see `Contents`.

    Args:
        store: Store of the gallery.
        paths: Paths of the image files.
    """

    def __init__(self, store: Store, paths: ItemPaths) -> None:
        self._store, self._paths = store, paths

    def columns(self) -> list[str]:
        """Return the names of the metadata columns, oldest first."""
        return self._store.columns()

    def kinds(self) -> dict[str, str]:
        """Return the kind of each metadata column; an empty one has integers."""
        return {name: column_type(self._store, name) or "integer" for name in self._store.columns()}

    def listing(
        self, where: str | None, order: Order, after: Place | None, limit: int
    ) -> tuple[list[Item], Place | None]:
        """Return the next items in an order; see `Contents.listing`."""
        condition = parse_condition(where) if where else None
        found, last = list_items(self._store, condition, order, after, limit)
        shown = self._paths.shown
        return [Item(*item_values(one, shown(one))) for one in found], last

    def facets(self, columns: Sequence[str], where: str | None, limit: int) -> Facets:
        """Return the counts of the values of columns; see `Contents.facets`."""
        return count_facets(self._store, columns, parse_condition(where) if where else None, limit)

    def label_counts(self) -> list[tuple[str | None, int]]:
        """Return each label with its items, most frequent first; `None` or "" stands for no label."""
        return label_counts(self._store)

    def value_counts(self, column: str) -> Sequence[tuple[Value, int]]:
        """Return each value of a metadata column with the number of items that have it."""
        return value_counts(self._store, column)

    def image_sizes(self) -> np.ndarray:
        """Return width and height of the items whose image size is known: int64 [n, 2]."""
        return image_sizes(self._store)

    def bad_files(self) -> list[BadFile]:
        """Return the files that could not be used when they were last tried."""
        return self._store.bad_files()


class FilesView(SearchableGallery):
    """A gallery in a folder of its own, opened for searches.

    It shows the state in which it was opened until `refresh()`; other processes may write meanwhile.

    Attributes:
        store: Store of the gallery on disk.

    Args:
        folder: Gallery folder.
        root: Folder of the image files, if they were moved after they were added.
        runtime: Device, provider, batch size and threads of the gallery's model.

    Raises:
        InputError: The folder is not a gallery, or a gallery of another format.
    """

    paths: StorePaths

    def __init__(
        self, folder: str | Path, *, root: str | Path | None = None, runtime: Runtime | None = None
    ) -> None:
        super().__init__(root, runtime)
        self.store = FileWriter(Path(folder))
        self._filters = Filters(self.store)
        self._index: Index | None = None
        self.refresh()

    @classmethod
    def new(cls, folder: Path, model: Embedder, *, storage: str = "float32") -> Self:
        """Create an empty gallery for a model, whose file is copied into it.

        Args:
            folder: Gallery folder.
            model: Model.
            storage: Type of the stored numbers, "float32" or "float16".

        Raises:
            InputError: The folder is not empty.
        """
        model = model.with_tf32(False)  # until its drift is measured
        manifest = Manifest(
            model.fingerprint, model.dim, decode_policy=DECODE_POLICY, provider=model.provider, dtype=storage
        )
        Store.create(folder, manifest, model.path, model.embed_pixels(probe_pixels(model)))
        created = cls(folder, runtime=model.runtime)
        created._embedder = model
        return created

    @classmethod
    def new_for_embedding(
        cls, folder: Path, name: str, dim: int, runtime: Runtime | None = None, *, storage: str = "float32"
    ) -> Self:
        """Create an empty gallery without a model file, for vectors of an external embedding."""
        Store.create(folder, Manifest(f"embedding:{name}", dim, embedding=name, dtype=storage))
        return cls(folder, runtime=runtime)

    def __len__(self) -> int:
        return self._snapshot.size

    @property
    def outside_index(self) -> int:
        """Number of vectors that the index does not cover, which are searched exactly."""
        return len(self._snapshot) - self._snapshot.covered

    @property
    def index(self) -> Index | None:
        """Index in use; `None` for exact search."""
        return self._snapshot.index

    @property
    def folder(self) -> Path:
        """Gallery folder."""
        return self.store.folder

    @property
    def manifest(self) -> Manifest:
        """Facts about the gallery as a whole."""
        return self.store.manifest

    @property
    def writer(self) -> FileWriter:
        """The store; see `SearchableGallery.writer`."""
        return self.store

    @property
    def index_kind(self) -> str:
        """Kind of the index; "flat" compares all vectors."""
        return str(self.index.card["kind"]) if self.index and self.index.usable else "flat"

    def changed(self) -> bool:
        """Return whether anything was committed since this state; see `SearchableGallery.changed`."""
        return self.store.changed()

    def replaced(self) -> bool:
        """Return whether the folder holds another gallery now, perhaps with another model."""
        return self.store.replaced()

    def refresh(self) -> None:
        """Load the state committed last."""
        for left in reversed(range(_TRIES)):
            if self.replaced():
                self.store = FileWriter(self.folder)
                self._embedder = None
                self._filters = Filters(self.store)
                self._index = None
            try:
                self._use(self._load())
            except LookalikeError:
                if not (left and self.replaced()):  # while it was loaded
                    raise
            else:
                if not (left and self.replaced()):
                    return

    def fixed(self) -> Self:
        """Return another object of the present state, whose state does not change."""
        return type(self)(self.folder, root=self.root, runtime=self._runtime)

    # ---- index

    def index_new(
        self, spec: IndexSpec | None, *, reindex: bool, added: int, show_progress: bool = False
    ) -> None:
        """Merge small segments, and bring the indexes up to date; see `SearchableGallery.index_new`."""
        if merge_small(self.store):
            self.refresh()
        create_lookups(self.store, show_progress=show_progress)
        tolerated = 0 if reindex else max(_WAITING, len(self) // 10)
        self.optimize_index(spec, tolerated=tolerated, show_progress=show_progress)

    def optimize_index(
        self, spec: IndexSpec | None = None, *, tolerated: int = 0, show_progress: bool = False
    ) -> IndexWork:
        """Bring the index up to what is asked for, and return the work done. Call it in `store.writing()`.

        The index is built or extended if there is none, its kind, recall or memory limit is another one, it
        has outgrown its memory limit, it is damaged, many of its vectors are dead, or vectors are not in it.

        Args:
            spec: Kind, recall and memory; what it leaves open is as in the previous call.
            tolerated: Number of vectors that may be outside the index.
            show_progress: Report progress on stderr.

        Raises:
            InputError, LookalikeError: As for `retrieval.search.index.build_index`.
        """
        previous = self.store.manifest.index_spec
        spec = (spec or IndexSpec()).or_else(previous)
        self.refresh()
        state = self._snapshot
        reason = work_needed(state.index, state.stored, spec, live=state.alive, tolerated=tolerated)
        if reason:
            built = self.build_index(spec, show_progress=show_progress)
            if built is None:
                return IndexWork("removed" if state.index else "nothing", reason)
            return IndexWork("extended" if built.is_extended else "built", reason)
        if spec != previous:
            self.store.use_index(self.store.state().index, spec)
        return IndexWork("nothing", "")

    def build_index(self, spec: IndexSpec | None = None, *, show_progress: bool = False) -> BuiltIndex | None:
        """Index all committed vectors and put the index to use. Call it inside `store.writing()`.

        Args:
            spec: Kind, recall and memory; what it leaves open is as in the previous call.
            show_progress: Report progress on stderr.

        Returns:
            The index; `None` for exact search.

        Raises:
            InputError, LookalikeError: As for `retrieval.search.index.build_index`.
        """
        spec = (spec or IndexSpec()).or_else(self.store.manifest.index_spec)
        self.refresh()
        state = self._snapshot
        built = build_index(
            state.stored,
            spec,
            live=state.alive,
            previous=state.index,
            work=self.store.index_parts,
            backend=self.backend,
            show_progress=show_progress,
        )
        active = None if built is None else write_index(built, self.folder / "indexes")
        self.store.use_index(active, spec)
        self.store.clear_index_parts()
        self.refresh()
        return built

    # ---- searching

    def _nearest(self, queries: Queries, options: SearchOptions) -> list[Ranked]:
        found = self._searcher.find(queries.vectors, options, queries.own, queries.views)
        state, paths, changed = self._snapshot, self.paths, self.changed()

        def read() -> dict[int, ItemValues]:
            rows = (row for one in found for row in one.all_rows())
            return self._items_of([*dict.fromkeys(rows)], state, paths, changed=changed)

        items = Once(read)
        if changed or not state.known.complete:
            items()  # before the database forgets them
        return ranked(found, items, options.grouping, self.manifest.variant_of(options.grouping))

    def neighbours(self, labelled: np.ndarray | None = None, *, exact: bool = False) -> Neighbours:
        """Return a function that finds the nearest items of many queries; see `SearchableGallery`."""
        state, selected = self._snapshot, None
        if labelled is not None and len(labelled) < state.size:
            chosen = np.zeros(len(state), bool)
            chosen[state.rows_of(labelled)] = True
            selected = Selection(chosen)

        def find(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
            if exact:
                live = Selection.of(state.alive) if selected is None else selected
                scores, rows = state.stored.nearest(queries, k, live)
            else:
                scores, rows = state.nearest(queries, k, selected)
            ids = np.full(rows.shape, -1)
            ids[rows >= 0] = state.item_ids(rows[rows >= 0])
            return ids, scores

        return find

    def _items_of(
        self, rows: Sequence[int], state: Snapshot, paths: ItemPaths, *, changed: bool
    ) -> dict[int, ItemValues]:
        """Return the values of `Item` by row of a state.

        Args:
            rows: Rows.
            state: State.
            paths: Paths of the files.
            changed: Something was committed since then: all is read from the database, which has the newest
                facts, and lacks items that were compacted. Items that have a vector of another file since are
                left out, but not those of which the same file was embedded again.
        """
        found, others, locate = dict[int, ItemValues](), list[int](), paths.locate
        known = [None] * len(rows) if changed else state.known.rows(rows)
        for row, facts in zip(rows, known, strict=True):
            if facts is None:
                others.append(row)
            else:
                item, key, root, path, _, _, content, width, height, label, metadata = facts
                found[row] = item, locate(root, path), label, metadata, key, width, height, content
        if others:
            numbers, ids, _ = state.facts(np.array(others)).tolist()
            items = {item.id: item for item in self.store.items([*dict.fromkeys(ids)]) if item.vector}
            for row, number, item in zip(others, numbers, ids, strict=True):
                now = items.get(item)
                if now is None or (now.vector != number and state.known.content(row) != now.content_sha256):
                    continue
                found[row] = item_values(now, locate(now.root, now.path))
        return found

    def ids_of(self, names: Names) -> list[int]:
        """Return the ids of items given by id or by key; see `SearchableGallery.ids_of`."""
        return self._searcher.ids_of(names)

    @property
    def state(self) -> Snapshot:
        """State that is searched: vectors and their items."""
        return self._snapshot

    def items(self, ids: Sequence[int]) -> dict[int, Item]:
        """Return items by id; ids that are unknown or removed in this state are left out."""
        rows = self._snapshot.rows_of(np.array(ids, np.int64))
        state, some = self._snapshot, rows[rows >= 0].tolist()
        found = self._items_of(some, state, self.paths, changed=self.changed())
        return {values[0]: Item(*values) for values in found.values()}

    def present(self, ids: Sequence[int]) -> np.ndarray:
        """Return for each id whether searches find the item in this state: bool [n]."""
        found: np.ndarray = self._snapshot.rows_of(np.array(ids, np.int64)) >= 0
        return found

    def stored_items(self, ids: Sequence[int]) -> list[StoredItem]:
        """Return all facts about items by id, removed ones among them; unknown ids are left out."""
        return self.store.items(ids)

    def vectors(self, ids: Sequence[int]) -> dict[int, np.ndarray]:
        """Return stored vectors by item id, float32 [D] each; unknown ids are left out."""
        numbers = np.array(ids, np.int64)
        rows = self._snapshot.rows_of(numbers)
        there = rows >= 0
        return dict(zip(numbers[there].tolist(), self._snapshot.vectors(rows[there]), strict=True))

    def embeddings(
        self, *, labelled: bool = False, pictures: bool = False, limit: int | None = None
    ) -> StoredEmbeddings:
        """Return the stored embeddings of all items; see `SearchableGallery.embeddings`."""
        chosen = self.pictures_among if pictures else None
        return read_embeddings(self.store, self._snapshot, labelled=labelled, chosen=chosen, limit=limit)

    def item_at(self, path: Path) -> int | None:
        """Return the id of the item of an image file, as `paths.lookup` names it; `None` if there is none."""
        ids = np.array([*self.paths.ids_at(path)], np.int64)
        there = ids[self._snapshot.rows_of(ids) >= 0]
        return int(there[0]) if len(there) else None

    def select(self, items: Names = (), *, where: str | None = None) -> list[int]:
        """Return the ids of items by id or key, and of all that fulfil a condition, ascending.

        Unlike hits, the latter include items that wait to be embedded again.

        Raises:
            InputError: There is no such item, or the condition is invalid.
        """
        matching = [] if where is None else live_ids(self.store, parse_condition(where))
        return sorted({*self.ids_of(items), *matching})

    def remove(self, items: Names = (), *, where: str | None = None) -> int:
        """Remove items in one transaction, and return their number.

        Their disk space is freed by `retrieval.upkeep.compact`.

        Args:
            items: Ids or keys, or one of them.
            where: Condition; all items that fulfil it are removed as well.

        Raises:
            InputError: There is no such item, or the condition is invalid; nothing is removed.
            LookalikeError: Another process is writing.
        """
        with self.store.writing():
            started = now()
            self.refresh()
            removed = self.store.remove(self.store.with_parts(self.select(items, where=where)))
            self.store.record_run("remove", started, {"removed": removed})
            self.refresh()
        return removed

    def info(self) -> dict[str, Any]:
        """Return facts about the gallery as plain values; see `retrieval.storage.inventory`."""
        return inventory(self.store, self.index.known_card if self.index else None, self.outside_index)

    def sample(self, count: int) -> list[int]:
        """Return the ids of a few items from all over the gallery, always the same ones, ascending."""
        rows = self._snapshot.live_rows()
        places = np.linspace(0, max(len(rows) - 1, 0), min(count, len(rows))).astype(int)
        return sorted(self._snapshot.item_ids(rows[places]).tolist())

    @property
    def bridged(self) -> int:
        """Number of items whose vector a bridge made from one of the model before."""
        return count_bridged(self.store)

    @property
    def contents(self) -> FileContents:
        """What is in the gallery: columns, lists, counts."""
        return FileContents(self.store, self.paths)

    def state_digest(self) -> str:
        """Return a short text that changes with the items, their facts or the model."""
        return state_digest(self.store)

    # ---- loading

    def _use(self, state: State) -> None:
        self._snapshot = state.snapshot
        self._searcher = Searcher(self.store, state, self._filters)
        self.paths = StorePaths(self.store, self.root)

    def _load(self) -> State:
        """Load the committed state; retry if a writer deleted its files before they were opened."""
        for _ in range(_TRIES):
            state = self.store.state()
            self.store.reread_manifest()
            try:
                return self._open_state(state)
            except LookalikeError:
                if not self.store.changed():
                    raise
        return self._open_state(self.store.state())

    def _open_state(self, state: GalleryState) -> State:
        opened = self.store.open_segments(state.segments)
        parts, rows = [one.vectors for one in opened], [one.rows for one in opened]
        index, last = None, 0
        if state.index is not None:
            index, last = self._open_index(state.index), state.index.last
        dim, where = self.store.manifest.dim, str(self.folder)
        facts = StoredFacts([one.facts for one in opened], [*map(len, parts)], state.amended)
        snapshot = Snapshot(parts, rows, state.dead, index, last, facts=facts, dim=dim, where=where)
        return State(state, snapshot)

    def _open_index(self, record: ActiveIndex) -> Index:
        """Return the index of a record; the same one as before stays open.

        Raises:
            LookalikeError: A writer has deleted it, and put another one to use.
        """
        folder = self.folder / "indexes" / record.folder
        if self._index is None or self._index.folder != folder or self._index.missing:
            self._index = Index(folder, record.sha256, record.card_sha256)
            if self._index.missing and self.store.changed():
                raise LookalikeError(f"{folder}: not the index of {self.folder} any more; open it again")
        return self._index
