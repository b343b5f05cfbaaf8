"""Training data of a run: held-out images, label noise, symmetries, batch sampler and loader."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from retrieval.errors import InputError
from train.config import Config
from train.data import DataSet, class_numbers
from train.data.label_noise import write_noise
from train.data.splits import divide, draw_distractors
from train.input.feature_loader import FeatureLoader
from train.input.features import FeatureSet
from train.input.loader import Loader
from train.input.sampler import ClassBatchSampler
from train.loop.process_group import ProcessGroup


class TrainingData:
    """Training images and labels of a run, with the sampler of its batches.

    Image i under symmetry s counts as image s N + i, and its class as class s C + c.

    Args:
        dataset: Data set; only `train` is used.
        config: Configuration of the run.
        group: Processes that train together.
        folder: Run folder; the main process writes wrong labels to `noise.csv` there.

    Attributes:
        images: The N training images, some with wrong labels if `noise.rate` > 0.
        clean: The same images with their true labels.
        validation: Held-out images, with their true labels: label noise is drawn among the others.
        distractors: Training images that the held-out ones are searched among, too, with their true labels.
        labels: int64 [symmetries * N], class numbers.
        classes: Number of classes, symmetries included.
        sampler: Sampler of batches.
        files: All images of the training split, held-out ones included, whatever the seed.

    Raises:
        InputError: Too few classes, `patience` without held-out images, or an indivisible batch.
    """

    def __init__(self, dataset: DataSet, config: Config, group: ProcessGroup, folder: Path) -> None:
        self._config, self._group, self._folder = config, group, folder
        self.files = [image.path for image in dataset.train]
        self.clean, self.images, self.validation = divide(dataset, config)
        if config.patience and not self.validation and not config.split.refit:
            raise InputError("patience: no images are held out for early stopping; set split.validation")
        self.distractors = draw_distractors(self.clean, config.split, config.seed) if self.validation else []
        if config.noise.rate and group.is_main:
            write_noise(folder / "noise.csv", self.clean, self.images)
        numbers = class_numbers(self.images)
        classes = int(numbers.max(initial=-1)) + 1
        symmetries = config.augment.symmetries
        self.labels = np.concatenate([numbers + s * classes for s in range(symmetries)])
        self.classes = symmetries * classes
        self.sampler = ClassBatchSampler(self.labels, config.batch, config.seed)
        _check_division(self.sampler.classes * self.sampler.per_class, group)

    def batch(self, step: int) -> np.ndarray:
        """Return the batch of one step: image numbers int64 [B], with symmetries as described above.

        It depends on the settings alone: a run that is read again gives the batches that it was trained on.
        The checkpoints kept after `step - 1` and after `step` are the network before and after it learned
        from this batch.

        Args:
            step: Number of the step, from 1 as in metrics.jsonl.
        """
        epoch, number = divmod(step - 1, self.sampler.per_epoch)
        return next(islice(self.sampler.epoch(epoch), number, None))

    def loader(self, *, show_progress: bool = False) -> Loader:
        """Build the loader of this process's share of each batch; caches decoded images if they fit."""
        return Loader(
            [image.path for image in self.images],
            self.labels,
            self._config,
            device=self._group.device,
            folder=self._folder,
            rank=self._group.rank,
            world_size=self._group.size,
            show_progress=show_progress,
        )

    def feature_loader(self, views: Sequence[FeatureSet]) -> FeatureLoader:
        """Build the loader of cached features, for this process's share of each batch.

        Args:
            views: Features of `files`, a set for each view.
        """
        paths = [image.path for image in self.images]
        return FeatureLoader(
            views,
            paths,
            self.labels,
            self._config.seed,
            device=self._group.device,
            rank=self._group.rank,
            world_size=self._group.size,
        )


def _check_division(size: int, group: ProcessGroup) -> None:
    if size % group.size:
        raise InputError(f"batch: {size} images cannot be divided evenly among {group.size} processes")
