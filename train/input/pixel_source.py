"""Where decoded pictures come from: a file that keeps them, or the image files themselves, time and again."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from retrieval.errors import ImageError
from retrieval.images.decode import decode_ahead
from retrieval.images.load import load_image
from retrieval.images.preprocess import Preprocess
from train.config import Config, LoaderConfig
from train.input.cache import Kept, Scale, keep, keep_for_now

_ROOM = 2**30  # bytes for pictures that nobody asked to keep


@dataclass(frozen=True)
class Files:
    """Pictures decoded whenever they are asked for: uint8 [h, w, 3], or what is wrong with the file."""

    paths: Sequence[Path]
    scale: Scale
    bad: dict[int, ImageError] = field(default_factory=dict)  # nothing is known before it is tried

    def __getitem__(self, number: int) -> np.ndarray | ImageError:
        try:
            picture = load_image(self.paths[number], side=self.scale.preprocess.scaled)
            return np.require(self.scale(picture), requirements="W")  # torch wants memory that it could write
        except ImageError as error:
            return error


Pictures = Kept | Files


def pictures(
    paths: Sequence[Path],
    scale: Scale,
    config: LoaderConfig,
    *,
    folder: Path,
    world: int = 1,
    show_progress: bool = False,
) -> Pictures:
    """Decide where decoded pictures come from.

    With `config.cache` they are kept there. Otherwise, if as many squares take less than 1 GiB and less
    than half of what is free on the disk, they are decoded once into a temporary file in `folder`, by each
    of `world` processes; if they take more, they are decoded each time.
    """
    if config.cache is not None and paths:
        return keep(paths, scale, Path(config.cache), show_progress=show_progress)
    needed = world * len(paths) * scale.preprocess.scaled**2 * 3
    if needed < min(_ROOM, shutil.disk_usage(folder).free // 2):
        return keep_for_now(paths, scale, folder, show_progress=show_progress)
    return Files(paths, scale)


def training_scale(config: Config) -> Scale:
    """What the crop of the augmentation chooses from."""
    side = config.augment.resize or config.preprocess.scaled
    whole = config.augment.crop != "center"
    size = config.preprocess.size if whole else side
    return Scale(dataclasses.replace(config.preprocess, size=size, resize=side), whole)


class Squares:
    """Pictures as the model sees them outside training, kept for the next time where there is room.

    Attributes:
        bad: files that could not be read, known after they were gone through once.
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
        self._paths, self._scale = paths, Scale(preprocess)
        self._pictures = pictures(paths, self._scale, config, folder=folder, show_progress=show_progress)
        self.bad = list(self._pictures.bad.values())

    def batches(self, size: int = 64) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Those that can be read, in order: their positions int64 [n], and uint8 [n, S, S, 3]; n <= size."""
        self.bad, good = [], []
        for number, picture in enumerate(self._all()):
            if isinstance(picture, ImageError):
                self.bad.append(picture)
            else:
                good.append((number, picture))
            if good and (len(good) == size or number + 1 == len(self._paths)):
                positions, squares = zip(*good, strict=True)
                yield np.array(positions, np.int64), np.stack(squares)
                good = []

    def _all(self) -> Iterator[np.ndarray | ImageError]:
        if isinstance(self._pictures, Kept):
            yield from map(self._pictures.__getitem__, range(len(self._paths)))
        else:
            for decoded in decode_ahead(self._paths, self._scale, side=self._scale.preprocess.scaled):
                yield decoded if isinstance(decoded, ImageError) else decoded.pixels
