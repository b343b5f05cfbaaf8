"""Fixed random views: a finite set of augmented versions of each image, the same in all runs.

Training on the features of a frozen backbone needs the same augmented images again and again. The views of an
image depend on its file name, the name of its folder and the augmentation settings alone: not on the seed of
a run, the held-out images, or the place of the data set.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from retrieval.images.preprocess import Preprocess
from train.config import AugmentConfig
from train.input.augment import apply_transform, augment_each, batch_seeds, random_transform

_NO_TURN = torch.zeros(1, dtype=torch.int64)


def render_view(
    image: np.ndarray, path: Path, view: int, config: AugmentConfig, preprocess: Preprocess
) -> Tensor:
    """Return a view of an image, uint8 [1, S, S, 3].

    Args:
        image: Decoded and resized image, uint8 [h, w, 3].
        path: Its file.
        view: Number of the view, from 0.
        config: Augmentation settings.
        preprocess: Preprocessing of the model.
    """
    name = f"{path.parent.name}/{path.name}#{view}"
    digest = hashlib.sha256(name.encode(errors="surrogateescape")).digest()
    first, second = np.frombuffer(digest[:8], "<u4").tolist()
    transform = random_transform(_NO_TURN, config, torch.Generator().manual_seed(first))
    square = augment_each([image], config, preprocess, [second])
    return apply_transform(square, transform, preprocess.size)


def drawn_views(views: int, seed: int, epoch: int, number: int, count: int) -> list[int]:
    """Return the view of each of the `count` images of a batch, drawn with the seed of the run."""
    return [one % views for one in batch_seeds(seed, epoch, number, count)[1:]]
