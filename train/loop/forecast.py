"""Forecast of the time that a training takes, from a few of its images, measured on its device."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from retrieval.images.decode import decode_ahead
from retrieval.images.picture import Decoded
from train.config import Config
from train.data import DataSet, class_numbers
from train.data.splits import divide
from train.input.resize import Resize
from train.input.sampler import ClassBatchSampler, PairBatchSampler
from train.loop.frozen_backbone import trains_on_features
from train.loop.process_group import find_device
from train.loop.run_folder import initial_model

MEASURED = 8  # images
_HEAD_STEP = 0.03  # CPU seconds of a step of a linear head of 1,280 features, batch of 128, on one core


def forecast_seconds(config: Config, dataset: DataSet) -> float | None:
    """Return about how many seconds a training takes; `None` if the images that are measured are unreadable.

    Images are decoded once. A step takes as long as a forward and a backward pass of as many images; with
    features that are computed once, each view of an image takes a forward pass. What is cached by an earlier
    run, evaluations and checkpoints are left out.
    """
    paths = [image.path for image in dataset.train[:: max(1, len(dataset.train) // MEASURED)][:MEASURED]]
    began = time.perf_counter()
    files = decode_ahead(paths, Resize(config.preprocess), side=config.preprocess.scaled)
    squares = [file.pixels for file in files if isinstance(file, Decoded)]
    decoding = (time.perf_counter() - began) / len(paths)
    if not squares:
        return None
    sampler: ClassBatchSampler | PairBatchSampler
    if dataset.pairs is not None:
        sampler = PairBatchSampler(dataset.pairs.first, dataset.pairs.second, config.batch, config.seed)
    else:
        labels = class_numbers(divide(dataset, config).given)
        sampler = ClassBatchSampler(labels, config.batch, config.seed)
    steps = config.epochs * sampler.per_epoch
    device = find_device(config.device)
    model = initial_model(config).to(device)
    pixels = torch.from_numpy(np.stack(squares)).to(device)
    if trains_on_features(config, model):
        model.eval()
        passes = len(dataset.train) * (1 + (config.augment.views or 0))
        with torch.inference_mode():
            return passes * (decoding + _seconds(model, pixels)) + steps * _HEAD_STEP
    passes = steps * sampler.classes * sampler.per_class * (1 if config.mic.clusters is None else 2)

    def step(images: Tensor) -> None:
        model(images).sum().backward()

    return len(dataset.train) * decoding + passes * _seconds(step, pixels)


def about(seconds: float) -> str:
    """Return a rough time: "about 40 seconds"."""
    for unit, size in (("hour", 3600), ("minute", 60)):
        if seconds > 1.5 * size:
            return f"about {seconds / size:.0f} {unit}s"
    return f"about {max(5 * round(seconds / 5), 5)} seconds"


def _seconds(work: Callable[[Tensor], object], pixels: Tensor) -> float:
    """Return the seconds of some work for an image, after a first time that prepares kernels."""
    work(pixels)
    if pixels.is_cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    work(pixels)
    if pixels.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / len(pixels)
