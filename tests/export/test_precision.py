"""fp16 and int8 export: measured cost, and refusal if the cost is too high."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from click.testing import CliRunner

import export.commands
from export.cost import Cost, Measurement
from export.graph import half_precision
from export.model_file import ExportOptions, export_model, export_run
from export.samples import SampleImages
from retrieval import Embedder, InputError, Preprocess
from tests.conftest import draw, lookalike_here
from tests.export.test_model_file import calibrate
from train import data, settings
from train.config import ModelConfig
from train.loop.run_folder import Run, initial_model
from train.models.embedding_model import EmbeddingModel

SINGLE, HALF, SIGNED, UNSIGNED = (getattr(onnx.TensorProto, n) for n in ("FLOAT", "FLOAT16", "INT8", "UINT8"))


@pytest.fixture(scope="module")
def reduced(untrained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run's model in both smaller precisions, with the command's JSON output beside each file."""
    folder = tmp_path_factory.mktemp("reduced")
    files = {name: folder / f"{name}.onnx" for name in ("fp16", "int8")}
    for name, file in files.items():
        words = (str(untrained_run), "--out", str(file), "--precision", name, "--json", "--accept-loss")
        done = CliRunner().invoke(export.commands.export, words, catch_exceptions=False)
        file.with_suffix(".json").write_text(done.stdout)
        assert ("fp16 is for GPUs" in done.stderr) == (name == "fp16")
    return files


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp16", "int8"])
def test_format_is_the_same_in_every_precision(reduced: dict[str, Path], model_file: Path, name: str) -> None:
    file = reduced[name]
    proto, single = onnx.load(file), onnx.load(model_file)
    onnx.checker.check_model(proto, full_check=True)
    assert {entry.domain for entry in proto.opset_import} == {""}
    assert [o.name for o in proto.graph.output] == [o.name for o in single.graph.output]
    assert proto.graph.input[0].type.tensor_type.elem_type == UNSIGNED
    assert {o.type.tensor_type.elem_type for o in proto.graph.output} == {SINGLE}
    assert sorted(p.name for p in file.parent.iterdir()) == [
        "fp16.json",
        "fp16.onnx",
        "int8.json",
        "int8.onnx",
    ]
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for count in (1, 2, 7):
        images = np.random.default_rng(count).integers(0, 256, (count, 32, 32, 3), np.uint8)
        embedding, maps = session.run(["embedding", "embedding_map"], {"images": images})
        np.testing.assert_allclose(np.linalg.norm(embedding, axis=1), 1, atol=1e-6)
        mean = maps.mean((1, 2))
        np.testing.assert_allclose(embedding, mean / np.linalg.norm(mean, axis=1, keepdims=True), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp16", "int8"])
def test_file_holds_its_measured_cost(
    reduced: dict[str, Path], model_file: Path, shop: Path, name: str
) -> None:
    embedder, single = Embedder(reduced[name]), Embedder(model_file)
    provenance = embedder.provenance
    printed = json.loads(reduced[name].with_suffix(".json").read_text())
    assert provenance["precision"] == name
    assert {key: printed[key] for key in ("precision", "proof", "cost")} == {
        key: provenance[key] for key in ("precision", "proof", "cost")
    }
    images = data.load(f"folder:{shop}").test
    paths, labels = [image.path for image in images], data.class_numbers(images)
    ours, theirs = embedder.embed(paths), single.embed(paths)
    cosines = (ours * theirs).sum(1)
    cost = provenance["cost"]
    assert cost["pictures"] == f"24 test images of 3 classes of folder:{shop}"
    assert cost["mean_cosine"] == pytest.approx(cosines.mean(), abs=1e-5)
    assert cost["lowest_cosine"] == pytest.approx(cosines.min(), abs=1e-5)
    for key, vectors in (("fp32", theirs), (name, ours)):
        similar = vectors @ vectors.T
        np.fill_diagonal(similar, -2)
        assert cost[key]["recall_at_1"] == np.mean(labels[similar.argmax(1)] == labels)
        assert all(cost[key]["milliseconds"][batch] > 0 for batch in ("1", "32"))
    assert cost[name]["bytes"] < cost["fp32"]["bytes"] == pytest.approx(model_file.stat().st_size, rel=0.05)


@pytest.mark.slow
def test_only_the_backbone_uses_half_precision(reduced: dict[str, Path]) -> None:
    graph = onnx.shape_inference.infer_shapes(onnx.load(reduced["fp16"])).graph
    kind = {tensor.name: tensor.data_type for tensor in graph.initializer}
    kind |= {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)}
    layers = [node for node in graph.node if node.op_type == "Conv"]
    assert len(layers) == 4
    assert {kind[name] for node in layers for name in (*node.input, *node.output)} == {HALF}
    ends = [node for node in graph.node if node.op_type in ("MatMul", "ReduceMean", "ReduceL2", "Sub", "Div")]
    assert {kind[name] for node in ends for name in node.output} == {SINGLE}


def test_large_embeddings_do_not_overflow_in_half_precision() -> None:
    """The sum of squares exceeds the range of half precision."""
    torch.manual_seed(0)
    model = EmbeddingModel(ModelConfig(embedding_dim=8), Preprocess(size=16)).eval()
    with torch.no_grad():
        model.head.weight.mul_(1e4)
    images = torch.from_numpy(np.stack([Preprocess(size=16)(draw(seed)) for seed in range(4)]))
    with torch.inference_mode():
        expected, found = model(images), half_precision(model)(images)
    assert expected.norm(dim=1).min() > 256
    assert torch.cosine_similarity(expected, found).min() > 0.9999
    assert next(model.backbone.parameters()).dtype == torch.float32, "half_precision returns a copy"


@pytest.mark.slow
def test_int8_has_a_scale_per_channel_and_fp32_at_both_ends(
    reduced: dict[str, Path],
) -> None:
    graph = onnx.load(reduced["int8"]).graph
    made_by = {name: node for node in graph.node for name in node.output}
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    first, *others = [node for node in graph.node if node.op_type == "Conv"]
    assert first.input[1] in tensors, "weights are not quantised"
    assert len(others) == 3
    for node in others:
        pixels, weights = (made_by[name] for name in node.input[:2])
        assert pixels.op_type == weights.op_type == "DequantizeLinear"
        assert tensors[pixels.input[2]].data_type == UNSIGNED
        assert tensors[weights.input[0]].data_type == SIGNED
        assert list(tensors[weights.input[1]].dims) == [64]
    (head,) = (node for node in graph.node if node.op_type == "MatMul")
    assert tensors[head.input[1]].data_type == SINGLE


@pytest.mark.slow
def test_file_that_costs_too_much_is_not_kept(untrained_run: Path, shop: Path, tmp_path: Path) -> None:
    """One channel a million times as large as the others needs the whole range of 8 bits.

    The data set of the run is missing: int8 needs another one, or noise explicitly.
    """
    run = Run.open(untrained_run)
    config = settings.parse_config({**run.config.to_dict(), "seed": 5, "data": "folder:/nowhere"})
    spoilt = Run.start(tmp_path / "run", config)
    model = initial_model(config)
    with torch.no_grad():
        model.backbone.network[5].weight[0] *= 1e6  # of the second batch norm
        model.backbone.network[8].weight[:, 0] *= 1e-6  # reversed by the third convolution
    spoilt.save_checkpoint("best", {}, torch.optim.AdamW(model.parameters()), model=model)
    out = tmp_path / "out" / "m.onnx"
    with pytest.raises(InputError, match="/nowhere"):
        export_run(spoilt, out, options=ExportOptions("int8"))
    words = ("--data", f"folder:{shop}", "--out", str(out), "--precision", "int8")
    done = lookalike_here("export", str(spoilt.folder), *words, code=1)
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("lookalike: "))
    assert "not kept, int8 costs too much: the mean cosine to fp32 is 0." in line
    assert line.endswith("--accept-loss keeps it")
    assert list(out.parent.iterdir()) == []
    kept = export_run(spoilt, out, data="noise", options=ExportOptions("int8", accept_loss=True))
    assert kept.calibration == "256 noise images"
    assert kept.cost is not None
    assert kept.cost.fp32.recall_at_1 is None
    assert "Recall" not in kept.cost.to_text()
    assert Embedder(out).provenance["cost"]["mean_cosine"] == kept.cost.mean_cosine < 0.98


@pytest.mark.parametrize(
    ("precision", "cosine", "recall", "reasons"),
    [
        ("int8", 0.981, (0.5, 0.491), []),
        ("int8", 0.979, (0.5, 0.6), ["the mean cosine to fp32 is 0.97900"]),
        ("int8", 0.999, (0.5, 0.489), ["Recall@1 falls from 50.0% to 48.9%"]),
        ("fp16", 0.99995, (None, None), []),
        ("fp16", 0.9998, (0.5, 0.48), ["the mean cosine", "Recall@1 falls"]),
        ("fp16", float("nan"), (None, None), ["the mean cosine to fp32 is nan"]),
    ],
)
def test_limits(
    precision: str, cosine: float, recall: tuple[float | None, float | None], reasons: list[str]
) -> None:
    both = (Measurement(1, {1: 1.0, 32: 1.0}, value) for value in recall)
    found = Cost(precision, "", "", *both, cosine, cosine).violations
    assert len(found) == len(reasons)
    assert all(text.startswith(start) for text, start in zip(found, reasons, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["timm:test_vit:depth=2", "timm:test_efficientnet"])
def test_families_in_int8(backbone: str, tmp_path: Path, shop: Path) -> None:
    """In fp16, `test_native_pooling` compares a transformer with its library."""
    torch.manual_seed(0)
    preprocess = Preprocess(size=64)
    model = EmbeddingModel(ModelConfig(backbone=backbone, embedding_dim=16), preprocess)
    calibrate(model, np.stack([preprocess(draw(seed, hue=seed)) for seed in range(8)]))
    samples = SampleImages.load(f"folder:{shop}")
    options = ExportOptions("int8", accept_loss=True)
    exported = export_model(model, preprocess, tmp_path / "m.onnx", {}, samples, options)
    assert exported.cost is not None
    assert exported.cost.mean_cosine > 0.98
    types = Counter(tensor.data_type for tensor in onnx.load(tmp_path / "m.onnx").graph.initializer)
    assert types[SIGNED] > 3
