"""Static int8 quantisation, calibrated on images."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantType, quant_pre_process, quantize_static

from retrieval.errors import LookalikeError

_BATCH = 16
_WEIGHTED = ("Conv", "Gemm", "MatMul")


class _Batches(CalibrationDataReader):  # type: ignore[misc]  # the library has no types
    def __init__(self, pixels: np.ndarray) -> None:
        self._starts = iter(range(0, len(pixels), _BATCH))
        self._pixels = pixels

    def get_next(self) -> dict[str, np.ndarray] | None:
        start = next(self._starts, None)
        return None if start is None else {"images": self._pixels[start : start + _BATCH]}


def quantise(file: Path, pixels: np.ndarray) -> onnx.ModelProto:
    """Quantise a model file to int8 with QuantizeLinear and DequantizeLinear nodes.

    Weights are signed with one scale per channel; activations are unsigned with the range measured on the
    calibration images. Everything before the second layer and from the last layer on stays in fp32: it is
    fast anyway, and quantising the pixels first would be slower. Processors without 8-bit dot products (VNNI)
    may saturate when two products are added; 7-bit weights would not, but with them the embeddings of
    MobileNetV2 were four times as far from fp32 (1 - cosine).

    Args:
        file: Model file in fp32.
        pixels: Calibration images, uint8 [n, H, W, 3].

    Raises:
        LookalikeError: The network cannot be quantised.
    """
    with TemporaryDirectory() as folder, _quiet():
        prepared, quantised = Path(folder, "prepared.onnx"), Path(folder, "quantised.onnx")
        try:
            # ONNX shape inference is enough; symbolic shape inference supports fewer operators.
            quant_pre_process(file, prepared, skip_symbolic_shape=True)
            quantize_static(
                prepared,
                quantised,
                _Batches(pixels),
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=_excluded_nodes(onnx.load(prepared)),
            )
        except Exception as error:  # the quantiser has no common exception class
            reason = " ".join(str(error).split())[:160]
            raise LookalikeError(f"this network cannot be quantised ({reason}); use fp16 or fp32") from error
        result = onnx.load(quantised)
    used = {node.domain for node in result.graph.node}
    kept = [entry for entry in result.opset_import if entry.domain in used]
    del result.opset_import[:]
    result.opset_import.extend(kept)
    onnx.checker.check_model(result, full_check=True)
    return result


def _excluded_nodes(proto: onnx.ModelProto) -> list[str]:
    """Return the names of all nodes up to the first layer with weights and from the last one on."""
    names = [node.name for node in proto.graph.node]
    constants = {tensor.name for tensor in proto.graph.initializer}
    layers = [
        position
        for position, node in enumerate(proto.graph.node)
        if node.op_type in _WEIGHTED and constants & set(node.input)
    ]
    return [*names[: layers[0] + 1], *names[layers[-1] :]] if layers else names


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the quantiser's advice on the root logger; errors are still raised as exceptions."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
