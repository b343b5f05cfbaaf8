"""LoRA: the network that learns, and the merged one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from retrieval import InputError, Preprocess
from tests.conftest import draw_classes
from train import data, settings
from train.config import ModelConfig, OptimizerConfig
from train.loop.optimization import build_optimizer
from train.loop.run_folder import Run, initial_model
from train.loop.trainer import Trainer
from train.models.embedding_model import EmbeddingModel
from train.models.lora import merge_adapters
from train.models.pretrained_weights import digest_of_weights

VIT = "timm:test_vit"


def network(backbone: str = VIT, **changes: object) -> EmbeddingModel:
    torch.manual_seed(0)
    return EmbeddingModel(ModelConfig(backbone=backbone, embedding_dim=8, **changes), Preprocess(size=32))


def test_updates_start_at_zero_and_alone_are_learned() -> None:
    plain, adapted = network(), network(lora_rank=4)
    pixels = torch.randint(0, 256, (3, 32, 32, 3), dtype=torch.uint8)
    adapted.head.load_state_dict(plain.head.state_dict())
    torch.testing.assert_close(adapted.eval()(pixels), plain.eval()(pixels))
    learned = [name for name, p in adapted.backbone.named_parameters() if p.requires_grad]
    assert len(learned) == len(plain.backbone.network.blocks) * 4 * 2, "qkv, proj, fc1 and fc2 of every block"
    assert all(".lora_A." in name or ".lora_B." in name for name in learned)
    assert digest_of_weights(adapted.backbone) == digest_of_weights(plain.backbone)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
def test_every_update_has_a_gradient(checkpointing: bool) -> None:
    """Also with gradient checkpointing, where the input of the first block needs none."""
    model = network(lora_rank=2, grad_checkpointing=checkpointing, lora_alpha=6.0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_()
    pixels = torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8)
    model(pixels).square().sum().backward()
    for name, parameter in model.backbone.named_parameters():
        assert (parameter.grad is not None and bool(parameter.grad.any())) == (".lora_" in name), name


def test_merged_network_equals_the_adapted_one_with_the_layers_of_the_plain_one() -> None:
    model = network(lora_rank=4, lora_alpha=12.0)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    before = {name: value.clone() for name, value in model.backbone.state_dict().items()}
    pixels = torch.randint(0, 256, (3, 32, 32, 3), dtype=torch.uint8)
    expected = model.eval()(pixels)
    merge_adapters(model)
    torch.testing.assert_close(model(pixels), expected, rtol=1e-4, atol=1e-5)
    plain = network()
    shapes = {name: value.shape for name, value in plain.state_dict().items()}
    assert {name: value.shape for name, value in model.state_dict().items()} == shapes
    assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()]
    layer = "network.blocks.1.mlp.fc1"
    update = before[f"{layer}.lora_B.default.weight"] @ before[f"{layer}.lora_A.default.weight"]
    torch.testing.assert_close(
        model.backbone.state_dict()[f"{layer}.weight"], before[f"{layer}.base_layer.weight"] + 3 * update
    )


def test_updates_have_the_learning_rate_of_their_stage() -> None:
    model = network(lora_rank=2)
    config = OptimizerConfig(lr=1.0, layer_decay=0.5, head_lr=3.0)
    groups = build_optimizer(model, torch.nn.Module(), config).param_groups
    rates = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
    named = dict(model.backbone.named_parameters())
    first, second = (
        rates[id(named[f"network.blocks.{block}.attn.qkv.lora_A.default.weight"])] for block in (0, 1)
    )
    assert first == 0.5 * second


def test_run_is_resumed_and_its_weights_stay(tmp_path: Path) -> None:
    """A run in two parts equals one in one; the network of a run is merged."""
    folder = draw_classes(tmp_path, 4, 4)
    words = [f"model={{backbone: '{VIT}', embedding_dim: 8, lora_rank: 2}}", "preprocess.size=32", "epochs=2"]
    words += ["split.validation=0", "batch={classes: 2, per_class: 2}", "optimizer.lr=0.01"]
    config = settings.resolve(f"folder:{folder}", None, words)
    images = data.load(config.data)
    place = tmp_path.parent / f"{tmp_path.name}-runs"
    whole, parts = (Run.start(place / name, config) for name in ("whole", "parts"))
    Trainer(whole, images).train()
    Trainer(parts, images, epochs=1).train()
    again = Trainer(parts, images)
    again.train(resume=True)
    one, other = whole.trained("last").state_dict(), parts.trained("last").state_dict()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    start = initial_model(config)
    assert digest_of_weights(again.network.model.backbone) == digest_of_weights(start.backbone), "frozen"
    assert digest_of_weights(whole.trained().backbone) != digest_of_weights(start.backbone), "merged"
    assert digest_of_weights(whole.untrained().backbone) == digest_of_weights(start.backbone)
    assert not any("lora" in name for name in one)


def test_unusable_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="conv4 has no attention or MLP layers"):
        network("conv4", lora_rank=2)
    with pytest.raises(InputError, match=r"leave model\.trainable out"):
        ModelConfig(lora_rank=2, trainable=1)
    with pytest.raises(InputError, match=r"no effect without model\.lora_rank"):
        ModelConfig(lora_alpha=2.0)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InputError, match=r"pip install 'lookalike\[lora\]'"):
        network(lora_rank=2)
