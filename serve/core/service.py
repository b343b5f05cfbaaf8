"""Search service of one gallery: queries, thumbnails and descriptions for the API and the page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from retrieval.analysis.heatmaps import Heatmaps, heatmaps_of_pixels
from retrieval.errors import ConditionError, ImageError, InputError, StoreError, pointing
from retrieval.galleries.database_folder import is_store
from retrieval.galleries.items import Hits, Item, View
from retrieval.galleries.objects import Objects, refuse_options, search_objects
from retrieval.galleries.searchable import SearchableGallery
from retrieval.gallery import Gallery
from retrieval.images.resampling import Box
from retrieval.ingest.uploads import Upload
from retrieval.model.embedder import Embedder
from retrieval.model.licenses import model_license
from retrieval.model.runtime import Runtime
from retrieval.progress import Stage
from retrieval.search.calibration import Calibration
from retrieval.search.detector import Detector
from retrieval.search.lru_cache import LRUCache
from retrieval.search.options import SearchOptions
from retrieval.storage.manifest import Manifest
from retrieval.storage.query_log import LOGGED, Against, LoggedSearch, Outcome, QueryLog
from serve.addresses import API, api_of
from serve.core.collections import Collections
from serve.core.errors import (
    InvalidRequestError,
    ModelMismatchError,
    NoEmbeddingMapError,
    NotRecordedError,
    UnknownItemError,
    UrlsNotAllowedError,
)
from serve.core.interleaving import Rival
from serve.core.live import LiveGallery, LiveState
from serve.core.originals import Original, find_original
from serve.core.permissions import Permissions
from serve.core.queries import (
    AnyQuery,
    QueryResolver,
    RegionQuery,
    ResolvedQuery,
    TextQuery,
    find_item,
    has_text,
    item_id,
    kind_of,
    load_region,
    model_of,
    open_region,
)
from serve.core.telemetry import Telemetry
from serve.core.thumbnails import MAX_SIDE, MISSING, PICTURE_SIDE, Thumbnail, encode
from serve.core.url_fetcher import fetch_image
from serve.limits import MAX_CONDITION

T = TypeVar("T")
MAX_REQUEST_PIXELS = 200_000_000
_CACHED_THUMBNAILS = 512
_OWN_THREADS = 4  # of a gallery in a database
_PATIENCE = 2.0  # seconds that a gallery has to say how it is
_SHORTER_SIDE = MAX_SIDE * 3 // 4  # of a photo's thumbnail
_VERSION_DIGITS = 8  # of the SHA-256 of its bytes in the URL of a thumbnail


@dataclass(frozen=True)
class QueryResults:
    """Results of one or several queries.

    Attributes:
        found: Hits of each query, best first, or the error in it.
        summary: Summary of the gallery that was searched.
        interleaved: Whether the hits of each query are mixed with those of a second gallery.
    """

    found: list[Hits | InputError]
    summary: GallerySummary
    interleaved: list[bool]


@dataclass(frozen=True)
class GallerySummary:
    """Summary of a gallery.

    Attributes:
        name: Name of the gallery on the server.
        images: Number of images.
        fingerprint: Fingerprint of the model.
        uuid: UUID of the gallery, which changes when it is rebuilt.
        address: Path of its API, such as "/v1".
        license: Licence of the weights that the model was trained from, if it is known.
    """

    name: str
    images: int
    fingerprint: str
    uuid: str
    address: str
    license: str | None = None

    def thumbnail(self, item: Item | View) -> str:
        """Return the URL of an item's thumbnail, which is another one if its file was replaced."""
        version = item.content_sha256[:_VERSION_DIGITS] or "0"
        return f"{self.address}/items/{item.id}/thumbnail?v={version}"


@dataclass(frozen=True)
class GalleryDescription:
    """Full description of a gallery.

    Attributes:
        summary: Summary of the gallery.
        dim: Length D of a vector.
        embeds: Whether the gallery has a model, so that it can be searched by image.
        columns: Metadata columns.
        product: Column of the products; None if images are not of products.
        variant: Column of their variants; None if there are none.
        objects: Whether parts of its pictures are items, too.
        show: Those that the page shows with each image, unless its visitor chooses others.
        index: Kind of the index; "flat" compares all vectors.
        unindexed: Vectors that the index does not cover.
        calibrated: Whether hits have probabilities.
        calibration: What gives them; None if nothing does.
        texts: Whether the model has a text encoder, so that it can be searched by text.
        changes: Whether visitors may add, describe and remove images.
        urls: Whether the server fetches query images by URL.
        sharing: Hours for which shared pictures are kept; 0 if visitors cannot share them.
        recorded: Whether searches are recorded.
        interleaved: Whether the hits of a second gallery are mixed into those of recorded searches.
        indexing: How far the server is in indexing the folder that it follows; None if it is not indexing.
    """

    summary: GallerySummary
    dim: int
    embeds: bool
    columns: list[str]
    product: str | None
    variant: str | None
    objects: bool
    show: list[str]
    index: str
    unindexed: int
    calibrated: bool
    calibration: Calibration | None
    texts: bool
    changes: bool
    urls: bool
    sharing: int
    recorded: bool
    interleaved: bool
    indexing: Stage | None


@dataclass(frozen=True)
class Embeddings:
    """Vectors of images and texts.

    Attributes:
        vectors: Vector of each, float32 [D], unit length, or the error in it.
        fingerprint: Fingerprint of the model.
        tokens: Tokens of all texts.
    """

    vectors: list[np.ndarray | InputError]
    fingerprint: str
    tokens: int


@dataclass(frozen=True)
class Comparison:
    """Heatmaps of a query, image A, and an item, image B.

    Attributes:
        found: The heatmaps.
        boxes: What the model sees of either, as fractions of the upright image.
        fingerprint: Fingerprint of the model.
    """

    found: Heatmaps
    boxes: tuple[Box, Box]
    fingerprint: str


class SearchService:
    """One gallery with its model, shared by all requests; follows the commits of other processes.

    Args:
        folder: Gallery folder.
        name: Name of the gallery on the server; by default that of its folder.
        address: Path of its API.
        permissions: Permissions of visitors.
        telemetry: Metrics, which several services may share.
        batching: Whether to embed images of concurrent requests together; None for all devices but a CPU.
        runtime: Device, provider and batch size of the model, which has one thread on a CPU.
        max_pixels: Pixels that the images of one request may have to decode.
        show: Metadata columns that the page shows with each image.
        query_log: Log of the searches, which several services may share; None for none.
        detector: Finds objects in pictures; None for the gallery's own, or the tiles that cover them.

    Attributes:
        indexing: How far the server is in indexing the folder that it follows; None if it is not indexing.

    Raises:
        InputError: The folder is not a gallery.
        LookalikeError: The gallery's model is damaged or does not match the stored vectors.
    """

    indexing: Stage | None = None

    def __init__(
        self,
        folder: Path,
        *,
        name: str | None = None,
        address: str = API,
        permissions: Permissions | None = None,
        telemetry: Telemetry | None = None,
        batching: bool | None = None,
        runtime: Runtime | None = None,
        max_pixels: int = MAX_REQUEST_PIXELS,
        show: Sequence[str] = (),
        query_log: QueryLog | None = None,
        detector: Detector | None = None,
    ) -> None:
        self.folder = folder
        self.name = name or folder.resolve().name
        self.address = address
        self.permissions = permissions or Permissions()
        self.show = show
        self._query_log = query_log
        self._rival: Rival | None = None
        self.telemetry = telemetry or Telemetry()
        # Each request runs on one core: concurrent requests on all cores would slow each other down.
        self.runtime = replace(runtime or Runtime(), threads=1)
        self._batching = batching
        self._live = LiveGallery(folder, self.telemetry, self.runtime, batching)
        self._resolver = QueryResolver(self.telemetry, max_pixels, detector)
        self._collections = Collections(self.folder)
        # A database that does not answer keeps these threads waiting, and not those of other galleries.
        self._threads = (
            ThreadPoolExecutor(_OWN_THREADS, thread_name_prefix="database") if is_store(folder) else None
        )
        self._asked = dict[str, asyncio.Future[Any]]()
        # The item is part of the key: a file that was replaced and indexed again is another item.
        self._thumbnails: LRUCache[tuple[int, Original], Thumbnail] = LRUCache(_CACHED_THUMBNAILS)

    @property
    def gallery(self) -> Gallery:
        """The last committed state of the gallery.

        Raises:
            UnavailableError: The gallery cannot be read.
        """
        return self._live.state().gallery

    def model(self) -> Embedder:
        """Return the gallery's model.

        Raises:
            NoModelError: It has none.
            UnavailableError: The gallery cannot be read.
        """
        return model_of(self._live.state())

    @property
    def refreshes(self) -> int:
        """How often another state of the gallery was loaded."""
        return self._live.refreshes

    @property
    def batching(self) -> bool:
        """Whether images of concurrent requests are embedded together."""
        return self._live.batching

    @property
    def records(self) -> bool:
        """Whether searches are recorded."""
        return self._query_log is not None

    @property
    def interleaves(self) -> bool:
        """Whether hits of a second gallery are mixed into those of recorded searches."""
        return self._rival is not None

    def interleave(self, folder: Path) -> None:
        """Mix the hits of another gallery into those of recorded searches, to compare the two.

        Raises:
            InputError: The folder is not a gallery, or the two cannot be compared; see `Rival`.
            LookalikeError: Its model is damaged or does not match the stored vectors.
        """
        self._rival = Rival(
            self.gallery, LiveGallery(folder, self.telemetry, self.runtime, self._batching), self._resolver
        )

    @property
    def log_folder(self) -> Path:
        """Folder of the log of the searches.

        Raises:
            NotRecordedError: Searches are not recorded.
        """
        return self._log().folder

    def _log(self) -> QueryLog:
        if self._query_log is None:
            raise NotRecordedError("this server records no searches: start it with --query-log")
        return self._query_log

    def describe(self) -> GalleryDescription:
        """Return the full description of the gallery."""
        return self._live.with_state(self._description)

    def summary(self) -> GallerySummary:
        """Return the summary of the gallery."""
        return self._summary(self._live.state())

    def check(self) -> GallerySummary:
        """Return the summary of the gallery after asking its database, if it has one, whether it answers.

        Raises:
            StoreError: It does not.
            UnavailableError: The gallery cannot be read.
        """
        self.gallery.check_reachable()
        return self.summary()

    def item(self, name: int | str) -> Item:
        """Return an item by its id or key; raise an `UnknownItemError` if there is none."""
        gallery = self.gallery
        found = find_item(gallery, name if isinstance(name, int) else item_id(gallery, name))
        if isinstance(name, str) and found.key != name:  # a key of digits must not match an id
            raise UnknownItemError(f"the gallery has no item of key {name!r}")
        return found

    # ---- for the API

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of short work in a thread, for which no other gallery waits."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, copy_context().run, work)

    async def soon(self, work: Callable[[], T]) -> T:
        """Return the result of a method of this service, within two seconds.

        Work that is still in progress from an earlier call is waited for and not started again.

        Raises:
            StoreError: It takes longer: the gallery's database does not answer.
        """
        asked = self._asked.get(work.__name__)
        if asked is None or asked.done() or asked.get_loop() is not asyncio.get_running_loop():
            asked = self._asked[work.__name__] = asyncio.ensure_future(self.run(work))
        await asyncio.wait([asked], timeout=_PATIENCE)
        if not asked.done():
            raise StoreError(f"{self.folder}: the database has not answered within {_PATIENCE:g} seconds")
        found: T = asked.result()
        return found

    def read(self, work: Callable[[SearchableGallery], T]) -> tuple[T, GallerySummary]:
        """Return the result of reading one state of the gallery, and its summary.

        Raises:
            UnavailableError: The gallery cannot be read.
        """
        return self._live.with_state(lambda state: (work(state.gallery), self._summary(state)))

    def condition(self, text: str | None) -> str | None:
        """Return the condition of a request with the ids of the collections that it names.

        Raises:
            ConditionError: It is too long, or there is no such collection.
        """
        if text is None:
            return None
        if len(text) > MAX_CONDITION:
            what = f"the condition has {len(text)} characters"
            raise ConditionError(f"where: {what}; at most {MAX_CONDITION} are allowed in a request")
        return self._collections.expand(text)

    def find(
        self,
        queries: Sequence[AnyQuery],
        options: SearchOptions,
        *,
        fingerprint: str | None = None,
        ids: Sequence[str] | None = None,
        again: bool = False,
    ) -> QueryResults:
        """Search with several queries at once. Items in a query are left out of its results.

        Args:
            queries: The queries.
            options: Options of the search, for all queries.
            fingerprint: Model of the vectors among the queries; another one than the gallery's is refused.
            ids: Ids under which the queries are recorded; None records nothing, and mixes in no hits of a
                second gallery.
            again: Whether they are recorded already.

        Raises:
            ModelMismatchError: The fingerprint is not that of the gallery's model.
            InputError: The options do not fit the gallery.
            UnavailableError: The gallery cannot be read.
        """
        asked = options
        options = replace(options, where=self.condition(options.where))
        if any(map(has_text, queries)):
            options = replace(options, calibrated=False)

        def search(state: LiveState) -> QueryResults:
            _check_model(state.gallery, fingerprint)
            resolved = self._resolver.resolve(state, queries)
            with self.telemetry.stage("search"):
                found = _search(state.gallery, resolved, options)
            shown, mixed = [*found], list[Against | None]([None] * len(found))
            for number, id in enumerate(ids or ()):
                one, hits = resolved[number], found[number]
                if self._rival and not isinstance(one, InputError) and not isinstance(hits, InputError):
                    shown[number], mixed[number] = self._rival.interleave(
                        state.gallery, queries[number], one, hits, options, id
                    )
            if ids is not None and not again:
                each = zip(ids, queries, resolved, found, mixed, strict=True)
                self._record(state.gallery, [_logged(*one, asked) for one in each])
            return QueryResults(shown, self._summary(state), [one is not None for one in mixed])

        return self._live.with_state(search)

    def _record(self, gallery: SearchableGallery, searches: Sequence[LoggedSearch | None]) -> None:
        if self._query_log is not None:
            self._query_log.append(self._log_name, gallery.fingerprint, filter(None, searches))

    @property
    def _log_name(self) -> str:
        """Name of the gallery in the log: that of its folder, which `lookalike coverage` is given."""
        return self.folder.resolve().name

    def record_outcome(self, search: str, item: int, outcome: Outcome) -> None:
        """Record what a visitor did with a hit.

        Args:
            search: Id of the search.
            item: Id of the item.
            outcome: What was done.

        Raises:
            NotRecordedError: Searches are not recorded.
        """
        self._log().append_outcome(self._log_name, search, item, outcome)

    def resolve(self, query: AnyQuery, *, fingerprint: str | None = None) -> tuple[ResolvedQuery, str]:
        """Return a query as a vector, and the fingerprint of its model.

        Raises:
            ModelMismatchError: The fingerprint is not that of the gallery's model.
            InputError: The query is unusable.
            UnavailableError: The gallery cannot be read.
        """

        def resolve(state: LiveState) -> tuple[ResolvedQuery, str]:
            _check_model(state.gallery, fingerprint)
            (resolved,) = self._resolver.resolve(state, [query])
            if isinstance(resolved, InputError):
                raise resolved
            return resolved, state.gallery.fingerprint

        return self._live.with_state(resolve)

    def embed(
        self, contents: Sequence[bytes] | Sequence[TextQuery]
    ) -> tuple[list[np.ndarray | InputError], str]:
        """Return the vector of each image or text, float32 [D], or the error in it; and the fingerprint.

        Raises:
            NoModelError: The gallery has no model.
            NoTextEncoderError: Its model embeds images only.
            UnavailableError: The gallery cannot be read.
        """

        def embed(state: LiveState) -> tuple[list[np.ndarray | InputError], str]:
            resolved = self._resolver.resolve(state, contents)
            vectors = [one if isinstance(one, InputError) else one.vector for one in resolved]
            return vectors, state.gallery.fingerprint

        return self._live.with_state(embed)

    def embed_uploads(
        self, uploads: Sequence[tuple[str, bytes]]
    ) -> tuple[list[Upload | InputError], Manifest]:
        """Return images to store with their vectors, and those of their parts, or the error in each.

        Args:
            uploads: File name and bytes of each image.

        Returns:
            The images, and the facts about the gallery by which they were embedded and divided.

        Raises:
            NoModelError: The gallery has no model.
            UnavailableError: The gallery cannot be read.
        """

        def embed(state: LiveState) -> tuple[list[Upload | InputError], Manifest]:
            found: list[Upload | InputError] = []
            resolved = self._resolver.resolve(state, [data for _, data in uploads])
            for (name, data), one in zip(uploads, resolved, strict=True):
                try:
                    if isinstance(one, InputError):
                        raise one
                    found.append(Upload(name, data, one.vector, self._resolver.parts(state, data)))
                except InputError as error:
                    found.append(error)
            return found, state.gallery.manifest

        return self._live.with_state(embed)

    def embeddings(
        self,
        contents: Sequence[bytes | TextQuery],
        *,
        fingerprint: str | None = None,
        dimensions: int | None = None,
    ) -> Embeddings:
        """Embed images and texts like `embed`, and cut the vectors off.

        Args:
            contents: Bytes of images, and texts.
            fingerprint: Expected model; another one than the gallery's is refused.
            dimensions: Number of leading dimensions, one of the model's `cut_dims`; None for all.

        Raises:
            ModelMismatchError: The fingerprint is not that of the gallery's model.
            NoModelError: The gallery has no model.
            NoTextEncoderError: Its model embeds images only.
            InvalidRequestError: The model was not trained for this number of dimensions.
            UnavailableError: The gallery cannot be read.
        """

        def embed(state: LiveState) -> Embeddings:
            _check_model(state.gallery, fingerprint)
            _check_dimensions(state, dimensions)
            resolved = self._resolver.resolve(state, contents)
            vectors = [
                one if isinstance(one, InputError) else _cut(one.vector, dimensions) for one in resolved
            ]
            texts = [one.text for one in contents if isinstance(one, TextQuery)]
            tokens = state.embedder.text_encoder.count_tokens(texts) if state.embedder and texts else 0
            return Embeddings(vectors, state.gallery.fingerprint, tokens)

        return self._live.with_state(embed)

    def compare(self, query: bytes | int | str | RegionQuery, item: int | str) -> Comparison:
        """Return heatmaps of where a query and an item look alike.

        Args:
            query: Bytes of an image, the id or key of an item, or a region of either.
            item: Id or key of an item.

        Raises:
            NoEmbeddingMapError: The gallery's model has no embedding map.
            NoModelError: The gallery has no model.
            ImageError: An image cannot be read.
            InputError: The region is too small.
            UnknownItemError: There is no such item.
            UnavailableError: The gallery cannot be read.
        """

        def compare(state: LiveState) -> Comparison:
            embedder = model_of(state)
            if not embedder.has_map:
                raise NoEmbeddingMapError(
                    "the gallery's model has no embedding map, because its embedding is not a mean over "
                    "locations: there are no heatmaps"
                )
            seen, box = self._resolver.view(state, query)
            with pointing("#/item"):
                other, other_box = self._resolver.view(state, item)
            with self.telemetry.stage("embed"):
                found = heatmaps_of_pixels(embedder, np.stack([seen, other]))
            return Comparison(found, (box, other_box), state.gallery.fingerprint)

        return self._live.with_state(compare)

    def find_objects(
        self, query: bytes | int | str, options: SearchOptions, *, id: str | None = None
    ) -> tuple[Objects, GallerySummary]:
        """Return what the gallery has of the objects in an image, and where they are.

        Args:
            query: Bytes of an image, or the id or key of an item, which is not among its own hits.
            options: Options of the search.
            id: Id under which the search is recorded, without a vector; None records nothing.

        Raises:
            NoModelError: The gallery has no model.
            ImageError: The image cannot be read.
            InputError: The options do not fit the gallery, or a search for objects.
            UnknownItemError: There is no such item.
            UnavailableError: The gallery cannot be read.
        """
        refuse_options(options)
        asked = options
        options = replace(options, where=self.condition(options.where))

        def find(state: LiveState) -> tuple[Objects, GallerySummary]:
            parts, own = self._resolver.tiles(state, query)
            with self.telemetry.stage("search"):
                found = search_objects(state.gallery, parts, options, own)
            if id is not None:
                hits = [(hit.id, hit.score, None) for hit in found.hits]
                self._record(state.gallery, [LoggedSearch(id, "objects", None, own, asked.where, hits)])
            return found, self._summary(state)

        return self._live.with_state(find)

    async def fetch(self, url: str) -> bytes:
        """Return the bytes of the image at a URL.

        Raises:
            UrlsNotAllowedError: The server does not fetch images.
            FetchError: See `fetch_image`.
            BusyError: Too many fetches are in progress.
        """
        if not self.permissions.urls:
            raise UrlsNotAllowedError("fetching images by URL is disabled: send the image itself")
        return await fetch_image(url)

    def upright(self, data: bytes, *, side: int) -> Image.Image:
        """Return the RGB image in the bytes of a file; raise an `ImageError` if there is none.

        Args:
            data: The bytes.
            side: Shorter side that is enough: a JPEG is decoded at a reduced size.
        """
        return self._resolver.image(data, side)

    def refresh(self) -> None:
        """Wait until the next request sees everything committed before this call.

        Raises:
            UnavailableError: The gallery cannot be read.
        """
        self._live.state(wait=True)

    # ---- for the page

    def thumbnail(self, item: int, *, is_whole: bool = False) -> Thumbnail:
        """Return the thumbnail of an item, or `MISSING` if its file cannot be read or was replaced.

        Args:
            item: Item id.
            is_whole: Return that of the whole picture, also if the item is a part of it.

        Raises:
            UnknownItemError: The gallery has no such item.
        """
        file = replace(self._original(item), is_whole=is_whole)
        found = self._thumbnails.get((item, file))
        if found is None:
            self.telemetry.thumbnails_made.inc()
            try:
                found = encode(
                    Image.fromarray(load_region(open_region(file, None, side=_SHORTER_SIDE), None))
                )
            except ImageError:
                found = MISSING  # not cached: the file may come back
            else:
                self._thumbnails.put((item, file), found)
        self.telemetry.thumbnails.inc()
        return found

    def cached_thumbnail(self, item: int, *, is_whole: bool = False) -> Thumbnail | None:
        """Return the thumbnail of an item from the cache, without decoding; None if absent.

        Raises:
            UnknownItemError: The gallery has no such item.
        """
        found = self._thumbnails.get((item, replace(self._original(item), is_whole=is_whole)))
        if found is not None:
            self.telemetry.thumbnails.inc()
        return found

    def version(self, item: int) -> str:
        """Return the version in the URL of an item's thumbnail; empty if it has no file.

        Raises:
            UnknownItemError: The gallery has no such item.
        """
        return self._original(item).content_sha256[:_VERSION_DIGITS]

    def picture(self, item: int) -> Thumbnail:
        """Return the image of an item at up to 2,048 pixels a side, or `MISSING` as for a thumbnail.

        Raises:
            UnknownItemError: The gallery has no such item.
        """
        file = self._original(item)
        try:
            return encode(self._resolver.image(file), PICTURE_SIDE)
        except ImageError:
            return MISSING

    def _original(self, item: int) -> Original:
        gallery = self.gallery
        return find_original(gallery, find_item(gallery, item).id)

    # ---- descriptions

    def _summary(self, state: LiveState) -> GallerySummary:
        gallery = state.gallery
        uuid = gallery.manifest.uuid
        found = None if state.embedder is None else model_license(state.embedder.provenance)
        return GallerySummary(self.name, len(gallery), gallery.fingerprint, uuid, self.address, found)

    def _description(self, state: LiveState) -> GalleryDescription:
        gallery = state.gallery
        kind = gallery.index_kind
        return GalleryDescription(
            summary=self._summary(state),
            dim=gallery.manifest.dim,
            embeds=state.embedder is not None,
            columns=(columns := gallery.contents.columns()),
            product=gallery.manifest.product,
            variant=gallery.manifest.variant,
            objects=gallery.manifest.objects,
            show=[name for name in self.show if name in columns],
            index=kind,
            unindexed=0 if kind == "flat" else gallery.outside_index,
            calibrated=gallery.calibration is not None,
            calibration=gallery.calibration,
            texts=state.embedder is not None and state.embedder.has_text,
            changes=self.permissions.changes,
            urls=self.permissions.urls and state.embedder is not None,
            sharing=self.permissions.sharing,
            recorded=self.records,
            interleaved=self.interleaves,
            indexing=self.indexing,
        )


def open_services(
    folders: Mapping[str, Path],
    permissions: Permissions,
    runtime: Runtime,
    max_pixels: int,
    show: Sequence[str] = (),
    query_log: Path | None = None,
    detector: Path | None = None,
    against: Path | None = None,
) -> list[SearchService]:
    """Open the galleries of a server, which share one telemetry.

    Args:
        folders: Gallery folders by name; the first is served at the root of the API.
        permissions: Permissions of visitors.
        runtime: Device, provider and batch size of the models.
        max_pixels: Pixels that the images of one request may have to decode.
        show: Metadata columns that the page shows with each image.
        query_log: Folder of the log of their searches; None for no log.
        detector: ONNX model that finds objects in a picture; `None` for tiles.
        against: Gallery folder whose hits are mixed into those of the only gallery.

    Raises:
        InputError: A folder is not a gallery, the log cannot be written, the detector cannot be used, or the
            galleries cannot be compared.
        LookalikeError: A gallery's model is damaged or does not match its vectors.
    """
    telemetry = Telemetry()
    log = None if query_log is None else QueryLog(query_log)
    finder = None if detector is None else Detector(detector, replace(runtime, threads=1))
    services = [
        SearchService(
            folder,
            name=name,
            address=api_of(name) if number else API,
            permissions=permissions,
            runtime=runtime,
            telemetry=telemetry,
            max_pixels=max_pixels,
            show=show,
            query_log=log,
            detector=finder,
        )
        for number, (name, folder) in enumerate(folders.items())
    ]
    if against is not None:
        services[0].interleave(against)
    return services


def _search(
    gallery: SearchableGallery, queries: Sequence[ResolvedQuery | InputError], options: SearchOptions
) -> list[Hits | InputError]:
    """Return the hits of each query, or the error in it."""
    good = [query for query in queries if not isinstance(query, InputError)]
    try:
        found = (
            gallery.find([query.each for query in good], options, [query.items for query in good])
            if good
            else []
        )
    except InputError as error:
        error.args = (gallery.public(str(error)),)
        raise
    hits = iter(found)
    return [query if isinstance(query, InputError) else next(hits) for query in queries]


def _logged(
    id: str,
    query: AnyQuery,
    resolved: ResolvedQuery | InputError,
    hits: Hits | InputError,
    against: Against | None,
    options: SearchOptions,
) -> LoggedSearch | None:
    """Return a search to log; None if it was refused."""
    if isinstance(resolved, InputError) or isinstance(hits, InputError):
        return None
    left_out = [*resolved.items, *(one for one in options.exclude if isinstance(one, int))]
    found = [(hit.id, hit.score, hit.probability) for hit in hits[:LOGGED]]
    return LoggedSearch(id, kind_of(query), resolved.vector, left_out, options.where, found, against)


def _cut(vector: np.ndarray, dimensions: int | None) -> np.ndarray:
    """Return the leading dimensions of a vector, scaled to unit length again."""
    if dimensions in (None, len(vector)):
        return vector
    part = vector[:dimensions]
    unit: np.ndarray = part / max(np.linalg.norm(part), np.finfo(np.float32).tiny)
    return unit


def _check_dimensions(state: LiveState, dimensions: int | None) -> None:
    """Raise an `InvalidRequestError` if the embeddings of the gallery's model cannot be cut off there."""
    sizes = () if state.embedder is None else state.embedder.cut_dims
    if dimensions is not None and sizes and dimensions not in sizes:
        known = " or ".join(map(str, sizes))
        detail = f"the model's embeddings cannot be cut off at {dimensions} dimensions; use {known}"
        fault = {"pointer": "#/dimensions", "detail": detail}
        raise InvalidRequestError(f"dimensions: {detail}", [fault])


def _check_model(gallery: SearchableGallery, fingerprint: str | None) -> None:
    if fingerprint is not None and fingerprint != gallery.fingerprint:
        models = f"the vector is of model {fingerprint[:12]}, the gallery of model {gallery.fingerprint[:12]}"
        with pointing("#/fingerprint"):
            raise ModelMismatchError(f"{models}: embed the image again")
