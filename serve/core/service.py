"""Search service of one gallery: queries, thumbnails and descriptions for the API and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from retrieval.errors import ImageError, InputError
from retrieval.gallery import Gallery, Hit, Item
from retrieval.images.load import load_image
from retrieval.inference.runtime import Runtime
from retrieval.lru_cache import LRUCache
from retrieval.search.query import SearchOptions
from serve.addresses import API, api_of
from serve.core.errors import ModelMismatchError, UnknownItemError
from serve.core.live import LiveGallery, LiveState
from serve.core.originals import Original, find_original
from serve.core.permissions import Permissions
from serve.core.queries import AnyQuery, QueryResolver, Region, ResolvedQuery, find_item, item_id
from serve.core.telemetry import Telemetry
from serve.core.thumbnails import GREY, MAX_SIDE, MISSING, Thumbnail, encode

MAX_CONDITION = 4096  # characters of a condition in a request
_CACHED_THUMBNAILS = 512
_SHORTER_SIDE = MAX_SIDE * 3 // 4  # of a photo's thumbnail
_VERSION_DIGITS = 8  # of the gallery's UUID in thumbnail URLs, so that a replaced gallery has others


@dataclass(frozen=True)
class EmbeddedQuery:
    """A query of the page: a vector of the gallery's model, or an item of the gallery.

    Attributes:
        vector: float32 [D], unit length; None for a whole item, whose vector is stored.
        item: The item that the query shows, which its results leave out.
        fingerprint: Fingerprint of the model of the vector.
        embed_ms: Milliseconds of decoding and embedding.
        region: Region of the image; None for the whole image.
    """

    vector: np.ndarray | None
    item: Item | None
    fingerprint: str
    embed_ms: float = 0.0
    region: Region | None = None


@dataclass(frozen=True)
class QueryResults:
    """Results of one or several queries.

    Attributes:
        found: Hits of each query, best first, or the error in it.
        summary: Summary of the gallery that was searched.
    """

    found: list[list[Hit] | InputError]
    summary: GallerySummary


@dataclass(frozen=True)
class GallerySummary:
    """Summary of a gallery.

    Attributes:
        name: Name of the gallery on the server.
        images: Number of images.
        fingerprint: Fingerprint of the model.
        uuid: UUID of the gallery, which changes when it is rebuilt.
        address: Path of its API, such as "/v1".
    """

    name: str
    images: int
    fingerprint: str
    uuid: str
    address: str

    def thumbnail(self, item: int) -> str:
        """Return the URL of an item's thumbnail, which is another one after the gallery was rebuilt."""
        return f"{self.address}/images/{item}/thumbnail?v={self.uuid[:_VERSION_DIGITS]}"


@dataclass(frozen=True)
class GalleryDescription:
    """Full description of a gallery.

    Attributes:
        summary: Summary of the gallery.
        dim: Length D of a vector.
        embeds: Whether the gallery has a model, so that it can be searched by image.
        columns: Metadata columns.
        index: Kind of the index; "flat" compares all vectors.
        unindexed: Vectors that the index does not cover.
    """

    summary: GallerySummary
    dim: int
    embeds: bool
    columns: list[str]
    index: str
    unindexed: int


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

    Raises:
        InputError: The folder is not a gallery.
        LookalikeError: The gallery's model is damaged or does not match the stored vectors.
    """

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
    ) -> None:
        self.folder = folder
        self.name = name or folder.resolve().name
        self.address = address
        self.permissions = permissions or Permissions()
        self.telemetry = telemetry or Telemetry()
        # Each request runs on one core: concurrent requests on all cores would slow each other down.
        self.runtime = replace(runtime or Runtime(), threads=1)
        self._live = LiveGallery(folder, self.telemetry, self.runtime, batching)
        self._resolver = QueryResolver(self.telemetry)
        # The item is part of the key: a file that was replaced and indexed again is another item.
        self._thumbnails: LRUCache[tuple[int, Original], Thumbnail] = LRUCache(_CACHED_THUMBNAILS)

    @property
    def gallery(self) -> Gallery:
        """The last committed state of the gallery.

        Raises:
            UnavailableError: The gallery cannot be read.
        """
        return self._live.state().gallery

    @property
    def batching(self) -> bool:
        """Whether images of concurrent requests are embedded together."""
        return self._live.batching

    def describe(self) -> GalleryDescription:
        """Return the full description of the gallery."""
        return self._live.with_state(self._description)

    def summary(self) -> GallerySummary:
        """Return the summary of the gallery."""
        return self._summary(self.gallery)

    def item(self, name: int | str) -> Item:
        """Return an item by its id or key; raise an `UnknownItemError` if there is none."""
        gallery = self.gallery
        found = find_item(gallery, name if isinstance(name, int) else item_id(gallery, name))
        if isinstance(name, str) and found.key != name:  # a key of digits must not match an id
            raise UnknownItemError(f"the gallery has no item of key {name!r}")
        return found

    # ---- for the API

    def find(
        self, queries: Sequence[AnyQuery], options: SearchOptions, *, fingerprint: str | None = None
    ) -> QueryResults:
        """Search with several queries at once. Items in a query are left out of its results.

        Args:
            queries: The queries.
            options: Options of the search, for all queries.
            fingerprint: Model of the vectors among the queries; another one than the gallery's is refused.

        Raises:
            ModelMismatchError: The fingerprint is not that of the gallery's model.
            InputError: The options do not fit the gallery.
            UnavailableError: The gallery cannot be read.
        """

        check_condition(options.where)

        def search(state: LiveState) -> QueryResults:
            _check_model(state.gallery, fingerprint)
            resolved = self._resolver.resolve(state, queries)
            with self.telemetry.stage("search"):
                found = _search(state.gallery, resolved, options)
            return QueryResults(found, self._summary(state.gallery))

        return self._live.with_state(search)

    def embed(self, images: Sequence[bytes]) -> tuple[list[np.ndarray | InputError], str]:
        """Return the vector of each image, float32 [D], or the error in it; and the model's fingerprint.

        Raises:
            NoModelError: The gallery has no model.
            UnavailableError: The gallery cannot be read.
        """

        def embed(state: LiveState) -> tuple[list[np.ndarray | InputError], str]:
            return self._resolver.embed_images(state, images), state.gallery.fingerprint

        return self._live.with_state(embed)

    def refresh(self) -> None:
        """Wait until the next request sees everything committed before this call.

        Raises:
            UnavailableError: The gallery cannot be read.
        """
        self._live.state(wait=True)

    # ---- for the page

    def embed_query(
        self, source: Path | bytes | int, region: Region | None = None
    ) -> tuple[EmbeddedQuery, Image.Image]:
        """Embed an image or a region of it. Return the query and the decoded image or region.

        Args:
            source: Path or bytes of an image, or the id of an item, which is embedded again.
            region: Region of the image; None for the whole image.

        Raises:
            ImageError: The image cannot be read.
            InputError: The region is too small.
            NoModelError: The gallery has no model.
            UnknownItemError: There is no such item.
        """
        state = self._live.state()
        item = find_item(state.gallery, source) if isinstance(source, int) else None
        readable = find_original(state.gallery, source) if isinstance(source, int) else source
        vector, image, milliseconds = self._resolver.embed(state, readable, region)
        return EmbeddedQuery(vector, item, state.gallery.fingerprint, milliseconds, region), image

    def item_query(self, item: int) -> EmbeddedQuery:
        """Return the query for a whole item; raise an `UnknownItemError` if there is none."""
        gallery = self.gallery
        return EmbeddedQuery(None, find_item(gallery, item), gallery.fingerprint)

    def thumbnail(self, item: int) -> Thumbnail:
        """Return the thumbnail of an item, or `MISSING` if its file cannot be read or was replaced.

        Raises:
            UnknownItemError: The gallery has no such item.
        """
        file = self._original(item)
        found = self._thumbnails.get((item, file))
        if found is None:
            self.telemetry.thumbnails_made.inc()
            try:
                found = encode(load_image(file.read(), side=_SHORTER_SIDE))
            except ImageError:
                found = MISSING  # not cached: the file may come back
            else:
                self._thumbnails.put((item, file), found)
        self.telemetry.thumbnails.inc()
        return found

    def cached_thumbnail(self, item: int) -> Thumbnail | None:
        """Return the thumbnail of an item from the cache, without decoding; None if absent.

        Raises:
            UnknownItemError: The gallery has no such item.
        """
        found = self._thumbnails.get((item, self._original(item)))
        if found is not None:
            self.telemetry.thumbnails.inc()
        return found

    def image(self, item: int) -> Image.Image:
        """Return the image of an item, or a grey one if its file cannot be read or was replaced.

        Raises:
            UnknownItemError: The gallery has no such item.
        """
        file = self._original(item)
        try:
            with self._resolver.decoding:
                return load_image(file.read())
        except ImageError:
            return Image.new("RGB", (1, 1), GREY)

    def _original(self, item: int) -> Original:
        gallery = self.gallery
        return find_original(gallery, find_item(gallery, item).id)

    # ---- descriptions

    def _summary(self, gallery: Gallery) -> GallerySummary:
        uuid = gallery.store.manifest.uuid
        return GallerySummary(self.name, len(gallery), gallery.fingerprint, uuid, self.address)

    def _description(self, state: LiveState) -> GalleryDescription:
        gallery = state.gallery
        index = gallery.index if gallery.index and gallery.index.usable else None
        return GalleryDescription(
            summary=self._summary(gallery),
            dim=gallery.store.manifest.dim,
            embeds=state.embedder is not None,
            columns=gallery.store.columns(),
            index="flat" if index is None else str(index.card["kind"]),
            unindexed=0 if index is None else gallery.outside_index,
        )


def open_services(
    folders: Mapping[str, Path], permissions: Permissions, runtime: Runtime
) -> list[SearchService]:
    """Open the galleries of a server, which share one telemetry.

    Args:
        folders: Gallery folders by name; the first is served at the root of the API.
        permissions: Permissions of visitors.
        runtime: Device, provider and batch size of the models.

    Raises:
        InputError: A folder is not a gallery.
        LookalikeError: A gallery's model is damaged or does not match its vectors.
    """
    telemetry = Telemetry()
    return [
        SearchService(
            folder,
            name=name,
            address=api_of(name) if number else API,
            permissions=permissions,
            runtime=runtime,
            telemetry=telemetry,
        )
        for number, (name, folder) in enumerate(folders.items())
    ]


def check_condition(text: str | None) -> None:
    """Raise an `InputError` if the condition of a request is too long."""
    if text is not None and len(text) > MAX_CONDITION:
        what = f"the condition has {len(text)} characters"
        raise InputError(f"where: {what}; at most {MAX_CONDITION} are allowed in a request")


def _search(
    gallery: Gallery, queries: Sequence[ResolvedQuery | InputError], options: SearchOptions
) -> list[list[Hit] | InputError]:
    """Return the hits of each query, or the error in it."""
    good = [query for query in queries if not isinstance(query, InputError)]
    try:
        found = (
            gallery.find(np.stack([query.vector for query in good]), options, [query.items for query in good])
            if good
            else []
        )
    except InputError as error:  # the message may contain the path of the folder
        raise InputError(str(error).replace(str(gallery.folder), gallery.folder.name)) from error
    hits = iter(found)
    return [query if isinstance(query, InputError) else next(hits) for query in queries]


def _check_model(gallery: Gallery, fingerprint: str | None) -> None:
    if fingerprint is not None and fingerprint != gallery.fingerprint:
        models = f"the vector is of model {fingerprint[:12]}, the gallery of model {gallery.fingerprint[:12]}"
        raise ModelMismatchError(f"{models}: embed the image again")
