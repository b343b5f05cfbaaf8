"""Surrogate classes of MIC: clusters of the training images, whatever their class, and batches of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from retrieval.errors import ImageError, InputError
from retrieval.metrics import kmeans
from train.config import BatchConfig, Config
from train.input.sampler import ClassBatchSampler, Labelled
from train.loop.shared_images import ImageSource
from train.loop.training_data import TrainingData
from train.loop.twin_encoder import AuxiliaryEncoder
from train.models.embedding_model import EmbeddingModel, with_head, without_head

_UNKNOWN = -1  # of images that cannot be read
_STREAM = 1_000_003  # added to the seed: batches of clusters are drawn independently of those of classes


class SurrogateClasses(nn.Module):
    """Clusters of the training images, and batches that hold as many images of clusters as of classes.

    The unit vectors of all images are standardized within each class, so that clusters are of what differs
    within classes and is shared by them. The clusters are in a buffer: checkpoints hold them, and a resumed
    run draws the same batches.

    Args:
        data: Training data of the run.
        source: Source of the images.
        config: Configuration of the run.

    Raises:
        InputError: There are fewer images than clusters.
    """

    clusters: Tensor

    def __init__(self, data: TrainingData, source: ImageSource, config: Config) -> None:
        super().__init__()
        assert config.mic.clusters is not None
        assert isinstance(data.sampler, ClassBatchSampler)
        count = len(data.images)
        if config.mic.clusters > count:
            raise InputError(f"mic.clusters: there are {count} training images; set {count} or less")
        self._number, self._every, self._seed = config.mic.clusters, config.mic.every, config.seed
        self._group, self._sampler, self._classes = source.group, data.sampler, data.labels
        batch = {"layout": "exact", "hard_classes": 0.0, "categories": None}
        batch |= {"classes": data.sampler.classes, "per_epoch": data.sampler.per_epoch}
        self._batch = BatchConfig.model_validate({**config.batch.model_dump(), **batch})
        # Labels are positions, as text: unreadable images are left out.
        numbered = [replace(image, label=str(i)) for i, image in enumerate(data.images)]
        self._images = source.share(numbered, data.files)
        self.register_buffer("clusters", torch.full((count,), _UNKNOWN))

    @property
    def bad(self) -> list[ImageError]:
        """Errors of unreadable training images, complete after the first clustering."""
        return self._images.bad

    def is_due(self, epoch: int) -> bool:
        """Return whether images are clustered again after an epoch; 0 is before the first."""
        return epoch % self._every == 0

    def measure(self, model: EmbeddingModel, auxiliary: AuxiliaryEncoder, epoch: int) -> None:
        """Cluster the images for the batches of the next epochs.

        By the pooled features before training, and by the auxiliary embeddings after an epoch.

        Args:
            model: The model.
            auxiliary: Its auxiliary encoder.
            epoch: Number of epochs done.
        """
        embedder = with_head(model, auxiliary.head) if epoch else without_head(model)
        names, vectors = self._images.embed(embedder)
        places = np.array(names).astype(np.int64)
        order = np.argsort(places)  # the order of the shares of several processes does not matter
        places, vectors = places[order], vectors[order]
        points = standardized(vectors, self._classes[places])
        clusters = np.full(len(self.clusters), _UNKNOWN)
        clusters[places] = kmeans(points, min(self._number, len(points)), seed=self._seed + epoch)
        self.clusters.copy_(torch.from_numpy(self._group.share(clusters)))  # CPUs round differently

    def epoch(self, number: int) -> Iterator[Labelled]:
        """Yield the batches of an epoch: those of the run's sampler, each followed by one of clusters.

        Raises:
            InputError: All images are in one cluster.
        """
        found = self.clusters.numpy()
        known = np.flatnonzero(found != _UNKNOWN)
        names, labels = np.unique(found[known], return_inverse=True)
        if len(names) < 2:
            raise InputError(
                "mic.clusters: the images of a class are all alike to the network, so that there are no "
                "clusters; take pretrained weights, or leave it out"
            )
        clusters = ClassBatchSampler(labels, self._batch, self._seed + _STREAM)
        for ours, others in zip(self._sampler.epoch(number), clusters.epoch(number), strict=True):
            drawn = known[np.resize(others, len(ours))]  # clusters that are too few are repeated
            yield Labelled(np.concatenate([ours, drawn]), np.concatenate([self._classes[ours], found[drawn]]))


def standardized(vectors: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return vectors with mean 0 and variance 1 in every dimension within each class, float32 [N, D].

    Dimensions in which the images of a class are equal become 0: all of them if there is one image.

    Args:
        vectors: float [N, D].
        labels: Their classes, int [N].
    """
    order = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    sorted_ = vectors[order].astype(np.float64)

    def means(values: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.repeat(np.add.reduceat(values, starts) / counts[:, None], counts, axis=0)
        return found

    centred = sorted_ - means(sorted_)
    deviation = np.sqrt(means(centred**2))
    equal = deviation <= 1e-6 * np.abs(sorted_).max(initial=0)
    result = np.empty(vectors.shape, np.float32)
    result[order] = np.where(equal, 0.0, centred / np.where(equal, 1.0, deviation))
    return result
