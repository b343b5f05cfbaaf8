"""Cached features: what a frozen backbone computes from each image, in a memory-mapped file.

    vectors    float32 [N, C]: the features of each image; nan for a file that could not be read
    contents   32 bytes each: SHA-256 of the image files; zeros for a file that could not be read
    facts      JSON: the number of features, and position, reason and detail of each unreadable file
    length     of facts in bytes, as 8 bytes (all numbers are little-endian)

See `train.input.cache_file` for its name and for concurrent processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from retrieval.errors import ImageError
from retrieval.files import user_cache
from retrieval.images.decode import decode_ahead
from retrieval.images.picture import Decoded
from retrieval.progress import Progress
from train.config import AugmentConfig, Config
from train.input.augment import Draws
from train.input.cache_file import cache_file, fingerprint, map_with_facts, write_facts
from train.input.resize import Resize
from train.input.views import cut_views

_BATCH = 64
_DIGEST = 32  # bytes of a SHA-256

# Squares uint8 [n, T, T, 3], and what is still to be done to them, to features float32 [n, C].
Extract = Callable[[Tensor, Draws | None], np.ndarray]


@dataclass(frozen=True)
class View:
    """One fixed random view of the images.

    Attributes:
        number: Number of the view, from 0.
        augment: Augmentation settings.
    """

    number: int
    augment: AugmentConfig


@dataclass(frozen=True)
class FeatureSet:
    """Features of image files, memory-mapped.

    Attributes:
        paths: The N files.
        vectors: float32 [N, C]; nan for an unreadable file.
        contents: SHA-256 of each file, [N]; zeros for an unreadable file.
        bad: Errors of unreadable files, by position.
    """

    paths: Sequence[Path]
    vectors: np.ndarray
    contents: list[str]
    bad: dict[int, ImageError]

    def rows(self, paths: Sequence[Path]) -> np.ndarray:
        """Return the positions of some of the files, int64 [n]."""
        place = {path: row for row, path in enumerate(self.paths)}
        return np.array([place[path] for path in paths], np.int64)


class Targets:
    """Vectors of a teacher for training images.

    Args:
        found: The vectors of all files of the split.
        paths: The N training images, among these files.
    """

    def __init__(self, found: FeatureSet, paths: Sequence[Path]) -> None:
        self._vectors, self._rows = found.vectors, found.rows(paths)

    def of(self, images: Sequence[int] | np.ndarray) -> Tensor:
        """Return the vectors of images by number, float32 [b, T]; zeros for those that cannot be read."""
        return torch.from_numpy(self._vectors[self._rows[images]]).nan_to_num_(0.0)  # a copy


def cache_folder(config: Config) -> Path:
    """Return the folder for the features of a run: `loader.cache`, or that of the user."""
    return Path(config.loader.cache) if config.loader.cache else user_cache("features")


def cached_features(
    paths: Sequence[Path],
    resize: Resize,
    view: View | None,
    extract: Extract,
    inputs: Sequence[object],
    folder: Path,
    *,
    title: str = "features",
    show_progress: bool = False,
) -> FeatureSet:
    """Open the features of image files, or compute them.

    Args:
        paths: Image files.
        resize: Resizing that precedes the view, or the preprocessing of the model if there is none.
        view: View of each image; `None` for the image as the model sees it outside training.
        extract: Frozen network.
        inputs: Everything that the network and its preprocessing depend on, as JSON values.
        folder: Folder of the cache.
        title: Title of the progress.
        show_progress: Report progress on stderr.

    Raises:
        LookalikeError: The folder cannot be written, or its disk is full.
    """
    drawn = [] if view is None else [view.number, view.augment.model_dump(exclude={"views"})]
    return cache_file(
        folder / f"{fingerprint(paths, [*resize.fingerprint, *drawn, *inputs])}.features",
        lambda file: _map(file, paths),
        lambda file: _write(file, _features(paths, resize, view, extract, title, show_progress)),
        show_progress=show_progress,
    )


def _features(
    paths: Sequence[Path],
    resize: Resize,
    view: View | None,
    extract: Extract,
    title: str,
    show_progress: bool,
) -> Iterator[tuple[list[Decoded | ImageError], np.ndarray]]:
    """Yield batches of files with the features of the readable ones, float32 [n, C]."""
    title = title if view is None else f"{title} of view {view.number + 1}"
    files = zip(paths, decode_ahead(paths, resize, side=resize.preprocess.scaled), strict=True)
    with Progress(title, len(paths), show=show_progress) as progress:
        while batch := list(islice(files, _BATCH)):
            good = [(path, file.pixels) for path, file in batch if isinstance(file, Decoded)]
            vectors = extract(*_squares(good, view, resize)) if good else np.empty((0, 0), np.float32)
            yield [file for _, file in batch], vectors
            progress.update(len(batch))


def _squares(
    images: Sequence[tuple[Path, np.ndarray]], view: View | None, resize: Resize
) -> tuple[Tensor, Draws | None]:
    """Return squares uint8 [n, T, T, 3] of some files, and what turns them into the view."""
    paths, pixels = zip(*images, strict=True)
    if view is None:
        return torch.from_numpy(np.stack(pixels)), None
    writable = (np.require(image, requirements="W") for image in pixels)  # torch requires it
    return cut_views(writable, paths, [view.number] * len(paths), view.augment, resize.preprocess)


def _write(file: IO[bytes], batches: Iterator[tuple[list[Decoded | ImageError], np.ndarray]]) -> None:
    """Write the features; those of unreadable files become known with the first readable one."""
    digests, bad, width, waiting = bytearray(), [], 0, 0
    for files, vectors in batches:
        width = width or vectors.shape[1]
        rows = iter(vectors)
        for one in files:
            if isinstance(one, ImageError):
                bad.append([len(digests) // _DIGEST, one.reason, one.detail])
                waiting += 1
                digests += bytes(_DIGEST)
                continue
            file.write(np.full((waiting, width), np.nan, "<f4").tobytes())
            file.write(np.ascontiguousarray(next(rows), "<f4").data)
            waiting = 0
            digests += bytes.fromhex(one.content_sha256)
    file.write(np.full((waiting, width), np.nan, "<f4").tobytes())
    file.write(bytes(digests))
    write_facts(file, {"features": width, "bad": bad})


def _map(file: IO[bytes], paths: Sequence[Path]) -> FeatureSet | None:
    """Map a cache file; `None` if it is incomplete."""
    found = map_with_facts(file)
    if found is None:
        return None
    mapped, facts = found
    middle, width = len(mapped) - _DIGEST * len(paths), facts["features"]
    if middle != 4 * len(paths) * width:
        return None
    digests = mapped[middle:].tobytes()
    bad = {row: ImageError(str(paths[row]), reason, detail) for row, reason, detail in facts["bad"]}
    return FeatureSet(
        paths,
        mapped[:middle].view("<f4").reshape(len(paths), width),
        [digests[_DIGEST * row :][:_DIGEST].hex() for row in range(len(paths))],
        bad,
    )
