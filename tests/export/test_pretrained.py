"""Exported pretrained backbones equal the library's network on the library's preprocessing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import timm
import torch
import torchvision
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.data import create_transform, resolve_data_config

from export.pretrained import PretrainedBackbone, export_backbone
from retrieval import Embedder, InputError, Preprocess, metrics
from tests.conftest import SHARED, draw, lookalike_here, unzip_shared
from train import data, settings
from train.data import LabelledImage
from train.experiments.evaluation import evaluate_target

GREY = (128 / 255,) * 3


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    """Smooth, non-square images, on which two resizing implementations agree."""
    return [draw(seed, (7, 5), hue=seed).resize((420, 300), Image.Resampling.BICUBIC) for seed in range(4)]


@torch.inference_mode()
def by_library(network: torch.nn.Module, transform: object, images: list[Image.Image]) -> np.ndarray:
    """Unit features float32 [N, D], computed by the library alone."""
    features = network.eval()(torch.stack([transform(image) for image in images]))  # type: ignore[operator]
    return torch.nn.functional.normalize(features.flatten(1)).numpy()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of the network `test_efficientnet`, and what is published about them."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    save_file(timm.create_model("test_efficientnet").state_dict(), folder / "w.safetensors")
    published = {"license": "cc-by-nc-4.0", "hf_hub_id": "someone/model"}
    stated = {"architecture": "test_efficientnet", "pretrained_cfg": published}
    (folder / "config.json").write_text(json.dumps(stated))
    return folder / "w.safetensors"


@pytest.fixture(scope="module")
def of_timm(weights: Path) -> Path:
    """The network with these weights as a model file, with what the command prints beside it."""
    out = weights.with_name("m.onnx")
    words = ("--weights", str(weights), "--out", str(out))
    done = lookalike_here("export", "--from", "timm:test_efficientnet", *words)
    out.with_suffix(".txt").write_text(done.stderr)
    return out


def test_timm_backbone_equals_timm(weights: Path, of_timm: Path, images: list[Image.Image]) -> None:
    theirs, out = timm.create_model("test_efficientnet", num_classes=0), of_timm
    theirs.load_state_dict(load_file(weights), strict=False)  # without the classifier
    stated = out.with_suffix(".txt").read_text()
    assert "licence of the weights: cc-by-nc-4.0: not for commercial use" in stated
    shown = lookalike_here("model", "info", str(out), "--no-latency").stdout
    assert "license  cc-by-nc-4.0: not for commercial use" in shown
    embedder = Embedder(out)
    assert embedder.provenance["license"] == "cc-by-nc-4.0"
    assert embedder.provenance["weights_address"] == "https://huggingface.co/someone/model"
    config = resolve_data_config(model=theirs)
    assert (embedder.preprocess.size, embedder.preprocess.resize) == (160, 168)  # 160 / 0.95
    wanted = by_library(theirs, create_transform(**config), images)
    np.testing.assert_array_less(0.999, (embedder.embed(images) * wanted).sum(1))
    assert embedder.dim == wanted.shape[1]
    assert [o.name for o in onnx.load(out).graph.output] == ["embedding", "embedding_map"]
    assert embedder.provenance["source"] == "timm:test_efficientnet"
    assert settings.parse_config(embedder.provenance["config"]).model.embedding_dim == embedder.dim


def test_exported_class_token_equals_timm(tmp_path: Path, images: list[Image.Image]) -> None:
    torch.manual_seed(0)
    whole = timm.create_model("test_vit")
    save_file(whole.state_dict(), tmp_path / "w.safetensors")
    out, weights = tmp_path / "m.onnx", f"{tmp_path}/w.safetensors"
    export_backbone(PretrainedBackbone("timm", "test_vit", weights, pooling="cls"), out)
    embedder = Embedder(out)
    transform = create_transform(**resolve_data_config(model=whole))
    whole.forward = lambda planes: whole.forward_features(planes)[:, 0]  # type: ignore[method-assign]
    wanted = by_library(whole, transform, images)
    np.testing.assert_array_less(0.999, (embedder.embed(images) * wanted).sum(1))
    assert [o.name for o in onnx.load(out).graph.output] == ["embedding"]


def test_torchvision_backbone_equals_torchvision(tmp_path: Path, images: list[Image.Image]) -> None:
    torch.manual_seed(0)
    whole = torchvision.models.squeezenet1_1()
    save_file(whole.state_dict(), tmp_path / "w.safetensors")
    out = tmp_path / "m.onnx"
    words = ("--weights", f"{tmp_path}/w.safetensors", "--out", str(out))
    stated = lookalike_here("export", "--from", "torchvision:squeezenet1_1", *words).stderr
    assert "mean [0.485, 0.456, 0.406], std [0.229, 0.224, 0.225]: assumed for" in stated
    whole.classifier = torch.nn.AdaptiveAvgPool2d(1)
    transform = torchvision.models.SqueezeNet1_1_Weights.DEFAULT.transforms()
    wanted = by_library(whole, transform, images)
    np.testing.assert_array_less(0.999, (Embedder(out).embed(images) * wanted).sum(1))


def test_size_mean_and_pooling_override_the_defaults(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_file(torchvision.models.squeezenet1_1().state_dict(), tmp_path / "w.safetensors")
    out, weights = tmp_path / "m.onnx", f"{tmp_path}/w.safetensors"
    backbone = PretrainedBackbone("torchvision", "squeezenet1_1", weights, 112, GREY, pooling="gem")
    export_backbone(backbone, out)
    embedder = Embedder(out)
    assert embedder.preprocess == Preprocess(size=112, resize=128, interpolation="bilinear", mean=GREY)
    images = np.stack([embedder.pixels(draw(seed)) for seed in range(3)])
    network = torchvision.models.squeezenet1_1()
    network.load_state_dict(load_file(weights))
    mean, std = (np.array(v, np.float32) for v in (embedder.preprocess.mean, embedder.preprocess.std))
    planes = torch.from_numpy((images.astype(np.float32) / 255 - mean) / std).permute(0, 3, 1, 2)
    with torch.inference_mode():
        features = network.eval().features(planes).clamp(min=1e-6).numpy()
    pooled = np.cbrt((features.astype(np.float64) ** 3).mean((2, 3)))  # generalised mean of power 3
    wanted = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(embedder.embed_pixels(images), wanted, atol=1e-4)


def test_cls_pooling_without_a_class_token_is_refused(tmp_path: Path) -> None:
    save_file(torchvision.models.squeezenet1_1().state_dict(), tmp_path / "w.safetensors")
    weights = f"{tmp_path}/w.safetensors"
    with pytest.raises(InputError, match="squeezenet1_1 has no class token"):
        export_backbone(
            PretrainedBackbone("torchvision", "squeezenet1_1", weights, pooling="cls"), tmp_path / "m.onnx"
        )
    assert [file.name for file in tmp_path.iterdir()] == ["w.safetensors"]


@pytest.fixture(scope="module")
def cars(tmp_path_factory: pytest.TempPathFactory) -> list[LabelledImage]:
    """14 images each of 14 car models, every fourteenth model of the data set."""
    folder = unzip_shared("cars196_256.zip", tmp_path_factory.mktemp("cars"))
    images = data.load(f"folder:{folder}").test
    return [
        image for number, image in zip(data.class_numbers(images), images, strict=True) if number % 14 == 0
    ]


@pytest.mark.slow
def test_pretrained_features_find_cars(cars: list[LabelledImage], tmp_path: Path) -> None:
    """Chance is 13 in 195."""
    file = SHARED / "weights" / "squeezenet1_0_deepcompressed_torchvision.safetensors"
    if not file.is_file():
        pytest.skip(f"needs the weights {file.stem}, which are not on this machine")
    export_backbone(PretrainedBackbone("torchvision", "squeezenet1_0", str(file)), tmp_path / "m.onnx")
    embeddings = Embedder(tmp_path / "m.onnx").embed([image.path for image in cars])
    recall = metrics.recall_at_k(embeddings, data.class_numbers(cars), ks=(1,))[1]
    assert recall > 0.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give RUN or --from LIBRARY:NAME"),
        (("run", "--from", "timm:resnet18"), "give RUN or --from"),
        (("run", "--pooling", "gem"), "--pooling applies to --from timm and --from torchvision only"),
        (("--from", "timm:resnet18", "--checkpoint", "last"), "--checkpoint applies to runs only"),
        (("--from", "timm:resnet81"), "timm: unknown model 'resnet81'; did you mean 'resnet18'?"),
        (("--from", "torchvision:resnet-50"), "did you mean 'resnet50'?"),
        (("--from", "resnet-50"), "did you mean 'resnet50'?"),
        (("--from", "keras:resnet"), "expected one of timm:NAME, torchvision:NAME, open-clip:NAME"),
        (("--from", "timm:"), "expected one of timm:NAME"),
        (("--from", "torchvision:conv4"), "unknown model 'conv4'"),
        (
            ("--from", "timm:resnet18", "--precision", "int8"),
            "int8: needs images to be checked on",
        ),
        (
            ("--from", "torchvision:resnet18", "--weights", "nowhere"),
            "has no weights 'nowhere'; use imagenet",
        ),
    ],
)
def test_wrong_usage_is_reported_and_leaves_no_file(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = lookalike_here("export", *words, "--out", str(tmp_path / "new" / "m.onnx"), code=2)
    (line,) = done.stderr.splitlines()
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_int8_backbone_is_calibrated_on_data(weights: Path, tmp_path: Path, shop: Path) -> None:
    words = ("--weights", str(weights), "--size", "64", "--data", f"folder:{shop}", "--json")
    out = str(tmp_path / "m.onnx")
    last = ("--precision", "int8", "--accept-loss", "--out", out)
    printed = json.loads(lookalike_here("export", "--from", "timm:test_efficientnet", *words, *last).stdout)
    assert printed["calibration"] == f"24 training images of folder:{shop}"
    assert Embedder(out).provenance["calibration"] == printed["calibration"]


def test_pretrained_backbone_is_evaluated_without_a_training_run(of_timm: Path, shop: Path) -> None:
    images = data.load(f"folder:{shop}")
    report = evaluate_target(of_timm, images, ["pixels"])
    assert [result.name for result in report.results] == ["raw pixels", "off the shelf"]
    with pytest.raises(InputError, match="does not come from a training run"):
        evaluate_target(of_timm, images, ["untrained"])
