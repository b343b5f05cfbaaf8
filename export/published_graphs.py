"""Published ONNX graphs of encoders, wrapped to our inputs and outputs.

The graph itself stays as it is: nodes before it turn pixels into the planes that it takes, nodes after it
turn its output into a unit vector. A graph that was exported for one image or text at a time runs in a Scan
over the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from retrieval.errors import InputError
from retrieval.images.preprocess import Preprocess
from retrieval.model.text_encoder import MASK, TOKENS

_IMAGE_OUTPUTS = ("image_embeds", "embedding", "image_features", "pooler_output", "last_hidden_state")
_TEXT_OUTPUTS = ("text_embeds", "embedding", "text_features", "pooler_output")
_TOKEN_INPUTS = ("input_ids", "text", "tokens")
_MASK_INPUTS = ("attention_mask", "mask")
_PREFIX = "published/"


@dataclass(frozen=True)
class PublishedGraph:
    """ONNX graph of an encoder as it was published.

    Attributes:
        proto: The model, with its weights.
        inputs: Names of its inputs by ours: "images", or "tokens" and "mask".
        output: Name of the output that is the embedding before normalization.
        is_single: Takes one image or text at a time.
        takes_class_token: The embedding is the first vector of the output, [N, T, D].
    """

    proto: onnx.ModelProto
    inputs: Mapping[str, str]
    output: str
    is_single: bool
    takes_class_token: bool = False


def read_graph(file: Path, *, is_text: bool, has_class_token: bool = False) -> PublishedGraph:
    """Read a published graph.

    Args:
        file: ONNX file; weights in files beside it are read as well.
        is_text: It is a text encoder.
        has_class_token: The first vector of `last_hidden_state` is the published embedding, if nothing else.

    Raises:
        InputError: It is not an ONNX file, or its inputs or outputs are not supported.
    """
    try:
        proto = onnx.load(file)
    except Exception as error:  # protobuf and onnx raise classes of their own
        raise InputError(f"{file}: not a complete ONNX model; download it again") from error
    weights = {tensor.name for tensor in proto.graph.initializer}
    ends = [end for end in proto.graph.input if end.name not in weights]
    outputs = {end.name for end in proto.graph.output}
    known = _TEXT_OUTPUTS if is_text else _IMAGE_OUTPUTS[: None if has_class_token else -1]
    output = next((name for name in known if name in outputs), None)
    if output is None:
        got = ", ".join(sorted(outputs))
        raise InputError(f"{file}: has the outputs {got}, needs {' or '.join(known)}; use another model")
    inputs = {_role(end, is_text): end.name for end in ends}
    if not (set(inputs) <= ({TOKENS, MASK} if is_text else {"images"}) and len(inputs) == len(ends)):
        got = ", ".join(f"{end.name} {_shape(end)}" for end in ends)
        raise InputError(f"{file}: has the inputs {got}, which are not supported; use another model")
    batches = {_shape(end)[0] for end in ends}
    if any(isinstance(size, int) and size != 1 for size in batches):
        raise InputError(f"{file}: takes batches of {batches.pop()} only; use another model")
    return PublishedGraph(proto, inputs, output, batches == {1}, output == "last_hidden_state")


def wrap_image_encoder(graph: PublishedGraph, preprocess: Preprocess, dim: int) -> onnx.ModelProto:
    """Return a model without metadata: `images`, uint8 [N, S, S, 3] -> `embedding`, unit float32 [N, D]."""
    side, kind = preprocess.size, _type(graph, "images")
    mean, std = (255 * np.array(v, np.float32).reshape(3, 1, 1) for v in (preprocess.mean, preprocess.std))
    nodes = [
        helper.make_node("Cast", ["one"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["numbers"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Sub", ["planes", "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "std"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], [_PREFIX + graph.inputs["images"]], to=kind),
    ]
    ends = [helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", side, side, 3])]
    return _wrapped(graph, ends, {"images": "one"}, nodes, {"mean": mean, "std": std}, dim)


def wrap_text_encoder(graph: PublishedGraph, length: int, dim: int) -> onnx.ModelProto:
    """Return a model without metadata: `tokens` and, if the graph has one, `mask` -> `embedding`."""
    names = {name: f"one_{name}" for name in graph.inputs}
    nodes = [
        helper.make_node("Cast", [names[name]], [_PREFIX + theirs], to=_type(graph, name))
        for name, theirs in graph.inputs.items()
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.INT64, ["N", length]) for name in graph.inputs]
    return _wrapped(graph, ends, names, nodes, {}, dim)


def _wrapped(
    graph: PublishedGraph,
    ends: Sequence[ValueInfoProto],
    names: Mapping[str, str],
    before: Sequence[NodeProto],
    constants: Mapping[str, np.ndarray],
    dim: int,
) -> onnx.ModelProto:
    """Return a model with other inputs and the output `embedding`.

    Args:
        graph: Published graph.
        ends: Inputs of the new model.
        names: Names of the inputs as `before` reads them.
        before: Nodes before the graph, which write its prefixed inputs.
        constants: Constants of these nodes.
        dim: Length D of an embedding.
    """
    inner = onnx.compose.add_prefix(graph.proto, _PREFIX)
    found = [*before, *inner.graph.node, *_unit_vector(_PREFIX + graph.output, graph.takes_class_token)]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    weights += [numpy_helper.from_array(np.array(0), "first"), *inner.graph.initializer]
    output = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["N", dim])
    if graph.is_single:
        nodes, weights = [_scan(found, weights, ends, names, dim)], []
    else:
        nodes = [helper.make_node("Identity", [ours], [names[ours]]) for ours in names] + found
    wrapped = helper.make_graph(nodes, "encoder", ends, [output], weights)
    wrapped.sparse_initializer.extend(inner.graph.sparse_initializer)
    opset = list(inner.opset_import)
    model = helper.make_model(wrapped, opset_imports=opset, ir_version=inner.ir_version)
    model.functions.extend(inner.functions)
    return model


def _unit_vector(output: str, takes_class_token: bool) -> list[NodeProto]:
    """Return the nodes from the output of a graph to `embedding`."""
    nodes = [helper.make_node("Cast", [output], ["output"], to=TensorProto.FLOAT)]
    if takes_class_token:
        nodes.append(helper.make_node("Gather", ["output", "first"], ["features"], axis=1))
    last = nodes[-1].output[0]
    return [*nodes, helper.make_node("LpNormalization", [last], ["embedding"], axis=1, p=2)]


def _scan(
    nodes: Sequence[NodeProto],
    weights: Sequence[TensorProto],
    ends: Sequence[ValueInfoProto],
    names: Mapping[str, str],
    dim: int,
) -> NodeProto:
    """Return a node that runs nodes for each element of a batch, with their constants."""
    before, inputs, shapes = [], [], []
    for end in ends:
        sides = [dimension.dim_value for dimension in end.type.tensor_type.shape.dim][1:]
        kind = end.type.tensor_type.elem_type
        inputs.append(helper.make_tensor_value_info(f"element_{end.name}", kind, sides))
        shapes.append(numpy_helper.from_array(np.array([1, *sides]), f"shape_{end.name}"))
        operands = [f"element_{end.name}", f"shape_{end.name}"]
        before.append(helper.make_node("Reshape", operands, [names[end.name]]))
    flat = helper.make_node("Reshape", ["embedding", "shape_flat"], ["vector"])
    shapes.append(numpy_helper.from_array(np.array([-1]), "shape_flat"))
    output = helper.make_tensor_value_info("vector", TensorProto.FLOAT, [dim])
    body = helper.make_graph([*before, *nodes, flat], "element", inputs, [output], [*shapes, *weights])
    outer = [end.name for end in ends]
    return helper.make_node("Scan", outer, ["embedding"], body=body, num_scan_inputs=len(outer))


def _role(end: ValueInfoProto, is_text: bool) -> str:
    """Return our name of an input; its own name if it is not supported."""
    if not is_text:
        shape, kind = _shape(end), end.type.tensor_type.elem_type
        is_planes = len(shape) == 4 and (shape[1] == 3 or isinstance(shape[1], str))
        return "images" if is_planes and kind in (TensorProto.FLOAT, TensorProto.FLOAT16) else end.name
    if end.name in _TOKEN_INPUTS:
        return TOKENS
    return MASK if end.name in _MASK_INPUTS else end.name


def _type(graph: PublishedGraph, name: str) -> int:
    """Return the element type of an input, by our name."""
    ends = {end.name: end for end in graph.proto.graph.input}
    return int(ends[graph.inputs[name]].type.tensor_type.elem_type)


def _shape(end: ValueInfoProto) -> list[int | str]:
    dimensions = end.type.tensor_type.shape.dim
    return [one.dim_value if one.HasField("dim_value") else one.dim_param for one in dimensions]
