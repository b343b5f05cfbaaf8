"""Augmentation of whole batches: colours, flips and affine transforms, on the device of the network.

The loader's workers decode, cut the crops (`train.input.crops`) and draw the random values of a batch; the
rest is done to all its images at once, on the device. On a CPU the workers do it too, by the same code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.images.preprocess import Preprocess
from train.config import AugmentConfig
from train.input.crops import cut

_GREY = (0.2989, 0.587, 0.114)  # of red, green and blue, as in torchvision
_CPU_CHUNK = 150_000  # pixels at a time on a CPU, for its caches: a third of the time of a whole batch


class Draws(NamedTuple):
    """Random values of the images of a batch, drawn on the CPU.

    Attributes:
        mirrored: bool [B], flip horizontally; `None` if that is part of the matrix.
        matrix: float32 [B, 2, 3], affine transform from output to input coordinates, both in -1..1; `None`
            for no transform.
        color: float32 [B, 3, 3], three blends in turn: factors of the pixel, of its grey value and of the
            mean grey value of the image; `None` for no change.
    """

    mirrored: Tensor | None
    matrix: Tensor | None
    color: Tensor | None

    def share(self, part: slice) -> Draws:
        """Return the values of some of the images."""
        return Draws(*(None if values is None else values[part] for values in self))

    def to(self, device: torch.device) -> Draws:
        """Copy the values to a device, without waiting if they are in pinned memory."""
        return Draws(*(None if values is None else values.to(device, non_blocking=True) for values in self))


def batch_seeds(seed: int, epoch: int, number: int, count: int) -> list[int]:
    """Return the seeds of a batch: one of the whole batch, then one of each of its `count` images."""
    found: list[int] = (
        np.random.SeedSequence(seed, spawn_key=(epoch, number)).generate_state(1 + count).tolist()
    )
    return found


def draw_transform(turns: Tensor, config: AugmentConfig, generator: torch.Generator) -> Draws:
    """Draw random flips and affine transforms about the centre; the flip comes first.

    Args:
        turns: int64 [B], symmetry of the square applied after the flip: 0-3 quarter turns, 4-7 mirrored.
        config: Augmentation settings.
        generator: Random generator.
    """
    batch = len(turns)

    def spread(limit: float) -> Tensor:
        return (torch.rand(batch, generator=generator) * 2 - 1) * limit

    chance = 0.5 if config.flip else 0.0
    mirrored = (torch.rand(batch, generator=generator) < chance) ^ (turns >= 4)
    if not (config.rotate or config.scale or config.shear or config.shift or config.symmetries > 1):
        return Draws(mirrored if config.flip else None, None, None)
    angle = torch.deg2rad(spread(config.rotate)) + turns % 4 * (math.pi / 2)
    zoom, slant = 1 + spread(config.scale), spread(config.shear)
    cosine, sine = angle.cos() * zoom, angle.sin() * zoom
    x = torch.stack([cosine, slant * zoom - sine, spread(2 * config.shift)], 1)
    y = torch.stack([sine, cosine, spread(2 * config.shift)], 1)
    return Draws(None, torch.stack([torch.where(mirrored[:, None], -x, x), y], 1), None)


def cut_and_draw(
    images: Iterable[np.ndarray], config: AugmentConfig, preprocess: Preprocess, seeds: Sequence[int]
) -> tuple[Tensor, Tensor | None]:
    """Cut the crop of each image and draw its colours, with a seed of its own.

    Args:
        images: Decoded and resized images, uint8 [h, w, 3].
        config: Augmentation settings.
        preprocess: Preprocessing of the model.
        seeds: Seed of each image.

    Returns:
        Squares uint8 [b, T, T, 3], and `Draws.color` float32 [b, 3, 3] or `None`.
    """
    squares, colors, generator = [], [], torch.Generator()
    for image, seed in zip(images, seeds, strict=True):
        generator.manual_seed(seed)
        squares.append(cut(image, config, preprocess, generator))
        if config.color:
            colors.append(_draw_color(config.color, generator))
    return torch.stack(squares), torch.tensor(colors) if colors else None


def _draw_color(limit: float, generator: torch.Generator) -> list[list[float]]:
    """Draw changes of brightness, contrast and saturation in random order: blends with black, the mean, grey.

    The values are those of torchvision's `ColorJitter` with the same seed.
    """
    order = torch.randperm(4, generator=generator).tolist()  # 3 is the hue, which stays
    factors = torch.empty(3)
    for i in range(3):
        factors[i : i + 1].uniform_(1 - limit, 1 + limit, generator=generator)
    bright, contrast, saturation = factors.tolist()
    blends = [[bright, 0.0, 0.0], [contrast, 0.0, 1 - contrast], [saturation, 1 - saturation, 0.0]]
    return [blends[i] for i in order if i < 3]


def apply_draws(squares: Tensor, draws: Draws, size: int) -> Tensor:
    """Change colours, flip, transform and centre-crop the images of a batch, with at most one resampling.

    An image gets the same pixels in a batch of any size; those computed on a GPU may differ by a grey level
    from those of a CPU. Pixels outside an image repeat its border.

    Args:
        squares: Square images, uint8 [B, T, T, 3].
        draws: Random values of the images, on the same device.
        size: Side S of the result, at most T.

    Returns:
        uint8 [B, S, S, 3].
    """
    if draws.color is None and draws.matrix is None:
        return _crop_center(_flip(squares, draws.mirrored), size).contiguous()
    if squares.device.type != "cpu":
        return _change(squares, draws, size)
    done = squares.new_empty(len(squares), size, size, 3)
    count = max(1, _CPU_CHUNK // squares.shape[1] ** 2)
    for start in range(0, len(squares), count):
        part = slice(start, start + count)
        done[part] = _change(squares[part], draws.share(part), size)
    return done


def _change(squares: Tensor, draws: Draws, size: int) -> Tensor:
    planes = squares.permute(0, 3, 1, 2).float()  # [B, 3, T, T]
    if draws.color is not None:
        planes = _blend(planes, draws.color)
    if draws.matrix is not None:
        grid = _sampling_grid(draws.matrix, size, squares.shape[1])
        planes = F.grid_sample(planes, grid, padding_mode="border", align_corners=False).round_()
    changed = planes.to(torch.uint8).permute(0, 2, 3, 1)
    if draws.matrix is None:
        changed = _crop_center(_flip(changed, draws.mirrored), size)
    return changed.contiguous()


def _flip(squares: Tensor, mirrored: Tensor | None) -> Tensor:
    if mirrored is None:
        return squares
    if squares.device.type != "cpu":
        return torch.where(mirrored[:, None, None, None], squares.flip(2), squares)
    # Half the copies, but on a GPU this would wait for the values.
    pairs = zip(squares, mirrored.tolist(), strict=True)
    return torch.stack([square.flip(1) if mirror else square for square, mirror in pairs])


def _crop_center(squares: Tensor, size: int) -> Tensor:
    edge = (squares.shape[1] - size) // 2
    return squares[:, edge : edge + size, edge : edge + size]


def _blend(planes: Tensor, color: Tensor) -> Tensor:
    """Apply the blends to float images [B, 3, T, T] of whole numbers; each rounds down, as in torchvision."""
    planes = planes.contiguous()
    for factors in color.unbind(1):
        of_pixel, of_grey, of_mean = factors[:, :, None, None, None].unbind(1)  # [B, 1, 1, 1]
        red, green, blue = planes.unbind(1)
        grey = (red * _GREY[0]).add_(green, alpha=_GREY[1]).add_(blue, alpha=_GREY[2]).floor_()[:, None]
        # A sum of integers does not depend on their order, hence not on the size of the batch.
        mean = grey.sum((1, 2, 3), keepdim=True, dtype=torch.int64).float() / grey[0].numel()
        planes = planes.mul_(of_pixel).add_(grey.mul_(of_grey).add_(of_mean * mean)).clamp_(0, 255).floor_()
    return planes


def _sampling_grid(matrix: Tensor, size: int, side: int) -> Tensor:
    """Return the input coordinates of each output pixel, float32 [B, size, size, 2].

    Written out because a matrix product (F.affine_grid) rounds differently for different batch sizes.
    """
    steps = (2 * torch.arange(size, device=matrix.device) + 1 - size) / side  # [size], pixel centres
    along, down, shift = (column[:, :, None, None] for column in matrix.unbind(2))  # [B, 2, 1, 1]
    return (along * steps + down * steps[:, None] + shift).permute(0, 2, 3, 1)
