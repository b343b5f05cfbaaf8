"""Folding of a linear layer into a model file: new unit vectors from the same images, still one file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from retrieval.errors import InputError, LookalikeError
from retrieval.files import atomic_write
from retrieval.model.archive import IMAGE, TEXT, TOKENIZER, ModelArchive, is_archive, write_archive
from retrieval.model.embedder import Embedder
from retrieval.model.layer import Layer
from retrieval.storage.identity import probe_pixels

MAX_DIFFERENCE = 1e-4
_BATCHES = (1, 3, 32)
_TEXTS = ("a photo of a red kettle", "blue", "a much longer description of two green chairs in a garden")
_AXES_ARE_INPUTS = 18  # opset from which reductions take their axes as an input


def append_layer(model_file: Path, layer: Layer, out: Path, note: Mapping[str, Any]) -> None:
    """Write a copy of a model file whose embeddings are those of the file, passed through a layer.

    The map becomes (map / |mean of the map|) W^T - W m for a layer with weight W and mean m, so that its
    normalized mean over the locations is the new embedding. Of an archive, images and texts get the layer;
    texts that were learned from titles without m, since they are directions from the mean of the images.

    Args:
        model_file: Model file of any precision, or archive of images and texts.
        layer: Layer of the embedding's dimension D.
        out: Model file to write; may be the same.
        note: Origin of the layer, appended to the list `layers` of the provenance.

    Raises:
        InputError: The layer has another dimension, or the model file is damaged.
        LookalikeError: The new file computes other vectors than the layer, by more than 1e-4.
    """
    before = Embedder(model_file)
    if before.is_plugged:
        raise InputError(f"{model_file}: an embedder of a plug-in; a layer can be added to ONNX files only")
    if layer.weight.shape[1:] != (before.dim,) or layer.mean.shape != (before.dim,):
        got = f"weight {list(layer.weight.shape)} and mean {list(layer.mean.shape)}"
        raise InputError(f"{model_file}: has {before.dim} dimensions, but the layer has {got}")
    facts = {
        "lookalike.embedding": {**before.metadata["embedding"], "dim": len(layer.weight)},
        "lookalike.provenance": {
            **before.provenance,
            "layers": [*before.provenance.get("layers", []), {**note, "dim": len(layer.weight)}],
        },
    }
    facts["lookalike.embedding"].pop("matryoshka", None)  # the new dimensions are not nested
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as draft:
        if is_archive(model_file):
            archive = ModelArchive(model_file)
            members = {
                IMAGE: _with_layer(archive.read(IMAGE), layer, facts),
                TEXT: _with_layer(archive.read(TEXT), _of_texts(before, layer), {}),
                TOKENIZER: archive.read(TOKENIZER),
            }
            write_archive(draft, members)
        else:
            draft.write_bytes(_with_layer(model_file.read_bytes(), layer, facts))
        _verify(before, layer, Embedder(draft), out)


def _of_texts(model: Embedder, layer: Layer) -> Layer:
    """Return the layer that the texts of an archive get."""
    return replace(layer, mean=np.zeros_like(layer.mean)) if "titles" in model.provenance else layer


def _with_layer(data: bytes, layer: Layer, facts: Mapping[str, Any]) -> bytes:
    """Return an ONNX model with the layer behind its outputs, and some metadata replaced."""
    proto = onnx.load_model_from_string(data)
    outputs = {output.name: output for output in proto.graph.output}
    surgery = _Surgery(proto)
    surgery.constant("weight", np.ascontiguousarray(layer.weight.T, np.float32))
    surgery.constant("mean", layer.mean.astype(np.float32))
    surgery.embedding(surgery.move("embedding"))
    if "embedding_map" in outputs:
        surgery.map(surgery.move("embedding_map"))
    for output in outputs.values():
        output.type.tensor_type.shape.dim[-1].dim_value = len(layer.weight)
    properties = {entry.key: entry.value for entry in proto.metadata_props}
    properties |= {name: json.dumps(value) for name, value in facts.items()}
    helper.set_model_props(proto, properties)
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


class _Surgery:
    """Additions to the end of a graph, with names that are not taken."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.graph = proto.graph
        self.opset = next(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx"))
        taken = {name for node in self.graph.node for name in (node.name, *node.output)}
        taken |= {tensor.name for tensor in self.graph.initializer}
        number = 1
        while any(name.startswith(f"layer{number}.") for name in taken):
            number += 1
        self.prefix = f"layer{number}."

    def constant(self, name: str, value: np.ndarray) -> None:
        self.graph.initializer.append(numpy_helper.from_array(value, self.prefix + name))

    def move(self, output: str) -> str:
        """Give an output of the graph another name, and return it."""
        moved = f"{self.prefix}{output}"
        for node in self.graph.node:
            for names in (node.input, node.output):
                for position, name in enumerate(names):
                    if name == output:
                        names[position] = moved
        return moved

    def add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.graph.node.append(
            helper.make_node(operator, inputs, [output], name=f"{self.prefix}{output}.node", **attributes)
        )
        return output

    def reduce(self, operator: str, value: str, axes: list[int], output: str) -> str:
        if self.opset < _AXES_ARE_INPUTS:
            return self.add(operator, [value], output, axes=axes, keepdims=1)
        self.constant(f"{output}.axes", np.array(axes, np.int64))
        return self.add(operator, [value, f"{self.prefix}{output}.axes"], output, keepdims=1)

    def embedding(self, source: str) -> None:
        """Add normalize((x - mean) W^T)."""
        name = self.prefix
        centred = self.add("Sub", [source, f"{name}mean"], f"{name}centred")
        projected = self.add("MatMul", [centred, f"{name}weight"], f"{name}projected")
        norm = self.reduce("ReduceL2", projected, [-1], f"{name}norm")
        tiny = np.float32(np.finfo(np.float32).tiny)
        self.constant("tiny", np.array(tiny))
        bounded = self.add("Max", [norm, f"{name}tiny"], f"{name}bounded")
        self.add("Div", [projected, bounded], "embedding")

    def map(self, source: str) -> None:
        """Add (map / |mean of the map|) W^T - W mean."""
        name = self.prefix
        average = self.reduce("ReduceMean", source, [1, 2], f"{name}average")
        length = self.reduce("ReduceL2", average, [-1], f"{name}length")
        scaled = self.add("Div", [source, length], f"{name}scaled")
        centred = self.add("Sub", [scaled, f"{name}mean"], f"{name}centred_map")
        self.add("MatMul", [centred, f"{name}weight"], "embedding_map")


def _verify(before: Embedder, layer: Layer, after: Embedder, out: Path) -> None:
    """Raise a `LookalikeError` if a new file computes other vectors than the layer on images and texts."""
    noise = np.random.default_rng(0).integers(0, 256, (28, *probe_pixels(before).shape[1:]), np.uint8)
    images = np.concatenate([probe_pixels(before), noise])
    differences = []
    for size in _BATCHES:
        expected = layer(before.embed_in_one_run(images[:size]))
        differences.append(np.abs(after.embed_in_one_run(images[:size]) - expected).max())
    if before.has_map:
        vectors, maps = after.embed_maps(images[:3])
        means = maps.mean((1, 2))
        means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        differences.append(np.abs(means - vectors).max())
    if before.has_text:
        texts = before.provenance.get("titles", {}).get("examples", _TEXTS)  # others may be unknown to it
        expected = _of_texts(before, layer)(before.embed_texts(texts))
        differences.append(np.abs(after.embed_texts(texts) - expected).max())
    if not max(differences) <= MAX_DIFFERENCE:
        what = f"its embeddings differ from the layer's by {max(differences):.2e}"
        raise LookalikeError(f"{out}: not kept, {what}; check the values of the layer")
