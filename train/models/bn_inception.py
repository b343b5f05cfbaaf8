"""BN-Inception (Ioffe & Szegedy 2015, Batch Normalization, figure 5), used by many metric-learning papers.

The weights of those papers were trained with Caffe by the authors of Temporal Segment Networks and are
distributed as bn_inception-52deb4733.pth. They expect BGR pixels in 0..255 minus (104, 117, 128):

    preprocess: {mean: [0.50196, 0.45882, 0.40784], std: [0.0039216, 0.0039216, 0.0039216]}

which is (128, 117, 104) / 255 and 1 / 255 in RGB order, used everywhere here: `from_published` reverses the
channels of the first convolution.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WEIGHTS_URL = "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth"

# inputs, 1x1, 3x3 (reduced, out), double 3x3 (reduced, out), pool projection; 0: absent
_BLOCKS = {
    "3a": (192, 64, (64, 64), (64, 96), 32),
    "3b": (256, 64, (64, 96), (64, 96), 64),
    "3c": (320, 0, (128, 160), (64, 96), 0),
    "4a": (576, 224, (64, 96), (96, 128), 128),
    "4b": (576, 192, (96, 128), (96, 128), 128),
    "4c": (576, 160, (128, 160), (128, 160), 128),
    "4d": (608, 96, (128, 192), (160, 192), 128),
    "4e": (608, 0, (128, 192), (192, 256), 0),
    "5a": (1056, 352, (192, 320), (160, 224), 128),
    "5b": (1024, 352, (192, 320), (192, 224), 128),
}


def bn_inception() -> nn.Sequential:
    """Build the network without its classifier: RGB [N, 3, H, W] -> [N, 1024, H/32, W/32]."""
    network = nn.Sequential()
    for name, inputs, outputs, kernel, stride in (
        ("conv1_7x7_s2", 3, 64, 7, 2),
        ("conv2_3x3_reduce", 64, 64, 1, 1),
        ("conv2_3x3", 64, 192, 3, 1),
    ):
        _add_convolution(network, name, inputs, outputs, kernel, stride)
        network.add_module(f"{name}_relu", nn.ReLU(inplace=True))
        if name != "conv2_3x3_reduce":
            network.add_module(f"{name}_pool", nn.MaxPool2d(3, 2, ceil_mode=True))
    for name, (inputs, one, three, double, projected) in _BLOCKS.items():
        block = _Inception(inputs, one, three, double, projected, average=name != "5b")
        network.add_module(f"inception_{name}", block)
    return network


def from_published(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert published weights to the layout of `bn_inception`, without the classifier.

    Published names are flat, batch norms are [1, C], and channels are in BGR order.
    """
    ours = {
        re.sub(r"^(inception_\d[a-e])_", r"\1.", name): value.reshape(-1)
        if value.shape[:1] == (1,)
        else value
        for name, value in weights.items()
        if not name.startswith("last_linear.")
    }
    if "conv1_7x7_s2.weight" in ours:
        ours["conv1_7x7_s2.weight"] = ours["conv1_7x7_s2.weight"].flip(1)
    return ours


class _Inception(nn.Module):
    """Inception block of four parallel paths; without a 1 x 1 path it halves the resolution."""

    def __init__(
        self,
        inputs: int,
        one: int,
        three: tuple[int, int],
        double: tuple[int, int],
        projected: int,
        *,
        average: bool,
    ) -> None:
        super().__init__()
        self.stride, self.average = 1 if one else 2, average
        if one:
            _add_convolution(self, "1x1", inputs, one, 1)
        _add_convolution(self, "3x3_reduce", inputs, three[0], 1)
        _add_convolution(self, "3x3", *three, 3, self.stride)
        _add_convolution(self, "double_3x3_reduce", inputs, double[0], 1)
        _add_convolution(self, "double_3x3_1", *double, 3)
        _add_convolution(self, "double_3x3_2", double[1], double[1], 3, self.stride)
        if projected:
            _add_convolution(self, "pool_proj", inputs, projected, 1)

    def forward(self, x: Tensor) -> Tensor:
        double = self._run("double_3x3_1", self._run("double_3x3_reduce", x))
        paths = [self._run("3x3", self._run("3x3_reduce", x)), self._run("double_3x3_2", double)]
        if self.stride == 1:
            pool = F.avg_pool2d if self.average else F.max_pool2d
            paths = [self._run("1x1", x), *paths, self._run("pool_proj", pool(x, 3, 1, 1))]
        else:
            # Padding an odd side makes the output as large as that of the convolutions.
            paths.append(F.max_pool2d(x, 3, 2, x.shape[2] % 2, ceil_mode=True))
        return torch.cat(paths, 1)

    def _run(self, name: str, x: Tensor) -> Tensor:
        return F.relu(getattr(self, f"{name}_bn")(getattr(self, name)(x)), inplace=True)


def _add_convolution(
    owner: nn.Module, name: str, inputs: int, outputs: int, kernel: int, stride: int = 1
) -> None:
    owner.add_module(name, nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2))
    owner.add_module(f"{name}_bn", nn.BatchNorm2d(outputs))
