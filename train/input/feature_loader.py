"""Feature loader: batches of cached features in place of pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from retrieval.errors import ImageError
from train.input.features import FeatureSet, Targets
from train.input.loader import (
    LoadedBatch,
    batch_share,
    requests,
    successors,
    unreadable_class,
)
from train.input.sampler import Labelled
from train.input.views import drawn_views


class FeatureLoader:
    """Loads batches of cached features, with the interface of `Loader`.

    It draws the same views, and replaces unreadable images by the same others, as `Loader` does.

    Args:
        views: Features of the data set's images: a set for each view, of the same files.
        paths: The N training images, all among those files.
        labels: int64 [N], their classes.
        seed: Seed of the run.
        device: Device of the batches.
        rank, world_size: Rank of this process and number of processes; each gets a contiguous share of a
            batch.
        targets: Vectors of a teacher, which come with the features; `None` for none.

    Attributes:
        bad: Errors of the unreadable training images.
        cacheable: `None`: there is nothing left to cache.

    Raises:
        InputError: A class without a readable image.
    """

    cacheable: int | None = None

    def __init__(
        self,
        views: Sequence[FeatureSet],
        paths: Sequence[Path],
        labels: np.ndarray,
        seed: int,
        *,
        device: torch.device,
        rank: int = 0,
        world_size: int = 1,
        targets: Targets | None = None,
    ) -> None:
        rows, errors = views[0].rows(paths), views[0].bad
        used = np.arange(len(paths))  # the image in place of each
        self.bad: list[ImageError] = [errors[row] for row in rows.tolist() if row in errors]
        for image in [i for i, row in enumerate(rows.tolist()) if row in errors]:
            others = successors(image, labels)
            readable = [other for other in others if int(rows[other]) not in errors]
            if not readable:
                raise unreadable_class(errors[int(rows[image])], len(others))
            used[image] = readable[0]
        rows = rows[used]
        self._views, self._rows, self._seed = views, rows, seed
        self._targets, self._used = targets, used
        self._labels, self._device = labels, device
        self._rank, self._world_size = rank, world_size

    def load(
        self, batches: Callable[[int], Iterable[np.ndarray | Labelled]], epochs: Iterable[int], start: int = 0
    ) -> Iterator[LoadedBatch]:
        """Load epochs one after the other.

        Args:
            batches: Returns all batches of an epoch, positions int64 [B], perhaps with labels of their own.
            epochs: Numbers of the epochs.
            start: Number of batches to skip in the first epoch.
        """
        for request in requests(batches, epochs, start):
            epoch, batch, positions = request[:3]
            count = len(positions)
            share = batch_share(count, self._rank, self._world_size)
            rows = self._rows[positions[share]]
            replaced = self._used[positions[share]] != positions[share]
            features = self._views[0].vectors[rows]  # a copy
            if len(self._views) > 1:
                drawn = np.array(drawn_views(len(self._views), self._seed, epoch, batch, count))[share]
                for view, others in enumerate(self._views[1:], 1):
                    of_view = drawn == view
                    features[of_view] = others.vectors[rows[of_view]]
            inputs, labels = (
                torch.from_numpy(features),
                torch.from_numpy(request.labels(self._labels, share, replaced)),
            )
            targets = None
            if self._targets is not None:
                targets = self._targets.of(self._used[positions[share]]).to(self._device)
            yield LoadedBatch(epoch, batch, inputs.to(self._device), labels.to(self._device), targets)

    def close(self) -> None:
        """Do nothing: there are no worker processes."""
