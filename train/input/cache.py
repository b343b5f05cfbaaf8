"""Decoded training images: from a memory-mapped cache file, or decoded on every access.

A cache file is written once and then memory-mapped by every process that reads it:

    pixels     uint8: the images, [h, w, 3] each, one after the other
    sizes      int32 [N, 2]: height and width; 0 and 0 for a file that could not be read
    bad        JSON: position, reason and detail of each unreadable file
    length     of bad in bytes, as 8 bytes (all numbers are little-endian)

See `train.input.cache_file` for its name and for concurrent processes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from retrieval.errors import ImageError
from retrieval.images.decode import decode_ahead
from retrieval.images.load import load_pixels
from retrieval.images.preprocess import Preprocess
from retrieval.machine.resources import free_memory
from retrieval.progress import Progress
from train.config import LoaderConfig
from train.input.cache_file import cache_file, explain_write_errors, fingerprint, map_with_facts, write_facts
from train.input.resize import Resize

_SIZES = np.dtype("<i4")
_FREE_SHARE = 4  # a temporary cache takes at most a quarter of the free memory and of the free disk space


@dataclass(frozen=True)
class CachedImages:
    """Memory-mapped decoded images: indexing returns uint8 [h, w, 3], or the error of an unreadable file.

    Attributes:
        pixels: uint8 [bytes], all images one after the other.
        starts: int64 [N], offset of each image in `pixels`.
        sizes: int32 [N, 2], height and width.
        bad: Errors of unreadable files, by position.
    """

    pixels: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    bad: dict[int, ImageError]

    def __getitem__(self, number: int) -> np.ndarray | ImageError:
        if number in self.bad:
            return self.bad[number]
        height, width = self.sizes[number].tolist()
        start = int(self.starts[number])
        return self.pixels[start : start + height * width * 3].reshape(height, width, 3)


@dataclass(frozen=True)
class UncachedImages:
    """Images decoded on every access: uint8 [h, w, 3], or the error of an unreadable file."""

    paths: Sequence[Path]
    resize: Resize
    bad: dict[int, ImageError] = field(default_factory=dict)  # unknown until a file is read

    def __getitem__(self, number: int) -> np.ndarray | ImageError:
        try:
            image = load_pixels(self.paths[number], side=self.resize.preprocess.scaled)
            return np.require(self.resize(image), requirements="W")  # torch requires writable memory
        except ImageError as error:
            return error


DecodedImages = CachedImages | UncachedImages


def decoded_images(
    paths: Sequence[Path],
    resize: Resize,
    config: LoaderConfig,
    *,
    folder: Path,
    shared: Path | None = None,
    show_progress: bool = False,
) -> DecodedImages:
    """Choose between a cache file, a temporary cache file and decoding on every access.

    With `config.cache` the images are cached in that folder. Otherwise, if there is room for them, they are
    decoded once into a temporary file in `folder`; if not, they are decoded on every access.

    Args:
        paths: Image files.
        resize: Resizing.
        config: Settings of the loader.
        folder: Folder for a temporary file.
        shared: Folder of the temporary file of several processes of this machine, which open the same images
            until one of them deletes the folder; `None` for a file of this process alone.
        show_progress: Report progress on stderr.
    """
    if config.cache is not None and paths:
        return open_cache(paths, resize, Path(config.cache), show_progress=show_progress)
    if decoded_size(len(paths), resize) > room_for_images(folder):
        return UncachedImages(paths, resize)
    if shared is not None:
        return open_cache(paths, resize, shared, show_progress=show_progress)
    return temporary_cache(paths, resize, folder, show_progress=show_progress)


def decoded_size(images: int, resize: Resize) -> int:
    """Return about how many bytes decoded images take; whole ones are counted as 4:3."""
    square = images * 3 * resize.preprocess.scaled**2
    return square * 4 // 3 if resize.whole and resize.preprocess.fit == "crop" else square


def room_for_images(folder: Path) -> int:
    """Return the bytes that a temporary cache in a folder may take."""
    return min(free_memory(), shutil.disk_usage(folder).free) // _FREE_SHARE


def open_cache(
    paths: Sequence[Path], resize: Resize, folder: Path, *, show_progress: bool = False
) -> CachedImages:
    """Open the cache file of these images, or decode them into one if it is missing or a file has changed.

    If several processes need the same file, one writes it and the others wait for its lock.

    Raises:
        LookalikeError: The folder cannot be written, or its disk is full.
    """
    return cache_file(
        folder / f"{fingerprint(paths, resize.fingerprint)}.pictures",
        lambda file: _map(file, paths),
        lambda file: _write(file, paths, resize, show_progress),
        show_progress=show_progress,
    )


def temporary_cache(
    paths: Sequence[Path], resize: Resize, folder: Path, *, show_progress: bool = False
) -> CachedImages:
    """Decode images into an unnamed file in `folder` that disappears with the process.

    Raises:
        LookalikeError: The folder cannot be written, or its disk is full.
    """
    with explain_write_errors(folder), tempfile.TemporaryFile(dir=folder) as file:
        _write(file, paths, resize, show_progress)
        file.flush()
        cached = _map(file, paths)
    assert cached is not None, "the file was written but is incomplete"
    return cached


class ValidationImages:
    """Images as the model sees them outside training, preprocessed without augmentation.

    Attributes:
        bad: Errors of unreadable files, complete after the first pass.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        preprocess: Preprocess,
        config: LoaderConfig,
        *,
        folder: Path,
        show_progress: bool = False,
    ) -> None:
        self._paths, self._resize = paths, Resize(preprocess)
        self._images = decoded_images(paths, self._resize, config, folder=folder, show_progress=show_progress)
        self.bad = list(self._images.bad.values())

    def batches(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the readable images in order: positions int64 [n], pixels uint8 [n, S, S, 3]; n <= size."""
        self.bad, good = [], []
        for number, image in enumerate(self._all()):
            if isinstance(image, ImageError):
                self.bad.append(image)
            else:
                good.append((number, image))
            if good and (len(good) == size or number + 1 == len(self._paths)):
                positions, squares = zip(*good, strict=True)
                yield np.array(positions, np.int64), np.stack(squares)
                good = []

    def _all(self) -> Iterator[np.ndarray | ImageError]:
        if isinstance(self._images, CachedImages):
            yield from map(self._images.__getitem__, range(len(self._paths)))
        else:
            for decoded in decode_ahead(self._paths, self._resize, side=self._resize.preprocess.scaled):
                yield decoded if isinstance(decoded, ImageError) else decoded.pixels


# ---- the cache file


def _write(file: IO[bytes], paths: Sequence[Path], resize: Resize, show_progress: bool) -> None:
    sizes = np.zeros((len(paths), 2), _SIZES)
    bad = []
    with Progress("reading", len(paths), show=show_progress) as progress:
        for number, decoded in enumerate(decode_ahead(paths, resize, side=resize.preprocess.scaled)):
            if isinstance(decoded, ImageError):
                bad.append([number, decoded.reason, decoded.detail])
            else:
                file.write(np.ascontiguousarray(decoded.pixels).data)
                sizes[number] = decoded.pixels.shape[:2]
            progress.update(1, f"{len(bad)} unusable" if bad else "")
    file.write(sizes.tobytes())
    write_facts(file, bad)


def _map(file: IO[bytes], paths: Sequence[Path]) -> CachedImages | None:
    """Map a cache file; `None` if it is incomplete, as after a power failure."""
    found = map_with_facts(file)
    if found is None:
        return None
    mapped, rows = found
    begin = len(mapped) - 2 * _SIZES.itemsize * len(paths)
    if begin < 0:
        return None
    sizes = np.frombuffer(mapped[begin:].tobytes(), _SIZES).reshape(-1, 2)
    ends = np.cumsum(sizes.astype(np.int64).prod(1) * 3)
    if begin != (ends[-1] if len(ends) else 0):
        return None
    bad = {number: ImageError(str(paths[number]), reason, detail) for number, reason, detail in rows}
    return CachedImages(mapped, np.concatenate([[0], ends[:-1]]), sizes, bad)
