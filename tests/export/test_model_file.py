"""The exported file: what the contract says it is, and the same model as the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import export.model_file
from export.model_file import export_run
from retrieval import Embedder, InputError, LookalikeError, load_image
from train import settings
from train.loop import pixel_embedder
from train.run import Run, initial_model


def test_file_is_as_the_contract_says(model_file: Path) -> None:
    proto = onnx.load(model_file)
    onnx.checker.check_model(proto, full_check=True)
    assert [(i.domain or "ai.onnx", i.version) for i in proto.opset_import] == [("ai.onnx", 20)]
    (images,) = proto.graph.input
    outputs = {output.name: output.type.tensor_type for output in proto.graph.output}
    assert images.name == "images"
    assert images.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    dims = images.type.tensor_type.shape.dim
    assert dims[0].dim_param
    assert [d.dim_value for d in dims[1:]] == [32, 32, 3]
    assert [d.dim_value for d in outputs["embedding"].shape.dim[1:]] == [16]
    assert len(outputs["embedding_map"].shape.dim) == 4
    metadata = {p.key: json.loads(p.value) for p in proto.metadata_props if p.key.startswith("lookalike.")}
    assert metadata["lookalike.format"] == {"version": 1}
    assert metadata["lookalike.preprocess"]["size"] == 32
    assert metadata["lookalike.embedding"]["dim"] == 16
    provenance = metadata["lookalike.provenance"]
    assert settings.parse(provenance["config"]).model.backbone == "conv4"
    assert {"weights_sha256", "created", "versions", "metrics"} <= set(provenance)
    assert not list(model_file.parent.glob("*.data")), "one file"


def test_map_has_the_embedding_as_its_mean(model_file: Path) -> None:
    session = onnxruntime.InferenceSession(model_file, providers=["CPUExecutionProvider"])
    for count in (1, 3, 7):
        images = np.random.default_rng(count).integers(0, 256, (count, 32, 32, 3), np.uint8)
        embedding, maps = session.run(["embedding", "embedding_map"], {"images": images})
        mean = maps.mean((1, 2))
        expected = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        np.testing.assert_allclose(embedding, expected, atol=1e-6)


def test_same_embedding_through_training_and_through_the_file(
    untrained_run: Path, model_file: Path, shop: Path
) -> None:
    run, embedder = Run.open(untrained_run), Embedder(model_file)
    paths = sorted(shop.rglob("*.png"))
    pixels = np.stack([run.config.preprocess(load_image(path)) for path in paths])
    theirs = pixel_embedder(run.trained())(pixels)
    np.testing.assert_allclose(embedder.embed(paths), theirs, atol=1e-4)


def test_file_that_is_not_the_same_model_is_not_kept(
    untrained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export.model_file, "MAX_DIFFERENCE", 0.0)
    with pytest.raises(LookalikeError, match="not kept"):
        export_run(Run.open(untrained_run), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_without_the_data_noise_will_do(untrained_run: Path, tmp_path: Path) -> None:
    run = Run.open(untrained_run)
    moved = tmp_path / "run"
    ours = settings.parse({**run.config.to_dict(), "data": "folder:/nowhere", "seed": 3})
    copy = Run.start(moved, ours)
    model = initial_model(ours)
    copy.save("best", {}, torch.optim.AdamW(model.parameters()), model=model)
    proof = export_run(copy, tmp_path / "m.onnx")
    assert "noise" in proof.pictures
    assert proof.largest_difference < 1e-4


def test_resnet_exports_too(tmp_path: Path) -> None:
    ours = settings.resolve("folder:/nowhere", None, ["model.backbone=resnet18", "preprocess.size=64"])
    run = Run.start(tmp_path / "run", ours)
    model = initial_model(ours)
    run.save("best", {}, torch.optim.AdamW(model.parameters()), model=model)
    assert export_run(run, tmp_path / "m.onnx").lowest_cosine > 0.99999
    assert Embedder(tmp_path / "m.onnx").dim == 64


def test_run_without_checkpoint_is_refused(tmp_path: Path) -> None:
    run = Run.start(tmp_path / "run", settings.resolve("digits", None, []))
    with pytest.raises(InputError, match="no such checkpoint"):
        export_run(run, tmp_path / "m.onnx")
