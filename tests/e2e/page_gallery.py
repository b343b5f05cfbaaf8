"""What the tests of the page search in: a model with a map, and pictures with metadata."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from retrieval import Gallery, Preprocess
from tests.conftest import draw

SIZE, DIM = 32, 48
BRANDS = ("acme", "<b>zeta</b> & co")


def write_map_model(path: Path) -> Path:
    """A model file with a map, written without a training run: the colours within sixteen squares.

    The embedding is the mean of the map over its places, scaled to unit length.
    """
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["numbers", "middle"], ["centred"]),
        helper.make_node("Transpose", ["centred"], ["planes"], perm=[0, 3, 1, 2]),  # [N, 3, 32, 32]
        helper.make_node("AveragePool", ["planes"], ["small"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("SpaceToDepth", ["small"], ["squares"], blocksize=4),  # [N, 48, 4, 4]
        helper.make_node("Transpose", ["squares"], ["embedding_map"], perm=[0, 2, 3, 1]),
        helper.make_node("ReduceMean", ["embedding_map", "places"], ["mean"], keepdims=0),
        helper.make_node("LpNormalization", ["mean"], ["embedding"], axis=1, p=2),
    ]
    graph = helper.make_graph(
        nodes,
        "colours of places",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", SIZE, SIZE, 3])],
        [
            helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["N", DIM]),
            helper.make_tensor_value_info("embedding_map", TensorProto.FLOAT, ["N", 4, 4, DIM]),
        ],
        [
            helper.make_tensor("middle", TensorProto.FLOAT, [], [127.5]),
            helper.make_tensor("places", TensorProto.INT64, [2], [1, 2]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    facts = {
        "lookalike.format": {"version": 1},
        "lookalike.preprocess": Preprocess(size=SIZE).to_dict(),
        "lookalike.embedding": {"dim": DIM, "metric": "cosine", "unit_length": True},
        "lookalike.provenance": {},
    }
    helper.set_model_props(model, {name: json.dumps(value) for name, value in facts.items()})
    onnx.checker.check_model(model, full_check=True)
    onnx.save_model(model, path)
    return path


def stock(folder: Path, shop: Path) -> Gallery:
    """The shop in a gallery, every picture with a brand and a price, and a file that cannot be read."""
    gallery = Gallery.create(folder / "shop.gallery", write_map_model(folder / "model.onnx"))
    paths = sorted(shop.glob("*/*.png"))
    rows = [
        {"label": path.parent.name, "brand": BRANDS[n % 2], "price": n + 0.5} for n, path in enumerate(paths)
    ]
    (folder / "broken.png").write_bytes(b"not a picture")
    gallery.add([*paths, folder / "broken.png"], metadata=[*rows, {"label": "red"}])
    return gallery


def large(folder: Path, shop: Path, more: int) -> Gallery:
    """The shop and more pictures than a page of the gallery shows."""
    gallery = Gallery.create(folder / "large.gallery", write_map_model(folder / "model.onnx"))
    (folder / "more").mkdir()
    for seed in range(more):
        draw(100 + seed).save(folder / "more" / f"{seed}.png")
    gallery.add([shop, folder / "more"])
    return gallery
