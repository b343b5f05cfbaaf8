"""The exported file: its format, and the same embeddings as the checkpoint."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torchvision
from onnx import numpy_helper
from PIL import ExifTags, Image
from safetensors.torch import save_file

import export.model_file
from export.model_file import export_model, export_run
from export.samples import SampleImages
from retrieval import Embedder, InputError, LookalikeError, Preprocess, load_image
from retrieval.images.decode import embed_files
from retrieval.progress import Progress
from tests.conftest import draw, draw_classes, lookalike_here
from train import settings
from train.config import ModelConfig
from train.data import load
from train.data.splits import divide
from train.loop.run_folder import Run, initial_model
from train.models.embedding_model import EmbeddingModel, pixel_embedder


def test_file_follows_the_documented_format(model_file: Path) -> None:
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
    assert settings.parse_config(provenance["config"]).model.backbone == "conv4"
    assert {"weights_sha256", "created", "versions", "metrics"} <= set(provenance)
    assert provenance["precision"] == "fp32"
    assert not list(model_file.parent.glob("*.data")), "one file"


def test_file_holds_its_proof(model_file: Path, untrained_run: Path, shop: Path) -> None:
    proof = Embedder(model_file).provenance["proof"]
    assert proof["pictures"] == f"24 images of folder:{shop}"
    assert proof["batch_sizes"] == [1, 3, 32]
    pixels = np.stack([Embedder(model_file).pixels(path) for path in sorted(shop.rglob("*.png"))])
    ours, theirs = pixel_embedder(Run.open(untrained_run).trained())(pixels), Embedder(model_file)
    assert np.abs(theirs.embed_pixels(pixels) - ours).max() <= proof["largest_difference"] + 1e-6
    assert (theirs.embed_pixels(pixels) * ours).sum(1).min() >= proof["lowest_cosine"] - 1e-6


def test_file_holds_no_path_of_the_exporting_machine(model_file: Path) -> None:
    content = model_file.read_bytes()
    assert str(Path(export.model_file.__file__).parents[1]).encode() not in content
    assert torch.__path__[0].encode() not in content


def test_embedding_is_the_normalised_mean_of_the_map(model_file: Path) -> None:
    session = onnxruntime.InferenceSession(model_file, providers=["CPUExecutionProvider"])
    for count in (1, 3, 7):
        images = np.random.default_rng(count).integers(0, 256, (count, 32, 32, 3), np.uint8)
        embedding, maps = session.run(["embedding", "embedding_map"], {"images": images})
        mean = maps.mean((1, 2))
        expected = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        np.testing.assert_allclose(embedding, expected, atol=1e-6)


def test_file_and_training_network_give_the_same_embeddings(
    untrained_run: Path, model_file: Path, shop: Path
) -> None:
    run, embedder = Run.open(untrained_run), Embedder(model_file)
    paths = sorted(shop.rglob("*.png"))
    pixels = np.stack([run.config.preprocess(load_image(path)) for path in paths])
    theirs = pixel_embedder(run.trained())(pixels)
    np.testing.assert_allclose(embedder.embed(paths), theirs, atol=1e-4)


def test_rotated_jpeg_is_the_same_in_training_and_in_the_file(
    untrained_run: Path, model_file: Path, tmp_path: Path
) -> None:
    """End to end: EXIF orientation, resizing, crop, network."""
    run, embedder = Run.open(untrained_run), Embedder(model_file)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # to be rotated by 90 degrees clockwise
    draw(0, size=(90, 50)).save(tmp_path / "turned.jpg", exif=exif, quality=90)
    draw(0, size=(90, 50)).save(tmp_path / "lying.jpg", quality=90)
    files = [tmp_path / "turned.jpg", tmp_path / "lying.jpg"]
    embed, quiet = pixel_embedder(run.trained()), Progress("embedding", 2, show=False)
    theirs = embed_files(files, run.config.preprocess, embed, quiet).vectors
    ours = embedder.embed(files)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert ours[0] @ ours[1] < 0.999, "the orientation makes a difference"


def test_file_with_different_embeddings_is_not_kept(
    untrained_run: Path, model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the exporter had written one of the weights wrongly."""
    proto = onnx.load(model_file)
    weights = next(one for one in proto.graph.initializer if len(one.dims) == 4)
    wrong = numpy_helper.to_array(weights).copy()
    wrong[0, 0] *= 1.5
    weights.CopyFrom(numpy_helper.from_array(wrong, weights.name))
    monkeypatch.setattr(export.model_file, "to_onnx", lambda *_: proto)
    with pytest.raises(LookalikeError, match="not kept"):
        export_run(Run.open(untrained_run), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_missing_data_set_is_replaced_by_noise_images(untrained_run: Path, tmp_path: Path) -> None:
    run = Run.open(untrained_run)
    moved = tmp_path / "run"
    ours = settings.parse_config({**run.config.to_dict(), "data": "folder:/nowhere"})
    copy = Run.start(moved, ours)
    model = initial_model(ours)
    copy.save_checkpoint("best", {}, torch.optim.AdamW(model.parameters()), model=model)
    proof = export_run(copy, tmp_path / "m.onnx").proof
    assert "noise" in proof.images
    assert proof.largest_difference < 1e-4


# Other networks of torchvision are exported in `test_pretrained`, and so is a class token.
FAMILIES = [
    ("conv4", "spatial", 40),
    ("vgg9-bn", "gem", 32),
    ("bn-inception", "spatial", 64),
    ("mobilenet_v3_small", "mean", 64),
    ("timm:test_convnext", "mean", 64),
    ("timm:test_efficientnet:pad_type=same", "gem", 64),
    ("timm:test_vit:depth=2", "mean", 48),
]


@pytest.mark.slow
@pytest.mark.parametrize(("backbone", "pooling", "size"), FAMILIES)
def test_every_backbone_family_survives_the_export(
    backbone: str, pooling: str, size: int, tmp_path: Path, shop: Path
) -> None:
    torch.manual_seed(0)
    preprocess = Preprocess(size=size)
    model = EmbeddingModel(ModelConfig(backbone=backbone, pooling=pooling, embedding_dim=16), preprocess)
    sample = np.stack([preprocess(draw(seed, hue=seed)) for seed in range(8)])
    calibrate(model, sample)
    samples, network = SampleImages.load(f"folder:{shop}"), repr(model)
    proof = export_model(model, preprocess, tmp_path / "m.onnx", {}, samples).proof
    assert proof.largest_difference < 1e-4
    assert proof.lowest_cosine > 0.99999
    assert repr(model) == network, "activations are still in-place"
    embeddings = Embedder(tmp_path / "m.onnx").embed_pixels(sample)
    assert (embeddings @ embeddings.T).min() < 0.99, "embeddings must differ"
    names = [output.name for output in onnx.load(tmp_path / "m.onnx").graph.output]
    assert names == (["embedding", "embedding_map"] if pooling in ("mean", "spatial") else ["embedding"])


def calibrate(model: EmbeddingModel, sample: np.ndarray) -> None:
    """Set batch-norm statistics from these images, as training does; activations would vanish otherwise."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        for _ in range(2):
            model(torch.from_numpy(sample))
    model.eval()


def test_network_that_onnx_cannot_express_is_reported(tmp_path: Path) -> None:
    class DataDependent(torch.nn.Module):
        def forward(self, planes: torch.Tensor) -> torch.Tensor:
            return planes if planes.sum() > 0 else -planes

    model = EmbeddingModel(ModelConfig(embedding_dim=4), Preprocess(size=16)).eval()
    model.backbone.network.insert(0, DataDependent())
    with pytest.raises(LookalikeError, match="conv4 cannot be written as ONNX"):
        export_model(model, Preprocess(size=16), tmp_path / "m.onnx", {}, SampleImages.load("noise"))
    assert list(tmp_path.iterdir()) == []


def test_run_is_exported_without_its_pretrained_weights_file(tmp_path: Path) -> None:
    weights = tmp_path / "squeezenet.safetensors"
    save_file(torchvision.models.squeezenet1_1(weights=None).state_dict(), weights)
    words = [f"model.weights={weights}", "model.backbone=squeezenet1_1", "preprocess.size=32"]
    words += ["loss={name: triplet, dims: [8, 16]}"]
    ours = settings.resolve("folder:/nowhere", None, words)
    run = Run.start(tmp_path / "run", ours)
    model = initial_model(ours)
    run.save_checkpoint("best", {}, torch.optim.AdamW(model.parameters()), model=model)
    weights.unlink()
    assert export_run(run, tmp_path / "m.onnx").proof.lowest_cosine > 0.99999
    embedding = Embedder(tmp_path / "m.onnx").metadata["embedding"]
    assert (embedding["dim"], embedding["matryoshka"]) == (64, [8, 16, 64])


def test_file_tells_training_images_from_held_out_ones(tmp_path: Path) -> None:
    """Those that chose the epoch were not learned; all were, where the images are no longer the same."""
    images = draw_classes(tmp_path / "images", 10, 4)
    run = tmp_path / "run"
    words = ["train", "--recipe", "scratch", "--data", f"folder:{images}", "--out", str(run)]
    settings = ["epochs=1", "preprocess.size=32", "model.embedding_dim=16", "split.validation=0.3"]
    lookalike_here(*words, *(word for one in settings for word in ("--set", one)))
    (_, _, held_out) = divide(load(f"folder:{images}"), Run.open(run).config)
    assert len(held_out) == 12
    everything = sorted(images.rglob("*.png"))
    contents = {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in everything}

    def learned(*words: str) -> set[Path]:
        lookalike_here("export", str(run), "--out", str(tmp_path / "m.onnx"), *words)
        known = Embedder(tmp_path / "m.onnx").training_images
        assert known is not None
        found = known.learned([*contents.values()], [None] * len(contents))
        return {file for file, one in zip(contents, found, strict=True) if one}

    trained = {*everything} - {image.path for image in held_out}
    assert learned("--checkpoint", "last") == trained
    draw_classes(images, 10, 1, first=4)
    assert learned("--checkpoint", "last") == {*everything}


def test_run_without_checkpoint_is_refused(tmp_path: Path) -> None:
    run = Run.start(tmp_path / "run", settings.resolve("digits", None, []))
    with pytest.raises(InputError, match="no such checkpoint"):
        export_run(run, tmp_path / "m.onnx")
