"""ONNX graph of a network: uint8 pixels in, unit embeddings out."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from retrieval.errors import LookalikeError
from train.models.embedding_model import EmbeddingModel

OPSET = 20


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

    def __init__(self, network: nn.Module, method: str) -> None:
        super().__init__()
        self.network, self.method = network.half(), method

    def forward(self, planes: Tensor) -> Tensor:
        features: Tensor = getattr(self.network, self.method)(planes.half()).float()
        return features


def to_onnx(model: EmbeddingModel, sample: np.ndarray) -> onnx.ModelProto:
    """Convert a network to a checked ONNX model without metadata.

    Args:
        model: Network on the CPU, in evaluation mode.
        sample: Example pixels, uint8 [n, H, W, 3].

    Raises:
        LookalikeError: ONNX or its exporter cannot express the network.
    """
    graph = _Graph(model).eval()
    with _quiet():
        try:
            program = torch.onnx.export(
                graph,
                (torch.from_numpy(np.resize(sample, (2, *sample.shape[1:]))),),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=["images"],
                output_names=list(graph.outputs),
                dynamic_shapes={"images": {0: torch.export.Dim("N", min=1)}},
            )
        except torch.onnx.OnnxExporterError as error:
            name = model.config.backbone
            message = f"model.backbone: {name} cannot be written as ONNX; use another backbone"
            raise LookalikeError(message) from error
    assert program is not None  # None only with the legacy exporter
    proto = program.model_proto
    # The exporter stores the source line of each node, with paths of this machine.
    for part in (proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        part.ClearField("metadata_props")
    onnx.checker.check_model(proto, full_check=True)
    return proto


def half_precision(model: EmbeddingModel) -> EmbeddingModel:
    """Return a copy with the backbone in fp16; pooling, embedding and normalisation stay in fp32.

    Their sums of squares would overflow half precision (above 65,504), and they take little time.
    """
    model = copy.deepcopy(model)
    backbone = model.backbone
    backbone.network, backbone.method = _Half(backbone.network, backbone.method), "forward"
    return model


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
