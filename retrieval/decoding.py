"""Many files at once: read and decode in threads while the model works on what is ready."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from retrieval.errors import ImageError
from retrieval.images import decode_bytes, read_bytes
from retrieval.preprocess import Preprocess
from retrieval.progress import Progress

BATCH = 32


@dataclass(frozen=True)
class Decoded:
    """One file, read once."""

    pixels: np.ndarray  # uint8 [H, W, 3], preprocessed
    content_sha256: str
    width: int
    height: int


@dataclass(frozen=True)
class Embedded:
    """The files that could be embedded, and those that could not."""

    vectors: np.ndarray  # float32 [n, D]
    positions: np.ndarray  # int64 [n], which of the files each row is
    contents: list[str]  # SHA-256 of each file's bytes, [n]
    bad: list[ImageError]


def decode_ahead(
    paths: Iterable[Path], preprocess: Callable[[Image.Image], np.ndarray]
) -> Iterator[Decoded | ImageError]:
    """Decode files in threads, in order; memory holds at most two batches of them.

    Args:
        preprocess: an upright RGB image -> uint8 [H, W, 3]; a `Preprocess`, or what else is wanted of it.
    """
    waiting: deque[Future[Decoded | ImageError]] = deque()
    files = iter(paths)
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="decode") as pool:
        try:
            while True:
                for path in islice(files, 2 * BATCH - len(waiting)):
                    waiting.append(pool.submit(_decode, path, preprocess))
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
) -> Embedded:
    """Embed files with any model: `embed_pixels` takes uint8 [N, H, W, 3] and gives float32 [N, D]."""
    vectors: list[np.ndarray] = []
    positions: list[int] = []
    contents: list[str] = []
    bad: list[ImageError] = []
    files = enumerate(decode_ahead(paths, preprocess))
    while batch := list(islice(files, BATCH)):
        good = [(i, file) for i, file in batch if isinstance(file, Decoded)]
        bad += [file for _, file in batch if isinstance(file, ImageError)]
        if good:
            vectors.append(embed_pixels(np.stack([file.pixels for _, file in good])))
        positions += [i for i, _ in good]
        contents += [file.content_sha256 for _, file in good]
        progress.update(len(batch), f"{len(bad)} unusable" if bad else "")
    joined = np.concatenate(vectors) if vectors else np.empty((0, 0), np.float32)
    return Embedded(joined, np.array(positions, np.int64), contents, bad)


def _decode(path: Path, preprocess: Callable[[Image.Image], np.ndarray]) -> Decoded | ImageError:
    try:
        data = read_bytes(path)
        image = decode_bytes(data, str(path))
    except ImageError as error:
        return error
    return Decoded(preprocess(image), hashlib.sha256(data).hexdigest(), *image.size)
