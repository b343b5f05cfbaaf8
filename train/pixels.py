"""Training pictures, decoded once by the one loader and kept as raw pixels."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
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
    images: Tensor, turns: Tensor, size: int, config: AugmentConfig, generator: torch.Generator
) -> Tensor:
    """One random affine map for each picture, about its centre, resampled once.

    What lies beyond the edge repeats the edge. Without any randomness this is a central crop.

    Args:
        images: uint8 [B, S, S, 3].
        turns: int64 [B], which symmetry of the square comes first: 0-3 quarter turns, 4-7 mirrored.
        size: side of the result, at most S.

    Returns:
        uint8 [B, size, size, 3].
    """
    batch, side = len(images), images.shape[1]

    def spread(limit: float) -> Tensor:
        return (torch.rand(batch, generator=generator) * 2 - 1) * limit

    angle = torch.deg2rad(spread(config.rotate)) + turns % 4 * (math.pi / 2)
    zoom = (1 + spread(config.scale)) * (size / side)
    slant, shift = spread(config.shear), torch.stack([spread(2 * config.shift), spread(2 * config.shift)], 1)
    mirrored = turns >= 4
    if config.flip:
        mirrored = mirrored ^ (torch.rand(batch, generator=generator) < 0.5)
    cosine, sine = angle.cos() * zoom, angle.sin() * zoom
    rows = torch.stack([torch.stack([cosine, slant * zoom - sine], 1), torch.stack([sine, cosine], 1)], 1)
    rows[:, :, 0] *= torch.where(mirrored, -1.0, 1.0)[:, None]
    matrix = torch.cat([rows, shift[:, :, None]], 2)  # [B, 2, 3], from the result's places to the picture's
    grid = F.affine_grid(matrix, [batch, 3, size, size], align_corners=False)
    planes = images.permute(0, 3, 1, 2).float()  # [B, 3, S, S]
    moved = F.grid_sample(planes, grid, padding_mode="border", align_corners=False)
    return moved.permute(0, 2, 3, 1).round().to(torch.uint8)
