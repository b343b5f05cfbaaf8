"""Pictures: what is found in a file, for each part of it that is meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Condition
from typing import Protocol

import numpy as np

from retrieval.errors import ImageError
from retrieval.images.load import OpenedImage, content_sha256, open_bytes, read_bytes
from retrieval.images.location import Location


@dataclass(frozen=True)
class Decoded:
    """A decoded file.

    Attributes:
        pixels: Preprocessed image, uint8 [H, W, 3], or whatever array `preprocess` returns.
        content_sha256: SHA-256 of the file.
        width: Width of the full upright image, in pixels.
        height: Height of the full upright image, in pixels.
    """

    pixels: np.ndarray
    content_sha256: str
    width: int
    height: int


@dataclass(frozen=True)
class KnownFile:
    """A file whose SHA-256 is known."""

    content_sha256: str


File = Decoded | KnownFile | ImageError
"""What is found in a file."""


class Limit(Protocol):
    """Limit on the pixels that are decoded."""

    def holding(self, pixels: int) -> AbstractContextManager[None]:
        """Return a context in which an image of so many pixels may be decoded."""


class Budget:
    """Limit on the pixels being decoded at a time; a larger image takes the whole budget."""

    def __init__(self, pixels: int) -> None:
        self._total = self._free = pixels
        self._changed = Condition()

    @contextmanager
    def holding(self, pixels: int) -> Iterator[None]:
        share = min(pixels, self._total)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= share)
            self._free -= share
        try:
            yield
        finally:
            with self._changed:
                self._free += share
                self._changed.notify_all()


class TooLargeError(Exception):
    """An image has more pixels than may be decoded."""


class LimitOfOne:
    """Limit on the pixels of each image."""

    def __init__(self, pixels: int) -> None:
        self._most = pixels

    @contextmanager
    def holding(self, pixels: int) -> Iterator[None]:
        if pixels > self._most:
            raise TooLargeError
        yield


class PictureReader:
    """Reads a picture, and decodes it for each of its parts.

    Args:
        preprocess: See `decode_ahead`.
        side: See `decode_ahead`.
    """

    def __init__(self, preprocess: Callable[[np.ndarray], np.ndarray], side: int | None) -> None:
        self._preprocess, self._side = preprocess, side

    def read(
        self,
        places: Sequence[Location],
        limit: Limit,
        known: Callable[[str], bool],
        data: bytes | None = None,
    ) -> list[File]:
        """Return what is at each place of one picture.

        Args:
            places: Places in the picture.
            limit: Limit on the pixels that are decoded.
            known: Whether a file with this SHA-256 is not to be decoded.
            data: Bytes of the file; `None` to read it.
        """
        if data is None:
            try:
                data = read_bytes(places[0])
            except ImageError as error:
                return [error] * len(places)
        found: list[File] = []
        shared = _Shared(limit)
        for where in places:
            try:
                content = content_sha256(data, where.box)
                if known(content):
                    found.append(KnownFile(content))
                    continue
                opened = open_bytes(data, str(where), side=self._side, box=where.box)
                with shared.decoded(opened) as (pixels, size):
                    found.append(Decoded(self._preprocess(pixels), content, *size))
            except ImageError as error:
                found.append(error)
        return found


class _Shared:
    """Pixels of a picture of which several parts are decoded, one after the other.

    Args:
        limit: Limit on the pixels that are decoded.
    """

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._last: tuple[tuple[int, int], np.ndarray, tuple[int, int]] | None = None

    @contextmanager
    def decoded(self, opened: OpenedImage) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
        """Yield what `OpenedImage.decode` returns, of the pixels of the part before if they are its."""
        with self._limit.holding(opened.pixels):
            if opened.box is None:
                yield opened.decode()
                return
            shape = opened.image.size
            if self._last is None or self._last[0] != shape:
                self._last = None
                self._last = shape, *opened.decode_whole()
            yield opened.cut(self._last[1]), self._last[2]
