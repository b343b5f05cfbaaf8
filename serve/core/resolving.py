"""From what is asked for to vectors, in one state of a gallery: decoded and embedded as for indexing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from retrieval.embedder import Embedder
from retrieval.errors import InputError
from retrieval.gallery import Gallery, Item
from retrieval.images.decode import cores
from serve.core.errors import NoModelError, UnknownItemError
from serve.core.live import State
from serve.core.originals import Original, original
from serve.core.queries import Asked, Cropped, One, Resolved, Together, joined, ones
from serve.core.regions import Region, load_part
from serve.core.telemetry import Telemetry
from serve.core.waiting import go_on


@dataclass(frozen=True)
class _Picture:
    """A picture to embed, or a region of it; and the items that it is."""

    source: Path | bytes | Original
    region: Region | None = None
    own: tuple[int, ...] = ()


class Resolver:
    """Decodes and embeds for all requests; threads share it.

    Args:
        telemetry: is told how long that takes.

    Attributes:
        decoding: is held by whoever decodes: the largest picture takes half a gigabyte. Thumbnails are made
            without it, in few threads of their own.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self.decoding = threading.BoundedSemaphore(cores())
        self._telemetry = telemetry

    def resolved(self, state: State, queries: Sequence[Asked]) -> list[Resolved | InputError]:
        """Each query as a vector, with the items that it is."""
        looked_up = [_looked_up(state.gallery, one) for one in ones(queries)]
        pictures = [one for one in looked_up if isinstance(one, _Picture)]
        vectors = iter(self._vectors(state, pictures) if pictures else ())

        def known(one: _Picture | Resolved | InputError) -> Resolved | InputError:
            if not isinstance(one, _Picture):
                return one
            vector = next(vectors)
            return vector if isinstance(vector, InputError) else (vector, one.own)

        each = map(known, looked_up)
        return [
            joined([next(each) for _ in query.queries]) if isinstance(query, Together) else next(each)
            for query in queries
        ]

    def _vectors(self, state: State, pictures: Sequence[_Picture]) -> list[np.ndarray | InputError]:
        _check_embeds(state)
        found: list[np.ndarray | InputError] = []
        for picture in pictures:
            go_on()
            try:
                found.append(self._decoded(state, picture.source, picture.region)[1])
            except InputError as error:
                found.append(error)
        good = [pixels for pixels in found if isinstance(pixels, np.ndarray)]
        vectors = iter(self._run(state, np.stack(good))[0] if good else ())
        return [next(vectors) if isinstance(one, np.ndarray) else one for one in found]

    def embedded(
        self, state: State, source: Path | bytes | Original, region: Region | None
    ) -> tuple[np.ndarray, Image.Image, float]:
        """The vector of one picture, float32 [D], its pixels as they were understood, and the milliseconds.

        Raises:
            ImageError: the picture cannot be read.
            InputError: the region is too small.
            NoModelError: the gallery has no model.
        """
        image, pixels, decode_ms = self._decoded(state, source, region)
        vectors, embed_ms = self._run(state, pixels[None])
        return vectors[0], image, decode_ms + embed_ms

    def vectors(self, state: State, pictures: Sequence[bytes]) -> list[np.ndarray | InputError]:
        """The vector of each picture, float32 [D], or what is wrong with it; a `NoModelError` without one."""
        return self._vectors(state, [_Picture(picture) for picture in pictures])

    def _decoded(
        self, state: State, source: Path | bytes | Original, region: Region | None
    ) -> tuple[Image.Image, np.ndarray, float]:
        """A picture, its pixels as the model takes them, uint8 [S, S, 3], and the milliseconds it took."""
        preprocess = _check_embeds(state).preprocess
        with self.decoding, self._telemetry.stage("decode") as took:
            given = source.read() if isinstance(source, Original) else source
            image = load_part(given, region, side=preprocess.scaled)  # as it is done for indexing
            pixels = preprocess(image)
        return image, pixels, took.ms

    def _run(self, state: State, pixels: np.ndarray) -> tuple[np.ndarray, float]:
        """Vectors float32 [N, D], and the milliseconds it took."""
        assert state.embed is not None
        with self._telemetry.stage("embed") as took:
            vectors = state.embed(pixels)
        return vectors, took.ms


def _looked_up(gallery: Gallery, query: One) -> _Picture | Resolved | InputError:
    """A query as what is to be embedded, or as what is known of it already."""
    try:
        if isinstance(query, bytes):
            return _Picture(query)
        if isinstance(query, np.ndarray):
            return _unit(query, gallery.store.manifest.dim), ()
        if not isinstance(query, Cropped):
            number = number_of(gallery, query)
            return gallery.vector(number), (number,)
        if isinstance(query.picture, bytes):
            return _Picture(query.picture, query.region)
        item = item_of(gallery, number_of(gallery, query.picture))
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


def number_of(gallery: Gallery, name: int | str) -> int:
    """The id of an item, by its id or key; an `UnknownItemError` where there is none."""
    try:
        (number,) = gallery.ids_of([name])
    except InputError:
        raise UnknownItemError(f"the gallery has no item {name!r}: neither an id nor a key") from None
    return number


def item_of(gallery: Gallery, number: int) -> Item:
    """An item by its id; an `UnknownItemError` where there is none."""
    found = gallery.items([number]) if 0 < number < 2**63 else {}
    if number not in found:
        raise UnknownItemError(f"the gallery has no item {number}: search again")
    return found[number]
