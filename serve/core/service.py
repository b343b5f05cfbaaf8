"""What every front end does with a gallery: search it, show its pictures, say what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from retrieval.errors import ImageError, InputError
from retrieval.gallery import Gallery, Hit, Item
from retrieval.images.load import load_image
from retrieval.search.query import SearchOptions
from serve.addresses import API, api_of
from serve.core.errors import ModelMismatchError, UnknownItemError
from serve.core.live import LiveGallery, State
from serve.core.originals import Original, original
from serve.core.permissions import Permissions
from serve.core.queries import Asked, Resolved
from serve.core.recent import Recent
from serve.core.regions import Region
from serve.core.resolving import Resolver, item_of, number_of
from serve.core.telemetry import Telemetry
from serve.core.thumbnails import GREY, MAX_SIDE, MISSING, Thumbnail, encode

_CACHED_THUMBNAILS = 512
_SHORTER_SIDE = MAX_SIDE * 3 // 4  # of a photograph's thumbnail
_VERSION = 8  # digits of a UUID that tell a gallery from those that were in its place before


@dataclass(frozen=True)
class Query:
    """What is searched for: a vector of the gallery's model, or one of the gallery's own pictures.

    Attributes:
        vector: float32 [D], unit length; `None` for all of a picture of the gallery, whose vector is stored
            there.
        item: the picture of the gallery that it is, or is a region of; its own results leave it out.
        fingerprint: of the model that made the vector.
        embed_ms: what decoding and embedding took, in milliseconds.
        region: the part of the picture that it is; `None`: all of it.
    """

    vector: np.ndarray | None
    item: Item | None
    fingerprint: str
    embed_ms: float = 0.0
    region: Region | None = None


@dataclass(frozen=True)
class Answers:
    """For each query its hits, best first, or what is wrong with it; and whose vectors they come from."""

    found: list[list[Hit] | InputError]
    facts: Facts


@dataclass(frozen=True)
class Facts:
    """A gallery in a few words.

    Attributes:
        address: where its part of the API is, "/v1".
    """

    name: str
    images: int
    fingerprint: str
    uuid: str
    address: str

    def thumbnail(self, item: int) -> str:
        """Where a small picture of an item is; in another gallery that takes this one's place, elsewhere."""
        return f"{self.address}/images/{item}/thumbnail?v={self.uuid[:_VERSION]}"


@dataclass(frozen=True)
class Description:
    """A gallery in full.

    Attributes:
        dim: D, the length of a vector.
        embeds: whether there is a model, so that pictures can be searched for.
        columns: of metadata.
        index: its kind; "flat" where all vectors are compared.
        unindexed: vectors that the index, if there is one, does not cover.
    """

    facts: Facts
    dim: int
    embeds: bool
    columns: list[str]
    index: str
    unindexed: int


class SearchService:
    """One gallery with its model, shared by all requests; what another process commits shows up by itself.

    Args:
        folder: the gallery.
        name: what the server calls it; its folder's without one.
        address: where its part of the API is.
        permissions: what visitors may do with it.
        telemetry: counts all this; several services may share one.
        batching: put pictures that arrive together through the model together; `None`: where it runs on
            anything but a CPU.

    Raises:
        InputError: the folder is no gallery.
        LookalikeError: the gallery's model is damaged or does not match the stored vectors.
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
    ) -> None:
        self.folder = folder
        self.name = name or folder.resolve().name
        self.address = address
        self.permissions = permissions or Permissions()
        self.telemetry = telemetry or Telemetry()
        self._live = LiveGallery(folder, self.telemetry, batching)
        self._resolver = Resolver(self.telemetry)
        # The item is part of the key: a file that was replaced and indexed again is another item.
        self._thumbnails: Recent[tuple[int, Original], Thumbnail] = Recent(_CACHED_THUMBNAILS)

    @property
    def gallery(self) -> Gallery:
        """The gallery as it was last committed.

        Raises:
            UnavailableError: it cannot be read.
        """
        return self._live.state().gallery

    @property
    def batching(self) -> bool:
        """Whether pictures of several requests run through the model together."""
        return self._live.batching

    def describe(self) -> Description:
        """What to say about the gallery to programs."""
        return self._live.steadily(self._description)

    def facts(self) -> Facts:
        """What to say about the gallery."""
        return self._facts(self.gallery)

    def item(self, name: int | str) -> Item:
        """One of the gallery's pictures, by its number or key; an `UnknownItemError` where there is none."""
        gallery = self.gallery
        found = item_of(gallery, name if isinstance(name, int) else number_of(gallery, name))
        if isinstance(name, str) and found.key != name:  # the digits of a number are no key
            raise UnknownItemError(f"the gallery has no item of key {name!r}")
        return found

    # ---- for programs

    def find(
        self, queries: Sequence[Asked], options: SearchOptions, *, fingerprint: str | None = None
    ) -> Answers:
        """Search with several queries at once. A query by a picture of the gallery leaves that one out.

        Args:
            fingerprint: of the model that made the vectors among the queries; refused if it is another.

        Raises:
            ModelMismatchError: the fingerprint is not that of the gallery's model.
            InputError: options that the gallery cannot fulfil.
            UnavailableError: it cannot be read.
        """

        def search(state: State) -> Answers:
            _check_model(state.gallery, fingerprint)
            resolved = self._resolver.resolved(state, queries)
            with self.telemetry.stage("search"):
                found = _found(state.gallery, resolved, options)
            return Answers(found, self._facts(state.gallery))

        return self._live.steadily(search)

    def embed(self, pictures: Sequence[bytes]) -> tuple[list[np.ndarray | InputError], str]:
        """The vector of each picture, float32 [D], or what is wrong with it; and the model's fingerprint.

        Raises:
            NoModelError: the gallery has none.
            UnavailableError: it cannot be read.
        """

        def embed(state: State) -> tuple[list[np.ndarray | InputError], str]:
            return self._resolver.vectors(state, pictures), state.gallery.fingerprint

        return self._live.steadily(embed)

    def take_up(self) -> None:
        """Wait until what is committed now is what the next request sees.

        Raises:
            UnavailableError: the gallery cannot be read.
        """
        self._live.state(wait=True)

    # ---- for the page

    def query_picture(
        self, source: Path | bytes | int, region: Region | None = None
    ) -> tuple[Query, Image.Image]:
        """Embed a picture, or a region of it -> the query, and the picture, or region, as it was understood.

        Args:
            source: what came from outside, or the id of an item, to be embedded anew.

        Raises:
            ImageError: the picture cannot be read.
            InputError: the region is too small.
            NoModelError: the gallery has none.
            UnknownItemError: there is no such item.
        """
        state = self._live.state()
        item = item_of(state.gallery, source) if isinstance(source, int) else None
        given = original(state.gallery, source) if isinstance(source, int) else source
        vector, image, took = self._resolver.embedded(state, given, region)
        return Query(vector, item, state.gallery.fingerprint, took, region), image

    def query_item(self, item: int) -> Query:
        """A query by one of the gallery's own pictures; an `UnknownItemError` where there is none."""
        gallery = self.gallery
        return Query(None, item_of(gallery, item), gallery.fingerprint)

    def thumbnail(self, item: int) -> Thumbnail:
        """A small picture of an item: the grey tile where its file cannot be read any more, or is another.

        Raises:
            UnknownItemError: the gallery has no such item.
        """
        file = self._original(item)
        found = self._thumbnails.get((item, file))
        if found is None:
            self.telemetry.thumbnails_made.inc()
            try:
                found = encode(load_image(file.read(), side=_SHORTER_SIDE))
            except ImageError:
                found = MISSING  # which is not kept: the file may come back
            else:
                self._thumbnails.put((item, file), found)
        self.telemetry.thumbnails.inc()
        return found

    def kept_thumbnail(self, item: int) -> Thumbnail | None:
        """The same where it is in memory, which takes no time; `None` where it is to be made."""
        found = self._thumbnails.get((item, self._original(item)))
        if found is not None:
            self.telemetry.thumbnails.inc()
        return found

    def picture(self, item: int) -> Image.Image:
        """An item's picture: a grey one where its file cannot be read any more, or is another.

        Raises:
            UnknownItemError: the gallery has no such item.
        """
        file = self._original(item)
        try:
            with self._resolver.decoding:
                return load_image(file.read())
        except ImageError:
            return Image.new("RGB", (1, 1), GREY)

    def _original(self, item: int) -> Original:
        gallery = self.gallery
        return original(gallery, item_of(gallery, item).id)

    # ---- what it is

    def _facts(self, gallery: Gallery) -> Facts:
        uuid = gallery.store.manifest.uuid
        return Facts(self.name, len(gallery), gallery.fingerprint, uuid, self.address)

    def _description(self, state: State) -> Description:
        gallery = state.gallery
        index = gallery.index if gallery.index and gallery.index.usable else None
        return Description(
            facts=self._facts(gallery),
            dim=gallery.store.manifest.dim,
            embeds=state.embedder is not None,
            columns=gallery.store.columns(),
            index="flat" if index is None else str(index.card["kind"]),
            unindexed=0 if index is None else gallery.outside_index,
        )


def open_services(folders: Mapping[str, Path], permissions: Permissions) -> list[SearchService]:
    """Open the galleries of a server, which share one telemetry.

    Args:
        folders: Gallery folders by name; the first is served at the root of the API.
        permissions: Permissions of visitors.

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
            telemetry=telemetry,
        )
        for number, (name, folder) in enumerate(folders.items())
    ]


def facts_of(services: Sequence[SearchService]) -> list[Facts]:
    """What to say about each of several galleries; an `UnavailableError` where one cannot be read."""
    return [service.facts() for service in services]


def _found(
    gallery: Gallery, asked: Sequence[Resolved | InputError], options: SearchOptions
) -> list[list[Hit] | InputError]:
    """The hits of each query, or what is wrong with it."""
    good = [one for one in asked if not isinstance(one, InputError)]
    try:
        vectors = [vector for vector, _ in good]
        found = gallery.find(np.stack(vectors), options, [own for _, own in good]) if good else []
    except InputError as error:  # its message may name the folder
        raise InputError(str(error).replace(str(gallery.folder), gallery.folder.name)) from error
    hits = iter(found)
    return [one if isinstance(one, InputError) else next(hits) for one in asked]


def _check_model(gallery: Gallery, fingerprint: str | None) -> None:
    if fingerprint is not None and fingerprint != gallery.fingerprint:
        what = f"the vector is of model {fingerprint[:12]}, the gallery of model {gallery.fingerprint[:12]}"
        raise ModelMismatchError(f"{what}: embed the picture again")
