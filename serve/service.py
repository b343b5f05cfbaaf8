"""What every front end does with a gallery: search it, show its pictures, read its newest report."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from retrieval.errors import ImageError, InputError, LookalikeError
from retrieval.gallery import Gallery, Hit, Item
from retrieval.images import load_image
from retrieval.report import Report, latest
from retrieval.store import Store
from serve.thumbnails import GREY, MISSING, Thumbnail, encode

_CACHED_THUMBNAILS = 512
T = TypeVar("T")


@dataclass(frozen=True)
class Query:
    """What is searched for: a vector of the gallery's model, or one of the gallery's own pictures.

    Attributes:
        vector: float32 [D], unit length; `None` for a picture of the gallery, whose vector is stored there.
        item: the picture of the gallery, which its own results leave out.
        fingerprint: of the model that made the vector.
        embed_ms: what decoding and embedding took, in milliseconds.
    """

    vector: np.ndarray | None
    item: Item | None
    fingerprint: str
    embed_ms: float = 0.0


@dataclass(frozen=True)
class Answer:
    """The hits for a query, best first, and what the search took, in milliseconds."""

    query: Query
    hits: list[Hit]
    search_ms: float


@dataclass(frozen=True)
class Facts:
    """A gallery in three words."""

    name: str
    images: int
    fingerprint: str
    uuid: str


class SearchService:
    """One gallery with its model, shared by all requests; what another process commits shows up by itself.

    Raises:
        InputError: the folder is no gallery.
        LookalikeError: the gallery's model is damaged or does not match the stored vectors.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen = self._stamp()  # before opening: a commit in between is then seen as news
        self._open(folder)
        self._opening = threading.Lock()
        # Decoding a large picture takes up to 150 MB: as many at a time as there are cores.
        self._decoding = threading.BoundedSemaphore(os.cpu_count() or 1)
        self._thumbnail = lru_cache(_CACHED_THUMBNAILS)(self._make_thumbnail)

    @property
    def gallery(self) -> Gallery:
        """The gallery as it was last committed."""
        with self._opening:
            stamp = self._stamp()
            if stamp is None:
                raise LookalikeError("the gallery is gone from the disk: restore it, or stop this server")
            if stamp != self._seen:
                if Store(self.folder).meta["gallery_uuid"] != self._gallery.store.meta["gallery_uuid"]:
                    self._open(self.folder)  # rebuilt, perhaps with another model
                else:
                    self._gallery.refresh()
                self._seen = stamp
            return self._gallery

    def facts(self) -> Facts:
        """What to say about the gallery."""
        gallery = self.gallery
        uuid = str(gallery.store.meta["gallery_uuid"])
        return Facts(self.folder.resolve().name, len(gallery), gallery.fingerprint, uuid)

    def item(self, number: int) -> Item:
        """One of the gallery's pictures; an `InputError` where there is none of that number."""
        found = self.gallery.items([number]) if 0 < number < 2**63 else {}
        if number not in found:
            raise InputError(f"the gallery has no item {number}: search again")
        return found[number]

    def query_picture(self, source: Path | bytes) -> tuple[Query, Image.Image]:
        """Embed a picture that came from outside -> the query, and the picture as it was understood.

        Raises:
            ImageError: the picture cannot be read.
        """
        embedder = self.gallery.embedder
        with self._decoding:
            image, decode_ms = _timed(lambda: load_image(source))
            vectors, embed_ms = _timed(lambda: embedder.embed([image]))
        return Query(vectors[0], None, embedder.fingerprint, decode_ms + embed_ms), image

    def query_item(self, item: int) -> Query:
        """A query by one of the gallery's own pictures; an `InputError` where there is none."""
        return Query(None, self.item(item), self.gallery.fingerprint)

    def search(self, query: Query, k: int) -> Answer:
        """The k pictures most like the query, without the query itself where it is in the gallery.

        Raises:
            InputError: the query was made before the gallery was rebuilt with another model, or the item
                it names has been removed.
        """
        gallery = self.gallery
        if query.fingerprint != gallery.fingerprint:
            raise InputError("the gallery was rebuilt with another model: choose the picture again")
        if query.item is not None:
            number = query.item.id
            hits, ms = _timed(lambda: gallery.search_id(number, k))
        else:
            assert query.vector is not None
            vectors = query.vector[None]  # [1, D]
            hits, ms = _timed(lambda: gallery.search_vectors(vectors, k)[0])
        return Answer(query, hits, ms)

    def thumbnail(self, item: int) -> Thumbnail:
        """A small picture of an item: the grey tile where its file cannot be read any more.

        Raises:
            InputError: the gallery has no such item.
        """
        path = self.item(item).path
        try:
            return self._thumbnail(item, path)
        except ImageError:
            return MISSING

    def picture(self, item: int) -> Image.Image:
        """An item's picture: a grey one where its file cannot be read any more.

        Raises:
            InputError: the gallery has no such item.
        """
        try:
            with self._decoding:
                return load_image(self.item(item).path)
        except ImageError:
            return Image.new("RGB", (1, 1), GREY)

    def report(self) -> Report | None:
        """The newest evaluation of this gallery, or `None`."""
        return latest(self.folder)

    def _make_thumbnail(self, item: int, path: str) -> Thumbnail:
        # The item is part of the key: a file that was replaced and indexed again is another item.
        with self._decoding:
            return encode(load_image(path))

    def _open(self, folder: Path) -> None:
        gallery = Gallery(folder)
        gallery.embedder  # noqa: B018  loaded and checked now: a mismatch must not wait for a request
        self._gallery = gallery

    def _stamp(self) -> tuple[int, int, int] | None:
        """Changes with every commit to the gallery, at the price of one look at a file's times."""
        try:
            status = (self.folder / "gallery.db").stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of some work, and the milliseconds it took."""
    start = time.perf_counter()
    result = work()
    return result, 1000 * (time.perf_counter() - start)
