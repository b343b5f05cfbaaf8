"""Frozen backbone: runs once over the images, whose features all runs with the same backbone share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from retrieval.errors import InputError
from retrieval.images.decode import EmbeddedFiles
from train.config import Config
from train.input.augment import Draws, apply_draws
from train.input.cache_file import cache_file
from train.input.features import FeatureSet, View, cache_folder, cached_features
from train.input.resize import Resize, training_resize
from train.loop.training_data import TrainingData
from train.models.embedding_model import EmbeddingModel
from train.models.heads import fit_head, fit_projection, fit_regression
from train.models.pretrained_weights import digest_of_weights

_MOST_FITTED = 20_000  # images that an initial head is fitted to


def trains_on_features(config: Config, model: EmbeddingModel) -> bool:
    """Return whether a run can be trained on cached features; see `loader.features`."""
    views = config.augment.views is not None or not config.augment.is_random
    return config.loader.features == "auto" and model.is_frozen_below_head and views


class FrozenBackbone:
    """Backbone and pooling of a model whose features are computed once per image and view.

    Args:
        model: Model on its device; only its backbone is used.
        config: Configuration of the run.
        show_progress: Report progress on stderr.
    """

    def __init__(self, model: EmbeddingModel, config: Config, *, show_progress: bool = False) -> None:
        self._model, self._config, self._show = model, config, show_progress
        self._folder = cache_folder(config)

    @cached_property
    def _digest(self) -> str:
        return digest_of_weights(self._model.backbone)

    def weights(self) -> Path:
        """Return a file with the weights of the backbone, in the cache."""
        file = self._folder / f"{self._digest}.safetensors"
        return cache_file(
            file,
            lambda _: file,
            lambda target: target.write(save(_tensors(self._model.backbone))),
            show_progress=self._show,
        )

    def features(self, paths: Sequence[Path]) -> FeatureSet:
        """Return the features of images as the model sees them outside training.

        Raises:
            LookalikeError: The cache cannot be written.
        """
        return self._cached(paths, Resize(self._config.preprocess), None)

    def views(self, paths: Sequence[Path]) -> list[FeatureSet]:
        """Return the features of the views of training images: `augment.views` sets, or one.

        Raises:
            LookalikeError: The cache cannot be written.
        """
        augment = self._config.augment
        if augment.views is None:
            return [self.features(paths)]
        resize = training_resize(self._config)
        return [self._cached(paths, resize, View(number, augment)) for number in range(augment.views)]

    def embed(self, model: EmbeddingModel, paths: Sequence[Path], split: Sequence[Path]) -> EmbeddedFiles:
        """Return unit vectors of the readable images.

        Args:
            model: Model with this backbone.
            paths: Image files.
            split: All files of their split, whose features are cached together.
        """
        found = self.features(split)
        rows = found.rows(paths).tolist()
        readable = [place for place, row in enumerate(rows) if row not in found.bad]
        kept = [rows[place] for place in readable]
        return EmbeddedFiles(
            embed_features(model, found.vectors[kept]),
            np.array(readable, np.int64),
            [found.contents[row] for row in kept],
            [found.bad[row] for row in rows if row in found.bad],
        )

    def _cached(self, paths: Sequence[Path], resize: Resize, view: View | None) -> FeatureSet:
        config = self._config
        model, preprocess = config.model, config.preprocess
        inputs = [model.backbone, model.pooling, *preprocess.mean, *preprocess.std, self._digest]
        return cached_features(
            paths, resize, view, self._extract, inputs, self._folder, show_progress=self._show
        )

    @torch.inference_mode()
    def _extract(self, squares: Tensor, draws: Draws | None) -> np.ndarray:
        model = self._model
        training, device = model.training, model.mean.device
        model.eval()
        pixels = squares.to(device)
        if draws is not None:
            pixels = apply_draws(pixels, draws.to(device), self._config.preprocess.size)
        features: np.ndarray = model.pooled(pixels).cpu().numpy()
        model.train(training)
        return features


def fit_initial_head(model: EmbeddingModel, backbone: FrozenBackbone, data: TrainingData) -> None:
    """Set the head to the projection that `model.init` names, fitted to the training images of a run.

    Of more than 20,000 images only as many are used, at equal distances in their list, unless the features of
    all are needed anyway: the others would change little and take a good part of an epoch.

    Raises:
        InputError: There are too few images or features for it, or the teacher has another dimension.
    """
    paths, files = [image.path for image in data.images], data.files
    places = np.arange(len(paths))
    if len(paths) > _MOST_FITTED and not model.is_frozen_below_head:
        places = np.linspace(0, len(paths) - 1, _MOST_FITTED).astype(np.int64)
        files = [paths[place] for place in places]
    found = backbone.features(files)
    rows = found.rows([paths[place] for place in places])
    readable = [place for place, row in enumerate(rows.tolist()) if row not in found.bad]
    init, dim = model.config.init, model.config.embedding_dim
    features, images = found.vectors[rows[readable]], places[readable]
    if data.targets is None or init != "teacher":
        fit_head(model.head, *fit_projection(init, features, data.labels[images], dim))
        return
    targets = data.targets.of(images).numpy()
    if targets.shape[1] != dim:
        raise InputError(
            f"model.init: the teacher has {targets.shape[1]} dimensions, not {dim}; set model.embedding_dim="
            f"{targets.shape[1]}, or use init=pca"
        )
    known = targets.any(1)  # the teacher could read them, too
    fit_head(model.head, *fit_regression(features[known], targets[known]))


@torch.inference_mode()
def embed_features(model: EmbeddingModel, features: np.ndarray) -> np.ndarray:
    """Return unit vectors float32 [N, D] of pooled features [N, C], in evaluation mode."""
    model.eval()
    raw = model.projection(torch.from_numpy(features).to(model.mean.device))
    vectors: np.ndarray = nn.functional.normalize(raw).cpu().numpy()
    return vectors


def _tensors(backbone: nn.Module) -> dict[str, Tensor]:
    return {name: value.cpu().contiguous() for name, value in backbone.state_dict().items()}
