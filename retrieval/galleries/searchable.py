"""A gallery that can be searched, whether its items are in files of its own or in a database server."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np

from retrieval import arrow
from retrieval.display import Displayed
from retrieval.errors import InputError, LookalikeError, pointing
from retrieval.galleries.items import ITEM_KINDS, Hit, Hits, Item, Ranked, item_value, table_stream
from retrieval.galleries.writer import Writer
from retrieval.images import boxes
from retrieval.images.load import ImageSource
from retrieval.machine.faiss_backend import CpuBackend, backend_for
from retrieval.model.embedder import Embedder
from retrieval.model.runtime import Runtime
from retrieval.search.calibration import DEPTH, SAME, Calibration, CalibrationFile, summary
from retrieval.search.composition import compose, unit_vectors
from retrieval.search.detector import Detector, keep_detector, own_detector
from retrieval.search.diversity import diversified
from retrieval.search.embeddings import StoredEmbeddings
from retrieval.search.expression import Expression, is_expression
from retrieval.search.groups import whole_products
from retrieval.search.options import (
    MOST_CANDIDATES,
    Names,
    SearchKeywords,
    SearchOptions,
    takes_search_options,
)
from retrieval.storage.conditions import Column, find_column, item_columns
from retrieval.storage.facets import Facets
from retrieval.storage.identity import check_same, check_vectors, own_model
from retrieval.storage.listing import Order, Place
from retrieval.storage.manifest import Manifest
from retrieval.storage.paths import ItemPaths
from retrieval.storage.records import PICTURE, BadFile, IndexSpec, StoredItem, Value
from retrieval.storage.schema import BUILT_IN
from retrieval.text import pluralize, printable

_log = logging.getLogger("lookalike.retrieval")
_SCORE = "score"
_UNIQUE = ("id", "key", "path")  # columns
_COPIES = 2  # of the picture of a query, which are searched for beside its nearest images

Neighbours = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
"""Function of queries, float32 [b, D], and k that returns ids, int64, and cosine similarities, both [b, k].

The nearest item is first. Beyond the last one the id is -1 and the similarity -inf.
"""


class Contents(ABC):
    """What is in a gallery, for people to see: columns, lists, counts."""

    @abstractmethod
    def columns(self) -> list[str]:
        """Return the names of the metadata columns, oldest first."""

    @abstractmethod
    def kinds(self) -> dict[str, str]:
        """Return the kind of each metadata column, oldest first: "text", "integer" or "number"."""

    @abstractmethod
    def listing(
        self, where: str | None, order: Order, after: Place | None, limit: int
    ) -> tuple[list[Item], Place | None]:
        """Return the next items in an order, and the place of the last of them; `None` if it is the end.

        Every item that stays is listed exactly once while others are added and removed. A gallery in a
        database lists by ascending id only.

        Args:
            where: Condition that the items fulfil; `None` for all items.
            order: Order of the items.
            after: Place behind which the items are; `None` for the first ones.
            limit: Largest number of items.

        Raises:
            InputError: The condition or the order is invalid.
        """

    def pages(self) -> Iterator[list[Item]]:
        """Yield all items by id, some thousands at a time; see `listing`."""
        place = None
        while True:
            items, place = self.listing(None, Order(), place, arrow.AT_ONCE)
            yield items
            if place is None:
                return

    @abstractmethod
    def facets(self, columns: Sequence[str], where: str | None, limit: int) -> Facets:
        """Return the counts of the values of columns; in a database, of a random sample of many items.

        Args:
            columns: Names of the columns.
            where: Condition that the items fulfil; `None` for all items.
            limit: Largest number of values of a column.

        Raises:
            InputError: The condition is invalid, or a column is unknown or cannot be counted.
        """

    @abstractmethod
    def label_counts(self) -> list[tuple[str | None, int]]:
        """Return each label with its items, most frequent first; `None` or "" stands for no label."""

    @abstractmethod
    def value_counts(self, column: str) -> Sequence[tuple[Value, int]]:
        """Return each value of a metadata column with the number of items that have it."""

    @abstractmethod
    def image_sizes(self) -> np.ndarray:
        """Return width and height of the items whose image size is known: int64 [n, 2]."""

    def bad_files(self) -> list[BadFile]:
        """Return the files that could not be used when they were last tried; none if that is not recorded."""
        return []


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries of a search.

    Attributes:
        vectors: float32 [N, D].
        own: Ids of the items that each comes from; `None` for none.
        views: Views of each, float32 [m_i, D], whose means the vectors are; `None` if each has one.
    """

    vectors: np.ndarray
    own: Sequence[tuple[int, ...]] | None
    views: Sequence[np.ndarray] | None

    def __getitem__(self, which: Sequence[int]) -> Queries:
        own = None if self.own is None else [self.own[n] for n in which]
        views = None if self.views is None else [self.views[n] for n in which]
        return Queries(self.vectors[[*which]], own, views)


class SearchableGallery(Displayed, ABC):
    """Everything that commands, API and page need to search and show a gallery.

    A gallery is also a table by `__arrow_c_stream__`, with a row for each item: `polars.DataFrame(gallery)`,
    `duckdb.sql("from gallery")`, `pandas.DataFrame.from_arrow(gallery)`. The columns are id, key, path,
    label, width, height and those of the metadata. The items are read as the consumer asks, some thousands
    at a time.

    Attributes:
        root: Folder of the image files, if they were moved after they were added.
        paths: Paths of the image files.

    Args:
        root: Folder of the image files, if they were moved.
        runtime: Device, provider, batch size and threads of the gallery's model.
    """

    paths: ItemPaths

    def __init__(self, root: str | Path | None = None, runtime: Runtime | None = None) -> None:
        self.root = None if root is None else Path(root)
        self._runtime = runtime or Runtime()
        self._embedder: Embedder | None = None
        self._detector: Detector | None = None
        self._calibration: CalibrationFile | None = None

    # ---- identity and model

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Gallery folder."""

    @property
    @abstractmethod
    def manifest(self) -> Manifest:
        """Facts about the gallery as a whole."""

    @property
    @abstractmethod
    def writer(self) -> Writer:
        """Primitive changes of the gallery, of which runs and edits are made."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model file that the vectors come from."""
        return self.manifest.fingerprint

    @property
    def embedder(self) -> Embedder:
        """The gallery's own model, loaded on first use and checked against the stored probe vectors.

        If the gallery was replaced since it was opened, it is the newest state from then on.

        Raises:
            InputError: The gallery has no model.
            LookalikeError: The model is damaged, or computes other vectors on this machine.
        """
        if self._embedder is None:
            try:
                self._load_model()
            except LookalikeError:
                if not self.replaced():
                    raise
                self.refresh()  # the folder has the model of its successor
                self._load_model()
        assert self._embedder is not None
        return self._embedder

    def _load_model(self) -> None:
        self._keep_model(own_model(self.folder, self.manifest, self._runtime))

    def _keep_model(self, embedder: Embedder) -> None:
        self._embedder = embedder.of_policy(self.manifest.decode_policy)

    @property
    def detector(self) -> Detector | None:
        """The gallery's own detector, whose boxes its items are; `None` for one without.

        Raises:
            LookalikeError: The folder lacks its file, or has another one.
        """
        wanted = self.manifest.detector
        if wanted is None:
            return None
        if self._detector is None or self._detector.fingerprint != wanted:
            self._detector = own_detector(self.folder, wanted, self._runtime)
        return self._detector

    @property
    def backend(self) -> CpuBackend:
        """Where vectors are compared in bulk: on the device of the gallery's model, or on the CPU."""
        return backend_for(self._runtime.device)

    def public(self, message: str) -> str:
        """Return an error message for visitors of a server: without the path of the folder."""
        return message.replace(str(self.folder), self.folder.name)

    def check_model(self, embedder: Embedder) -> None:
        """Raise an `InputError` if a model is not the gallery's."""
        check_same(self.folder, self.manifest, embedder)

    def use_model(self, embedder: Embedder) -> None:
        """Use a loaded model as the gallery's own, instead of loading it again.

        Raises:
            InputError: It is another model.
            LookalikeError: As for `embedder`.
        """
        self.check_model(embedder)
        embedder = embedder.with_tf32(self.manifest.allows_tf32)
        check_vectors(self.folder, self.manifest, embedder)
        self._keep_model(embedder)

    def use_products(self, columns: str | None) -> None:
        """Take images with the same value of a column as views of one product, here and in every process.

        Args:
            columns: Column; or two with a comma between them, of the product and of its variants, such as
                "sku,colour"; `None` if images are not of products.

        Raises:
            InputError: There is no such column, or each image has a value of its own in it.
            LookalikeError: The gallery cannot be written.
        """
        product, variant = (None, None) if columns is None else self._product_columns(columns)
        if (product, variant) != (self.manifest.product, self.manifest.variant):
            self.writer.use_manifest(replace(self.manifest, product=product, variant=variant))
            self.refresh()

    def _product_columns(self, columns: str) -> tuple[str, str | None]:
        """Return the columns of product and variant; see `use_products`."""
        known = item_columns(self.contents.columns())
        is_one = columns.lower() in map(str.lower, known)  # whose name may have a comma
        names = [columns] if is_one else [name.strip() for name in columns.split(",")]
        found = [find_column(name, known).name for name in names]
        for name in found:
            if name in _UNIQUE:
                what = f"column {name!r}: each image has a value of its own"
                raise InputError(f"{what}, so it names no product and no variant")
        if len(found) > 2 or len({*found}) < len(found):
            raise InputError(f"{columns!r}: give a column for the product, and another one for its variants")
        return found[0], found[1] if len(found) > 1 else None

    def use_objects(self, detector: str | Path | None = None) -> None:
        """Make parts of each picture items beside it, of all pictures that are added from now on.

        Args:
            detector: ONNX model whose boxes are the parts, which is copied into the folder; `None` for that
                of the gallery, or else tiles that cover the picture.

        Raises:
            InputError: The detector cannot be used, the gallery has another one, or it has a column of the
                user's that is called `picture`, by which parts know their picture.
            LookalikeError: The gallery cannot be written.
        """
        known, finder = self.manifest, None if detector is None else Detector(detector)
        if not known.objects and PICTURE in map(str.lower, self.contents.columns()):
            raise InputError(
                f"{self.folder}: has a column {PICTURE!r}, by which the parts of a picture would know it; "
                "build a gallery for its parts, from a table with another name for the column"
            )
        if finder is not None and known.detector not in (None, finder.fingerprint):
            what = f"{self.folder}: pictures are divided by detector {known.detector[:12]}"
            raise InputError(f"{what}, {detector} is {finder.fingerprint[:12]}; build another gallery")
        if finder is not None:
            keep_detector(self.folder, finder)
        used = known.detector if finder is None else finder.fingerprint
        if (known.objects, known.detector) != (True, used):
            self.writer.use_manifest(replace(known, objects=True, detector=used))
            self.refresh()

    # ---- state

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def changed(self) -> bool:
        """Return whether anything was committed since this state; cheap enough for every search.

        Raises:
            LookalikeError: The gallery was deleted.
        """

    @abstractmethod
    def replaced(self) -> bool:
        """Return whether the folder holds another gallery now, perhaps with another model."""

    @abstractmethod
    def refresh(self) -> None:
        """Load the state committed last."""

    @abstractmethod
    def fixed(self) -> Self:
        """Return a gallery for long work, whose state does not change meanwhile, if it has states."""

    @property
    @abstractmethod
    def index_kind(self) -> str:
        """Kind of the index; "flat" compares all vectors."""

    @property
    @abstractmethod
    def outside_index(self) -> int:
        """Number of vectors that the index does not cover, which are searched exactly."""

    @abstractmethod
    def index_new(
        self, spec: IndexSpec | None, *, reindex: bool, added: int, show_progress: bool = False
    ) -> None:
        """Bring the index up to what is asked for at the end of a run, in which a few new vectors may wait.

        Args:
            spec: Kind, recall and memory; what it leaves open is as in the previous call.
            reindex: Index even a few vectors.
            added: Number of vectors that the run has added.
            show_progress: Report progress on stderr.

        Raises:
            InputError, LookalikeError: The index cannot be built.
        """

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """Return facts about the gallery as plain values."""

    # ---- as a value

    def __repr__(self) -> str:
        try:
            facts = [
                pluralize(len(self), "image"),
                f"{self.manifest.dim} dimensions",
                f"index {self.index_kind}",
            ]
        except LookalikeError as error:
            facts = [str(error)]
        return f"<{type(self).__name__} {self.folder}: {', '.join(facts)}>"

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return all items as a capsule of an Arrow stream.

        Raises:
            InputError: pyarrow is not installed.
            LookalikeError: The gallery is damaged, or its database cannot be reached.
        """
        contents = self.contents
        return table_stream(contents.pages(), ITEM_KINDS, contents.kinds(), requested_schema)

    # ---- searching

    @takes_search_options
    def search(self, image: ImageSource, k: int = SearchOptions.k, **options: Unpack[SearchKeywords]) -> Hits:
        """Return the k items most similar to an image, best first; equal scores by id.

        Args:
            image: A path, the bytes of a file, a Pillow image, or an array or tensor uint8 [H, W, 3].
            k: Number of hits; fewer if there are no more.
            options: Further fields of `SearchOptions`, such as `where` and `min_score`.

        Raises:
            ImageError: The image cannot be read.
            InputError: An option is invalid.
        """
        return self.find(self.embedder.embed([image]), SearchOptions(k, **options))[0]

    @takes_search_options
    def search_id(self, item: int | str, k: int = SearchOptions.k, **options: Unpack[SearchKeywords]) -> Hits:
        """Return the k items most similar to an item, given by id or key, without the item itself.

        The other arguments are those of `search`.
        """
        asked = SearchOptions(k, **options)
        (number,) = self.ids_of([item])
        return self.find(self.vector(number)[None], asked, [(number,)])[0]

    @takes_search_options
    def search_vectors(
        self,
        queries: np.ndarray | Sequence[Sequence[float] | np.ndarray],
        k: int = SearchOptions.k,
        **options: Unpack[SearchKeywords],
    ) -> list[Hits]:
        """Return the hits of each query, a vector from this gallery's model.

        Args:
            queries: Vectors of any norm but zero, numbers [N, D], which are scaled to unit length.
            k: Number of hits of each.
            options: Further options, as for `search`.

        Raises:
            InputError: An option is invalid, or the vectors have another shape, are zero or not finite.
        """
        return self.find(unit_vectors(queries, self.manifest.dim), SearchOptions(k, **options))

    def find(
        self,
        queries: np.ndarray | Sequence[np.ndarray],
        options: SearchOptions,
        own: Sequence[tuple[int, ...]] | None = None,
    ) -> list[Hits]:
        """Return the hits of each query; `search_vectors` with the options in one value.

        A query may have several views of one thing. If hits are grouped, each group is compared with each of
        them, and its score is the mean; else, and with a re-ranking, the query is their mean.

        Args:
            queries: float32 [N, D], unit length; or for each query the vectors of its views, float32
                [m_i, D].
            options: Search options.
            own: For each query, the ids of the items that it comes from, which are no hits of it.

        Raises:
            InputError: An option is invalid, or the queries have another shape.
        """
        kinds, views = self.contents.kinds, None
        if not isinstance(queries, np.ndarray):
            views = [np.ascontiguousarray(one, np.float32) for one in queries]
            means = [one[0] if len(one) == 1 else compose(one) for one in views]
            queries = np.stack(means) if means else np.empty((0, self.manifest.dim), np.float32)
        if options.group_by is None and self.manifest.product is not None:
            options = replace(options, group_by=self.manifest.product)
        return [Hits(hits, kinds) for hits in self._find(Queries(queries, own, views), options)]

    def _find(
        self, queries: Queries, options: SearchOptions
    ) -> Sequence[list[Hit] | Callable[[], list[Hit]]]:
        if options.order is not None:
            return self._in_order(queries, options, Order.parse(options.order))
        if options.diversity:
            most = replace(options, k=max(options.k, MOST_CANDIDATES), diversity=0.0)
            return [self._diversified(hits, options) for hits in self._read(queries, most)]
        calibration = self.calibration if options.has_probabilities else None
        if calibration is None:
            if options.min_probability is not None:
                what = f"{self.folder}: the gallery is not calibrated, so its hits have no probabilities"
                with pointing("#/min_probability"):
                    raise InputError(f"{what}; run `lookalike calibrate {self.folder}`")
            return [hits.read for hits in self._nearest(queries, options)]
        asked = DEPTH + _COPIES
        if options.where is None and options.grouping is None and options.min_score is None:
            asked = max(options.k, asked)
            found = near = self._nearest(queries, replace(options, k=asked))
        else:
            found = self._nearest(queries, options)
            near = self._nearest(queries, SearchOptions(asked, exclude=options.exclude))
        # Where the picture of a query is there more often, the nearest others are further down.
        near, short = [*near], list(range(len(near)))
        while short := [n for n in short if len(near[n].scores) == asked and near[n].scores[-DEPTH] >= SAME]:
            asked *= 4
            wider = SearchOptions(asked, exclude=options.exclude)
            deeper = self._nearest(queries[short], wider)
            for n, hits in zip(short, deeper, strict=True):
                near[n] = hits
        return _with_probabilities(found, near, calibration, options)

    def _read(self, queries: Queries, options: SearchOptions) -> list[list[Hit]]:
        """Return the hits of each query, read."""
        return [hits if isinstance(hits, list) else hits() for hits in self._find(queries, options)]

    def _in_order(self, queries: Queries, options: SearchOptions, order: Order) -> list[list[Hit]]:
        """Return the first hits of each query in an order; see `SearchOptions.order`."""
        try:
            with pointing("#/order"):
                values_of = self._order_values(order.column)
        except InputError as error:
            error.args = (f"order: {str(error).removeprefix('order: ')}",)
            raise
        most = replace(options, k=max(options.k, MOST_CANDIDATES), order=None)
        found = self._read(queries, most)
        return [_ordered(hits, values_of(hits), order.descending)[: options.k] for hits in found]

    def _diversified(self, hits: list[Hit], options: SearchOptions) -> list[Hit]:
        """Return the first of some hits in the order of `SearchOptions.diversity`."""
        if not hits:
            return []
        vectors = self.vectors([hit.id for hit in hits])
        there = [hit for hit in hits if hit.id in vectors]  # not one that was just removed from a database
        scores, stacked = np.array([hit.score for hit in there]), np.stack([vectors[hit.id] for hit in there])
        order = diversified(scores, stacked, options.diversity, options.k)
        return [there[position] for position in order.tolist()]

    def _order_values(self, text: str) -> Callable[[list[Hit]], Sequence[Value]]:
        """Return a function that returns the values by which hits are ordered: of a column, or an expression.

        Raises:
            InputError: An unknown column, or an invalid expression.
        """
        contents = self.contents
        known = item_columns(contents.columns())
        known[_SCORE] = Column(_SCORE, "")
        if not is_expression(text) or text.lower() in map(str.lower, known):
            column = find_column(text, known).name
            return lambda hits: _values(hits, column)
        expression, kinds = Expression(text), {**contents.kinds(), **BUILT_IN}
        columns = {name: find_column(name, known).name for name in expression.columns}
        for name, column in columns.items():
            if kinds.get(column) == "text":
                raise InputError(f"column {name!r} is text; an expression takes numbers")
        return lambda hits: _computed(hits, expression, columns)

    @abstractmethod
    def _nearest(self, queries: Queries, options: SearchOptions) -> list[Ranked]:
        """Return the hits of each query without probabilities, grouped by `options.grouping`."""

    @abstractmethod
    def neighbours(self, labelled: np.ndarray | None = None, *, exact: bool = False) -> Neighbours:
        """Return a function that finds the nearest items of many queries.

        Args:
            labelled: Ids of the items with a label, or of pictures without their parts, to find only these;
                `None` for all items.
            exact: Compare all vectors. A database answers by its index in any case.
        """

    @property
    def calibration(self) -> Calibration | None:
        """Calibration of the scores; `None` if there is none for the gallery's model.

        A damaged one is logged, and left out.
        """
        if self._calibration is None:
            self._calibration = CalibrationFile(self.folder)
        try:
            found = self._calibration.read()
        except LookalikeError as error:
            _log.warning("%s; until then hits have no probabilities", printable(str(error)))
            return None
        return found if found is not None and found.fingerprint == self.fingerprint else None

    # ---- items

    @abstractmethod
    def ids_of(self, names: Names) -> list[int]:
        """Return the ids of items, or of one, by id or key; text that is no key may be the digits of an id.

        Raises:
            InputError: There is no such item.
        """

    @abstractmethod
    def stored_items(self, ids: Sequence[int]) -> list[StoredItem]:
        """Return all facts about items by id; unknown ids are left out."""

    @abstractmethod
    def items(self, ids: Sequence[int]) -> dict[int, Item]:
        """Return items by id; ids that are unknown or removed in this state are left out."""

    def item(self, item: int) -> Item:
        """Return one item by id.

        Raises:
            InputError: There is no such item.
        """
        found = self.items([item])
        if item not in found:
            raise InputError(f"{self.folder}: no item {item}")
        return found[item]

    def present(self, ids: Sequence[int]) -> np.ndarray:
        """Return for each id whether searches find the item: bool [n]."""
        found = self.items(ids)
        return np.array([number in found for number in ids], bool)

    @abstractmethod
    def vectors(self, ids: Sequence[int]) -> dict[int, np.ndarray]:
        """Return stored vectors by item id, float32 [D] each; unknown ids are left out."""

    def vector(self, item: int) -> np.ndarray:
        """Return the stored vector of one item, float32 [D].

        Raises:
            InputError: There is no such item.
        """
        found = self.vectors([item])
        if item not in found:
            raise InputError(f"{self.folder}: no item {item}")
        return found[item]

    @abstractmethod
    def embeddings(
        self, *, labelled: bool = False, pictures: bool = False, limit: int | None = None
    ) -> StoredEmbeddings:
        """Return the stored embeddings, labels and contents of all items, by id.

        Args:
            labelled: Leave out items without a label.
            pictures: Leave out the parts of pictures, in a gallery that divides pictures.
            limit: Largest number of items; of more, a random sample is returned, the same each time.

        Raises:
            LookalikeError: A vector or an item is damaged.
        """

    def pictures_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the picture that each item is a part of, by its id, int64 [n], or the item itself.

        It is the item itself in a gallery that does not divide pictures, and if the picture is gone.

        Args:
            ids: Item ids, int64 [n].
        """
        if not self.manifest.objects:
            return ids
        whole = dict[int, int]()
        for start in range(0, len(ids), arrow.AT_ONCE):
            items = self.stored_items(ids[start : start + arrow.AT_ONCE].tolist())
            keys = {one.id: boxes.split(one.key)[0] for one in items if boxes.split(one.path)[1]}
            known = self.writer.ids_by_key(sorted({*keys.values()}))
            whole |= {item: known[key] for item, key in keys.items() if key in known}
        return np.array([whole.get(number, number) for number in ids.tolist()], np.int64)

    def pictures_among(self, ids: np.ndarray) -> np.ndarray:
        """Return those items that are no part of another one, int64 [m]; see `pictures_of`."""
        found: np.ndarray = ids[self.pictures_of(ids) == ids]
        return found

    def products_of(self, ids: np.ndarray) -> np.ndarray | None:
        """Return the product of each item, int64 [n]; an item without one is its own. `None`: there are none.

        Args:
            ids: Item ids, int64 [n].
        """
        return self._numbers_of(ids, self.manifest.product)

    def variants_of(self, ids: np.ndarray) -> np.ndarray | None:
        """Return the variant of each item, int64 [n]; below 0 for none. `None`: products have none."""
        return self._numbers_of(ids, self.manifest.variant)

    def _numbers_of(self, ids: np.ndarray, column: str | None) -> np.ndarray | None:
        """Return a number for the value of each item in a column; negative ones of their own without one."""
        if column is None:
            return None
        numbers = dict[Value, int]()
        of_item = dict[int, int]()
        for start in range(0, len(ids), arrow.AT_ONCE):
            for one in self.stored_items(ids[start : start + arrow.AT_ONCE].tolist()):
                value = item_value(one, column)
                if value is not None:
                    of_item[one.id] = numbers.setdefault(value, len(numbers))
        return np.array([of_item.get(number, -1 - number) for number in ids.tolist()], np.int64)

    def products_beside(self, ids: np.ndarray, classes: np.ndarray) -> np.ndarray | None:
        """Return `products_of`, if what is learned or measured keeps products whole; see `whole_products`.

        Args:
            ids: Item ids, int64 [n].
            classes: Class of each, int [n]; -1 for none.
        """
        return whole_products(self.products_of(ids), classes)

    @abstractmethod
    def item_at(self, path: Path) -> int | None:
        """Return the id of the item of an image file, as `paths.lookup` names it; `None` if there is none."""

    @abstractmethod
    def select(self, items: Names = (), *, where: str | None = None) -> list[int]:
        """Return the ids of items by id or key, and of all that fulfil a condition, ascending.

        Raises:
            InputError: There is no such item, or the condition is invalid.
        """

    @abstractmethod
    def remove(self, items: Names = (), *, where: str | None = None) -> int:
        """Remove items, and return their number.

        Args:
            items: Ids or keys, or one of them.
            where: Condition; all items that fulfil it are removed as well.

        Raises:
            InputError: There is no such item, or the condition is invalid; nothing is removed.
            LookalikeError: The gallery cannot be written.
        """

    @abstractmethod
    def sample(self, count: int) -> list[int]:
        """Return the ids of a few items from all over the gallery, always the same ones, ascending."""

    @property
    def bridged(self) -> int:
        """Number of items whose vector a bridge made from one of the model before."""
        return 0  # a gallery in a database has no bridge

    def check_own_vectors(self) -> None:
        """Raise an `InputError` if a bridge made some vectors: what is fitted to them suits no later ones."""
        if self.bridged:
            what = f"{pluralize(self.bridged, 'vector')} made from those of another model, by a bridge"
            raise InputError(
                f"{self.folder}: has {what}; finish it with the same `lookalike index rebuild --bridge`, and "
                "remove images whose files are unusable"
            )

    @property
    @abstractmethod
    def contents(self) -> Contents:
        """What is in the gallery: columns, lists, counts."""

    @abstractmethod
    def state_digest(self) -> str:
        """Return a short text that changes with the items, their facts or the model."""


def _values(hits: list[Hit], column: str) -> list[Value]:
    if column in BUILT_IN or column == _SCORE:
        return [getattr(hit, column) for hit in hits]
    return [hit.metadata.get(column) for hit in hits]


def _computed(hits: list[Hit], expression: Expression, columns: Mapping[str, str]) -> list[Value]:
    """Return the value of an expression for each hit; `None` where it is missing."""
    values = {name: np.array(_values(hits, column), np.float64) for name, column in columns.items()}
    return [None if value != value else value for value in expression.of(values, len(hits)).tolist()]


def _ordered(hits: list[Hit], values: Sequence[Value], descending: bool) -> list[Hit]:
    """Return hits by their values: numbers before text, equal ones as before, missing last."""
    present = [number for number, value in enumerate(values) if value is not None]
    present.sort(key=lambda number: (isinstance(values[number], str), values[number]), reverse=descending)
    missing = [number for number, value in enumerate(values) if value is None]
    return [hits[number] for number in present + missing]


def _with_probabilities(
    found: list[Ranked], near: list[Ranked], calibration: Calibration, options: SearchOptions
) -> list[list[Hit]]:
    """Return the hits with their probabilities, up to `k` that reach the lowest probability.

    Args:
        found: Hits of each query.
        near: Hits of each query in the whole gallery, at least `DEPTH` that are not its own picture, if there
            are as many.
        calibration: Calibration.
        options: Search options.
    """
    kept = [hits.read()[: options.k] for hits in found]
    if not any(kept):
        return kept
    scores = np.array([hit.score for hits in kept for hit in hits])
    queries = [summary(some.scores) for some in near]
    nearest = np.repeat(np.array(queries), [*map(len, kept)], axis=0)
    probabilities = iter(calibration.probabilities(scores, nearest).tolist())
    lowest = options.min_probability or 0.0
    judged = [[hit.judged(next(probabilities)) for hit in hits] for hits in kept]
    return [[hit for hit in hits if (hit.probability or 0.0) >= lowest] for hits in judged]
