"""Training pictures, decoded once by the one loader and kept as raw pixels."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from retrieval.decoding import decode_ahead
from retrieval.errors import ImageError
from retrieval.preprocess import Preprocess
from retrieval.progress import Progress
from train.config import AugmentConfig


@dataclass(frozen=True)
class Pixels:
    """Decoded pictures, in a file that has no name and goes away with the process.

    The operating system keeps as much of it in memory as there is room for.
    """

    images: Tensor  # uint8 [N, S, S, 3]
    positions: np.ndarray  # int64 [N], which of the files each one is
    bad: list[ImageError]

    @classmethod
    def read(cls, paths: Sequence[Path], preprocess: Preprocess, folder: Path, progress: Progress) -> Pixels:
        """Decode files to squares of `preprocess.scaled` pixels: what a random crop can choose from.

        Args:
            folder: where the disk has room for them.
        """
        side = preprocess.scaled
        whole = dataclasses.replace(preprocess, size=side, resize=side)
        positions: list[int] = []
        bad: list[ImageError] = []
        with tempfile.TemporaryFile(dir=folder) as file:
            for i, decoded in enumerate(decode_ahead(paths, whole)):
                if isinstance(decoded, ImageError):
                    bad.append(decoded)
                else:
                    file.write(decoded.pixels.tobytes())
                    positions.append(i)
                progress.update(1, f"{len(bad)} unusable" if bad else "")
            file.flush()
            shape = (len(positions), side, side, 3)
            # "c": torch wants writable memory; a private mapping never writes back.
            mapped = np.memmap(file, np.uint8, "c", shape=shape) if positions else np.empty(shape, np.uint8)
        return cls(torch.from_numpy(mapped), np.array(positions, np.int64), bad)


def augment(
    images: Tensor, chosen: Tensor, size: int, config: AugmentConfig, generator: torch.Generator
) -> Tensor:
    """Random crops, reaching `padding` pixels beyond the (repeated) edge, and mirroring, for a whole batch.

    Args:
        images: uint8 [N, S, S, 3], all there are.
        chosen: int64 [B], which of them.
        size: side of the crops, at most S.

    Returns:
        uint8 [B, size, size, 3].
    """
    batch, side = len(chosen), images.shape[1]
    lowest, highest = -config.padding, side - size + config.padding
    corners = torch.randint(lowest, highest + 1, (2, batch, 1), generator=generator)
    rows, columns = (corners + torch.arange(size)).clamp_(0, side - 1)  # [B, size] each
    if config.flip:
        mirrored = torch.rand(batch, 1, generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    return images[chosen[:, None, None], rows[:, :, None], columns[:, None, :]]
