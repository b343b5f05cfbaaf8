"""Hard classes: the training classes that a network confuses, which then meet in batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from retrieval.errors import ImageError
from retrieval.metrics.ranking import NeighbourSearch
from train.config import Config
from train.input.sampler import ClassBatchSampler
from train.loop.knn import neighbour_search
from train.loop.shared_images import ImageSource
from train.loop.training_data import TrainingData
from train.models.embedding_model import EmbeddingModel

_MOST_OF_A_CLASS = 20  # images that stand for a class
_MOST_IMAGES = 20_000  # in all, unless there are more than half as many classes
_VOTES = 10  # nearest images of other classes that an image names


class HardClasses(nn.Module):
    """Nearest classes of every training class, measured with the network that is being trained.

    A sample of the training images is embedded without augmentation, at most 20 of a class and about 20,000
    in all, and every image searches the others exactly. The measured neighbours are in a buffer, so that
    checkpoints hold them and a resumed run draws the same batches.

    Args:
        data: Training data of the run; its sampler gets the neighbours.
        source: Source of the images.
        config: Configuration of the run.
    """

    nearest: Tensor

    def __init__(self, data: TrainingData, source: ImageSource, config: Config) -> None:
        super().__init__()
        assert isinstance(data.sampler, ClassBatchSampler), "pairs are refused"
        self._sampler, self._group = data.sampler, source.group
        self._search = neighbour_search(source.group.device)
        self._symmetries = config.augment.symmetries
        self._classes = data.classes // self._symmetries
        self._count = min(2 * (config.batch.group - 1), self._classes - 1)  # some are in the batch already
        numbers = data.labels[: len(data.images)]
        # Labels of the sample are class numbers, as text.
        sample = [replace(data.images[i], label=str(numbers[i])) for i in _sample(numbers, config.seed)]
        self._images = source.share(sample, data.files)
        self.register_buffer("nearest", torch.zeros(0, 0, dtype=torch.int64))

    @property
    def bad(self) -> list[ImageError]:
        """Errors of unreadable images of the sample."""
        return self._images.bad

    def measure(self, model: EmbeddingModel) -> None:
        """Measure the nearest classes with a network, for the batches of the next epochs."""
        names, vectors = self._images.embed(model)
        labels = np.array(names).astype(np.int64)
        found = nearest_classes(vectors, labels, self._classes, self._count, self._search)
        # Neighbours of a rotated class are the classes that are rotated alike.
        turned = [found + turn * self._classes for turn in range(self._symmetries)]
        self.nearest = torch.from_numpy(self._group.share(np.concatenate(turned)))  # CPUs round differently
        self.apply_to_sampler()

    def apply_to_sampler(self) -> None:
        """Let the sampler use the neighbours, after they were measured or loaded from a checkpoint."""
        self._sampler.nearest = self.nearest.numpy()

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *others: Any) -> None:
        self.nearest = state[f"{prefix}nearest"].clone()  # of another shape than before


def _sample(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return positions of images, ascending: as many of each class."""
    classes = int(labels.max()) + 1
    each = max(2, min(_MOST_OF_A_CLASS, _MOST_IMAGES // classes))
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    kept = by_class[_rank_within(labels[by_class]) < each]
    return np.sort(kept)


def nearest_classes(
    vectors: np.ndarray, labels: np.ndarray, classes: int, count: int, search: NeighbourSearch
) -> np.ndarray:
    """Return the classes that each class is most confused with, the worst first.

    Every image votes for the classes of the 10 nearest images of other classes. Classes with the most votes
    of a class's images come first, among equals the one with the nearer mean; classes without votes follow.

    Args:
        vectors: Unit vectors, float32 [N, D].
        labels: Their classes, int64 [N], 0..C-1; a class may have none.
        classes: Number of classes C.
        count: Number of neighbours m, below C.
        search: Exact search.

    Returns:
        int64 [C, m]; of a class without images any classes.
    """
    means = np.zeros((classes, vectors.shape[1]), np.float32)
    np.add.at(means, labels, vectors)
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    own = int(np.bincount(labels).max())
    _, rows = search(vectors, vectors, min(len(vectors), own + _VOTES))
    named = labels[rows]  # [N, k]
    other = named != labels[:, None]
    voter, place = np.nonzero(other & (other.cumsum(1) <= _VOTES))
    voted = labels[voter] * classes + named[voter, place]
    _, near = search(means, means, min(classes, count + 1))
    fallback = (near + np.arange(classes)[:, None] * classes).ravel()
    pairs, votes = np.unique(np.concatenate([voted, fallback]), return_counts=True)
    votes = votes - np.isin(pairs, fallback)  # listed once more than voted for
    first, second = np.divmod(pairs, classes)
    cosines = np.einsum("pd,pd->p", means[first], means[second])
    order = np.lexsort((second, -cosines, -votes, first))
    order = order[first[order] != second[order]]
    kept = order[_rank_within(first[order]) < count]
    nearest: np.ndarray = second[kept].reshape(classes, count)
    return nearest


def _rank_within(groups: np.ndarray) -> np.ndarray:
    """Return the position of each element in its group, for groups that are not interleaved."""
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])
    return np.arange(len(groups)) - np.repeat(starts, np.diff(np.r_[starts, len(groups)]))
