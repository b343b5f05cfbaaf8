"""Evaluation during training: the score of held-out images, and Recall@K of watched images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from retrieval import metrics
from retrieval.errors import ImageError, InputError
from retrieval.metrics import per_query
from train.config import Config
from train.data import DataSet, LabelledImage
from train.loop.choice import Score
from train.loop.knn import neighbour_search
from train.loop.shared_images import ImageSource
from train.loop.teacher import neighbour_agreement
from train.loop.training_data import TrainingData
from train.models.embedding_model import EmbeddingModel

_FEWEST_OF_A_CLASS = 4  # fewer leave almost nothing to find


class Validator:
    """Scores networks on held-out images, each searched among the others and the distractors.

    Test images are never read. More training images than the distractors are not searched: embedding all of
    them would take a good part of an epoch. Without labels, augmented copies of held-out images search their
    originals; with a teacher, the 10 nearest images by the teacher are what a held-out image should find.

    Args:
        data: Training data of the run; if no images are held out, there is no validation.
        source: Source of the images.
    """

    def __init__(self, data: TrainingData, source: ImageSource) -> None:
        self._device, self._metric = source.group.device, source.config.split.metric
        parts = [(part, data.files) for part in (data.validation, data.distractors) if part]
        if data.copies:
            parts.insert(0, (data.copies, [copy.path for copy in data.copies]))
        self._sides = [source.share(part, files) for part, files in parts]
        self._teacher = None
        if not data.labelled and data.teacher is not None:  # there, an image is its own class
            images = [image for part, _ in parts for image in part]
            vectors = data.teacher.vectors[data.teacher.rows([image.path for image in images])]
            self._teacher = dict(zip([image.label for image in images], vectors, strict=True))

    @property
    def bad(self) -> list[ImageError]:
        """Errors of unreadable images, complete after the first validation."""
        return [error for side in self._sides for error in side.bad]

    def score(self, model: EmbeddingModel, metric: str | None = None) -> Score | None:
        """Return the score of a network; `None` if no images are held out.

        Args:
            model: Network to evaluate.
            metric: Metric that chooses, with its standard error; `None` for that of the settings.

        Raises:
            InputError: None of the images can be read, or no held-out image has another one of its class.
        """
        if not self._sides:
            return None
        metric = metric or self._metric
        names, vectors = zip(*(side.embed(model) for side in self._sides), strict=True)
        held_out, count = len(names[0]), sum(map(len, names))
        search = neighbour_search(self._device)
        if self._teacher is not None:
            targets = np.stack([self._teacher[name] for side in names for name in side])
            of_query = neighbour_agreement(np.concatenate(vectors), targets, held_out, search)
            own = np.arange(held_out)
            return _score(metric, of_query, own, count - held_out, "the teacher's neighbours of ")
        labels = np.unique([name for side in names for name in side], return_inverse=True)[1]
        r = int(np.bincount(labels[:held_out]).max()) - 1  # the most images that a query can find
        ranking = metrics.rank(
            vectors[0],
            labels[:held_out],
            np.concatenate(vectors),
            labels,
            k=1 if metric == "recall_at_1" else max(1, r),
            own=np.arange(held_out),
            search=search,
        )
        of_query = {"recall_at_1": per_query.recall(ranking, (1,))[:, 0]}
        if metric == "map_at_r":
            of_query["map_at_r"] = per_query.map_at_r(ranking)
        return _score(metric, of_query, labels[:held_out], count - held_out)


def _score(
    metric: str, of_query: Mapping[str, np.ndarray], classes: np.ndarray, distractors: int, found: str = ""
) -> Score:
    """Return the score by the metrics of queries, nan for those without an answer, and their classes."""
    values = {name: float(metrics.mean(value)) for name, value in of_query.items()}
    there = ~np.isnan(of_query[metric])
    answered = of_query[metric][there]
    _, numbers, sizes = np.unique(classes[there], return_inverse=True, return_counts=True)
    return Score(
        metric,
        values,
        float(answered.std() / np.sqrt(len(answered))),
        queries=len(answered),
        classes=len(sizes),
        distractors=distractors,
        found=found,
        of_classes=(np.bincount(numbers, answered, len(sizes)), sizes),
    )


class Watcher:
    """Computes Recall@K of watched images during training: curves for figures, not for any choice.

    Test images are searched among each other, or in the gallery of the data set if it has one.

    Args:
        dataset: Data set of the run.
        data: Its training data.
        source: Source of the images, with a configuration that has `watch.split`.

    Raises:
        InputError: The data set has no such images.
    """

    def __init__(self, dataset: DataSet, data: TrainingData, source: ImageSource) -> None:
        config = source.config
        self._watch, self._device = config.watch, source.group.device
        self._every = config.watch.every or data.sampler.per_epoch
        queries, gallery = _watched_images(dataset, data, config)
        files = [i.path for i in dataset.test] if config.watch.split == "test" else data.files
        self._sides = [source.share(queries, files)]
        if gallery is not None:
            self._sides.append(source.share(gallery, [image.path for image in dataset.gallery or ()]))

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
