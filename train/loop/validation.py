"""Evaluation during training: Recall@1 on held-out images, and Recall@K of watched images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from retrieval import metrics
from retrieval.errors import ImageError, InputError
from train.config import Config
from train.data import DataSet, LabelledImage
from train.input.cache import ValidationImages
from train.loop.knn import neighbour_search
from train.loop.process_group import ProcessGroup
from train.loop.training_data import TrainingData
from train.models.embedding_model import EmbeddingModel, pixel_embedder

_T = TypeVar("_T")
_FEWEST_OF_A_CLASS = 4  # fewer leave almost nothing to find


class SharedImages:
    """Images that all processes embed together, a share each.

    Args:
        images: Labelled images.
        config: Configuration of the run.
        group: Processes that train together.
        folder: Folder for a temporary cache of decoded images.
        show_progress: Show the progress of decoding.
    """

    def __init__(
        self,
        images: Sequence[LabelledImage],
        config: Config,
        group: ProcessGroup,
        folder: Path,
        *,
        show_progress: bool = False,
    ) -> None:
        self._group = group
        self._share = images[group.rank :: group.size]
        self._pixels = ValidationImages(
            [image.path for image in self._share],
            config.preprocess,
            config.loader,
            folder=folder,
            show_progress=show_progress,
        )

    @property
    def bad(self) -> list[ImageError]:
        """Errors of unreadable images, complete after the first evaluation."""
        return self._pixels.bad

    def embed(self, model: EmbeddingModel) -> tuple[list[str], np.ndarray]:
        """Return labels and unit vectors float32 [N, D] of the readable images, the same in all processes.

        Raises:
            InputError: None of the images can be read.
        """
        if self._group.size > 1:  # batch-norm statistics differ between processes
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)
        embed = pixel_embedder(model)
        parts = [
            ([self._share[i].label for i in positions], embed(pixels))
            for positions, pixels in self._pixels.batches()
        ]
        found = [part for parts in self._gather(parts) for part in parts]
        if not found:
            raise InputError("split: none of the images to evaluate can be read; check the data set's files")
        return [label for names, _ in found for label in names], np.concatenate([v for _, v in found])

    def _gather(self, own: _T) -> list[_T]:
        if self._group.size == 1:
            return [own]
        everyone: list[Any] = [None] * self._group.size
        dist.all_gather_object(everyone, own)
        return everyone


class Validator:
    """Computes Recall@1 of held-out images, each searched among the others.

    The training images are not searched: their labels may be wrong, and embedding them takes an epoch.

    Args:
        images: Held-out images; if empty, there is no validation.
        config, group, folder, show_progress: See `SharedImages`.
    """

    def __init__(
        self,
        images: Sequence[LabelledImage],
        config: Config,
        group: ProcessGroup,
        folder: Path,
        *,
        show_progress: bool = False,
    ) -> None:
        self._device = group.device
        self._images = (
            SharedImages(images, config, group, folder, show_progress=show_progress) if images else None
        )

    @property
    def bad(self) -> list[ImageError]:
        """Errors of unreadable images, complete after the first validation."""
        return self._images.bad if self._images else []

    def recall_at_1(self, model: EmbeddingModel) -> float | None:
        """Return Recall@1 of the model on the held-out images; `None` if there are none.

        Raises:
            InputError: None of the images can be read.
        """
        if self._images is None:
            return None
        return _recalls(self._images.embed(model), None, (1,), self._device)[1]


class Watcher:
    """Computes Recall@K of watched images during training: curves for figures, not for any choice.

    Test images are searched among each other, or in the gallery of the data set if it has one.

    Args:
        dataset: Data set of the run.
        data: Its training data.
        config: Configuration of the run, with `watch.split`.
        group, folder, show_progress: See `SharedImages`.

    Raises:
        InputError: The data set has no such images.
    """

    def __init__(
        self,
        dataset: DataSet,
        data: TrainingData,
        config: Config,
        group: ProcessGroup,
        folder: Path,
        *,
        show_progress: bool = False,
    ) -> None:
        self._watch, self._device = config.watch, group.device
        self._every = config.watch.every or data.sampler.per_epoch
        queries, gallery = _watched_images(dataset, data, config)
        self._sides = [
            SharedImages(side, config, group, folder, show_progress=show_progress)
            for side in (queries, gallery)
            if side is not None
        ]

    @property
    def bad(self) -> list[ImageError]:
        """Errors of unreadable images, complete after the first evaluation."""
        return [error for side in self._sides for error in side.bad]

    def is_due(self, step: int) -> bool:
        """Return whether the network after a step is evaluated, apart from the final one."""
        return step % self._every == 0

    def record(self, model: EmbeddingModel, step: int) -> dict[str, Any]:
        """Evaluate the model; return a record for metrics.jsonl: the step, the split and Recall@K."""
        queries, *gallery = (side.embed(model) for side in self._sides)
        ks = sorted({1, *self._watch.ks})
        recalls = _recalls(queries, gallery[0] if gallery else None, ks, self._device)
        return {
            "step": step,
            "watched": self._watch.split,
            **{f"recall_at_{k}": value for k, value in recalls.items()},
        }


def _watched_images(
    dataset: DataSet, data: TrainingData, config: Config
) -> tuple[list[LabelledImage], list[LabelledImage] | None]:
    """Return the images to watch and, for test images, the gallery that they search."""
    watch = config.watch
    if watch.split == "test" and dataset.test == dataset.train:
        raise InputError("watch.split=test: the data set has no test split; watch train or held-out images")
    if watch.split == "held-out" and not data.validation:
        raise InputError("watch.split=held-out: no images are held out; set split.validation")
    found = {"train": data.clean, "held-out": data.validation, "test": dataset.test}[watch.split or "test"]
    gallery = dataset.gallery if watch.split == "test" else None
    if watch.limit is None:
        return found, gallery
    found = _sample(found, watch.limit, config.seed)
    kept = {image.label for image in found}
    return found, gallery and [image for image in gallery if image.label in kept]


def _sample(images: Sequence[LabelledImage], limit: int, seed: int) -> list[LabelledImage]:
    """Return at most `limit` images in their order: equally many of each class, or of some classes."""
    of_class: dict[str, list[int]] = {}
    for position, image in enumerate(images):
        of_class.setdefault(image.label, []).append(position)
    each = max(_FEWEST_OF_A_CLASS, limit // len(of_class))
    random, kept = np.random.default_rng(seed), list[int]()
    for label in random.permutation(sorted(of_class)).tolist():
        chosen = random.permutation(of_class[label])[:each].tolist()
        if len(kept) + len(chosen) <= limit:
            kept += chosen
    return [images[position] for position in sorted(kept)]


def _recalls(
    queries: tuple[list[str], np.ndarray],
    gallery: tuple[list[str], np.ndarray] | None,
    ks: Sequence[int],
    device: torch.device,
) -> dict[int, float]:
    """Return Recall@K of labels and vectors; without a gallery each query searches the others."""
    names, vectors = queries
    others, searched = gallery or ([], None)
    numbers = np.unique([*names, *others], return_inverse=True)[1]
    labels, searched_labels = numbers[: len(names)], numbers[len(names) :]
    search = neighbour_search(device)
    if searched is None:
        return metrics.recall_at_k(vectors, labels, ks=ks, search=search)
    return metrics.recall_at_k(vectors, labels, searched, searched_labels, ks=ks, search=search)
