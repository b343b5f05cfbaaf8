"""Fixed random views: a finite set of augmented versions of each image, the same in all runs.

Training on the features of a frozen backbone needs the same augmented images again and again. The views of an
image depend on its file name, the name of its folder and the augmentation settings alone: not on the seed of
a run, the held-out images, or the place of the data set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from retrieval.images.preprocess import Preprocess
from train.config import AugmentConfig
from train.input.augment import Draws, batch_seeds, cut_and_draw, draw_transform

_NO_TURN = torch.zeros(1, dtype=torch.int64)


def cut_views(
    images: Iterable[np.ndarray],
    paths: Sequence[Path],
    views: Sequence[int],
    config: AugmentConfig,
    preprocess: Preprocess,
) -> tuple[Tensor, Draws]:
    """Cut one view of each image; return squares uint8 [b, T, T, 3] and what `apply_draws` does to them.

    Args:
        images: Decoded and resized images, uint8 [h, w, 3].
        paths: Their files.
        views: Number of the view of each, from 0.
        config: Augmentation settings.
        preprocess: Preprocessing of the model.
    """
    seeds = [_view_seeds(path, view) for path, view in zip(paths, views, strict=True)]
    generator, drawn = torch.Generator(), list[Draws]()
    for first, _ in seeds:
        drawn.append(draw_transform(_NO_TURN, config, generator.manual_seed(first)))
    mirrored, matrix, _ = (
        None if values[0] is None else torch.cat(values) for values in zip(*drawn, strict=True)
    )
    squares, color = cut_and_draw(images, config, preprocess, [second for _, second in seeds])
    return squares, Draws(mirrored, matrix, color)


def _view_seeds(path: Path, view: int) -> tuple[int, int]:
    name = f"{path.parent.name}/{path.name}#{view}"
    digest = hashlib.sha256(name.encode(errors="surrogateescape")).digest()
    first, second = np.frombuffer(digest[:8], "<u4").tolist()
    return first, second


def drawn_views(views: int, seed: int, epoch: int, number: int, count: int) -> list[int]:
    """Return the view of each of the `count` images of a batch, drawn with the seed of the run."""
    return [one % views for one in batch_seeds(seed, epoch, number, count)[1:]]
