"""Queries: images, items, vectors, regions, texts and several of them, and how they become vectors."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from retrieval.errors import ImageError, InputError, LookalikeError, pointing
from retrieval.galleries.items import Item
from retrieval.galleries.objects import Tiles, decode_side
from retrieval.galleries.searchable import SearchableGallery
from retrieval.images.load import OpenedImage, open_bytes, read_bytes
from retrieval.images.resampling import Box
from retrieval.ingest.picture_parts import decode_parts, parts_of_picture
from retrieval.machine.resources import cores
from retrieval.model.embedder import Embedder
from retrieval.search.composition import compose, unit_vectors
from retrieval.search.detector import Detector
from retrieval.storage.query_log import Kind
from serve.core.cost import add_pixels
from serve.core.errors import (
    BusyError,
    NoModelError,
    NoTextEncoderError,
    TooLargeError,
    UnavailableError,
    UnknownItemError,
)
from serve.core.live import LiveState
from serve.core.originals import Original, find_original
from serve.core.telemetry import Telemetry
from serve.core.workers import raise_if_abandoned

MIN_SIDE = 4  # pixels of a region
_LARGE = 8_000_000  # pixels to decode; a JPEG is decoded at a reduced size
_LARGE_SECONDS = 0.5  # to wait for other large images, in which the request occupies a thread
_REGION_DIGITS = 4  # decimals in a URL; 0.0001 is less than a pixel of most images

# ---- regions


@dataclass(frozen=True)
class Region:
    """A rectangle, as fractions of the upright image's width and height, from its upper left corner.

    Raises:
        InputError: The region is empty or reaches beyond the image.
    """

    left: float
    top: float
    right: float
    bottom: float

    def __post_init__(self) -> None:
        # Written so that NaN, for which every comparison is false, is refused as well.
        if not (0 <= self.left < self.right <= 1 and 0 <= self.top < self.bottom <= 1):
            raise InputError(
                "a region is left, top, right, bottom, as fractions of the image from 0 to 1, "
                "with left < right and top < bottom"
            )

    @classmethod
    def of(cls, values: Sequence[float]) -> Region:
        """Return the region of four numbers; raise an `InputError` if they are not four numbers."""
        try:
            left, top, right, bottom = map(float, values)
        except (TypeError, ValueError):
            raise InputError("a region is four numbers: left, top, right, bottom") from None
        return cls(left, top, right, bottom)

    def __str__(self) -> str:
        return ",".join(f"{round(value, _REGION_DIGITS):g}" for value in self.values)

    @property
    def values(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom."""
        return self.left, self.top, self.right, self.bottom

    def decode_side(self, side: int) -> int:
        """Return the shorter side of the image, in pixels, at which that of the region is `side`."""
        return math.ceil(side / min(self.right - self.left, self.bottom - self.top))

    def crop(self, pixels: np.ndarray) -> np.ndarray:
        """Cut the region out of an upright image, uint8 [H, W, 3], to the nearest pixel.

        Raises:
            InputError: The region is smaller than 4 x 4 pixels.
        """
        height, width, _ = pixels.shape
        box = (
            round(self.left * width),
            round(self.top * height),
            round(self.right * width),
            round(self.bottom * height),
        )
        region_width, region_height = box[2] - box[0], box[3] - box[1]
        if min(region_width, region_height) < MIN_SIDE:
            size = f"{region_width} x {region_height} pixels of an image of {width} x {height}"
            with pointing("#/region"):
                raise InputError(f"the region has {size}: at least {MIN_SIDE} x {MIN_SIDE} are required")
        return pixels[box[1] : box[3], box[0] : box[2]]


def open_region(
    source: Path | bytes | Original, region: Region | None, *, side: int | None = None
) -> OpenedImage:
    """Read the header of an image, of which `load_region` decodes a region.

    Args:
        source: Path or bytes of the image, or a file of the gallery, of which a part may be the image.
        region: Region to cut out; None for the whole image.
        side: Shorter side in pixels as for `retrieval.load_image`, of the region: the image of a small region
            is decoded at a higher resolution.

    Raises:
        ImageError: The image cannot be read.
    """
    box = source.box if isinstance(source, Original) else ""
    if isinstance(source, Original):
        source = source.read()
    data = source if isinstance(source, bytes) else read_bytes(source, regular=False)
    wanted = side if side is None or region is None else region.decode_side(side)
    return open_bytes(data, "image", side=wanted, box=box)


def load_region(opened: OpenedImage, region: Region | None) -> np.ndarray:
    """Decode an image, or a region of it, to RGB, upright: uint8 [H, W, 3].

    Raises:
        ImageError: The image cannot be read.
        InputError: The region is smaller than 4 x 4 pixels.
    """
    pixels, _ = opened.decode()
    return pixels if region is None else region.crop(pixels)


# ---- kinds of queries


@dataclass(frozen=True)
class RegionQuery:
    """A region of an image: the bytes of one, or an item of the gallery by its id or key."""

    image: bytes | int | str
    region: Region


@dataclass(frozen=True)
class TextQuery:
    """A text, for a gallery whose model has a text encoder."""

    text: str


# The bytes of an image, the id or key of an item, a vector, a region, or a text.
SingleQuery = bytes | int | str | np.ndarray | RegionQuery | TextQuery


@dataclass(frozen=True, eq=False)
class ComposedQuery:
    """Several queries searched as one: views of one object, an image and texts.

    Groups of images, such as products, are compared with each of several images; all else is searched with
    one vector.

    Attributes:
        views: What to find.
        without: What to move away from.
        pointers: Places of the views and then of the others in a request, as JSON pointers, for errors; empty
            if they are not known.
    """

    views: Sequence[SingleQuery]
    without: Sequence[SingleQuery] = ()
    pointers: Sequence[str] = ()

    @classmethod
    def of(cls, queries: Sequence[AnyQuery]) -> ComposedQuery:
        """Return the composition of queries, of which some may be compositions."""
        parts = [query if isinstance(query, ComposedQuery) else cls([query]) for query in queries]
        return cls(
            [one for part in parts for one in part.views], [one for part in parts for one in part.without]
        )


AnyQuery = SingleQuery | ComposedQuery


def has_text(query: AnyQuery) -> bool:
    """Return whether a query has a text in it."""
    return any(isinstance(single, TextQuery) for single in _single_queries([query]))


def kind_of(query: AnyQuery) -> Kind:
    """Return what a query is, as the log of searches says it."""
    if has_text(query):
        return "text"
    if isinstance(query, ComposedQuery):
        if query.without or len(query.views) > 1:
            return "several"
        (query,) = query.views
    if isinstance(query, np.ndarray):
        return "vector"
    return "item" if isinstance(query, int | str) else "image"


class ResolvedQuery(NamedTuple):
    """A query as a vector.

    Attributes:
        vector: float32 [D], unit length.
        items: Items that the query consists of, which its results leave out.
        views: Vectors of its views, float32 [m, D], whose mean the vector is; `None` for one.
    """

    vector: np.ndarray
    items: tuple[int, ...] = ()
    views: np.ndarray | None = None

    @property
    def each(self) -> np.ndarray:
        """Vectors of its views, or its own, float32 [m, D]."""
        return self.vector[None] if self.views is None else self.views


# ---- resolving


@dataclass(frozen=True)
class _Source:
    """An image to embed, or a region of it, and the items that it shows."""

    source: Path | bytes | Original
    region: Region | None = None
    items: tuple[int, ...] = ()


class QueryResolver:
    """Resolves queries to vectors in one state of a gallery; images are decoded as for indexing.

    Args:
        telemetry: Records decoding and embedding times.
        max_pixels: Pixels that the images of one request may have to decode.
        detector: Finds objects; `None` for the gallery's own, or tiles.

    Attributes:
        decoding: Semaphore for decoding: the largest image takes half a gigabyte. Thumbnails do not use it,
            since they have a small thread pool of their own.
    """

    def __init__(self, telemetry: Telemetry, max_pixels: int, detector: Detector | None = None) -> None:
        self.decoding = threading.BoundedSemaphore(cores())
        self._large = threading.BoundedSemaphore(max(1, cores() // 2))
        self._telemetry, self._max_pixels, self._detector = telemetry, max_pixels, detector

    def resolve(self, state: LiveState, queries: Sequence[AnyQuery]) -> list[ResolvedQuery | InputError]:
        """Return each query as a vector, or the error in it."""
        found = [_look_up(state.gallery, query) for query in _single_queries(queries)]
        sources = [one for one in found if isinstance(one, _Source)]
        vectors = iter(self._embed_all(state, sources) if sources else ())
        texts = [one.text for one in found if isinstance(one, TextQuery)]
        text_vectors = iter(self.embed_texts(state, texts) if texts else ())

        def with_vector(one: _Source | TextQuery | ResolvedQuery | InputError) -> ResolvedQuery | InputError:
            if isinstance(one, TextQuery):
                return ResolvedQuery(next(text_vectors))
            if not isinstance(one, _Source):
                return one
            vector = next(vectors)
            return vector if isinstance(vector, InputError) else ResolvedQuery(vector, one.items)

        resolved = map(with_vector, found)
        return [
            _composed(query, [next(resolved) for _ in (*query.views, *query.without)])
            if isinstance(query, ComposedQuery)
            else next(resolved)
            for query in queries
        ]

    def embed_texts(self, state: LiveState, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of texts, float32 [N, D].

        Raises:
            NoModelError: The gallery has no model.
            NoTextEncoderError: Its model embeds images only.
            InputError: A text is empty.
        """
        model = model_of(state)
        if not model.has_text:
            with pointing("#/text"):
                raise NoTextEncoderError("the gallery's model embeds images only: search by an image")
        with self._telemetry.stage("embed"):
            return model.embed_texts(texts)

    def view(self, state: LiveState, query: bytes | int | str | RegionQuery) -> tuple[np.ndarray, Box]:
        """Return the pixels that the model sees, uint8 [S, S, 3], and their box.

        The box is in fractions of the upright image; with padding it reaches beyond it.

        Raises:
            ImageError: The image cannot be read.
            InputError: The region is too small.
            NoModelError: The gallery has no model.
            UnknownItemError: There is no such item.
        """
        name, region = (query.image, query.region) if isinstance(query, RegionQuery) else (query, None)
        source: bytes | Original = (
            name
            if isinstance(name, bytes)
            else find_original(state.gallery, find_item(state.gallery, item_id(state.gallery, name)).id)
        )
        size, pixels, _ = self._decode(state, source, region)
        left, top, right, bottom = region.values if region else (0.0, 0.0, 1.0, 1.0)
        seen = model_of(state).preprocess.box(*size)
        across, down = right - left, bottom - top
        box = left + seen[0] * across, top + seen[1] * down, left + seen[2] * across, top + seen[3] * down
        return pixels, box

    def tiles(self, state: LiveState, query: bytes | int | str) -> tuple[Tiles, tuple[int, ...]]:
        """Return the tiles of an image, or what the detector finds in it, and the id of its item if any.

        Raises:
            ImageError: The image cannot be read.
            NoModelError: The gallery has no model.
            UnavailableError: The gallery lacks its detector.
            UnknownItemError: There is no such item.
        """
        preprocess = model_of(state).preprocess
        detector = self._detector or detector_of(state)
        own = (
            () if isinstance(query, bytes) else (find_item(state.gallery, item_id(state.gallery, query)).id,)
        )
        source = query if isinstance(query, bytes) else find_original(state.gallery, *own)
        with self.decoding, self._telemetry.stage("decode"):
            opened = open_region(source, None, side=decode_side(preprocess))
            add_pixels(opened.pixels)
            with self._share_of_cores(opened.pixels):
                return Tiles.of(load_region(opened, None), preprocess, detector), own

    def parts(self, state: LiveState, data: bytes) -> list[tuple[str, np.ndarray]]:
        """Return fragment and vector of each part into which the gallery divides a picture; see `Upload`.

        Raises:
            InputError: The image cannot be read, or the detector fails.
            UnavailableError: The gallery lacks its detector.
        """
        if not state.gallery.manifest.objects:
            return []
        preprocess, detector = model_of(state).preprocess, detector_of(state)
        size = open_region(data, None, side=preprocess.scaled).pixels
        with self.decoding, self._telemetry.stage("decode"), self._share_of_cores(size):
            try:
                boxes = parts_of_picture(data, "image", detector)
            except InputError as error:
                error.args = (state.gallery.public(str(error)),)
                raise
            pixels = [*decode_parts(data, "image", boxes, preprocess)]
        return [*zip(boxes, self._run_model(state, np.stack(pixels))[0], strict=True)] if pixels else []

    def image(self, source: Original | bytes, side: int | None = None) -> Image.Image:
        """Return an image; raise an `ImageError` if it cannot be read.

        Args:
            source: A file of the gallery, or the bytes of an image.
            side: Shorter side that is enough, see `load_image`.
        """
        with self.decoding:
            opened = open_region(source, None, side=side)
            add_pixels(opened.pixels)
            with self._share_of_cores(opened.pixels):
                return Image.fromarray(load_region(opened, None))

    def _embed_all(self, state: LiveState, sources: Sequence[_Source]) -> list[np.ndarray | InputError]:
        opened = self._open_all(sources, model_of(state).preprocess.scaled)
        found: list[np.ndarray | InputError] = []
        for source in sources:
            raise_if_abandoned()
            image = opened.popleft()  # which keeps its pixels once it is decoded
            try:
                if isinstance(image, InputError):
                    raise image
                found.append(self._decode(state, image or source.source, source.region)[1])
            except InputError as error:
                found.append(error)
        pixels = [one for one in found if isinstance(one, np.ndarray)]
        vectors = iter(self._run_model(state, np.stack(pixels))[0] if pixels else ())
        return [next(vectors) if isinstance(one, np.ndarray) else one for one in found]

    def _decode(
        self, state: LiveState, source: OpenedImage | Path | bytes | Original, region: Region | None
    ) -> tuple[tuple[int, int], np.ndarray, float]:
        """Return (width, height) as decoded, the pixels for the model, uint8 [S, S, 3], and milliseconds."""
        preprocess = model_of(state).preprocess
        with self.decoding, self._telemetry.stage("decode") as watch:
            if isinstance(source, OpenedImage):
                opened = source
            else:
                opened = open_region(source, region, side=preprocess.scaled)
            add_pixels(opened.pixels)
            with self._share_of_cores(opened.pixels):
                whole = load_region(opened, region)
                pixels = preprocess(whole)
        return (whole.shape[1], whole.shape[0]), pixels, watch.ms

    def _open_all(self, sources: Sequence[_Source], side: int) -> deque[OpenedImage | ImageError | None]:
        """Read the headers of the images that a request brings: each image, or the error in it.

        Those of the gallery are `None`: they are read one after the other.

        Raises:
            TooLargeError: They have too many pixels to decode.
        """
        found = deque[OpenedImage | ImageError | None]()
        for source in sources:
            try:
                found.append(
                    open_region(source.source, source.region, side=side)
                    if isinstance(source.source, bytes)
                    else None
                )
            except ImageError as error:  # reported later, for this image alone
                found.append(error)
        total = sum(one.pixels for one in found if isinstance(one, OpenedImage))
        if total > self._max_pixels:
            what = f"the images have {total / 1e6:.0f} megapixels to decode together"
            limit = f"at most {self._max_pixels / 1e6:g} are decoded for one request"
            raise TooLargeError(f"{what}, {limit}: send fewer at once, smaller ones, or JPEG")
        return found

    @contextmanager
    def _share_of_cores(self, pixels: int) -> Iterator[None]:
        """Let large images use half of the cores, so that they delay others little.

        Raises:
            BusyError: Other large images are being decoded.
        """
        if pixels < _LARGE:
            yield
        elif self._large.acquire(timeout=_LARGE_SECONDS):
            try:
                yield
            finally:
                self._large.release()
        else:
            raise BusyError("other large images are being decoded: try again in a moment, or send a JPEG")

    def _run_model(self, state: LiveState, pixels: np.ndarray) -> tuple[np.ndarray, float]:
        """Return vectors float32 [N, D] and the milliseconds."""
        assert state.embed is not None
        with self._telemetry.stage("embed") as watch:
            vectors = state.embed(pixels)
        return vectors, watch.ms


def detector_of(state: LiveState) -> Detector | None:
    """Return the detector by which a gallery divides pictures, if it has one.

    Raises:
        UnavailableError: Its file is missing, or another one.
    """
    try:
        return state.gallery.detector
    except LookalikeError as error:
        raise UnavailableError(state.gallery.public(str(error))) from error


def item_id(gallery: SearchableGallery, name: int | str) -> int:
    """Return the id of an item by its id or key; raise an `UnknownItemError` if there is none."""
    try:
        (number,) = gallery.ids_of([name])
    except InputError:
        raise UnknownItemError(f"the gallery has no item {name!r}: neither an id nor a key") from None
    return number


def find_item(gallery: SearchableGallery, number: int) -> Item:
    """Return an item by its id; raise an `UnknownItemError` if there is none."""
    found = gallery.items([number]) if 0 < number < 2**63 else {}
    if number not in found:
        raise UnknownItemError(f"the gallery has no item {number}: search again")
    return found[number]


def _single_queries(queries: Sequence[AnyQuery]) -> list[SingleQuery]:
    """Return all single queries, including the parts of compositions, in the order of `resolve`."""
    return [
        single
        for query in queries
        for single in ((*query.views, *query.without) if isinstance(query, ComposedQuery) else (query,))
    ]


def _look_up(
    gallery: SearchableGallery, query: SingleQuery
) -> _Source | TextQuery | ResolvedQuery | InputError:
    """Return the image or text to embed for a query, or its vector if neither is needed."""
    try:
        if isinstance(query, TextQuery):
            return query
        if isinstance(query, bytes):
            return _Source(query)
        if isinstance(query, np.ndarray):
            return ResolvedQuery(_unit_vector(query, gallery.manifest.dim))
        if not isinstance(query, RegionQuery):
            number = item_id(gallery, query)
            return ResolvedQuery(gallery.vector(number), (number,))
        if isinstance(query.image, bytes):
            return _Source(query.image, query.region)
        item = find_item(gallery, item_id(gallery, query.image))
        return _Source(find_original(gallery, item.id), query.region, (item.id,))
    except InputError as error:
        return error


def _composed(
    query: ComposedQuery, parts: Sequence[ResolvedQuery | InputError]
) -> ResolvedQuery | InputError:
    """Return the composition of the parts of a query, or the first error among them."""
    good: list[ResolvedQuery] = []
    for number, part in enumerate(parts):
        if isinstance(part, InputError):
            part.pointer = query.pointers[number] if query.pointers else None
            return part
        good.append(part)
    vectors, wanted = np.stack([part.vector for part in good]), len(query.views)
    is_of_views = wanted == len(good) > 1 and not has_text(query)
    try:
        vector = compose(vectors[:wanted], vectors[wanted:])
    except InputError as error:
        return error
    items = tuple(item for view in good for item in view.items)
    return ResolvedQuery(vector, items, vectors if is_of_views else None)


def model_of(state: LiveState) -> Embedder:
    """Return the gallery's model; raise a `NoModelError` if it has none."""
    if state.embedder is None:
        raise NoModelError(
            "the gallery has imported vectors and no model: search by a vector or a whole item"
        )
    return state.embedder


def _unit_vector(vector: np.ndarray, dim: int) -> np.ndarray:
    """Return a vector scaled to unit length, float32 [D]; raise an `InputError` if that is not possible."""
    if np.shape(vector) != (dim,):
        raise InputError(f"the vector has {np.size(vector)} values, the gallery's vectors have {dim}")
    found: np.ndarray = unit_vectors(np.asarray(vector)[None], dim)[0]
    return found
