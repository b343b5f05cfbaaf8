"""Validation between epochs: Recall@1 on held-out images, embedded by all processes together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch.distributed as dist

from retrieval import metrics
from retrieval.errors import ImageError, InputError
from train.config import Config
from train.data import LabelledImage
from train.input.cache import ValidationImages
from train.loop.knn import neighbour_search
from train.loop.process_group import ProcessGroup
from train.models.embedding_model import EmbeddingModel, pixel_embedder

_T = TypeVar("_T")


class Validator:
    """Computes Recall@1 of held-out images, each searched among the others.

    The training images are not searched: their labels may be wrong, and embedding them takes an epoch.

    Args:
        images: Held-out images; if empty, there is no validation.
        config: Configuration of the run.
        group: Processes that train together; each embeds a share of the images.
        folder: Folder for a temporary cache of decoded images.
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
        self._enabled, self._group = bool(images), group
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
        """Errors of unreadable images, complete after the first validation."""
        return self._pixels.bad

    def recall_at_1(self, model: EmbeddingModel) -> float | None:
        """Return Recall@1 of the model on the held-out images; `None` if there are none.

        Raises:
            InputError: None of the images can be read.
        """
        if not self._enabled:
            return None
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
            raise InputError("split: none of the images held out for validation can be read")
        labels = np.unique([label for names, _ in found for label in names], return_inverse=True)[1]
        vectors = np.concatenate([vectors for _, vectors in found])
        search = neighbour_search(self._group.device)
        return metrics.recall_at_k(vectors, labels, ks=(1,), search=search)[1]

    def _gather(self, own: _T) -> list[_T]:
        if self._group.size == 1:
            return [own]
        everyone: list[Any] = [None] * self._group.size
        dist.all_gather_object(everyone, own)
        return everyone
