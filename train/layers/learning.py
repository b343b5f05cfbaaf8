"""The layer: its start, which needs no labels, learning from batches, and blending of the two.

The start rotates the vectors to their principal components, each divided by a power of its standard
deviation. Learning changes the leading components by a square matrix. The blend is a share of that matrix,
the rest being the identity: interpolation of weights, as WiSE-FT does between a zero-shot and a fine-tuned
model (Wortsman et al. 2022).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
import torch

from retrieval.errors import InputError
from retrieval.model.layer import Layer
from retrieval.progress import Progress
from train import losses
from train.config import BatchConfig
from train.input.sampler import ClassBatchSampler
from train.layers.settings import TeachingConfig

_FEW = 2  # images for each dimension, below which no dimension is left out
_NOTHING = 1e-3  # component of vectors of norm 1, or relative deviation, that is nothing but rounding


@dataclass(frozen=True)
class Start:
    """Start of a layer.

    Attributes:
        power: Power of the standard deviations.
        layer: Rotation, division by the power of the standard deviations, and mean.
        learned: Number k of the leading components that learning may change.
    """

    power: float
    layer: Layer
    learned: int

    def components(self, vectors: np.ndarray) -> np.ndarray:
        """Return the components of vectors, float32 [n, D'], with norm 1 on average."""
        found = (vectors - self.layer.mean) @ self.layer.weight.T
        norm = float(np.linalg.norm(found, axis=1).mean())
        scaled: np.ndarray = found / max(norm, float(np.finfo(np.float32).tiny))
        return scaled

    def blended(self, matrix: np.ndarray, share: float) -> Layer:
        """Return the layer with a share of a learned matrix [k, k]."""
        weight = self.layer.weight.copy()
        weight[: self.learned] = mixed(matrix, share) @ weight[: self.learned]
        return Layer(weight, self.layer.mean)


def fit_starts(vectors: np.ndarray, powers: tuple[float, ...], most: int) -> list[Start]:
    """Fit the start of each power to vectors.

    The variances are shrunk towards their mean (Ledoit and Wolf 2004), so that the noise of few images does
    not become large in weak components. Only components in which the vectors differ are learned.

    Args:
        vectors: Unit vectors, float32 [n, D].
        powers: Powers of the standard deviations.
        most: Largest dimension D', unless there are fewer than two vectors for each dimension: then D.

    Raises:
        InputError: Fewer than two vectors.
    """
    n, width = vectors.shape
    if n < 2:
        raise InputError(f"a layer is fitted to two vectors or more, got {n}")
    mean = vectors.mean(0, dtype=np.float64)
    centred = vectors - mean.astype(np.float32)
    covariance = (centred.T @ centred).astype(np.float64) / n
    values, axes = np.linalg.eigh(covariance)
    values, axes = np.maximum(values[::-1], 0), axes[:, ::-1]
    fourth = float((np.einsum("nd,nd->n", centred, centred).astype(np.float64) ** 2).mean())
    squares, average = float((values**2).sum()), float(values.mean())
    spread = squares - width * average**2
    shrinkage = min(max((fourth - squares) / n / spread, 0.0), 1.0) if spread > 0 else 1.0
    variances = (1 - shrinkage) * values + shrinkage * average
    variances = np.maximum(variances, _NOTHING**2 * variances[0])
    dim = width if n < _FEW * width else min(width, most)
    starts = []
    for power in powers:
        scale = (variances[:dim] / variances[0]) ** (-power / 2) if average > 0 else np.ones(dim)
        weight = (axes[:, :dim] * scale).T.astype(np.float32)
        starts.append(Start(power, Layer(weight, mean.astype(np.float32)), min(dim, most, n - 1)))
    return starts


def mixed(matrix: np.ndarray, share: float) -> np.ndarray:
    """Return a share of a square matrix, the rest being the identity."""
    return (1 - share) * np.eye(len(matrix), dtype=np.float32) + share * matrix


def learn(
    components: np.ndarray,
    classes: np.ndarray,
    learned: int,
    config: TeachingConfig,
    *,
    what: str = "learning",
    show_progress: bool = False,
) -> np.ndarray:
    """Learn the matrix that separates classes best, from the identity on.

    Args:
        components: Components of the vectors, float32 [n, D'].
        classes: Class of each, int [n].
        learned: Number k of leading components to change.
        config: Settings.
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
    if not np.abs(components[:, learned:]).max(initial=0) > _NOTHING:  # as of few images
        components = components[:, :learned]
    torch.manual_seed(config.seed)
    batch = BatchConfig(classes=config.batch.classes, per_class=config.batch.per_class)
    sampler = ClassBatchSampler(numbers, batch, config.seed)
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
