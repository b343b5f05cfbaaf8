"""What happens to training pictures: crops and colours one by one, then mirrors and motions by the batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.images.preprocess import Preprocess
from train.config import AugmentConfig


def image_transform(config: AugmentConfig, preprocess: Preprocess) -> Callable[[Tensor], Tensor] | None:
    """The crop and the change of colours of one picture, uint8 [3, h, w]; `None`: neither is asked for.

    Draws from torch's global generator. A random crop has the side `preprocess.size`.
    """
    if config.crop == "center" and not config.color:
        return None
    from torchvision.transforms import v2  # which takes two seconds

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


@dataclass(frozen=True)
class GeometricTransform:
    """A random transform for each picture of a batch.

    Attributes:
        mirrored: bool [B], flipped from left to right first.
        matrix: float32 [B, 2, 3], from the result's places to the picture's, both -1..1; `None`: none moves.
    """

    mirrored: Tensor
    matrix: Tensor | None

    def __getitem__(self, share: slice) -> GeometricTransform:
        return GeometricTransform(self.mirrored[share], None if self.matrix is None else self.matrix[share])


def random_transform(turns: Tensor, config: AugmentConfig, generator: torch.Generator) -> GeometricTransform:
    """Draw mirrors and affine maps about the centre.

    Args:
        turns: int64 [B], which symmetry of the square comes first: 0-3 quarter turns, 4-7 mirrored.
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
    """Mirror and apply_transform pictures, resampled once at most, and take the centre.

    What lies beyond the edge repeats the edge.

    Args:
        squares: uint8 [B, S, S, 3].
        size: side of the result, at most S.

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
    grid = _places(transform.matrix, size, side)
    moved = F.grid_sample(planes, grid, padding_mode="border", align_corners=False)
    return moved.permute(0, 2, 3, 1).round().to(torch.uint8).contiguous()


def _places(matrix: Tensor, size: int, side: int) -> Tensor:
    """Where each pixel of the result comes from, float32 [B, size, size, 2].

    Written out, since a matrix product (F.affine_grid) rounds differently with the size of the batch.
    """
    steps = (2 * torch.arange(size) + 1 - size) / side  # [size], the centres of pixels
    along, down, shift = (column[:, :, None, None] for column in matrix.unbind(2))  # [B, 2, 1, 1]
    return (along * steps + down * steps[:, None] + shift).permute(0, 2, 3, 1)
