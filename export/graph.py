"""A network as an ONNX graph: uint8 pixels in, unit embeddings out."""

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
    """What the file computes: pixels -> unit embedding, and the map whose normalised mean it is, if any."""

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
    """A network that computes in half precision, between inputs and outputs in single."""

    def __init__(self, network: nn.Module, method: str) -> None:
        super().__init__()
        self.network, self.method = network.half(), method

    def forward(self, planes: Tensor) -> Tensor:
        features: Tensor = getattr(self.network, self.method)(planes.half()).float()
        return features


def to_onnx(model: EmbeddingModel, sample: np.ndarray) -> onnx.ModelProto:
    """A network -> a checked ONNX model without metadata.

    Args:
        model: on the CPU, in evaluation mode.
        sample: uint8 [n, H, W, 3].

    Raises:
        LookalikeError: ONNX, or its exporter, cannot express the network.
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
            raise LookalikeError(f"model.backbone: {name} cannot be written as ONNX; take another") from error
    assert program is not None  # it is None only for the exporter of old
    proto = program.model_proto
    # The exporter notes the lines of source that each node comes from, with the folders of this machine.
    for part in (proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        part.ClearField("metadata_props")
    onnx.checker.check_model(proto, full_check=True)
    return proto


def halved(model: EmbeddingModel) -> EmbeddingModel:
    """A copy whose backbone computes in half precision; pooling, embedding and unit length stay in single.

    Sums of squares are what overflows half precision (above 65,504), and these parts cost next to nothing.
    """
    model = copy.deepcopy(model)
    backbone = model.backbone
    backbone.network, backbone.method = _Half(backbone.network, backbone.method), "forward"
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter logs its inner life; errors still come through as exceptions."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
