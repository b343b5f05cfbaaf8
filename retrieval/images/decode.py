"""Read-ahead: read and decode files in a thread pool while the model processes the previous batch.

Memory use besides the model: one file per decoding thread (at most `load.MAX_BYTES` bytes); decoded images of
`PIXELS_IN_FLIGHT` pixels in all, at 9 to 12 bytes per pixel, or one larger image; for each thread the pixels
of the picture whose parts it decodes, at 3 bytes per pixel; `files_ahead()` preprocessed images.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Condition

import numpy as np

from retrieval.errors import ImageError
from retrieval.images.load import OpenedImage, content_sha256, open_bytes, read_bytes
from retrieval.images.location import Location, locate
from retrieval.images.preprocess import Preprocess
from retrieval.machine.malloc import keep_images
from retrieval.machine.resources import cores
from retrieval.progress import Progress

BATCH = 32
PIXELS_IN_FLIGHT = 64_000_000
_PARTS = 16  # of one picture that are decoded in one go


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
    """A file whose SHA-256 is known, so that it was not decoded."""

    content_sha256: str


@dataclass(frozen=True)
class EmbeddedFiles:
    """Embeddings of files.

    Attributes:
        vectors: Embeddings, float32 [n, D].
        positions: Position among the given files of each row, int64 [n].
        contents: SHA-256 of the file of each row, [n].
        bad: Errors of the unusable files.
    """

    vectors: np.ndarray
    positions: np.ndarray
    contents: list[str]
    bad: list[ImageError]


class _Budget:
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


def decode_ahead(
    paths: Iterable[Path | Location],
    preprocess: Callable[[np.ndarray], np.ndarray],
    *,
    side: int | None = None,
    ahead: int = 2 * BATCH,
) -> Iterator[Decoded | ImageError]:
    """Decode files in threads and yield them in order. See the module for the memory use.

    Args:
        paths: Image files.
        preprocess: Function from an upright RGB image, uint8 [H, W, 3], to an array, such as a `Preprocess`.
        side: Length to which `preprocess` scales the shorter side; see `retrieval.images.load.load_image`.
        ahead: Largest number of files that are read ahead.
    """
    for file in read_ahead(paths, preprocess, side=side, known=lambda _: False, ahead=ahead):
        assert not isinstance(file, KnownFile)
        yield file


def read_ahead(
    paths: Iterable[Path | Location],
    preprocess: Callable[[np.ndarray], np.ndarray],
    *,
    side: int | None,
    known: Callable[[str], bool],
    ahead: int = 2 * BATCH,
    threads: int | None = None,
) -> Generator[Decoded | KnownFile | ImageError]:
    """Decode files as `decode_ahead` does, except files whose SHA-256 is `known`.

    There is a thread for each core, or `threads`.
    """
    keep_images()
    threads = threads or cores()
    budget, ahead = _Budget(PIXELS_IN_FLIGHT), files_ahead(threads)

    def read(places: Sequence[Location]) -> list[Decoded | KnownFile | ImageError]:
        """Read a picture, and decode it for each of its parts."""
        try:
            data = read_bytes(places[0])
        except ImageError as error:
            return [error] * len(places)
        found: list[Decoded | KnownFile | ImageError] = []
        shared = _Shared(budget)
        for where in places:
            try:
                content = content_sha256(data, where.box)
                if known(content):
                    found.append(KnownFile(content))
                    continue
                opened = open_bytes(data, str(where), side=side, box=where.box)
                with shared.decoded(opened) as (pixels, size):
                    found.append(Decoded(preprocess(pixels), content, *size))
            except ImageError as error:
                found.append(error)
        return found

    queue: deque[tuple[Future[list[Decoded | KnownFile | ImageError]], int]] = deque()
    pictures, waiting = _pictures(paths), 0
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        try:
            while True:
                while waiting < ahead and (places := next(pictures, None)):
                    queue.append((pool.submit(read, places), len(places)))
                    waiting += len(places)
                if not queue:
                    return
                future, count = queue.popleft()
                yield from future.result()
                waiting -= count
        finally:
            for future, _ in queue:
                future.cancel()


class _Shared:
    """Pixels of a picture of which several parts are decoded, one after the other.

    Args:
        budget: Pixels that may be decoded at a time.
    """

    def __init__(self, budget: _Budget) -> None:
        self._budget = budget
        self._last: tuple[tuple[int, int], np.ndarray, tuple[int, int]] | None = None

    @contextmanager
    def decoded(self, opened: OpenedImage) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
        """Yield what `OpenedImage.decode` returns, of the pixels of the part before if they are its."""
        with self._budget.holding(opened.pixels):
            if opened.box is None:
                yield opened.decode()
                return
            shape = opened.image.size
            if self._last is None or self._last[0] != shape:
                self._last = None
                self._last = shape, *opened.decode_whole()
            yield opened.cut(self._last[1]), self._last[2]


def _pictures(paths: Iterable[Path | Location]) -> Iterator[list[Location]]:
    """Yield each place, and the parts of one picture that follow each other together, up to 16."""
    together: list[Location] = []
    for where in map(locate, paths):
        if together and (len(together) == _PARTS or where.whole != together[0].whole or not where.box):
            yield together
            together = []
        if where.box:
            together.append(where)
        else:
            yield [where]
    if together:
        yield together


def files_ahead(threads: int) -> int:
    """Return the number of files that are read ahead: two batches, and enough to keep all threads busy
    while one of them decodes a very large image."""
    return max(2 * BATCH, 8 * threads)


def embed_files(
    paths: Sequence[Path | Location],
    preprocess: Preprocess,
    embed_pixels: Callable[[np.ndarray], np.ndarray],
    progress: Progress,
    *,
    batch_size: int = BATCH,
) -> EmbeddedFiles:
    """Embed files.

    Args:
        paths: Image files.
        preprocess: Preprocessing of the model.
        embed_pixels: Model, a function from uint8 [N, H, W, 3] to float32 [N, D].
        progress: Progress to update.
        batch_size: Images that are passed to the model at once.
    """
    vectors: list[np.ndarray] = []
    positions: list[int] = []
    contents: list[str] = []
    bad: list[ImageError] = []
    files = enumerate(decode_ahead(paths, preprocess, side=preprocess.scaled, ahead=2 * batch_size))
    while batch := list(islice(files, batch_size)):
        good = [(i, file) for i, file in batch if isinstance(file, Decoded)]
        bad += [file for _, file in batch if isinstance(file, ImageError)]
        if good:
            vectors.append(embed_pixels(np.stack([file.pixels for _, file in good])))
        positions += [i for i, _ in good]
        contents += [file.content_sha256 for _, file in good]
        progress.update(len(batch), f"{len(bad)} unusable" if bad else "")
    joined = np.concatenate(vectors) if vectors else np.empty((0, 0), np.float32)
    return EmbeddedFiles(joined, np.array(positions, np.int64), contents, bad)
