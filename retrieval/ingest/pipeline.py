"""Pipeline of an indexing run: read, decode, preprocess and embed image files, all at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from retrieval.errors import ImageError
from retrieval.images.decode import read_ahead
from retrieval.images.location import Location
from retrieval.images.picture import Decoded, KnownFile
from retrieval.model.embedder import Embedder
from retrieval.model.interruption import run_options, use_options


class Embedded(NamedTuple):
    """A file that was embedded.

    Attributes:
        content_sha256: SHA-256 of the file.
        width, height: Size of the full upright image, in pixels.
    """

    content_sha256: str
    width: int
    height: int


@dataclass(frozen=True)
class EmbeddedBatch:
    """Consecutive files of a run.

    Attributes:
        files: What was found in each file, in order.
        vectors: Vectors of those that are `Embedded`, in order, float32 [n, D].
    """

    files: list[Embedded | KnownFile | ImageError]
    vectors: np.ndarray


def embed_ahead(
    places: Iterable[Location],
    embedder: Embedder,
    *,
    known: Callable[[str], bool] = lambda _: False,
    threads: int | None = None,
) -> Generator[EmbeddedBatch]:
    """Embed files; yield them in batches, in order, while the next ones are decoded and embedded.

    Decoding and embedding have threads of their own. Decoded images of `embedder.concurrency + 1` batches
    wait at most, besides what `retrieval.images.decode` describes. Close the generator to end the threads.

    Args:
        places: Image files, taken in the thread that iterates.
        embedder: Model.
        known: Whether a file with this SHA-256 needs no vector: it becomes a `KnownFile`. Called by several
            threads.
        threads: Number of decoding threads; `None` for one per core.

    Raises:
        LookalikeError: The model fails.
    """
    preprocess, size, concurrency = embedder.preprocess, embedder.batch_size, embedder.concurrency
    nothing = np.empty((0, embedder.dim), np.float32)
    waiting: deque[tuple[list[Embedded | KnownFile | ImageError], Future[np.ndarray] | None]] = deque()
    stop = run_options()
    pool = ThreadPoolExecutor(
        concurrency, thread_name_prefix="embed", initializer=use_options, initargs=(stop,)
    )

    def finished() -> EmbeddedBatch:
        files, vectors = waiting.popleft()
        return EmbeddedBatch(files, nothing if vectors is None else vectors.result())

    read_files = read_ahead(places, preprocess, side=preprocess.scaled, known=known, threads=threads)
    with closing(read_files) as read:
        try:
            while batch := list(islice(read, size)):
                pixels = [file.pixels for file in batch if isinstance(file, Decoded)]
                files = [
                    Embedded(file.content_sha256, file.width, file.height)
                    if isinstance(file, Decoded)
                    else file
                    for file in batch
                ]
                waiting.append((files, pool.submit(embedder.embed_pixels, pixels) if pixels else None))
                if len(waiting) > concurrency:
                    yield finished()
            while waiting:
                yield finished()
        finally:
            stop.terminate = True  # nobody waits for the vectors of what still runs
            pool.shutdown(cancel_futures=True)
