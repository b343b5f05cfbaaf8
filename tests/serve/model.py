"""A small model file, written without training: the mean colours of sixteen squares of an image."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from retrieval import Preprocess

SIZE, DIM = 32, 48
# From planes [N, 3, 32, 32] to [N, 48].
_OF_SQUARES = (
    helper.make_node("AveragePool", ["planes"], ["squares"], kernel_shape=[8, 8], strides=[8, 8]),
    helper.make_node("Flatten", ["squares"], ["flat"]),
)
_OF_PLACES = (
    helper.make_node("AveragePool", ["planes"], ["small"], kernel_shape=[2, 2], strides=[2, 2]),
    helper.make_node("SpaceToDepth", ["small"], ["squares"], blocksize=4),  # [N, 48, 4, 4]
    helper.make_node("Transpose", ["squares"], ["embedding_map"], perm=[0, 2, 3, 1]),
    helper.make_node("ReduceMean", ["embedding_map", "places"], ["flat"], keepdims=0),
)


def write_model(
    path: Path, note: str = "", maps: bool = False, license: str = "", precision: str = ""
) -> Path:
    """Write the model file.

    With `maps` it has an embedding map, too: the colours within each of the squares, of which the embedding
    is the mean over the places, scaled to unit length.
    """
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["numbers", "middle"], ["centred"]),
        helper.make_node("Transpose", ["centred"], ["planes"], perm=[0, 3, 1, 2]),  # [N, 3, 32, 32]
        *(_OF_PLACES if maps else _OF_SQUARES),
        helper.make_node("LpNormalization", ["flat"], ["embedding"], axis=1, p=2),
    ]
    outputs = {"embedding": ["N", DIM], **({"embedding_map": ["N", 4, 4, DIM]} if maps else {})}
    constants = [helper.make_tensor("middle", TensorProto.FLOAT, [], [127.5])]
    if maps:
        constants.append(helper.make_tensor("places", TensorProto.INT64, [2], [1, 2]))
    graph = helper.make_graph(
        nodes,
        "colours",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", SIZE, SIZE, 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    facts = {
        "lookalike.format": {"version": 1},
        "lookalike.preprocess": Preprocess(size=SIZE).to_dict(),
        "lookalike.embedding": {"dim": DIM, "metric": "cosine", "unit_length": True},
        "lookalike.provenance": {
            "note": note,
            **({"license": license} if license else {}),
            **({"precision": precision} if precision else {}),
        },
    }
    helper.set_model_props(model, {name: json.dumps(value) for name, value in facts.items()})
    onnx.checker.check_model(model, full_check=True)
    onnx.save_model(model, path)
    return path


def write_rounded(path: Path, scale: float = 1, precision: str = "") -> Path:
    """Write the small model with its colours in fp16, multiplied by a number: above 500 they overflow."""
    model = onnx.load(write_model(path, precision=precision))
    nodes = [*model.graph.node]
    by_name = {node.output[0]: node for node in nodes}
    by_name["planes"].input[0] = "rounded"
    by_name["embedding"].input[0] = "whole"
    at = nodes.index(by_name["centred"]) + 1
    nodes[at:at] = [
        helper.make_node("Mul", ["centred", "scale"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["rounded"], to=TensorProto.FLOAT16),
    ]
    nodes.insert(-1, helper.make_node("Cast", ["flat"], ["whole"], to=TensorProto.FLOAT))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.append(helper.make_tensor("scale", TensorProto.FLOAT, [], [scale]))
    onnx.save_model(model, path)
    return path
