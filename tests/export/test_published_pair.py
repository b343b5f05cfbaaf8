"""Import of published ONNX encoders, from folders and from a server like the hub."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from retrieval.images.preprocess import Preprocess
from retrieval.model.embedder import Embedder
from tests.conftest import lookalike, lookalike_here
from tests.export.test_pair import CARD, hub_tokenizer
from tests.hub_server import HubServer

SIDE, LENGTH, WIDTH, DIM = 8, 6, 5, 4
RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.normal(size=(3 * SIDE * SIDE, DIM)).astype(np.float32)
WORDS = RANDOM.normal(size=(400, DIM)).astype(np.float32)


def image_graph(batch: int | str, output: str = "embedding", name: str = "image") -> onnx.ModelProto:
    """Planes -> a linear map of them, [N, D], with a constant batch in the Reshape if it is static."""
    rows = 1 if isinstance(batch, int) else -1
    nodes = [
        helper.make_node("Reshape", [name, "flat"], ["rows"]),
        helper.make_node("MatMul", ["rows", "weights"], ["found"]),
        helper.make_node("Reshape" if output == "last_hidden_state" else "Identity", ["found"], [output]),
    ]
    constants = {"flat": np.array([rows, 3 * SIDE * SIDE]), "weights": PIXELS}
    shape: list[int | str] = [batch, DIM]
    if output == "last_hidden_state":  # the class token and one more
        nodes[2] = helper.make_node("Unsqueeze", ["found", "one"], ["token"])
        nodes += [
            helper.make_node("Neg", ["token"], ["other"]),
            helper.make_node("Concat", ["token", "other"], [output], axis=1),
        ]
        constants["one"], shape = np.array([1]), [batch, 2, DIM]
    planes = helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, 3, SIDE, SIDE])
    return _model(nodes, [planes], (output, shape), constants)


def text_graph(batch: int | str, name: str, output: str, mask: str | None = None) -> onnx.ModelProto:
    """Token ids, int32 for a static batch -> the sum of their rows, weighted by the mask."""
    kind = TensorProto.INT32 if isinstance(batch, int) else TensorProto.INT64
    nodes = [helper.make_node("Gather", ["words", name], ["found"])]
    if mask is not None:
        nodes += [
            helper.make_node("Cast", [mask], ["shares"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["shares", "last"], ["columns"]),
            helper.make_node("Mul", ["found", "columns"], ["kept"]),
        ]
    nodes.append(helper.make_node("ReduceSum", [nodes[-1].output[0], "one"], [output], keepdims=0))
    constants = {"words": WORDS, "one": np.array([1]), "last": np.array([-1])}
    ends = [helper.make_tensor_value_info(end, kind, [batch, LENGTH]) for end in (name, mask) if end]
    return _model(nodes, ends, (output, [batch, DIM]), constants)


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    output: tuple[str, list[int | str]],
    constants: dict[str, np.ndarray],
) -> onnx.ModelProto:
    outputs = [helper.make_tensor_value_info(output[0], TensorProto.FLOAT, output[1])]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def immich(folder: Path) -> Path:
    """Write a pair in the layout that immich uses: for one image or text at a time."""
    for part in ("visual", "textual"):
        (folder / part).mkdir(parents=True)
    onnx.save(image_graph(1), folder / "visual" / "model.onnx")
    onnx.save(text_graph(1, "text", "embedding"), folder / "textual" / "model.onnx")
    facts = {"size": [SIDE, SIDE], "mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bicubic"}
    (folder / "visual" / "preprocess_cfg.json").write_text(json.dumps(facts | {"resize_mode": "squash"}))
    text = {"context_length": LENGTH, "hf_tokenizer_name": "x", "tokenizer_kwargs": {"clean": "canonicalize"}}
    (folder / "config.json").write_text(json.dumps({"embed_dim": DIM, "text_cfg": text}))
    hub_tokenizer(folder / "textual")
    (folder / "README.md").write_text(CARD)
    return folder


def community(folder: Path, *, kind: str = "clip", mask: str | None = "attention_mask") -> Path:
    """Write a pair in the layout that onnx-community uses."""
    (folder / "onnx").mkdir(parents=True)
    onnx.save(image_graph("batch", "image_embeds", "pixel_values"), folder / "onnx" / "vision_model.onnx")
    text = text_graph("batch", "input_ids", "text_embeds", mask)
    onnx.save(text, folder / "onnx" / "text_model.onnx")
    facts = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}, "resample": 3}
    facts |= {"image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(facts))
    settings = {"model_type": kind, "text_config": {"max_position_embeddings": LENGTH}}
    (folder / "config.json").write_text(json.dumps(settings))
    hub_tokenizer(folder)
    return folder


def imported(source: str | Path, out: Path) -> Embedder:
    run = lookalike if isinstance(source, str) else lookalike_here  # huggingface_hub reads settings once
    done = run("export", "--from", f"hub:{source}", "--out", str(out), "--json")
    facts = json.loads(done.stdout)
    assert ("licence of the weights" in done.stderr) == (facts["license"] is None)
    assert facts["proof"]["lowest_cosine"] >= 0.99999
    return Embedder(out, device="cpu")


def unit(vectors: np.ndarray) -> np.ndarray:
    found: np.ndarray = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return found


def expected_images(pixels: np.ndarray) -> np.ndarray:
    planes = ((pixels / 255 - 0.5) / 0.25).transpose(0, 3, 1, 2).reshape(len(pixels), -1)
    return unit(planes @ PIXELS)


def test_the_layout_of_immich(tmp_path: Path) -> None:
    embedder = imported(immich(tmp_path / "pair"), tmp_path / "pair.zip")
    assert embedder.preprocess == Preprocess(SIDE, fit="squeeze", mean=(0.5,) * 3, std=(0.25,) * 3)
    assert embedder.provenance["license"] == "apache-2.0"
    info = lookalike_here("model", "info", str(tmp_path / "pair.zip"), "--no-latency", "--json")
    assert json.loads(info.stdout)["graph"]["parameters"] == PIXELS.size + 6  # mean and std
    pixels = RANDOM.integers(0, 256, (3, SIDE, SIDE, 3), np.uint8)  # more than one at a time
    np.testing.assert_allclose(embedder.embed_pixels(pixels), expected_images(pixels), atol=1e-5)
    # "red", the closing token, four of padding; punctuation and case are removed as open_clip does
    expected = unit(WORDS[[4, 1, 0, 0, 0, 0]].sum(0))
    np.testing.assert_allclose(embedder.embed_texts(["“RED”!", "red"]), [expected] * 2, atol=1e-5)


def test_the_layout_of_onnx_community_from_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, server = community(tmp_path / "pair"), HubServer()
    files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*.*")}
    files["onnx/model.onnx"] = b"both towers in one, not needed"
    server.files["models", "shop/clip"] = files
    with server.running() as hub:
        for name, value in hub.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        embedder = imported("shop/clip", tmp_path / "pair.zip")
    assert not list((tmp_path / "cache").rglob("model.onnx"))
    assert embedder.provenance["source"] == "hub:shop/clip"
    assert embedder.provenance["license"] is None
    assert embedder.preprocess == Preprocess(SIDE, mean=(0.5,) * 3, std=(0.25,) * 3)
    pixels = RANDOM.integers(0, 256, (3, SIDE, SIDE, 3), np.uint8)
    np.testing.assert_allclose(embedder.embed_pixels(pixels), expected_images(pixels), atol=1e-5)
    expected = unit(WORDS[[4, 1]].sum(0))  # without the padding
    np.testing.assert_allclose(embedder.embed_texts(["red"]), [expected], atol=1e-5)


def test_images_alone(tmp_path: Path) -> None:
    folder = community(tmp_path / "dino", kind="dinov2")
    for file in (folder / "onnx").iterdir():
        file.unlink()
    onnx.save(image_graph("batch", "last_hidden_state", "pixel_values"), folder / "onnx" / "model.onnx")
    embedder = imported(folder, tmp_path / "dino.onnx")
    assert not embedder.has_text
    pixels = RANDOM.integers(0, 256, (3, SIDE, SIDE, 3), np.uint8)
    np.testing.assert_allclose(embedder.embed_pixels(pixels), expected_images(pixels), atol=1e-5)


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: Path, message: str) -> None:
        done = lookalike_here("export", "--from", f"hub:{folder}", "--out", str(tmp_path / "x"), code=2)
        assert message in done.stderr
        assert not (tmp_path / "x").exists()

    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "neither visual/model.onnx nor onnx/vision_model.onnx nor onnx/model.onnx")
    folder = community(tmp_path / "other", mask="token_type_ids")
    refused(
        folder, "has the inputs input_ids ['batch', 6], token_type_ids ['batch', 6], which are not supported"
    )
    onnx.save(image_graph(4, "image_embeds", "pixel_values"), folder / "onnx" / "vision_model.onnx")
    refused(folder, "takes batches of 4 only")
    onnx.save(image_graph("N", "logits", "pixel_values"), folder / "onnx" / "vision_model.onnx")
    refused(folder, "has the outputs logits, needs image_embeds or")
    (folder / "onnx" / "vision_model.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    refused(folder, "vision_model.onnx: not a complete ONNX model; download it again")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tokenizers", None)
        patch.delitem(sys.modules, "export.published_pair")
        patch.delitem(sys.modules, "export.tokenizer_files")
        done = lookalike_here("export", "--from", "hub:shop/clip", "--out", str(tmp_path / "x"), code=1)
        assert "needs tokenizers: pip install 'lookalike[text]'" in done.stderr
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    done = lookalike_here("export", "--from", "hub:shop/clip", "--out", str(tmp_path / "x"), code=2)
    assert "lookalike[hub]" in done.stderr
