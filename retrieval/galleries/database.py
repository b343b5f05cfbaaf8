"""A gallery whose items are in a database: what is searched, and the primitive changes."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from retrieval.errors import InputError, StoreError, pointing
from retrieval.files import check_free, file_version
from retrieval.galleries import database_folder as folders
from retrieval.galleries.inapplicable import inapplicable
from retrieval.galleries.items import Item, Ranked, item_values, ranked
from retrieval.galleries.searchable import Contents, Neighbours, Queries, SearchableGallery
from retrieval.galleries.writer import DatabaseWriter
from retrieval.images import boxes
from retrieval.images.load import DECODE_POLICY
from retrieval.model.embedder import Embedder
from retrieval.model.runtime import Runtime
from retrieval.search.embeddings import StoredEmbeddings
from retrieval.search.groups import NOTHING
from retrieval.search.options import Names, SearchOptions, each_name
from retrieval.search.query import ids_of_names
from retrieval.search.regions import MOST_TILES
from retrieval.search.where import parse_condition
from retrieval.storage.conditions import Column, Filter, FilterTest, find_column
from retrieval.storage.facets import Facets, facet_columns
from retrieval.storage.identity import has_text
from retrieval.storage.listing import Order, Place
from retrieval.storage.manifest import Manifest
from retrieval.storage.paths import ItemPaths, number_without_file
from retrieval.storage.records import IndexSpec, StoredItem, Value
from retrieval.storage.schema import BUILT_IN
from retrieval.stores.address import Address
from retrieval.stores.conditions import is_hidden, resolve, without
from retrieval.stores.engine import Engine, no_collection
from retrieval.stores.facets import count_store_facets
from retrieval.stores.opening import open_engine
from retrieval.stores.ranking import StoreSearcher, value_of
from retrieval.stores.writing import visible

RECALL = 0.95  # of the index, by default
_CHUNK = 4096  # items in memory at a time
_SAMPLE = 10_000  # items from which image sizes are counted
_VALUES = 10_000  # values of a column that are counted
_SECONDS = 5.0  # after which the number of items and the identity of the collection are read again
_WAITING = 10_000  # new items after which the index is completed


class DatabaseContents(Contents):
    """What is in a gallery in a database; see `Contents`.

    Args:
        folder: Gallery folder.
        engine: The database.
        paths: Paths of the image files.
    """

    def __init__(self, folder: Path, engine: Engine, paths: ItemPaths) -> None:
        self._folder, self._engine, self._paths = folder, engine, paths

    def columns(self) -> list[str]:
        """Return the names of the metadata columns, oldest first."""
        return [*self.kinds()]

    def kinds(self) -> dict[str, str]:
        """Return the kind of each metadata column: "text" or "number"."""
        return {name: str(kind) for name, kind in self._engine.columns().items() if not is_hidden(name)}

    def listing(
        self, where: str | None, order: Order, after: Place | None, limit: int
    ) -> tuple[list[Item], Place | None]:
        """Return the next items by id; see `Contents.listing`.

        Raises:
            InputError: The condition is invalid, or the order is not that of ascending ids, in which alone
                every database continues behind an item without reading those before it.
        """
        if order.descending or _column(self._engine, order.column).name != "id":
            raise inapplicable("order", self._folder)
        last = 0 if after is None else after.id
        found = self._engine.scan(_filter(self._engine, where), last, limit + 1)
        items = [_item(self._paths, visible(item)) for item in found[:limit]]
        return items, Place(items[-1].id, items[-1].id) if len(found) > limit else None

    def facets(self, columns: Sequence[str], where: str | None, limit: int) -> Facets:
        """Return the counts of the values of columns; see `Contents.facets`."""
        chosen = facet_columns(columns, _known_columns(self._engine).values())
        names = [column.name for column in chosen]
        return count_store_facets(self._engine, names, _filter(self._engine, where), limit)

    def label_counts(self) -> list[tuple[str | None, int]]:
        """Return each label with its items, most frequent first; the 10,000 most frequent ones at most."""
        found = self._engine.value_counts("label", _VALUES)
        without = self._engine.count(FilterTest("label", "null"))
        labels: list[tuple[str | None, int]] = [(str(label), n) for label, n in found]
        return [*labels, (None, without)] if without else labels

    def value_counts(self, column: str) -> Sequence[tuple[Value, int]]:
        """Return the 10,000 most frequent values of a metadata column with their numbers of items."""
        return self._engine.value_counts(column, _VALUES)

    def image_sizes(self) -> np.ndarray:
        """Return width and height of a random sample of items whose image size is known: int64 [n, 2]."""
        found = [(item.width, item.height) for item in self._engine.scan(None, 0, _SAMPLE) if item.width > 0]
        return np.array(found, np.int64).reshape(-1, 2)


class DatabaseView(SearchableGallery):
    """A gallery whose items are in a database, opened for searches and changes. Thread-safe.

    Searches see what other processes have written at once; there is no state to refresh. Ids are spread
    evenly over all numbers, so the first items by id are a random sample.

    Attributes:
        address: Address of the collection, without the password.
        location: Address of the collection, with the password.
        engine: The database.

    Args:
        folder: Gallery folder.
        root: Folder of the image files, if they were moved after they were added.
        runtime: Device, provider, batch size and threads of the gallery's model.
        address: Address with its password; by default that in the folder, and $LOOKALIKE_STORE_PASSWORD.

    Raises:
        InputError: The folder is not that of a gallery in a database, or the collection is another one now.
        LookalikeError: The database cannot be reached.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        root: str | Path | None = None,
        runtime: Runtime | None = None,
        address: Address | None = None,
    ) -> None:
        super().__init__(root, runtime)
        self._folder = Path(folder)
        self._open(address)

    def _open(self, address: Address | None) -> None:
        self._version = file_version(self._folder / folders.NAME)
        self._known = folders.read_folder(self._folder)
        self.address = str(self._known.address)
        self.location = address or self._known.address
        self.engine: Engine = open_engine(self.location)
        self._manifest = self._read_manifest()
        self._searcher = StoreSearcher(self.engine)
        self._recount()
        self._checked_at = time.monotonic()
        self.paths = ItemPaths(self._folder, self.engine.items, self.root)
        self._writer = DatabaseWriter(self._folder, self.engine, self._manifest, self._recount_later)

    @classmethod
    def new(cls, folder: Path, model: Embedder, address: Address, *, storage: str = "float32") -> Self:
        """Create a gallery and its collection. A collection of the same model without items is used.

        Args:
            folder: Gallery folder, which must be empty or not exist.
            model: Model of the vectors.
            address: Address of the collection.
            storage: Type of the stored numbers, "float32" or "float16".

        Raises:
            InputError: The folder or the collection cannot be used, or the collection has items.
            LookalikeError: The database cannot be reached.
        """
        model = model.with_tf32(False)  # until its drift is measured
        manifest = Manifest(
            model.fingerprint,
            model.dim,
            decode_policy=DECODE_POLICY,
            provider=model.provider,
            dtype=storage,
        )
        return cls._create(folder, manifest, model, address)

    @classmethod
    def new_for_embedding(
        cls, folder: Path, name: str, dim: int, address: Address, *, storage: str = "float32"
    ) -> Self:
        """Create a gallery without a model file, for vectors of an external embedding; see `new`.

        Args:
            folder: Gallery folder, which must be empty or not exist.
            name: Name of the embedding.
            dim: Dimension of its vectors.
            address: Address of the collection.
            storage: Type of the stored numbers, "float32" or "float16".
        """
        manifest = Manifest(f"embedding:{name}", dim, embedding=name, dtype=storage)
        return cls._create(folder, manifest, None, address)

    @classmethod
    def _create(cls, folder: Path, manifest: Manifest, model: Embedder | None, address: Address) -> Self:
        check_free(folder)
        engine = open_engine(address)
        found = engine.manifest()
        if found is None:
            engine.create(manifest)
            found = engine.manifest() or manifest
        facts, wanted = ((m.fingerprint, m.dim, m.dtype) for m in (found, manifest))
        if facts != wanted or engine.count():
            what = f"{address}: the collection exists"
            hint = f"use it with `lookalike index connect {folder} --store ADDRESS --model M`"
            raise InputError(f"{what}; {hint}, or choose another name for the collection")
        engine.close()
        return cls._open_new(folder, found, model, address)

    @classmethod
    def connect(cls, folder: str | Path, model: Embedder, address: Address) -> Self:
        """Create the folder of a gallery for a collection that exists.

        Args:
            folder: Gallery folder, which must be empty or not exist.
            model: Model file that the vectors come from.
            address: Address of the collection.

        Raises:
            InputError: The folder cannot be used, there is no collection, or it is that of another model.
            LookalikeError: The database cannot be reached.
        """
        engine = open_engine(address)
        manifest = engine.manifest()
        engine.close()
        if manifest is None:
            raise no_collection(str(address))
        if manifest.fingerprint != model.fingerprint:
            ours, theirs = model.fingerprint[:12], manifest.fingerprint[:12]
            what = f"{address}: the collection has vectors of model {theirs}, {model.path} is model {ours}"
            raise InputError(f"{what}; pass the model file that it was built with")
        return cls._open_new(Path(folder), manifest, model, address)

    @classmethod
    def _open_new(cls, folder: Path, manifest: Manifest, model: Embedder | None, address: Address) -> Self:
        """Create the folder of a collection, and open the gallery."""
        folders.create_folder(folder, address, manifest.uuid, model)
        gallery = cls(folder, runtime=None if model is None else model.runtime, address=address)
        if model is not None:
            gallery._keep_model(model.with_tf32(manifest.allows_tf32))
        return gallery

    def _read_manifest(self) -> Manifest:
        manifest = self.engine.manifest()
        if manifest is None or manifest.uuid != self._known.uuid:
            what = "no longer exists" if manifest is None else "is another one now"
            hint = "create the gallery folder again with `lookalike index connect`"
            raise InputError(f"{self._folder}: the collection {self.address} {what}; {hint}")
        return replace(manifest, probes_sha256=self._known.probes_sha256)

    # ---- state

    @property
    def folder(self) -> Path:
        """Gallery folder."""
        return self._folder

    def public(self, message: str) -> str:
        """Return an error message for visitors: without the path of the folder and the address."""
        return super().public(message).replace(self.address, "the database")

    @property
    def manifest(self) -> Manifest:
        """Facts about the gallery as a whole."""
        return self._manifest

    def __len__(self) -> int:
        if time.monotonic() > self._counted_at + _SECONDS:
            self._recount()
        return self._count

    def _recount(self) -> None:
        self._count, self._counted_at = self.engine.count(), time.monotonic()
        self._index_kind = str(self.engine.facts().get("index", "flat"))

    def changed(self) -> bool:
        """Return whether the collection was replaced, or other facts about it.

        The folder is looked at each time, the database every few seconds.

        Raises:
            LookalikeError: The database cannot be reached.
        """
        if self.replaced():
            return True
        if time.monotonic() < self._checked_at + _SECONDS:
            return False
        manifest = self.engine.manifest()
        self._checked_at = time.monotonic()
        if manifest is None or manifest.uuid != self._known.uuid:
            return True
        return replace(manifest, probes_sha256=self._manifest.probes_sha256) != self._manifest

    def replaced(self) -> bool:
        """Return whether the folder is that of another collection now."""
        if file_version(self._folder / folders.NAME) == self._version:
            return False  # the same file, which every request asks
        return folders.read_folder(self._folder).uuid != self._known.uuid

    def refresh(self) -> None:
        """Open the collection that the folder has now, and count its items.

        Raises:
            StoreError: It was deleted or replaced.
        """
        if self.replaced():
            old, self._embedder = self.engine, None
            self._open(folders.address_of(self._folder, self.location))
            old.close()
            return
        try:
            self._manifest = self._read_manifest()
        except InputError as error:
            raise StoreError(str(error)) from error
        self._writer.manifest = self._manifest
        self._recount()

    def fixed(self) -> Self:
        """Return the gallery itself: it has no states, and an embedded database cannot be opened twice."""
        return self

    @property
    def index_kind(self) -> str:
        """Kind of the index; "flat" compares all vectors."""
        return self._index_kind

    @property
    def outside_index(self) -> int:
        """Zero: the database keeps its index up to date."""
        return 0

    def info(self) -> dict[str, Any]:
        """Return facts about the gallery as plain values."""
        return {
            "gallery": str(self._folder),
            "store": self.address,
            "images": self.engine.count(),
            "dim": self.manifest.dim,
            "storage": self.manifest.dtype,
            "fingerprint": self.manifest.fingerprint,
            "texts": has_text(self._folder),
            "provider": self.manifest.provider,
            "precision": self.manifest.precision and self.manifest.precision.as_dict(),
            "columns": self.contents.columns(),
            "product": self.manifest.product,
            "variant": self.manifest.variant,
            "parts": self.manifest.parts,
            "engine": self.engine.facts(),
        }

    # ---- searching

    def _nearest(self, queries: Queries, options: SearchOptions) -> list[Ranked]:
        vectors = np.ascontiguousarray(queries.vectors, np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.manifest.dim:
            what = f"queries of shape {vectors.shape}, but the vectors have {self.manifest.dim} dimensions"
            raise InputError(f"{self._folder}: {what}")
        condition = _filter(self.engine, options.where)
        with pointing("#/group_by"):
            group_by = None if options.grouping is None else _column(self.engine, options.grouping).name
        variant = self.manifest.variant_of(group_by)
        with pointing("#/exclude"):
            common = self.ids_of(options.exclude) if options.exclude else []
        own = [tuple(items) for items in queries.own or [()] * len(vectors)]
        found = [NOTHING] * len(vectors)
        for positions, among in self._conditions(own, condition, group_by):
            some = queries[positions]
            excluded = [{*common, *own[position]} for position in positions]
            answers = self._searcher.find(
                vectors[positions], options, among, group_by, excluded, some.views, variant
            )
            for position, answer in zip(positions, answers, strict=True):
                found[position] = answer
        ids = sorted({number for one in found for number in one.all_rows()})
        items = {item.id: item_values(item, self.paths.shown(item)) for item in self.stored_items(ids)}
        return ranked(found, lambda: items, group_by, variant)

    def _conditions(
        self, own: Sequence[tuple[int, ...]], condition: Filter | None, group_by: str | None
    ) -> Iterator[tuple[list[int], Filter | None]]:
        """Yield positions of queries with the filter of their hits: without the products of their items."""
        positions = dict[tuple[str | int | float, ...], list[int]]()
        is_product = self.manifest.is_product(group_by)
        items = self.stored_items(sorted({*chain(*own)})) if is_product else []
        values = {item.id: value_of(item, group_by or "") for item in items}
        for position, ids in enumerate(own):
            found = (values.get(number) for number in ids)
            products = {value for value in found if value is not None}
            positions.setdefault(tuple(sorted(products, key=str)), []).append(position)
        for left_out, some in positions.items():
            yield some, without(condition, group_by or "", left_out) if left_out else condition

    def neighbours(self, labelled: np.ndarray | None = None, *, exact: bool = False) -> Neighbours:
        """Return a function that finds the nearest items of many queries; see `SearchableGallery`."""
        # The parts of pictures are among the nearest, and are left out afterwards.
        times = 1 + MOST_TILES if labelled is not None and self.manifest.objects else 1
        condition = None if labelled is None or times > 1 else FilterTest("label", "not null")

        def find(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
            ids, scores = np.full((len(queries), k), -1), np.full((len(queries), k), -np.inf, np.float32)
            lines, asked = [*range(len(queries))], times * k
            while lines:
                found = self.engine.nearest(queries[lines], asked, condition)
                lacking = []
                for line, near in zip(lines, found, strict=True):
                    known = near if labelled is None else near[np.isin(near.ids, labelled)][:k]
                    ids[line, : len(known.ids)] = known.ids  # without those added meanwhile
                    scores[line, : len(known.ids)] = known.scores
                    if times > 1 and len(known.ids) < k and asked == len(near.ids) < _CHUNK:
                        lacking.append(line)
                lines, asked = lacking, 4 * asked
            return ids, scores

        return find

    # ---- items

    def ids_of(self, names: Names) -> list[int]:
        """Return the ids of items given by id or by key; see `SearchableGallery.ids_of`."""
        names = each_name(names)
        ids = ids_of_names(names, lambda keys: self.engine.ids_by("key", keys))
        there = {item.id for item in self.engine.items(sorted({*ids} - {0}))}
        for name, number in zip(names, ids, strict=True):
            if number not in there:
                raise InputError(f"{self._folder}: no item {name!r}, neither an id nor a key")
        return ids

    def stored_items(self, ids: Sequence[int]) -> list[StoredItem]:
        """Return all facts about items by id; unknown ids are left out."""
        return self._writer.items(ids)

    def items(self, ids: Sequence[int]) -> dict[int, Item]:
        """Return items by id; unknown ids are left out."""
        return {item.id: _item(self.paths, item) for item in self.stored_items(ids)}

    def vectors(self, ids: Sequence[int]) -> dict[int, np.ndarray]:
        """Return stored vectors by item id, float32 [D] each; unknown ids are left out."""
        return self.engine.vectors(ids)

    def embeddings(
        self, *, labelled: bool = False, pictures: bool = False, limit: int | None = None
    ) -> StoredEmbeddings:
        """Return the stored embeddings, labels and contents of all items; see `SearchableGallery`."""
        condition = FilterTest("label", "not null") if labelled else None
        total = self.engine.count(condition)
        found = (item for some in self._writer.scan(condition) for item in some)
        if pictures and self.manifest.objects:
            found = (item for item in found if not boxes.split(item.path)[1])
        ids: list[int] = []
        vectors: list[np.ndarray] = []
        labels: list[str | None] = []
        contents: list[str] = []
        wanted = islice(found, limit)
        while some := list(islice(wanted, _CHUNK)):
            stored = self.engine.vectors([item.id for item in some])
            for item in some:
                if item.id in stored:
                    ids.append(item.id)
                    vectors.append(stored[item.id])
                    labels.append(sys.intern(item.label) if item.label else None)
                    contents.append(item.content_sha256)
        stacked = np.stack(vectors) if vectors else np.empty((0, self.manifest.dim), np.float32)
        if pictures and self.manifest.objects:
            total = len(ids) + sum(1 for _ in found)
        return StoredEmbeddings(np.array(ids, np.int64), stacked, labels, contents, max(total, len(ids)))

    def item_at(self, path: Path) -> int | None:
        """Return the id of the item of an image file, as `paths.lookup` names it; `None` if there is none."""
        if (number := number_without_file(path)) is not None:
            return number if self.engine.items([number]) else None
        parts = path.parts
        ends = tuple("/".join(parts[n:]) for n in range(1, len(parts)))
        found = self.engine.scan(FilterTest("path", "in", ends), 0, _CHUNK)
        return next((item.id for item in found if Path(self.paths.of(item)).absolute() == path), None)

    def select(self, items: Names = (), *, where: str | None = None) -> list[int]:
        """Return the ids of items by id or key, and of all that fulfil a condition, ascending.

        Raises:
            InputError: There is no such item, or the condition is invalid.
        """
        matching = [] if where is None else self._writer.matching(where)
        return sorted({*self.ids_of(items), *matching})

    def sample(self, count: int) -> list[int]:
        """Return the ids of a few items from all over the gallery, always the same ones, ascending."""
        found = (item.id for some in self._writer.scan(size=min(count, _CHUNK)) for item in some)
        return list(islice(found, count))

    # ---- changes

    @property
    def writer(self) -> DatabaseWriter:
        """See `SearchableGallery.writer`."""
        return self._writer

    def _recount_later(self) -> None:
        self._counted_at = -math.inf

    def remove(self, items: Names = (), *, where: str | None = None) -> int:
        """Remove items, some thousands at a time, and return their number; see `SearchableGallery.remove`."""
        return self._writer.remove(self._writer.with_parts(self.select(items, where=where)))

    def index_new(
        self, spec: IndexSpec | None, *, reindex: bool, added: int, show_progress: bool = False
    ) -> None:
        """Complete the index if that is asked for or many vectors are new; see `SearchableGallery`."""
        recall = None if spec is None else spec.recall
        if reindex or recall is not None or added >= _WAITING:
            self.complete_index(recall, show_progress=show_progress)

    def complete_index(self, recall: float | None = None, *, show_progress: bool = False) -> None:
        """Build or complete the index of the database; see `Engine.optimize`."""
        self.engine.optimize(RECALL if recall is None else recall, show_progress=show_progress)

    @property
    def contents(self) -> DatabaseContents:
        """What is in the gallery: columns, lists, counts."""
        return DatabaseContents(self._folder, self.engine, self.paths)

    def state_digest(self) -> str:
        """Return a short text that changes with the number of items or the model."""
        return f"{self.manifest.uuid[:8]}-{self.fingerprint[:12]}-{len(self)}"


def _filter(engine: Engine, where: str | None) -> Filter | None:
    return None if not where else resolve(parse_condition(where), engine.columns())


def _column(engine: Engine, name: str) -> Column:
    return find_column(name, _known_columns(engine))


def _known_columns(engine: Engine) -> dict[str, Column]:
    types = {**BUILT_IN, **{n: t for n, t in engine.columns().items() if not is_hidden(n)}}
    return {known: Column(known, "", type_) for known, type_ in types.items()}


def _item(paths: ItemPaths, item: StoredItem) -> Item:
    return Item(*item_values(item, paths.shown(item)))
