"""Learning of a layer from batches of labelled vectors: a matrix on the leading components of its start."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import numpy as np
import torch

from retrieval.errors import InputError
from retrieval.model.layer import Layer
from retrieval.progress import Progress
from train import losses
from train.config import BatchConfig
from train.input.sampler import ClassBatchSampler
from train.layers.components import NOTHING, Start
from train.layers.settings import TeachingConfig


def learn(
    components: np.ndarray,
    classes: np.ndarray,
    learned: int,
    config: TeachingConfig,
    *,
    categories: np.ndarray | None = None,
    what: str = "learning",
    show_progress: bool = False,
) -> np.ndarray:
    """Learn the matrix that separates classes best, from the identity on.

    Args:
        components: Components of the vectors, float32 [n, D'].
        classes: Class of each, int [n].
        learned: Number k of leading components to change.
        config: Settings.
        categories: Category of each vector, [n]: each batch has classes of all of them, as many of each.
        what: Name of the work in the progress.
        show_progress: Report progress on stderr.

    Returns:
        float32 [k, k].

    Raises:
        InputError: There are fewer than two classes, no class has two images, or the loss is unknown.
    """
    _, numbers, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    if len(sizes) < 2 or sizes.max() < 2:
        raise InputError(
            "teaching needs two classes or more, one of them with two images or more; label more"
        )
    if not np.abs(components[:, learned:]).max(initial=0) > NOTHING:  # as of few images
        components = components[:, :learned]
    torch.manual_seed(config.seed)
    batch, of_class = BatchConfig(classes=config.batch.classes, per_class=config.batch.per_class), None
    if categories is not None:
        names, found = np.unique(categories, return_inverse=True)
        batch, of_class = batch.model_copy(update={"categories": len(names)}), np.zeros(len(sizes), np.int64)
        of_class[numbers] = found
    sampler = ClassBatchSampler(numbers, batch, config.seed, of_class)
    try:
        objective = losses.build(
            config.loss,
            num_classes=len(sizes),
            embedding_dim=components.shape[1],
            per_class=sampler.per_class,
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"loss: {error}") from error
    everything, labels = torch.from_numpy(components), torch.from_numpy(numbers)
    matrix = torch.eye(learned, requires_grad=True)
    groups = [
        {"params": [matrix], "lr": config.lr},
        {"params": [*objective.parameters()], "lr": config.loss_lr},
    ]
    optimizer = torch.optim.Adam([group for group in groups if group["params"]])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
    with Progress(what, config.steps, "steps", show=show_progress) as progress:
        for drawn in islice(_batches(sampler), config.steps):
            rows = torch.from_numpy(drawn)
            given = everything[rows]
            embeddings = torch.cat([given[:, :learned] @ matrix.T, given[:, learned:]], 1)
            value = objective(embeddings, labels[rows])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()
            progress.update(1)
    return matrix.detach().numpy()


def learn_layer(
    vectors: np.ndarray,
    classes: np.ndarray,
    start: Start,
    blend: float,
    config: TeachingConfig,
    *,
    show_progress: bool = False,
) -> Layer:
    """Learn the layer of one start and one blend from all labelled images.

    Args:
        vectors: Labelled unit vectors, float32 [N, D].
        classes: Class of each, int [N].
        start: Start.
        blend: Share of what is learned.
        config: Settings.
        show_progress: Report progress on stderr.

    Raises:
        InputError: As for `learn`.
    """
    components = start.components(vectors)
    matrix = learn(
        components, classes, start.learned, config, what="learning from all", show_progress=show_progress
    )
    return start.blended(matrix, blend)


def _batches(sampler: ClassBatchSampler) -> Iterator[np.ndarray]:
    for epoch in count():
        yield from sampler.epoch(epoch)
