"""ONNX graph of a network: uint8 pixels in, unit embeddings out."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from retrieval.errors import LookalikeError
from train.models.embedding_model import EmbeddingModel
from train.models.feature_extractor import forward

OPSET = 20
_OUTPUT = "output_"  # start of the names of outputs during the export


class _Graph(nn.Module):
    """Exported computation: pixels -> unit embedding and, if the model has one, its embedding map."""

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = model
        self.outputs = ("embedding", "embedding_map") if model.has_map else ("embedding",)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        if not self.model.has_map:
            return (nn.functional.normalize(self.model(images)),)
        embedding_map = self.model.maps(images)  # [N, h, w, D]
        return nn.functional.normalize(embedding_map.mean((1, 2))), embedding_map


class _Half(nn.Module):
    """Network that computes in half precision, with inputs and outputs in single precision."""

    def __init__(self, network: nn.Module, compute: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.compute = network.half(), compute

    def forward(self, planes: Tensor) -> Tensor:
        return self.compute(self.network, planes.half()).float()


def to_onnx(model: EmbeddingModel, sample: np.ndarray) -> onnx.ModelProto:
    """Convert a network to a checked ONNX model without metadata.

    Args:
        model: Network on the CPU, in evaluation mode.
        sample: Example pixels, uint8 [n, H, W, 3].

    Raises:
        LookalikeError: ONNX or its exporter cannot express the network.
    """
    graph = _Graph(model).eval()
    return module_to_onnx(
        graph, {"images": sample}, graph.outputs, f"model.backbone: {model.config.backbone}"
    )


def module_to_onnx(
    module: nn.Module, inputs: Mapping[str, np.ndarray], outputs: Sequence[str], where: str
) -> onnx.ModelProto:
    """Convert a module in evaluation mode to a checked ONNX model without metadata.

    Args:
        module: Module; its inputs have a first dimension N, which may be any number in the ONNX model.
        inputs: Example of each input, in order, by the names of the arguments.
        outputs: Names of the outputs.
        where: Start of the error message.

    Raises:
        LookalikeError: ONNX or its exporter cannot express the module.
    """
    examples = (torch.from_numpy(np.resize(one, (2, *one.shape[1:]))) for one in inputs.values())
    with _quiet(), _out_of_place(module):
        try:
            program = torch.onnx.export(
                module,
                tuple(examples),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=list(inputs),
                output_names=[_OUTPUT + name for name in outputs],
                dynamic_shapes={name: {0: torch.export.Dim("N", min=1)} for name in inputs},
            )
        except torch.onnx.OnnxExporterError as error:
            raise LookalikeError(f"{where} cannot be written as ONNX; use another network") from error
    assert program is not None  # None only with the legacy exporter
    proto = program.model_proto
    # The exporter stores the source line of each node, with paths of this machine.
    for part in (proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        part.ClearField("metadata_props")
    _name_outputs(proto.graph, outputs)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def _name_outputs(graph: onnx.GraphProto, outputs: Sequence[str]) -> None:
    """Give the outputs their names; the exporter also calls the result of an `nn.Embedding` "embedding"."""
    names = {name: f"inner_{name}" for name in outputs} | {_OUTPUT + name: name for name in outputs}
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)


def half_precision(model: EmbeddingModel) -> EmbeddingModel:
    """Return a copy with the backbone in fp16; pooling, embedding and normalisation stay in fp32.

    The sums of squares of these would overflow half precision (above 65,504), and they take little time. A
    network's own pooling (native) is part of the backbone.
    """
    model = copy.deepcopy(model)
    backbone = model.backbone
    backbone.network, backbone.compute = _Half(backbone.network, backbone.compute), forward
    return model


@contextmanager
def _out_of_place(module: nn.Module) -> Iterator[None]:
    """Let activations write to new tensors; the exporter needs up to a third less time then."""
    changed: list[Any] = [part for part in module.modules() if getattr(part, "inplace", False)]
    for part in changed:
        part.inplace = False
    try:
        yield
    finally:
        for part in changed:
            part.inplace = True


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's log; errors are still raised as exceptions."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
