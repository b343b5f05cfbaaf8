"""Backbones: features equal to the libraries', each parameter in one stage, helpful errors."""

from __future__ import annotations

import hashlib
import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import Tensor, nn
from torchvision.models import ResNet50_Weights, vision_transformer

from retrieval import InputError, LookalikeError, Preprocess, load_image, metrics
from tests.conftest import SHARED, unzip_shared
from train.config import ModelConfig
from train.models import backbones
from train.models.backbones import Backbone, build_backbone
from train.models.embedding_model import EmbeddingModel

VIT = "timm:vit_tiny_patch16_224:depth=2"


def with_batch_statistics(network: nn.Module) -> nn.Module:
    """Set batch-norm statistics as after training, so that zeros and ones hide no difference."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.bias, 0, 0.2)
            nn.init.normal_(module.running_mean, 0, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return network.eval()


def saved(network: nn.Module, folder: Path) -> str:
    file = folder / "weights.safetensors"
    save_file({name: value.contiguous() for name, value in network.state_dict().items()}, file)
    return str(file)


def planes(size: int) -> Tensor:
    return torch.randn(2, 3, size, size)


def pooled(backbone: Backbone, images: Tensor) -> Tensor:
    return backbone.eval()(images).mean((2, 3))


@pytest.mark.parametrize(
    ("name", "classifier", "options"),
    [
        ("resnet18", "fc", {}),
        ("googlenet", "fc", {"transform_input": True, "init_weights": False}),  # as when it is pretrained
        ("inception_v3", "fc", {"transform_input": True, "init_weights": False}),
        ("densenet121", "classifier", {}),
        ("mobilenet_v3_small", "classifier", {}),
        ("regnet_y_400mf", "fc", {}),
        ("swin_t", "head", {}),
    ],
)
def test_same_features_as_torchvision(
    name: str, classifier: str, options: dict[str, bool], tmp_path: Path
) -> None:
    """Weights are loaded by the classifier's names; features are the input of its last layer."""
    theirs = with_batch_statistics(torchvision.models.get_model(name, weights=None, **options))
    ours = build_backbone(name, saved(theirs, tmp_path), 80)
    setattr(theirs, classifier, nn.Identity())
    images = planes(80)
    with torch.inference_mode():
        torch.testing.assert_close(pooled(ours, images), theirs(images), rtol=1e-4, atol=1e-5)


def test_class_token_of_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision has no small vision transformer: this is one with fewer and narrower layers."""
    build = vision_transformer._vision_transformer
    small = {"num_layers": 3, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 48}
    monkeypatch.setattr(vision_transformer, "_vision_transformer", lambda **given: build(**given | small))
    theirs = torchvision.models.vit_b_32(weights=None, image_size=64).eval()
    nn.init.normal_(theirs.class_token)  # 0 before training
    weights = saved(theirs, tmp_path)
    ours = build_backbone("vit_b_32", weights, 64).eval()
    native = build_backbone("vit_b_32", weights, 64, native=True)
    theirs.heads = nn.Identity()
    images = planes(64)
    with torch.inference_mode():
        torch.testing.assert_close(ours.class_token(images), theirs(images), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(pooled(native, images), theirs(images), rtol=1e-4, atol=1e-5)
    assert [len(stage) for stage in ours.stages()] == [4, *[12] * 2, 14]


@pytest.mark.parametrize(
    ("name", "size"),
    [("mobilenetv2_050:pad_type=same", 72), ("convnext_atto", 64), ("mambaout_femto", 64)],
)
def test_same_features_as_timm(name: str, size: int, tmp_path: Path) -> None:
    options = {"pad_type": "same"} if "same" in name else {}
    theirs = with_batch_statistics(timm.create_model(name.partition(":")[0], **options))
    ours = build_backbone(f"timm:{name}", saved(theirs, tmp_path), size)
    images = planes(size)
    with torch.inference_mode():
        expected = theirs.forward_features(images)
        places = (1, 2) if name.startswith("mambaout") else (2, 3)
        torch.testing.assert_close(pooled(ours, images), expected.mean(places), rtol=1e-4, atol=1e-5)


def test_tokens_and_resampled_positions_equal_timm(tmp_path: Path) -> None:
    """A transformer trained on images of another size; timm's resampling is the reference."""
    large = timm.create_model("vit_tiny_patch16_224", depth=2)
    nn.init.normal_(large.pos_embed)
    theirs = timm.create_model("vit_tiny_patch16_224", depth=2, img_size=80, num_classes=0).eval()
    state = {k: v for k, v in large.state_dict().items() if not k.startswith("head.")}
    theirs.load_state_dict(checkpoint_filter_fn(state, theirs))
    ours = build_backbone(VIT, saved(large, tmp_path), 80).eval()
    images = planes(80)
    with torch.inference_mode():
        tokens = theirs.forward_features(images)  # [2, 1 + 25, 192]
        torch.testing.assert_close(ours.class_token(images), theirs(images), rtol=1e-4, atol=1e-5)
        features = ours(images)
    assert features.shape == (2, 192, 5, 5)
    torch.testing.assert_close(features[:, :, 1, 3], tokens[:, 1 + 5 + 3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "size", "stages"),
    [
        ("conv4", 32, 4),
        ("vgg9", 32, 4),
        ("vgg9-bn", 32, 4),
        ("bn-inception", 64, 5),
        ("resnet18", 64, 5),
        ("googlenet", 64, 5),
        ("squeezenet1_0", 64, 4),
        ("shufflenet_v2_x0_5", 64, 4),
        ("swin_t", 64, 4),
        ("timm:mobilenetv3_small_050", 64, 7),
        ("timm:resnet18", 64, 5),
        (VIT, 32, 3),
    ],
)
def test_each_parameter_is_in_one_stage_and_gets_a_gradient(name: str, size: int, stages: int) -> None:
    backbone = build_backbone(name, None, size)
    found = [id(parameter) for stage in backbone.stages() for parameter in stage]
    assert len(found) == len(set(found))
    assert set(found) == {id(parameter) for parameter in backbone.parameters()}
    assert len(backbone.stages()) == stages
    features = backbone.eval()(planes(size))
    assert features.shape == (2, backbone.channels, backbone.side, backbone.side)
    features.square().sum().backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())


@pytest.mark.parametrize(("name", "batch_norm"), [("vgg9", False), ("vgg9-bn", True)])
def test_vgg9_is_the_beginning_of_vgg13(name: str, batch_norm: bool) -> None:
    ours = build_backbone(name, None, 32)
    whole = (torchvision.models.vgg13_bn if batch_norm else torchvision.models.vgg13)().features
    theirs = [layer for layer in whole if list(layer.parameters())]
    count = (2 if batch_norm else 1) * 8
    layers = [layer for layer in ours.network.modules() if list(layer.parameters(recurse=False))]
    assert [type(layer) for layer in layers] == [type(layer) for layer in theirs[:count]]
    for mine, other in zip(layers, theirs, strict=False):
        other.load_state_dict(mine.state_dict(), strict=False)
        if isinstance(other, nn.Conv2d) and batch_norm:
            nn.init.zeros_(other.bias)  # ours has none before batch norm
    last = list(whole).index(theirs[count - 1]) + 2  # with its ReLU
    images = planes(32)
    with torch.inference_mode():
        torch.testing.assert_close(ours.eval()(images), whole[:last].eval()(images))


def test_batch_norm_spreads_the_embeddings_of_an_untrained_vgg9(tmp_path: Path) -> None:
    """Distances in units of the 0.05 that the Laplacian kernel of DCDL has."""
    folder = unzip_shared("cifar100_32.zip", tmp_path)
    names = ("apple", "bear", "bicycle", "bottle", "cloud", "crab", "fox", "girl", "maple_tree", "whale")
    files = [file for name in names for file in sorted((folder / "train" / name).glob("*.png"))[:10]]
    batch = torch.from_numpy(np.stack([Preprocess(size=32)(load_image(file)) for file in files]))
    medians = {}
    for name in ("vgg9", "vgg9-bn"):
        torch.manual_seed(0)
        network = EmbeddingModel(ModelConfig(backbone=name), Preprocess(size=32))
        with torch.inference_mode():
            medians[name] = torch.pdist(nn.functional.normalize(network(batch))).median().item() / 0.05
    assert medians["vgg9"] < 0.3
    assert 8 < medians["vgg9-bn"] < 16


@pytest.mark.parametrize("name", ["resnet18", "bn-inception", "timm:mobilenetv3_small_050", VIT])
def test_stages_are_in_the_order_of_computation(name: str) -> None:
    backbone = build_backbone(name, None, 64).eval()
    order: dict[int, int] = {}

    def note(module: nn.Module, *_: object) -> None:
        for parameter in module.parameters(recurse=False):
            order.setdefault(id(parameter), len(order))

    for module in backbone.modules():
        module.register_forward_hook(note)
    backbone(planes(64))
    spans = [[order[id(p)] for p in stage if id(p) in order] for stage in backbone.stages()]
    assert all(max(before) < min(after) for before, after in pairwise(filter(None, spans)))


def test_bn_inception_reads_the_published_layout(tmp_path: Path) -> None:
    """Flat names, batch norms of [1, C], BGR channels; the classifier is ignored."""
    network = with_batch_statistics(build_backbone("bn-inception", None, 64)).network
    assert sum(p.numel() for p in network.parameters()) == 10_270_240  # 11,295,240 with 1,000 classes
    published = {"last_linear.weight": torch.zeros(1000, 1024), "last_linear.bias": torch.zeros(1000)}
    for name, value in network.state_dict().items():
        flat = name.replace(".", "_", 1) if name.startswith("inception") else name
        if "num_batches" not in flat:
            published[flat] = (value[None] if "_bn." in flat else value).contiguous()
    assert published["inception_4e_double_3x3_2_bn.running_var"].shape == (1, 256)
    assert published["inception_5b_pool_proj.weight"].shape == (128, 1024, 1, 1)
    save_file(published, tmp_path / "w.safetensors")
    ours = build_backbone("bn-inception", str(tmp_path / "w.safetensors"), 64).eval()
    images = planes(64)
    with torch.inference_mode():
        torch.testing.assert_close(ours(images.flip(1)), network(images))


def test_weights_are_downloaded_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Download from a local server; the digest is checked and standard output stays clean."""
    network = with_batch_statistics(build_backbone("bn-inception", None, 64)).network
    flat = {re.sub(r"(inception_..)\.", r"\1_", name): value for name, value in network.state_dict().items()}
    torch.save(flat, tmp_path / "draft")
    digest = hashlib.sha256((tmp_path / "draft").read_bytes()).hexdigest()
    (tmp_path / "draft").rename(tmp_path / f"w-{digest[:9]}.pth")
    (tmp_path / "w-000000000.pth").write_bytes(b"other")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving(tmp_path) as address:
        monkeypatch.setattr(backbones, "WEIGHTS_URL", f"{address}/w-{digest[:9]}.pth")
        ours = build_backbone("bn-inception", "imagenet", 64).eval()
        images = planes(64)
        with torch.inference_mode():
            torch.testing.assert_close(ours(images.flip(1)), network(images))
        for name, message in (("w-000000000", "hash"), ("w-111111111", "404")):
            monkeypatch.setattr(backbones, "WEIGHTS_URL", f"{address}/{name}.pth")
            with pytest.raises(LookalikeError, match=f"bn-inception cannot be downloaded .*{message}"):
                build_backbone("bn-inception", "imagenet", 64)
    monkeypatch.setenv("https_proxy", address)  # the server has stopped
    monkeypatch.delenv("no_proxy")
    with pytest.raises(LookalikeError, match=r"resnet18 cannot be downloaded .* give a \.safetensors file"):
        build_backbone("resnet18", "imagenet", 64)
    assert capfd.readouterr().out == ""


def test_unreachable_hub_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path) as address:
        pass
    monkeypatch.setenv("https_proxy", address)  # the server has stopped
    huggingface_hub.close_session()
    try:
        with pytest.raises(
            LookalikeError, match=r"timm:resnet18: the hub .* refused\); .* with the weights lite0"
        ):
            build_backbone("timm:resnet18", "imagenet", 64)
    finally:
        huggingface_hub.close_session()
    assert "Retrying" not in capfd.readouterr().err


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("size", "side"), [(224, 7), (112, 4), (100, 3), (64, 2)])
def test_bn_inception_takes_odd_sides(size: int, side: int) -> None:
    assert build_backbone("bn-inception", None, size).side == side


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet8", "did you mean 'resnet18'"),
        ("vgg10", "did you mean 'vgg1"),
        ("mobilenetv2_100", "write 'timm:mobilenetv2_100'"),
        ("resnet18.a1_in1k", "write 'timm:resnet18.a1_in1k'"),
        ("timm:resnt18", "did you mean 'timm:resnet18'"),
        ("timm:hf-hub:someone/something", "unknown timm model"),
        ("no network at all", "known: conv4"),
        ("timm:resnet18:chekpoint", "not an option"),
        ("timm:resnet18:checkpoint_path=x.pth", "not an option"),
        ("timm:resnet18:pretrained_cfg=x", "not an option"),
        ("timm:resnet18:block_args={a: 1}", "not an option"),
        ("timm:resnet18:padding=3", "unexpected keyword"),
        ("timm:pit_ti_224", "form no square map"),
        ("timm:coat_mini", "one feature map"),
        ("inception_v3", "cannot process images of 64 x 64"),
        ("timm:vit_tiny_patch16_224:depth=1,patch_size=128", "64 x 64"),
    ],
)
def test_unusable_names_and_sizes_are_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_backbone(name, None, 64)


def test_unusable_weights_are_refused(tmp_path: Path) -> None:
    save_file({"conv1.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"broken")
    for name, message in (
        ("other", "another network"),
        ("broken", "not a readable"),
        ("none", "not a readable"),
    ):
        with pytest.raises(InputError, match=message):
            build_backbone("resnet18", str(tmp_path / f"{name}.safetensors"), 32)
    deeper = saved(torchvision.models.resnet34(weights=None), tmp_path)
    with pytest.raises(InputError, match="another network"):
        build_backbone("resnet18", deeper, 32)
    with pytest.raises(InputError, match="no published weights"):
        build_backbone("conv4", "imagenet", 32)


def test_unknown_weights_name_those_of_the_backbone() -> None:
    known = r"use imagenet, imagenet1k_v1, imagenet1k_v2, or a \.safetensors file"
    with pytest.raises(InputError, match=f"model.weights: resnet50 has no weights 'imagenet1k_v3'; {known}"):
        build_backbone("resnet50", "imagenet1k_v3", 32)
    with pytest.raises(InputError, match=r"has no weights 'imagenet1k_v1'; use imagenet, or a \.safetensors"):
        build_backbone("timm:resnet18", "imagenet1k_v1", 32)


@pytest.fixture(scope="module")
def resnet50() -> dict[str, Tensor]:
    """Weights of torchvision's network."""
    return with_batch_statistics(torchvision.models.resnet50(weights=None)).state_dict()


@pytest.mark.parametrize(
    ("weights", "theirs"),
    [
        ("imagenet", ResNet50_Weights.IMAGENET1K_V2),
        ("IMAGENET1K_V1", ResNet50_Weights.IMAGENET1K_V1),
        ("imagenet1k_v1", ResNet50_Weights.IMAGENET1K_V1),
        ("imagenet1k_v2", ResNet50_Weights.IMAGENET1K_V2),
    ],
)
def test_named_weights_are_those_of_torchvision(
    weights: str,
    theirs: ResNet50_Weights,
    resnet50: dict[str, Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def download(url: str, **_: bool) -> dict[str, Tensor]:
        asked.append(url)
        return resnet50

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", download)
    ours = build_backbone("resnet50", weights, 32).network.state_dict()
    assert set(asked) == {theirs.url}
    assert torch.equal(ours["layer4.2.bn3.running_mean"], resnet50["layer4.2.bn3.running_mean"])


class _Attack:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self._file, "owned")


def test_code_in_weights_of_torchvision_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    cached = tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth"
    cached.parent.mkdir(parents=True)
    torch.save({"fc.bias": _Attack(tmp_path / "owned")}, cached)
    with pytest.raises(LookalikeError, match="resnet18 contains more than weights"):
        build_backbone("resnet18", "imagenet", 32)
    assert not (tmp_path / "owned").exists()


def test_classifier_may_be_missing(tmp_path: Path) -> None:
    state = torchvision.models.resnet18(weights=None).state_dict()
    kept = {name: value.half() for name, value in state.items() if not name.startswith("fc.")}
    save_file(kept, tmp_path / "w.safetensors")
    loaded = build_backbone("resnet18", str(tmp_path / "w.safetensors"), 32).network.state_dict()
    assert torch.equal(loaded["layer4.1.conv2.weight"], kept["layer4.1.conv2.weight"].float())
    assert all(value.dtype != torch.float16 for value in loaded.values())


@pytest.mark.parametrize(
    ("name", "file", "statistics"),
    [
        (
            "timm:mobilenetv2_100:pad_type=same",
            "mobilenetv2_100_in1k_timm_same.safetensors",
            ((128 / 255,) * 3, (128 / 255,) * 3),
        ),
        (
            "squeezenet1_0",
            "squeezenet1_0_deepcompressed_torchvision.safetensors",
            ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ),
    ],
)
def test_pretrained_weights_improve_recall_on_cars(
    name: str, file: str, statistics: tuple[tuple[float, float, float], ...], tmp_path: Path
) -> None:
    weights = SHARED / "weights" / file
    if not weights.is_file():
        pytest.skip(f"needs the weights {file}, which are not on this machine")
    every = sorted(unzip_shared("cars196_256.zip", tmp_path).rglob("*.jpg"))
    paths = [path for path in every if int(path.parent.name[:3]) % 20 == 1]
    _, labels = np.unique([path.parent.name for path in paths], return_inverse=True)
    preprocess = Preprocess(size=112, mean=statistics[0], std=statistics[1])
    pixels = torch.from_numpy(np.stack([preprocess(load_image(path)) for path in paths]))
    recall = {}
    for which in (str(weights), None):
        model = EmbeddingModel(ModelConfig(backbone=name, weights=which), preprocess).eval()
        with torch.inference_mode():
            features = [model.features(batch).mean((2, 3)) for batch in pixels.split(32)]
        unit = nn.functional.normalize(torch.cat(features)).numpy()
        recall[which] = metrics.recall_at_k(unit, labels, ks=(1,))[1]
    assert recall[str(weights)] > recall[None] + 0.1
