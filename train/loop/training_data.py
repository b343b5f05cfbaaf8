"""Training data of a run: held-out images, label noise, symmetries, batch sampler and loader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from retrieval.errors import InputError
from train.config import Config
from train.data import DataSet, LabelledImage, class_categories, class_numbers
from train.data.label_noise import write_noise
from train.data.splits import divide, draw_distractors
from train.input.feature_loader import FeatureLoader
from train.input.features import FeatureSet, Targets
from train.input.loader import Loader
from train.input.sampler import ClassBatchSampler, Labelled, PairBatchSampler
from train.loop.instances import check_unlabelled, write_copies
from train.loop.pair_division import check_pairs, divide_pairs
from train.loop.process_group import ProcessGroup
from train.loop.teacher import embed_by_teacher


class TrainingData:
    """Training images and labels of a run, with the sampler of its batches.

    Image i under symmetry s counts as image s N + i, and its class as class s C + c.

    Args:
        dataset: Data set; only `train` is used.
        config: Configuration of the run.
        group: Processes that train together.
        folder: Run folder; the main process writes wrong labels to `noise.csv` there.
        show_progress: Report the progress of a teacher on stderr.

    Attributes:
        images: The N training images, some with wrong labels if `noise.rate` > 0.
        clean: The same images with their true labels.
        division_digest: SHA-256 of which images are held out.
        validation: Held-out images, with their true labels: label noise is drawn among the others.
        copies: Augmented copies of held-out images, which search them; empty for labelled data, and with a
            teacher.
        labelled: Whether the classes are known.
        pairs: Labelled pairs of the training images, instead of classes; `None` for none.
        held_out_pairs: Those of the held-out images.
        distractors: Training images that the held-out ones are searched among, too, with their true labels.
        labels: int64 [symmetries * N], class numbers.
        classes: Number of classes, symmetries included.
        sampler: Sampler of batches; without a loss (distillation alone) of single images, whatever their
            classes.
        files: All images of the training split, held-out ones included, whatever the seed.

    Raises:
        InputError: Too few classes, held-out classes of single images, settings that need labels where there
            are none, `patience` without held-out images, or an indivisible batch.
    """

    def __init__(
        self,
        dataset: DataSet,
        config: Config,
        group: ProcessGroup,
        folder: Path,
        *,
        show_progress: bool = False,
    ) -> None:
        self._config, self._group, self._folder, self._show = config, group, folder, show_progress
        self.labelled = dataset.labelled
        self.files = [image.path for image in dataset.train]
        if dataset.pairs is not None:
            check_pairs(config)
        elif not dataset.labelled:
            check_unlabelled(config)
        division = divide(dataset, config)
        self.division_digest = division.digest()
        self.clean, self.images, self.validation = division
        if config.patience and not self.validation and not config.split.refit:
            raise InputError("patience: no images are held out; raise split.validation, or set patience=null")
        if dataset.labelled and dataset.pairs is None:
            _check_held_out(dataset, self.validation)
        self.pairs = self.held_out_pairs = None
        if dataset.pairs is not None:
            self.pairs, self.held_out_pairs = divide_pairs(dataset, self.images, self.validation)
        has_distractors = self.validation and dataset.pairs is None
        self.distractors = draw_distractors(self.clean, config.split, config.seed) if has_distractors else []
        self.copies: list[LabelledImage] = []
        if not dataset.labelled and dataset.pairs is None and config.distill.teacher is None:
            self.copies = write_copies(folder / "copies", self.validation, config)
        if config.noise.rate and group.is_main:
            write_noise(folder / "noise.csv", self.clean, self.images)
        numbers = class_numbers(self.images)
        classes = int(numbers.max(initial=-1)) + 1
        symmetries = config.augment.symmetries
        self.labels = np.concatenate([numbers + s * classes for s in range(symmetries)])
        self.classes = symmetries * classes
        of_sampler, batch = self.labels, config.batch
        if not config.loss:
            of_sampler = np.arange(len(self.images))
            batch = batch.model_copy(update={"classes": batch.classes * batch.per_class, "per_class": 1})
        category = None
        if batch.categories is not None:
            categories = class_categories(self.clean)
            names = sorted({image.label for image in self.images})
            category = np.array([categories[name] for name in names] * symmetries)
        self.sampler: ClassBatchSampler | PairBatchSampler
        if self.pairs is not None:
            self.sampler = PairBatchSampler(self.pairs.first, self.pairs.second, batch, config.seed)
        else:
            self.sampler = ClassBatchSampler(of_sampler, batch, config.seed, category)
        _check_division(self.sampler.classes * self.sampler.per_class, group)

    @cached_property
    def teacher(self) -> FeatureSet | None:
        """Vectors of a teacher for `files`, computed on first use; `None` without a teacher."""
        if self._config.distill.teacher is None:
            return None
        return embed_by_teacher(self._config, self.files, self._folder, self._group, show_progress=self._show)

    @cached_property
    def targets(self) -> Targets | None:
        """Vectors of a teacher by the number of an image; `None` without a teacher."""
        if self.teacher is None:
            return None
        return Targets(self.teacher, [image.path for image in self.images])

    def batch(self, step: int) -> np.ndarray:
        """Return the batch of one step: image numbers int64 [B], with symmetries as described above.

        It depends on the settings alone: a run that is read again gives the batches that it was trained on.
        The checkpoints kept after `step - 1` and after `step` are the network before and after it learned
        from this batch.

        Args:
            step: Number of the step, from 1 as in metrics.jsonl.

        Raises:
            InputError: The batches depended on the networks of the run.
        """
        self.require_known_batches()
        epoch, number = divmod(step - 1, self.sampler.per_epoch)
        batches: Iterator[np.ndarray | Labelled] = self.sampler.epoch(epoch)
        found = next(islice(batches, number, None))
        return found.positions if isinstance(found, Labelled) else found

    def require_known_batches(self) -> None:
        """Raise an InputError unless the settings alone determine the batches."""
        for setting, is_set in (
            ("batch.hard_classes", self._config.batch.hard_classes > 0),
            ("mic.clusters", self._config.mic.clusters is not None),
        ):
            if is_set:
                raise InputError(
                    f"{setting}: the batches of this run depended on its networks and are not kept; "
                    "analyse a run without it"
                )

    def loader(self, *, show_progress: bool = False) -> Loader:
        """Build the loader of this process's share of each batch; caches decoded images if they fit."""
        processes = self._group.processes
        # With the number of the machine: the run folder may be on a file system that machines share.
        shared = self._folder / f"decoded-{processes.machine}" if processes.local_size > 1 else None
        return Loader(
            [image.path for image in self.images],
            self.labels,
            self._config,
            device=self._group.device,
            folder=self._folder,
            rank=self._group.rank,
            world_size=self._group.size,
            local_size=processes.local_size,
            shared=shared,
            targets=self.targets,
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
            targets=self.targets,
        )


def _check_held_out(dataset: DataSet, held_out: Sequence[LabelledImage]) -> None:
    """Refuse held-out images that have nothing to find, before the features are computed."""
    sizes = Counter(image.label for image in held_out)
    if sizes and max(sizes.values()) < 2:
        raise InputError(
            f"{dataset.name}: no held-out class has two images, so nothing can be measured; give classes "
            "more images, or leave out the labels: --data images:DIR, or `lookalike adapt` on a gallery"
        )


def _check_division(size: int, group: ProcessGroup) -> None:
    if size % group.size:
        raise InputError(f"batch: {size} images cannot be divided evenly among {group.size} processes")
