"""Augmentation: random crops and colours per image, then flips and affine transforms per batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.images.preprocess import Preprocess
from train.config import AugmentConfig


def image_transform(config: AugmentConfig, preprocess: Preprocess) -> Callable[[Tensor], Tensor] | None:
    """Build the random crop and colour jitter of one image, uint8 [3, h, w]; `None` if both are disabled.

    Uses torch's global generator. A random crop has the side `preprocess.size`.
    """
    if config.crop == "center" and not config.color:
        return None
    from torchvision.transforms import v2  # takes two seconds to import

    size, steps = preprocess.size, list[v2.Transform]()
    if config.crop == "random":
        steps.append(v2.RandomCrop(size, padding=config.padding or None))
    elif config.crop == "resized":
        how = v2.InterpolationMode(preprocess.interpolation)
        area = (config.min_area, 1.0)
        steps.append(v2.RandomResizedCrop(size, scale=area, interpolation=how, antialias=True))
    if config.color:
        steps.append(v2.ColorJitter(config.color, config.color, config.color))
    transform: Callable[[Tensor], Tensor] = v2.Compose(steps)
    return transform


def augment_each(
    images: Iterable[np.ndarray], config: AugmentConfig, preprocess: Preprocess, seeds: Sequence[int]
) -> Tensor:
    """Crop and jitter images uint8 [h, w, 3], each with its own seed; return uint8 [b, S, S, 3]."""
    transform = image_transform(config, preprocess)
    if transform is None:
        return torch.from_numpy(np.stack(list(images)))
    done = []
    with torch.random.fork_rng(devices=[]):
        for image, seed in zip(images, seeds, strict=True):
            torch.default_generator.manual_seed(seed)
            done.append(transform(torch.from_numpy(image).permute(2, 0, 1)).permute(1, 2, 0))
    return torch.stack(done)


def batch_seeds(seed: int, epoch: int, number: int, count: int) -> list[int]:
    """Return the seeds of a batch: one of the whole batch, then one of each of its `count` images."""
    found: list[int] = (
        np.random.SeedSequence(seed, spawn_key=(epoch, number)).generate_state(1 + count).tolist()
    )
    return found


@dataclass(frozen=True)
class GeometricTransform:
    """One flip and affine transform per image of a batch.

    Attributes:
        mirrored: bool [B], flip horizontally first.
        matrix: float32 [B, 2, 3], from output to input coordinates, both in -1..1; `None` for no transform.
    """

    mirrored: Tensor
    matrix: Tensor | None

    def __getitem__(self, share: slice) -> GeometricTransform:
        return GeometricTransform(self.mirrored[share], None if self.matrix is None else self.matrix[share])


def random_transform(turns: Tensor, config: AugmentConfig, generator: torch.Generator) -> GeometricTransform:
    """Draw random flips and affine transforms about the centre.

    Args:
        turns: int64 [B], symmetry of the square applied first: 0-3 quarter turns, 4-7 mirrored.
        config: Augmentation settings.
        generator: Random generator.
    """
    batch = len(turns)

    def spread(limit: float) -> Tensor:
        return (torch.rand(batch, generator=generator) * 2 - 1) * limit

    chance = 0.5 if config.flip else 0.0
    mirrored = (torch.rand(batch, generator=generator) < chance) ^ (turns >= 4)
    if not (config.rotate or config.scale or config.shear or config.shift or config.symmetries > 1):
        return GeometricTransform(mirrored, None)
    angle = torch.deg2rad(spread(config.rotate)) + turns % 4 * (math.pi / 2)
    zoom, slant = 1 + spread(config.scale), spread(config.shear)
    cosine, sine = angle.cos() * zoom, angle.sin() * zoom
    x = torch.stack([cosine, slant * zoom - sine, spread(2 * config.shift)], 1)
    y = torch.stack([sine, cosine, spread(2 * config.shift)], 1)
    return GeometricTransform(mirrored, torch.stack([x, y], 1))


def apply_transform(squares: Tensor, transform: GeometricTransform, size: int) -> Tensor:
    """Flip, transform and centre-crop images, with at most one resampling.

    Pixels outside an image repeat its border.

    Args:
        squares: Square images, uint8 [B, S, S, 3].
        transform: Transform of each image.
        size: Side of the result, at most S.

    Returns:
        uint8 [B, size, size, 3].
    """
    side = squares.shape[1]
    mirrored = transform.mirrored.tolist()
    flipped = torch.stack([s.flip(1) if m else s for s, m in zip(squares, mirrored, strict=True)])
    if transform.matrix is None:
        edge = (side - size) // 2
        return flipped[:, edge : edge + size, edge : edge + size].contiguous()
    planes = flipped.permute(0, 3, 1, 2).float()  # [B, 3, S, S]
    grid = _sampling_grid(transform.matrix, size, side)
    moved = F.grid_sample(planes, grid, padding_mode="border", align_corners=False)
    return moved.permute(0, 2, 3, 1).round().to(torch.uint8).contiguous()


def _sampling_grid(matrix: Tensor, size: int, side: int) -> Tensor:
    """Return the input coordinates of each output pixel, float32 [B, size, size, 2].

    Written out because a matrix product (F.affine_grid) rounds differently for different batch sizes.
    """
    steps = (2 * torch.arange(size) + 1 - size) / side  # [size], pixel centres
    along, down, shift = (column[:, :, None, None] for column in matrix.unbind(2))  # [B, 2, 1, 1]
    return (along * steps + down * steps[:, None] + shift).permute(0, 2, 3, 1)
