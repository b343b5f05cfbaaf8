"""Shared images: images that all training processes embed together, from pixels or cached features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from retrieval.errors import ImageError, InputError
from train.config import Config
from train.data import LabelledImage
from train.input.cache import ValidationImages
from train.loop.frozen_backbone import FrozenBackbone, embed_features
from train.loop.precision import Precision
from train.loop.process_group import ProcessGroup
from train.models.embedding_model import EmbeddingModel, device_embedder

_T = TypeVar("_T")
_BATCH, _ACCELERATOR_BATCH = 64, 256  # images per pass
_Embedded = Iterator[tuple[np.ndarray, np.ndarray]]  # positions int64 [n], unit vectors float32 [n, D]


class SharedImages:
    """Images that all processes embed together, a share each.

    Args:
        labels: Labels of this process's share.
        group: Processes that train together.
        embed_share: Embeds the readable images of this share.
        bad_of_share: Returns the errors of the others.
    """

    def __init__(
        self,
        labels: Sequence[str],
        group: ProcessGroup,
        embed_share: Callable[[EmbeddingModel], _Embedded],
        bad_of_share: Callable[[], Iterable[ImageError]],
    ) -> None:
        self._labels, self._group = labels, group
        self._embed_share, self._bad = embed_share, bad_of_share

    @property
    def bad(self) -> list[ImageError]:
        """Errors of unreadable images, complete after the first evaluation."""
        return list(self._bad())

    def embed(self, model: EmbeddingModel) -> tuple[list[str], np.ndarray]:
        """Return labels and unit vectors float32 [N, D] of the readable images, the same in all processes.

        Raises:
            InputError: None of the images can be read.
        """
        self._group.broadcast(model.buffers())  # batch-norm statistics differ between processes
        parts = [
            ([self._labels[i] for i in positions], vectors) for positions, vectors in self._embed_share(model)
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


@dataclass(frozen=True)
class ImageSource:
    """Source of the images that a run evaluates during training.

    Attributes:
        config: Configuration of the run.
        group: Processes that train together.
        folder: Folder for a temporary cache of decoded images.
        backbone: Frozen backbone, whose cached features are used; `None` to embed pixels.
        show_progress: Show the progress of decoding.
    """

    config: Config
    group: ProcessGroup
    folder: Path
    backbone: FrozenBackbone | None
    show_progress: bool

    def share(self, images: Sequence[LabelledImage], files: Sequence[Path]) -> SharedImages:
        """Return images to embed.

        Args:
            images: Labelled images.
            files: All files of their split, whose features are cached together.
        """
        own = images[self.group.rank :: self.group.size]
        paths, labels = [image.path for image in own], [image.label for image in own]
        if self.backbone is not None:
            return self._from_features(self.backbone, paths, labels, files)
        pixels = ValidationImages(
            paths,
            self.config.preprocess,
            self.config.loader,
            folder=self.folder,
            show_progress=self.show_progress,
        )

        device = self.group.device
        on_cpu = device.type == "cpu"

        def embed(model: EmbeddingModel) -> _Embedded:
            embedder = device_embedder(model)
            # A CPU always evaluates in fp32, where other precisions are slower.
            with nullcontext() if on_cpu else Precision(self.config.precision, device).autocast():
                batches = pixels.batches(_BATCH if on_cpu else _ACCELERATOR_BATCH)
                found = [(positions, embedder(squares)) for positions, squares in batches]
            if found:  # copied once: each copy would wait for the device
                vectors = torch.cat([part for _, part in found]).cpu().numpy()
                yield np.concatenate([positions for positions, _ in found]), vectors

        return SharedImages(labels, self.group, embed, lambda: pixels.bad)

    def _from_features(
        self, backbone: FrozenBackbone, paths: Sequence[Path], labels: Sequence[str], files: Sequence[Path]
    ) -> SharedImages:
        found = backbone.features(files)
        rows = found.rows(paths)
        readable = np.array([i for i, row in enumerate(rows.tolist()) if row not in found.bad], np.int64)
        bad = [found.bad[row] for row in rows.tolist() if row in found.bad]
        features = found.vectors[rows[readable]]

        def embed(model: EmbeddingModel) -> _Embedded:
            if len(readable):
                yield readable, embed_features(model, features)

        return SharedImages(labels, self.group, embed, lambda: bad)
