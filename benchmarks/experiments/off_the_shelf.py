"""Baselines without training: the features of a backbone, and projections fitted to the training images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from retrieval import metrics
from retrieval.errors import InputError
from retrieval.evaluation.score import evaluate
from train.config import Config
from train.data import DataSet
from train.experiments.linear_probe import check_closed_set
from train.loop.frozen_backbone import FrozenBackbone
from train.loop.run_folder import initial_model
from train.models.heads import fit_projection

FEATURES = "features"
PROJECTIONS = ("pca", "pca-whitened", "lda")


def untrained_baselines(config: Config, dataset: DataSet) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the metrics on the test images of the features and of each projection.

    Args:
        config: Settings of a run with a frozen backbone.
        dataset: Its data set.
    """
    default = config.model_copy(update={"model": config.model.model_copy(update={"init": "default"})})
    backbone = FrozenBackbone(initial_model(default), config)
    train = backbone.features([image.path for image in dataset.train]).vectors
    test = backbone.features([image.path for image in dataset.test]).vectors
    train_labels, test_labels = ([image.label for image in of] for of in (dataset.train, dataset.test))
    try:
        check_closed_set(dataset)
        is_closed = True
    except InputError:
        is_closed = False
    _, numbers = np.unique(train_labels, return_inverse=True)
    for name in (FEATURES, *PROJECTIONS):
        pair = (np.asarray(train), np.asarray(test))
        if name != FEATURES:
            weight, bias = fit_projection(name, pair[0], numbers, config.model.embedding_dim)
            pair = (pair[0] @ weight.T + bias, pair[1] @ weight.T + bias)
        ours, theirs = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in pair)
        values = evaluate(name, theirs, np.array(test_labels)).result.values
        if is_closed:
            values["probe_clean"] = metrics.linear_probe(
                ours, np.array(train_labels), theirs, np.array(test_labels)
            )
        yield name, values
