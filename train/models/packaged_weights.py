"""Pretrained weights that a Python package contains, for timm's architectures: no download at run time.

`lite0` is EfficientNet-Lite0, trained on ImageNet (Apache-2.0); see `retrieval.model.lite0`. The values come
from TensorFlow, as those that timm publishes for `tf_efficientnet_lite0` do: padding "same", pixels in -1..1.
The names of the file's tensors are those of another implementation, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import torch

from retrieval.model import lite0
from train.models.feature_extractor import Weights


def packaged_weights(architecture: str, names: Collection[str]) -> dict[str, Callable[[], Weights]]:
    """Return functions that load the packaged weights of an architecture of timm, by the name of the weights.

    Args:
        architecture: timm's name of the architecture.
        names: Names of the tensors of timm's classifier, in their order.
    """
    return {"lite0": partial(_load_lite0, names)} if architecture == "tf_efficientnet_lite0" else {}


def _load_lite0(names: Collection[str]) -> Weights:
    tensors = map(torch.from_numpy, lite0.packaged_weights().values())
    return dict(zip(names, tensors, strict=True))
