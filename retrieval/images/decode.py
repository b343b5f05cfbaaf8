"""Many files at once: read and decode in threads while the model works on what is ready.

Memory holds, besides the model: the bytes of one file (at most `images.MAX_BYTES`) for every decoding thread;
of decoded pictures `PIXELS_IN_FLIGHT` pixels, at 3 to 7 bytes each, or one picture that has more; and two
batches of preprocessed ones.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Condition

import numpy as np
from PIL import Image

from retrieval.errors import ImageError
from retrieval.images.load import open_bytes, read_bytes
from retrieval.images.preprocess import Preprocess
from retrieval.progress import Progress

BATCH = 32
PIXELS_IN_FLIGHT = 64_000_000


@dataclass(frozen=True)
class Decoded:
    """One file, read once."""

    pixels: np.ndarray  # uint8 [H, W, 3], preprocessed
    content_sha256: str
    width: int
    height: int


@dataclass(frozen=True)
class KnownFile:
    """A file whose bytes are known already; it was not decoded."""

    content_sha256: str


@dataclass(frozen=True)
class EmbeddedFiles:
    """The files that could be embedded, and those that could not."""

    vectors: np.ndarray  # float32 [n, D]
    positions: np.ndarray  # int64 [n], which of the files each row is
    contents: list[str]  # SHA-256 of each file's bytes, [n]
    bad: list[ImageError]


class _Budget:
    """So many pixels may be in decoding at once; a larger picture has them all to itself."""

    def __init__(self, pixels: int) -> None:
        self._all = self._free = pixels
        self._changed = Condition()

    @contextmanager
    def holding(self, pixels: int) -> Iterator[None]:
        share = min(pixels, self._all)
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
    paths: Iterable[Path],
    preprocess: Callable[[Image.Image], np.ndarray],
    *,
    side: int | None = None,
) -> Iterator[Decoded | ImageError]:
    """Decode files in threads, in order; the module says how much memory that takes.

    Args:
        preprocess: an upright RGB image -> uint8 [H, W, 3]; a `Preprocess`, or what else is wanted of it.
        side: what `preprocess` scales the shorter side down to, which large JPEGs are decoded for; see
            `retrieval.images.load.load_image`.
    """
    for file in read_ahead(paths, preprocess, side=side, known=lambda _: False):
        assert not isinstance(file, KnownFile)
        yield file


def read_ahead(
    paths: Iterable[Path],
    preprocess: Callable[[Image.Image], np.ndarray],
    *,
    side: int | None,
    known: Callable[[str], bool],
) -> Iterator[Decoded | KnownFile | ImageError]:
    """As `decode_ahead`, but a file whose SHA-256 is `known` is not decoded."""
    budget = _Budget(PIXELS_IN_FLIGHT)

    def read(path: Path) -> Decoded | KnownFile | ImageError:
        try:
            data = read_bytes(path)
            content = hashlib.sha256(data).hexdigest()
            if known(content):
                return KnownFile(content)
            opened = open_bytes(data, str(path), side=side)
            with budget.holding(opened.pixels):
                image, size = opened.decode()
                return Decoded(preprocess(image), content, *size)
        except ImageError as error:
            return error

    waiting: deque[Future[Decoded | KnownFile | ImageError]] = deque()
    files = iter(paths)
    with ThreadPoolExecutor(cores(), thread_name_prefix="decode") as pool:
        try:
            while True:
                for path in islice(files, 2 * BATCH - len(waiting)):
                    waiting.append(pool.submit(read, path))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def embed_files(
    paths: Sequence[Path],
    preprocess: Preprocess,
    embed_pixels: Callable[[np.ndarray], np.ndarray],
    progress: Progress,
) -> EmbeddedFiles:
    """Embed files with any model: `embed_pixels` takes uint8 [N, H, W, 3] and gives float32 [N, D]."""
    vectors: list[np.ndarray] = []
    positions: list[int] = []
    contents: list[str] = []
    bad: list[ImageError] = []
    files = enumerate(decode_ahead(paths, preprocess, side=preprocess.scaled))
    while batch := list(islice(files, BATCH)):
        good = [(i, file) for i, file in batch if isinstance(file, Decoded)]
        bad += [file for _, file in batch if isinstance(file, ImageError)]
        if good:
            vectors.append(embed_pixels(np.stack([file.pixels for _, file in good])))
        positions += [i for i, _ in good]
        contents += [file.content_sha256 for _, file in good]
        progress.update(len(batch), f"{len(bad)} unusable" if bad else "")
    joined = np.concatenate(vectors) if vectors else np.empty((0, 0), np.float32)
    return EmbeddedFiles(joined, np.array(positions, np.int64), contents, bad)


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
