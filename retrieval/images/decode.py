"""Read-ahead: read and decode files in a thread pool while the model processes the previous batch.

Memory use besides the model: one file per decoding thread (at most `load.MAX_BYTES` bytes); decoded images of
`PIXELS_IN_FLIGHT` pixels in all, at 9 to 12 bytes per pixel, or one larger image; `files_ahead()`
preprocessed images.
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
from retrieval.images.load import content_sha256, open_bytes, read_bytes
from retrieval.images.location import Location, locate
from retrieval.images.preprocess import Preprocess
from retrieval.machine.resources import cores
from retrieval.progress import Progress

BATCH = 32
PIXELS_IN_FLIGHT = 64_000_000


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
    threads = threads or cores()
    budget, ahead = _Budget(PIXELS_IN_FLIGHT), files_ahead(threads)

    def read(path: Path | Location) -> Decoded | KnownFile | ImageError:
        where = locate(path)
        try:
            data = read_bytes(where)
            content = content_sha256(data, where.box)
            if known(content):
                return KnownFile(content)
            opened = open_bytes(data, str(where), side=side, box=where.box)
            with budget.holding(opened.pixels):
                pixels, size = opened.decode()
                return Decoded(preprocess(pixels), content, *size)
        except ImageError as error:
            return error

    queue: deque[Future[Decoded | KnownFile | ImageError]] = deque()
    files = iter(paths)
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        try:
            while True:
                for path in islice(files, ahead - len(queue)):
                    queue.append(pool.submit(read, path))
                if not queue:
                    return
                yield queue.popleft().result()
        finally:
            for future in queue:
                future.cancel()


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
