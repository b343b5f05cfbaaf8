"""Decoded pictures in one file: written once, then memory-mapped by every process that reads them.

    pixels     uint8: the pictures, [h, w, 3] each, one after the other
    sizes      int32 [N, 2]: height and width; 0 and 0 where the file could not be read
    bad        JSON: the position of each such file, the reason and the detail
    length     of bad in bytes, as 8 bytes (all numbers are little-endian)

A file of a cache folder bears the fingerprint of what it was made from and has its name only once it is
complete. Others in the folder are left alone: they serve other runs. Deleting one costs time, nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image

from retrieval.errors import ImageError, LookalikeError
from retrieval.files import atomic_write, file_lock
from retrieval.images.decode import decode_ahead
from retrieval.images.load import DECODE_POLICY
from retrieval.images.preprocess import Preprocess
from retrieval.progress import Progress

_FORMAT = 1
_SIZES = np.dtype("<i4")


@dataclass(frozen=True)
class Scale:
    """What becomes of a picture before it is kept: all of it, or the central square of `preprocess`."""

    preprocess: Preprocess
    whole: bool = False

    def __call__(self, image: Image.Image) -> np.ndarray:
        """An upright RGB image -> uint8 [h, w, 3]."""
        return self.preprocess.whole(image) if self.whole else self.preprocess(image)

    @property
    def facts(self) -> list[object]:
        """All that its pixels depend on."""
        size = None if self.whole else self.preprocess.size
        return [size, self.preprocess.scaled, self.preprocess.fit, self.preprocess.interpolation]


@dataclass(frozen=True)
class Kept:
    """Decoded pictures, memory-mapped: indexing gives uint8 [h, w, 3], or what was wrong with the file."""

    pixels: np.ndarray  # uint8 [bytes]
    starts: np.ndarray  # int64 [N]: where in `pixels` each one begins
    sizes: np.ndarray  # int32 [N, 2]
    bad: dict[int, ImageError]

    def __getitem__(self, number: int) -> np.ndarray | ImageError:
        if number in self.bad:
            return self.bad[number]
        height, width = self.sizes[number].tolist()
        start = int(self.starts[number])
        return self.pixels[start : start + height * width * 3].reshape(height, width, 3)


def keep(paths: Sequence[Path], scale: Scale, folder: Path, *, show_progress: bool = False) -> Kept:
    """The pictures out of a cache folder, decoded now if they, as they are today, are not in it.

    Of several processes that want the same pictures one decodes them, and the others wait for it.

    Raises:
        LookalikeError: the folder cannot be written, or its disk is full.
    """
    file = folder / f"{fingerprint(paths, scale)}.pictures"

    def waiting(_: object) -> None:
        if show_progress:
            print(f"{folder}: waiting for another process that fills this cache", file=sys.stderr)

    with _explained(folder):
        found = _open(file, paths)
        if found is not None:
            return found
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / "LOCK", waiting):
            found = _open(file, paths)
            if found is None:
                for leftover in folder.glob("*.tmp-*"):  # of a process that was killed: we hold the lock
                    leftover.unlink()
                with atomic_write(file) as draft, draft.open("wb") as target:
                    _write(target, paths, scale, show_progress)
                found = _open(file, paths)
    assert found is not None, f"{file} was written and is not whole"
    return found


def keep_for_now(paths: Sequence[Path], scale: Scale, folder: Path, *, show_progress: bool = False) -> Kept:
    """The pictures, decoded into a file in `folder` that has no name and goes away with the process.

    Raises:
        LookalikeError: the folder cannot be written, or its disk is full.
    """
    with _explained(folder), tempfile.TemporaryFile(dir=folder) as file:
        _write(file, paths, scale, show_progress)
        file.flush()
        kept = _map(file, paths)
    assert kept is not None, "the file was written and is not whole"
    return kept


def fingerprint(paths: Sequence[Path], scale: Scale) -> str:
    """What decoded pictures depend on, in 32 hexadecimal digits.

    The place, size and time of change of every file, how it is scaled, and the version of the decoder.
    """
    digest = hashlib.sha256(json.dumps([_FORMAT, DECODE_POLICY, *scale.facts]).encode())
    for path in paths:
        try:
            status = os.stat(path)
            stamp = f"{status.st_size} {status.st_mtime_ns}"
        except (OSError, ValueError):
            stamp = "unreadable"
        digest.update(b"\0" + os.fsencode(os.path.abspath(path)) + b"\0" + stamp.encode())
    return digest.hexdigest()[:32]


def _write(file: IO[bytes], paths: Sequence[Path], scale: Scale, show_progress: bool) -> None:
    sizes = np.zeros((len(paths), 2), _SIZES)
    bad = []
    with Progress("reading", len(paths), show=show_progress) as progress:
        for number, decoded in enumerate(decode_ahead(paths, scale, side=scale.preprocess.scaled)):
            if isinstance(decoded, ImageError):
                bad.append([number, decoded.reason, decoded.detail])
            else:
                file.write(np.ascontiguousarray(decoded.pixels).data)
                sizes[number] = decoded.pixels.shape[:2]
            progress.update(1, f"{len(bad)} unusable" if bad else "")
    facts = json.dumps(bad).encode()
    file.write(sizes.tobytes() + facts + len(facts).to_bytes(8, "little"))


def _open(file: Path, paths: Sequence[Path]) -> Kept | None:
    try:
        with file.open("rb") as opened:
            return _map(opened, paths)
    except FileNotFoundError:
        return None


def _map(file: IO[bytes], paths: Sequence[Path]) -> Kept | None:
    """The pictures in a file, or `None` if some of it is missing, as after the loss of power."""
    if os.fstat(file.fileno()).st_size < 8:
        return None
    # "c": torch wants memory that it could write; a private mapping never writes back.
    mapped = np.asarray(np.memmap(file, np.uint8, "c"))
    end = len(mapped) - 8
    end -= int.from_bytes(mapped[end:].tobytes(), "little")
    begin = end - 2 * _SIZES.itemsize * len(paths)
    if begin < 0:
        return None
    sizes = np.frombuffer(mapped[begin:end].tobytes(), _SIZES).reshape(-1, 2)
    ends = np.cumsum(sizes.astype(np.int64).prod(1) * 3)
    if begin != (ends[-1] if len(ends) else 0):
        return None
    rows = json.loads(mapped[end:-8].tobytes())
    bad = {number: ImageError(str(paths[number]), reason, detail) for number, reason, detail in rows}
    return Kept(mapped, np.concatenate([[0], ends[:-1]]), sizes, bad)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        detail = f"decoded pictures cannot be kept there ({error.strerror})"
        raise LookalikeError(
            f"{folder}: {detail}; make room, or set loader.cache to a folder on another disk"
        ) from error
