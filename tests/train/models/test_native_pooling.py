"""Native pooling: the embedding of the library, for its families of networks, also in the ONNX file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import export.cost
from export.model_file import ExportOptions
from export.pretrained import PretrainedBackbone, export_backbone
from retrieval import Embedder, InputError, Preprocess
from train.config import ModelConfig
from train.models.backbones import Backbone, build_backbone
from train.models.embedding_model import EmbeddingModel, headless_model
from train.pretrained_configs import has_projection

TINY = "depth=1,embed_dim=48,num_heads=2"


def trained(network: nn.Module) -> nn.Module:
    """Change the norms, biases and statistics as training does: at ones and zeros they hide a difference."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim < 2 or not parameter.any():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        for name, buffer in network.named_buffers():
            if name.endswith("running_var"):
                buffer += torch.rand(buffer.shape, generator=generator)
    return network.eval()


def saved(network: nn.Module, folder: Path) -> str:
    file = folder / "weights.safetensors"
    save_file({name: value.contiguous() for name, value in network.state_dict().items()}, file)
    return str(file)


def of_timm(spec: str, size: int) -> nn.Module:
    name, _, options = spec.partition(":")
    values: dict[str, object] = {
        key: int(value) for key, value in (option.split("=") for option in options.split(",") if option)
    }
    if timm.get_pretrained_cfg(name).fixed_input_size:
        values["img_size"] = size
    return trained(timm.create_model(name, **values))


def native(backbone: Backbone, planes: Tensor) -> Tensor:
    with torch.inference_mode():
        return backbone.eval()(planes).mean((2, 3))


# Name, side, dimension of the embedding, and whether it is the mean of a map. Dimensions other than 48 are
# those of projections, and of networks whose width is no option.
FAMILIES = {
    "siglip": (f"vit_base_patch16_siglip_224:{TINY}", 64, 48, False),
    "siglip2": (f"vit_base_patch16_siglip_224.v2_webli:{TINY}", 64, 48, False),
    "naflexvit": (f"naflexvit_base_patch16_siglip:{TINY}", 64, 48, False),
    "clip": (f"vit_base_patch16_clip_224.openai:{TINY}", 64, 512, False),
    "clip-classifier": (f"vit_base_patch16_clip_224.openai_ft_in1k:{TINY}", 64, 48, False),
    "pe-core": (f"vit_pe_core_tiny_patch16_384:{TINY}", 64, 512, False),
    "eva02-clip": (f"eva02_base_patch16_clip_224:{TINY}", 64, 512, False),
    "eva02": (f"eva02_tiny_patch14_224:{TINY}", 56, 48, False),
    "dinov2": (f"vit_small_patch14_reg4_dinov2:{TINY}", 56, 48, False),
    "dinov3": (f"vit_small_patch16_dinov3:{TINY}", 64, 48, True),
    "aimv2": (f"aimv2_large_patch14_224:{TINY}", 56, 48, True),
    "c-radio": (f"vit_base_patch16_radio_v3:{TINY}", 64, 48, False),
    "tipsv2": (f"vit_base_patch14_reg1_tipsv2:{TINY}", 56, 48, False),
    "hiera": ("hiera_tiny_224:embed_dim=16", 64, 128, False),
    "swin": ("swin_tiny_patch4_window7_224:embed_dim=12", 64, 96, True),
    "convnext": ("test_convnext", 64, 64, False),
    "mobilenetv4": ("mobilenetv4_conv_small_035", 64, 1280, False),
    "mobileclip": ("fastvit_mci0.apple_mclip", 64, 512, False),
    "fastvit": ("fastvit_t8.apple_in1k", 64, 768, True),
    "resnet-clip": ("resnet50_clip.openai", 64, 1024, False),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_embedding_is_that_of_timm(family: str, tmp_path: Path) -> None:
    """With the weights of the whole network; a classifier's last layer is not needed."""
    spec, size, dim, is_mean = FAMILIES[family]
    torch.manual_seed(0)
    theirs = of_timm(spec, size)
    ours = build_backbone(f"timm:{spec}", saved(theirs, tmp_path), size, native=True)
    planes = torch.randn(2, 3, size, size)
    with torch.inference_mode():
        whole = theirs(planes)
        features = theirs.forward_features(planes)
        is_classifier = theirs.num_classes == 1000
        wanted = theirs.forward_head(features, pre_logits=True) if is_classifier else whole
    torch.testing.assert_close(native(ours, planes), wanted, rtol=1e-5, atol=1e-5)
    assert (ours.channels, ours.layout != "vector") == (dim, is_mean)
    names = [id(parameter) for stage in ours.stages() for parameter in stage]
    assert sorted(names) == sorted(map(id, ours.parameters()))
    assert all(any(p.ndim > 1 for p in stage) for stage in ours.stages())


def test_projections_are_those_of_towers_for_text() -> None:
    """All names of timm: CLIP and its successors have a projection, classifiers tuned from them have none."""
    names = [name for name in timm.list_models(pretrained=True) if has_projection(name)]
    assert len(names) > 100
    towers = ("clip", "pe_core", "apple_mclip", "vitamin")
    assert [name for name in names if not any(word in name for word in towers) or "_ft_in" in name] == []
    without = set(timm.list_models(pretrained=True)) - set(names)
    rest = {name for name in without if any(word in name for word in towers)}
    assert all("_ft_in" in name or timm.get_pretrained_cfg(name).num_classes == 0 for name in rest)


@pytest.mark.parametrize(
    ("name", "last", "dim", "is_mean"),
    [
        ("mobilenet_v3_small", "classifier.3", 1024, False),
        ("shufflenet_v2_x0_5", "fc", 1024, True),
    ],
)
def test_embedding_is_the_input_of_the_last_layer_of_torchvision(
    name: str, last: str, dim: int, is_mean: bool, tmp_path: Path
) -> None:
    theirs = trained(torchvision.models.get_model(name, weights=None))
    ours = build_backbone(name, saved(theirs, tmp_path), 64, native=True)
    theirs.set_submodule(last, nn.Identity())
    planes = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(native(ours, planes), theirs(planes), rtol=1e-5, atol=1e-5)
    assert (ours.channels, ours.layout != "vector") == (dim, is_mean)
    assert all(any(p.ndim > 1 for p in stage) for stage in ours.stages())


@pytest.mark.parametrize(
    ("family", "precision"),
    [
        ("siglip2", "fp32"),
        pytest.param("clip", "fp16", marks=pytest.mark.slow),
        pytest.param("dinov3", "fp32", marks=pytest.mark.slow),
    ],
)
def test_model_file_has_the_embedding_of_the_library(
    family: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export.cost, "_SECONDS", 0.0)  # the latency of fp16 is not the point
    spec, size, dim, is_mean = FAMILIES[family]
    torch.manual_seed(0)
    theirs, out = of_timm(spec, size), tmp_path / "m.onnx"
    source = PretrainedBackbone("timm", spec, saved(theirs, tmp_path), size, pooling="native")
    options = ExportOptions(precision)
    export_backbone(source, out, data=None if precision == "fp32" else "noise", options=options)
    embedder = Embedder(out)
    pixels = np.random.default_rng(0).integers(0, 256, (3, size, size, 3), np.uint8)
    mean, std = (torch.tensor(value) for value in (embedder.preprocess.mean, embedder.preprocess.std))
    with torch.inference_mode():
        planes = ((torch.from_numpy(pixels) / 255 - mean) / std).permute(0, 3, 1, 2)
        wanted = nn.functional.normalize(theirs(planes)).numpy()
    tolerance = 1e-5 if precision == "fp32" else 2e-3
    np.testing.assert_allclose(embedder.embed_pixels(pixels), wanted, rtol=0, atol=tolerance)
    assert (embedder.dim, embedder.has_map) == (dim, is_mean)


def test_head_is_trained_on_the_native_embedding() -> None:
    """The projection is a stage of its own, the last of the backbone; it gets gradients with it."""
    spec, size, dim, _ = FAMILIES["clip"]
    preprocess = Preprocess(size=size)
    config = ModelConfig(backbone=f"timm:{spec}", pooling="native", embedding_dim=8, trainable=1)
    model = EmbeddingModel(config, preprocess)
    images = torch.randint(0, 256, (2, size, size, 3), dtype=torch.uint8)
    assert model.pooled(images).shape == (2, dim)
    assert not model.has_map
    model(images).square().sum().backward()
    learned = {name for name, p in model.backbone.named_parameters() if p.grad is not None}
    assert learned == {"network.head.weight", "network.head.bias"}
    headless = headless_model(config, preprocess)
    assert headless.config.embedding_dim == dim


def test_mean_of_a_map_stays_a_map() -> None:
    """Native pooling of a network whose library takes the mean equals mean pooling, with its map."""
    images = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    found = []
    for pooling in ("mean", "native"):
        torch.manual_seed(0)
        config = ModelConfig(backbone="timm:test_efficientnet", pooling=pooling, embedding_dim=8)
        model = EmbeddingModel(config, Preprocess(size=64)).eval()
        assert model.has_map
        with torch.inference_mode():
            found.append((model(images), model.maps(images)))
    for mean, own in zip(*found, strict=True):
        assert torch.equal(mean, own)


def test_network_without_one_embedding_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VisionTransformer, "forward_head", lambda self, x, pre_logits=False: x)
    with pytest.raises(InputError, match=r"pooling: timm:test_vit does not return one embedding; use mean"):
        build_backbone("timm:test_vit", None, 64, native=True)
