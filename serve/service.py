"""What every front end does with a gallery: search it, show its pictures, read its newest report."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from retrieval.decoding import cores
from retrieval.embedder import Embedder
from retrieval.errors import ImageError, InputError
from retrieval.gallery import Gallery, Hit, Item
from retrieval.images import load_image
from retrieval.searching.query import Options
from serve.addresses import API
from serve.errors import NoModelError, OtherModelError, UnknownItemError
from serve.live import LiveGallery, State
from serve.originals import Original, original
from serve.permissions import Permissions
from serve.queries import Asked, Cropped, One, Resolved, Together, joined, ones
from serve.regions import Region, load_part
from serve.telemetry import Telemetry
from serve.thumbnails import GREY, MISSING, Thumbnail, encode

_CACHED_THUMBNAILS = 512


@dataclass(frozen=True)
class _Picture:
    """A picture to embed, or a region of it; and the items that it is."""

    source: Path | bytes | Original
    region: Region | None = None
    own: tuple[int, ...] = ()


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
        # Decoding the largest picture takes half a gigabyte: as many at a time as there are cores.
        self._decoding = threading.BoundedSemaphore(cores())
        self._thumbnail = lru_cache(_CACHED_THUMBNAILS)(self._make_thumbnail)

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
        found = _item(gallery, name if isinstance(name, int) else _number(gallery, name))
        if isinstance(name, str) and found.key != name:  # the digits of a number are no key
            raise UnknownItemError(f"the gallery has no item of key {name!r}")
        return found

    # ---- for programs

    def find(self, queries: Sequence[Asked], options: Options, *, fingerprint: str | None = None) -> Answers:
        """Search with several queries at once. A query by a picture of the gallery leaves that one out.

        Args:
            fingerprint: of the model that made the vectors among the queries; refused if it is another.

        Raises:
            OtherModelError: the fingerprint is not that of the gallery's model.
            InputError: options that the gallery cannot fulfil.
            UnavailableError: it cannot be read.
        """

        def search(state: State) -> Answers:
            _check_model(state.gallery, fingerprint)
            resolved = self._resolved(state, queries)
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
        wanted = [_Picture(picture) for picture in pictures]
        return self._live.steadily(lambda state: (self._vectors(state, wanted), state.gallery.fingerprint))

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
        item = _item(state.gallery, source) if isinstance(source, int) else None
        given = original(state.gallery, source) if isinstance(source, int) else source
        image, pixels, decode_ms = self._decoded(state, given, region)
        vectors, embed_ms = self._embedded(state, pixels[None])
        took = decode_ms + embed_ms
        return Query(vectors[0], item, state.gallery.fingerprint, took, region), image

    def query_item(self, item: int) -> Query:
        """A query by one of the gallery's own pictures; an `UnknownItemError` where there is none."""
        gallery = self.gallery
        return Query(None, _item(gallery, item), gallery.fingerprint)

    def thumbnail(self, item: int) -> Thumbnail:
        """A small picture of an item: the grey tile where its file cannot be read any more, or is another.

        Raises:
            UnknownItemError: the gallery has no such item.
        """
        file = self._original(item)
        self.telemetry.thumbnails.inc()
        try:
            return self._thumbnail(item, file)
        except ImageError:
            return MISSING

    def picture(self, item: int) -> Image.Image:
        """An item's picture: a grey one where its file cannot be read any more, or is another.

        Raises:
            UnknownItemError: the gallery has no such item.
        """
        file = self._original(item)
        try:
            with self._decoding:
                return load_image(file.read())
        except ImageError:
            return Image.new("RGB", (1, 1), GREY)

    def _make_thumbnail(self, item: int, file: Original) -> Thumbnail:
        # The item is part of the key: a file that was replaced and indexed again is another item.
        self.telemetry.thumbnails_made.inc()
        with self._decoding:
            return encode(load_image(file.read()))

    def _original(self, item: int) -> Original:
        gallery = self.gallery
        return original(gallery, _item(gallery, item).id)

    # ---- what it is

    def _facts(self, gallery: Gallery) -> Facts:
        uuid = str(gallery.store.meta["gallery_uuid"])
        return Facts(self.name, len(gallery), gallery.fingerprint, uuid, self.address)

    def _description(self, state: State) -> Description:
        gallery = state.gallery
        index = gallery.index if gallery.index and gallery.index.usable else None
        return Description(
            facts=self._facts(gallery),
            dim=int(gallery.store.meta["dim"]),
            embeds=state.embedder is not None,
            columns=gallery.store.columns(),
            index="flat" if index is None else str(index.card["kind"]),
            unindexed=0 if index is None else gallery.outside_index,
        )

    # ---- from pictures to vectors

    def _resolved(self, state: State, queries: Sequence[Asked]) -> list[Resolved | InputError]:
        """Each query as a vector, with the items that it is."""
        looked_up = [_looked_up(state.gallery, one) for one in ones(queries)]
        pictures = [one for one in looked_up if isinstance(one, _Picture)]
        vectors = iter(self._vectors(state, pictures) if pictures else ())

        def resolved(one: _Picture | Resolved | InputError) -> Resolved | InputError:
            if not isinstance(one, _Picture):
                return one
            vector = next(vectors)
            return vector if isinstance(vector, InputError) else (vector, one.own)

        each = map(resolved, looked_up)
        return [
            joined([next(each) for _ in query.queries]) if isinstance(query, Together) else next(each)
            for query in queries
        ]

    def _vectors(self, state: State, pictures: Sequence[_Picture]) -> list[np.ndarray | InputError]:
        _check_embeds(state)
        found: list[np.ndarray | InputError] = []
        for picture in pictures:
            try:
                found.append(self._decoded(state, picture.source, picture.region)[1])
            except InputError as error:
                found.append(error)
        good = [pixels for pixels in found if isinstance(pixels, np.ndarray)]
        vectors = iter(self._embedded(state, np.stack(good))[0] if good else ())
        return [next(vectors) if isinstance(one, np.ndarray) else one for one in found]

    def _decoded(
        self, state: State, source: Path | bytes | Original, region: Region | None
    ) -> tuple[Image.Image, np.ndarray, float]:
        """A picture, its pixels as the model takes them, uint8 [S, S, 3], and the milliseconds it took."""
        preprocess = _check_embeds(state).preprocess
        with self._decoding, self.telemetry.stage("decode") as took:
            given = source.read() if isinstance(source, Original) else source
            image = load_part(given, region, side=preprocess.scaled)  # as it is done for indexing
            pixels = preprocess(image)
        return image, pixels, took.ms

    def _embedded(self, state: State, pixels: np.ndarray) -> tuple[np.ndarray, float]:
        """Vectors float32 [N, D], and the milliseconds it took."""
        assert state.embed is not None
        with self.telemetry.stage("embed") as took:
            vectors = state.embed(pixels)
        return vectors, took.ms


def _found(
    gallery: Gallery, asked: Sequence[Resolved | InputError], options: Options
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


def _looked_up(gallery: Gallery, query: One) -> _Picture | Resolved | InputError:
    """A query as what is to be embedded, or as what is known of it already."""
    try:
        if isinstance(query, bytes):
            return _Picture(query)
        if isinstance(query, np.ndarray):
            return _unit(query, gallery.store.meta["dim"]), ()
        if not isinstance(query, Cropped):
            number = _number(gallery, query)
            return gallery.vector(number), (number,)
        if isinstance(query.picture, bytes):
            return _Picture(query.picture, query.region)
        item = _item(gallery, _number(gallery, query.picture))
        return _Picture(original(gallery, item.id), query.region, (item.id,))
    except InputError as error:
        return error


def _check_embeds(state: State) -> Embedder:
    """The gallery's model; a `NoModelError` where it has none."""
    if state.embedder is None:
        raise NoModelError(
            "the gallery holds vectors made elsewhere: search by a vector, or by one of its items as a whole"
        )
    return state.embedder


def _check_model(gallery: Gallery, fingerprint: str | None) -> None:
    if fingerprint is not None and fingerprint != gallery.fingerprint:
        what = f"the vector is of model {fingerprint[:12]}, the gallery of model {gallery.fingerprint[:12]}"
        raise OtherModelError(f"{what}: embed the picture again")


def _unit(vector: np.ndarray, dim: int) -> np.ndarray:
    """A vector scaled to unit length, float32 [D]; an `InputError` where it is none."""
    vector = np.asarray(vector, np.float64)
    if vector.shape != (dim,):
        raise InputError(f"the vector has {vector.size} numbers, those of this gallery have {dim}")
    largest = np.abs(vector).max()
    if not np.isfinite(largest) or largest == 0:
        raise InputError("the vector is zero, or not finite, so that it points nowhere")
    vector = vector / largest  # so that no square is too large, or too small
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def _number(gallery: Gallery, name: int | str) -> int:
    try:
        (number,) = gallery.ids_of([name])
    except InputError:
        raise UnknownItemError(f"the gallery has no item {name!r}: neither an id nor a key") from None
    return number


def _item(gallery: Gallery, number: int) -> Item:
    found = gallery.items([number]) if 0 < number < 2**63 else {}
    if number not in found:
        raise UnknownItemError(f"the gallery has no item {number}: search again")
    return found[number]
