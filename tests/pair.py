"""A tiny model archive: the mean colour of an image, the colour words of a text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace

from retrieval.images.preprocess import Preprocess
from retrieval.model.archive import IMAGE, TEXT, TOKENIZER, write_archive
from retrieval.model.text_encoder import PROPERTY, TextInput

SIZE, DIM, LENGTH = 16, 8, 12
COLOURS = {
    "red": (1, 0, 0),
    "green": (0, 1, 0),
    "blue": (0, 0, 1),
    "yellow": (1, 1, 0),
    "cyan": (0, 1, 1),
    "magenta": (1, 0, 1),
}
WORDS = ("[PAD]", "[UNK]", "a", "photo", "of", *COLOURS)
# Orthonormal rows: three for the colour without its grey, one that all images and texts have in common.
_BASIS = np.linalg.qr(np.random.default_rng(0).normal(size=(DIM, 4)))[0].T.astype(np.float32)
_COMMON = np.float32(0.05) * _BASIS[3]


def write_pair(path: Path, note: str = "", text_input: TextInput | None = None) -> Path:
    """Write the archive: embeddings of DIM components, images of SIZE pixels, texts of LENGTH tokens."""
    tokenizer = Tokenizer(WordLevel({word: id for id, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = Lowercase(), Whitespace()
    members = {
        IMAGE: _image_model(note).SerializeToString(),
        TEXT: _text_model(text_input or TextInput(LENGTH)).SerializeToString(),
        TOKENIZER: tokenizer.to_str().encode(),
    }
    write_archive(path, members)
    return path


def chroma(rgb: np.ndarray) -> np.ndarray:
    """Return colours without their grey, [..., 3] of values in 0..1, in the space of the embeddings."""
    vectors: np.ndarray = (rgb - rgb.mean(-1, keepdims=True)).astype(np.float32) @ _BASIS[:3]
    return vectors


def _image_model(note: str) -> onnx.ModelProto:
    grey = (np.eye(3) - 1 / 3).astype(np.float32) / 255
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["numbers", "places"], ["colour"], keepdims=0),
        helper.make_node("MatMul", ["colour", "basis"], ["chroma"]),
        helper.make_node("Add", ["chroma", "common"], ["sum"]),
        helper.make_node("LpNormalization", ["sum"], ["embedding"], axis=1, p=2),
    ]
    constants = {"places": np.array([1, 2]), "basis": grey @ _BASIS[:3], "common": _COMMON}
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", SIZE, SIZE, 3])
    return _model(
        nodes,
        [images],
        constants,
        {
            "lookalike.format": {"version": 1},
            "lookalike.preprocess": Preprocess(size=SIZE).to_dict(),
            "lookalike.embedding": {"dim": DIM, "metric": "cosine", "unit_length": True},
            "lookalike.provenance": {"note": note},
        },
    )


def _text_model(text_input: TextInput) -> onnx.ModelProto:
    colours = np.array([COLOURS.get(word, (0, 0, 0)) for word in WORDS], np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["vectors"]),
        helper.make_node("Cast", ["mask"], ["weights"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["weights", "last"], ["columns"]),
        helper.make_node("Mul", ["vectors", "columns"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "words"], ["bag"], keepdims=0),
        helper.make_node("Add", ["bag", "common"], ["sum"]),
        helper.make_node("LpNormalization", ["sum"], ["embedding"], axis=1, p=2),
    ]
    table = chroma(colours)
    constants = {"table": table, "last": np.array([-1]), "words": np.array([1]), "common": _COMMON}
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["N", text_input.context_length])
        for name in ("tokens", "mask")
    ]
    return _model(
        nodes,
        inputs,
        constants,
        {
            "lookalike.format": {"version": 1},
            "lookalike.embedding": {"dim": DIM, "metric": "cosine", "unit_length": True},
            PROPERTY: text_input.to_dict(),
        },
    )


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    constants: dict[str, np.ndarray],
    metadata: dict[str, object],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "colours",
        inputs,
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["N", DIM])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    helper.set_model_props(model, {name: json.dumps(value) for name, value in metadata.items()})
    onnx.checker.check_model(model, full_check=True)
    return model
