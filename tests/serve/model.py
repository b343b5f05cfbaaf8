"""A small honest model file, written without a training run: the colours of sixteen squares of a picture."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from retrieval import Preprocess

SIZE = 32


def write_model(path: Path, note: str = "") -> Path:
    """Write the model; another note gives another fingerprint."""
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["numbers", "middle"], ["centred"]),
        helper.make_node("Transpose", ["centred"], ["planes"], perm=[0, 3, 1, 2]),  # [N, 3, 32, 32]
        helper.make_node("AveragePool", ["planes"], ["squares"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Flatten", ["squares"], ["flat"]),  # [N, 48]
        helper.make_node("LpNormalization", ["flat"], ["embedding"], axis=1, p=2),
    ]
    graph = helper.make_graph(
        nodes,
        "colours",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", SIZE, SIZE, 3])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["N", 48])],
        [helper.make_tensor("middle", TensorProto.FLOAT, [], [127.5])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    facts = {
        "lookalike.format": {"version": 1},
        "lookalike.preprocess": Preprocess(size=SIZE).to_dict(),
        "lookalike.embedding": {"dim": 48, "metric": "cosine", "unit_length": True},
        "lookalike.provenance": {"note": note},
    }
    helper.set_model_props(model, {name: json.dumps(value) for name, value in facts.items()})
    onnx.checker.check_model(model, full_check=True)
    onnx.save_model(model, path)
    return path
