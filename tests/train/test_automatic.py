"""Automatic settings are chosen once, by backbone and weights; explicit values win; config.yaml is plain."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
import timm
import torch
import yaml
from safetensors.torch import save_file
from timm.models import save_for_hf
from torchvision.models import squeezenet1_1

from retrieval import Preprocess
from tests.conftest import lookalike_here
from train import automatic, recipes, settings
from train.config import Config
from train.experiments.experiment import Experiment
from train.loop.run_folder import initial_model

IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
HALF = ([0.5] * 3, [0.5] * 3)
SIGLIP = ["model.backbone=timm:vit_base_patch16_siglip_224", "model.weights=imagenet"]


def resolved(*words: str, recipe: str | None = None) -> tuple[Config, list[str]]:
    notes: list[str] = []
    return settings.resolve("folder:x", recipe, words, notes), notes


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], Preprocess(size=64)),
        (["model.backbone=resnet50"], Preprocess(size=64)),  # random weights
        (["preprocess.size=96"], Preprocess(size=96)),
        (["model={backbone: resnet50, weights: imagenet}"], Preprocess(224, 232, "crop", "bilinear")),
        (["model={backbone: resnet50, weights: imagenet1k_v1}"], Preprocess(224, 256, "crop", "bilinear")),
        (SIGLIP, Preprocess(224, 248, "crop", "bicubic", *HALF)),
        ([*SIGLIP, "preprocess.size=112"], Preprocess(112, 124, "crop", "bicubic", *HALF)),
        ([*SIGLIP, "preprocess.resize=null"], Preprocess(224, None, "crop", "bicubic", *HALF)),
        # The margin belongs to the published way to fit an image.
        ([*SIGLIP, "preprocess.fit=squeeze"], Preprocess(224, None, "squeeze", "bicubic", *HALF)),
        (
            [*SIGLIP, f"preprocess.mean={IMAGENET[0]}", "preprocess.interpolation=bilinear"],
            Preprocess(224, 248, "crop", "bilinear", IMAGENET[0], HALF[1]),
        ),
        (["model={backbone: vit_b_16, weights: w.safetensors}"], Preprocess(224, 256, "crop", "bilinear")),
        (
            ["model={backbone: 'timm:convnext_base.fb_in22k_ft_in1k_384', weights: a/w.safetensors}"],
            Preprocess(384, 384, "squeeze"),
        ),
    ],
)
def test_preprocessing_is_the_published_one_unless_given(words: list[str], expected: Preprocess) -> None:
    config, notes = resolved(*words)
    assert config.preprocess == expected
    assert len(notes) == (config.model.weights is not None)
    again = yaml.safe_load(config.to_yaml())
    assert settings.parse_config(again) == settings.complete(again) == config


def test_mean_that_is_assumed_for_a_file_is_stated() -> None:
    words = ["model={backbone: resnet50, weights: w.safetensors}"]
    _, (note,) = resolved(*words)
    assert "mean [0.485, 0.456, 0.406], std [0.229, 0.224, 0.225]" in note
    assert "assumed for w.safetensors" in note
    assert Experiment("folder:x", None, settings.parse_changes(words)).notes() == [note]
    _, (note,) = resolved(*words, "preprocess.mean=[0.5, 0.5, 0.5]")
    assert "mean [" not in note


def test_config_file_of_the_hub_states_the_preprocessing(tmp_path: Path) -> None:
    """As timm writes it beside the weights for the Hugging Face hub; another architecture's is left alone."""
    network = timm.create_model("test_vit")
    network.pretrained_cfg |= {"mean": (0.1, 0.2, 0.3), "crop_pct": 0.8, "crop_mode": "squash"}
    save_for_hf(network, tmp_path, safe_serialization=True)
    weights = f"model.weights={tmp_path}/model.safetensors"
    config, (note,) = resolved("model.backbone=timm:test_vit", weights)
    published = timm.get_pretrained_cfg("test_vit")
    expected = Preprocess(160, 200, "squeeze", "bicubic", (0.1, 0.2, 0.3), tuple(published.std))
    assert config.preprocess == expected
    assert note.endswith(f"as stated in {tmp_path}/config.json")
    config, (note,) = resolved("model.backbone=timm:test_vit2", weights)
    assert config.preprocess.mean == tuple(timm.get_pretrained_cfg("test_vit2").mean)
    assert "assumed for" in note


@pytest.mark.parametrize(
    ("backbone", "pooling", "rates"),
    [
        ("timm:vit_small_patch14_reg4_dinov2.lvd142m", "cls", (3e-5, 3e-4)),
        ("timm:vit_base_patch16_siglip_224", "mean", (3e-5, 3e-4)),
        ("vit_b_16", "cls", (3e-5, 3e-4)),
        ("convnext_tiny", "mean", (3e-5, 3e-4)),
        ("resnet50", "mean", (1e-4, 1e-3)),
        ("timm:mobilenetv3_large_100", "mean", (1e-4, 1e-3)),
        ("bn-inception", "mean", (1e-4, 1e-3)),
    ],
)
def test_catalogue_suits_the_backbone(backbone: str, pooling: str, rates: tuple[float, float]) -> None:
    config, notes = resolved(f"model.backbone={backbone}", recipe="catalogue")
    assert (config.model.pooling, config.optimizer.lr, config.optimizer.head_lr) == (pooling, *rates)
    assert (config.preprocess.size, config.preprocess.scaled) == (224, 224)
    assert [note.split()[0].rstrip(":") for note in notes] == ["preprocess", "model.pooling", "optimizer.lr"]
    random, _ = resolved(f"model.backbone={backbone}", "model.weights=null", recipe="catalogue")
    assert (random.optimizer.lr, random.optimizer.head_lr) == (1e-3, 1e-3)


def test_explicit_values_win() -> None:
    words = ["model.pooling=gem", "optimizer.lr=1e-5", "optimizer.head_lr=null"]
    config, _ = resolved("model.backbone=resnet50", *words, recipe="catalogue")
    assert (config.model.pooling, config.optimizer.lr, config.optimizer.head_lr) == ("gem", 1e-5, None)


def test_runs_of_before_and_rows_of_papers_are_not_chosen_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row of a paper with pretrained weights, and no complete config.yaml, asks a library."""
    old = resolved(*SIGLIP, "preprocess.resize=null")[0].to_dict()

    def ask(*_: Any) -> NoReturn:
        raise AssertionError

    monkeypatch.setattr(automatic, "published_preprocess", ask)
    monkeypatch.setattr(automatic, "traits", ask)
    assert settings.complete(old).to_dict() == old
    for row in recipes.all_rows():
        if row.reason is None:
            settings.complete({"data": row.data, **row.settings})


@pytest.mark.parametrize(
    ("backbone", "pooling"),
    [("timm:test_vit", "cls"), ("timm:test_efficientnet", "mean"), ("squeezenet1_1", "mean")],
)
def test_catalogue_takes_other_backbones(backbone: str, pooling: str, tmp_path: Path) -> None:
    name = backbone.removeprefix("timm:")
    network = timm.create_model(name) if name != backbone else squeezenet1_1()
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    changes = [f"model.backbone={backbone}", f"model.weights={tmp_path}/w.safetensors", "preprocess.size=64"]
    config, _ = resolved(*changes, recipe="catalogue")
    embeddings = initial_model(config)(torch.zeros(2, 64, 64, 3, dtype=torch.uint8))
    assert (embeddings.shape, config.model.pooling) == ((2, 256), pooling)


def test_a_run_keeps_the_values_that_training_states(tmp_path: Path, shop: Path) -> None:
    """In config.yaml; --resume chooses nothing."""
    save_file(squeezenet1_1().state_dict(), tmp_path / "w.safetensors")
    run = str(tmp_path / "run")
    changes = [
        "model={backbone: squeezenet1_1, embedding_dim: 8}",
        "preprocess={size: 48}",
        "batch={classes: 2, per_class: 2, per_epoch: 1}",
        "split.validation=0",
        "patience=null",
        f"model.weights={tmp_path}/w.safetensors",
        "model.pooling=auto",
        "optimizer.lr=auto",
        "epochs=1",
    ]
    words = [word for change in changes for word in ("--set", change)]
    stated = lookalike_here("train", "--data", f"folder:{shop}", "--out", run, *words).stderr
    for line in (
        "assumed for",
        "model.pooling: mean",
        "optimizer.lr 3.0e-05; for pretrained weights without",
    ):
        assert line in stated
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    published = {"size": 48, "resize": 55, "fit": "crop", "interpolation": "bilinear"}  # 48 x 256 / 224
    assert kept["preprocess"] == {**published, "mean": IMAGENET[0], "std": IMAGENET[1]}
    assert (kept["model"]["pooling"], kept["optimizer"]["lr"]) == ("mean", 3e-5)
    resumed = lookalike_here("train", "--out", run, "--resume").stderr
    assert "model.pooling" not in resumed
