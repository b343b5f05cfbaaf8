"""Linear probe: accuracy of a linear classifier learnt on the embeddings of a run's training images.

The measure of the tables of Roy et al. (2022, Learning Deep Optimal Embeddings with Sinkhorn Divergences) for
closed sets, whose test classes are those of training. The paper's training labels are corrupted; whether its
classifier sees the corrupted ones is left open, so that both can be measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retrieval import metrics
from retrieval.errors import InputError
from train.config import Config, NoiseConfig, ProbeLabels
from train.data import DataSet, LabelledImage
from train.data.splits import divide
from train.experiments.targets import model_candidate
from train.loop.run_folder import Run
from train.settings import parse_config


def check_closed_set(dataset: DataSet) -> None:
    """Check that a linear probe can be measured on the test images.

    Raises:
        InputError: There are no separate training images, or they lack a class of the test images.
    """
    problem = _open_set_problem(dataset)
    if problem:
        raise InputError(f"{dataset.name}: {problem}; leave the linear probe out")


def check_before_training(config: Config, dataset: DataSet) -> None:
    """Check that the linear probe of a run can be measured, on held-out images or on test images.

    Raises:
        InputError: It can be measured on neither.
    """
    split = config.split
    holds_out = split.by == "images" and (split.validation or split.folds) and not split.refit
    problem = _open_set_problem(dataset)
    if config.linear_probe is not None and not holds_out and problem:
        raise InputError(
            f"{dataset.name}: {problem}; set linear_probe=null, or hold out images with split.by=images and "
            "split.validation=0.1"
        )


def probe_labels(config: Mapping[str, Any], dataset: DataSet) -> ProbeLabels | None:
    """Return the labels that a run's settings choose for its own data, if its test classes are known."""
    labels: ProbeLabels | None = config.get("linear_probe")
    return labels if labels and _is_own_data(config, dataset) and not _open_set_problem(dataset) else None


def probe_images(
    config: Mapping[str, Any], dataset: DataSet, labels: ProbeLabels
) -> tuple[list[LabelledImage], str]:
    """Return the labelled images that the classifier learns from, and a note on them for readers.

    These are the training images of the data set; on the run's own data without those that `split.by: images`
    holds out. The noisy labels are those of noise.csv, drawn again with the run's seed; images of held-out
    classes have their true labels.

    Args:
        config: Settings of the training run, as plain values; empty if there was none.
        dataset: Data set.
        labels: Labels to learn from.

    Raises:
        InputError: Noisy labels, and there is no such run, or it had none, or on other data.
    """
    images, which = dataset.train, "with their true labels"
    if labels == "noisy":
        which = f"with the noisy labels of the run ({_describe(_noise_of(config, dataset))})"
    if _is_own_data(config, dataset):
        parsed = parse_config(config)
        clean, given, held_out = divide(dataset, parsed)
        images = given if labels == "noisy" else clean
        if parsed.split.by == "classes":
            images = [*images, *held_out]
    return images, f"The linear probe is learnt on {len(images):,} training images {which}."


def held_out_accuracy(
    run: Run, dataset: DataSet, device: str | torch.device = "cpu", *, show_progress: bool = False
) -> float | None:
    """Return the accuracy of the linear probe on the held-out images of a run, for its best checkpoint.

    The network runs on `device`. Returns `None` without `linear_probe`, or if no images of the training
    classes are held out.
    """
    config = run.config
    held_out = divide(dataset, config).held_out
    if config.linear_probe is None or config.split.by == "classes" or not held_out:
        return None
    learnt_from, _ = probe_images(config.to_dict(), dataset, config.linear_probe)
    images, model = [*learnt_from, *held_out], run.trained("best")
    paths, split = ([image.path for image in of] for of in (images, dataset.train))
    found = model_candidate("linear probe", model, config, torch.device(device)).embed(
        paths, split, "linear probe", show_progress=show_progress
    )
    labels = np.array([images[i].label for i in found.positions])
    ours = found.positions < len(learnt_from)
    return metrics.linear_probe(found.vectors[ours], labels[ours], found.vectors[~ours], labels[~ours])


def _open_set_problem(dataset: DataSet) -> str | None:
    """Return why a linear probe cannot be measured on the test images; `None` if it can."""
    if dataset.train == dataset.test or not dataset.train:
        return "a linear probe needs training images apart from the test images, and there is no such split"
    unseen = {image.label for image in dataset.test} - {image.label for image in dataset.train}
    if unseen:
        return (
            "a linear probe needs a closed set, where the test classes are those of training; "
            f"the training images have none of class {min(unseen)!r}"
        )
    return None


def _noise_of(config: Mapping[str, Any], dataset: DataSet) -> NoiseConfig:
    """Return the label noise of a run, or explain that it has none here."""
    if not config:
        raise InputError("linear probe: this model has no training run, so no noisy labels; use clean")
    noise = parse_config(config).noise
    if not noise.rate:
        raise InputError("linear probe: the run was trained without label noise (noise.rate=0); use clean")
    if not _is_own_data(config, dataset):
        raise InputError(
            f"linear probe: the run's noisy labels are of {config['data']}, not of {dataset.name}; use clean"
        )
    return noise


def _is_own_data(config: Mapping[str, Any], dataset: DataSet) -> bool:
    """Return whether a run was trained on a data set: a known one anywhere, or the same folder or file."""
    return bool(config) and _identity(config["data"]) == _identity(dataset.name)


def _identity(data: str) -> tuple[str, Path | None]:
    name, _, location = data.partition(":")
    return name, Path(location).resolve() if name in ("folder", "csv") else None


def _describe(noise: NoiseConfig) -> str:
    drawn = ", the true one included" if noise.include_true else ""
    return f"{noise.kind}, rate {noise.rate:g}{drawn}"
