"""Embedding model: pooling, embedding maps and frozen parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.layers import DropPath
from torch import Tensor, nn
from torchvision.models import efficientnet_b0
from torchvision.ops import StochasticDepth

from retrieval import InputError, Preprocess
from train.config import ModelConfig
from train.models.embedding_model import EmbeddingModel, synchronise_batch_norm

VIT = "timm:vit_tiny_patch16_224:depth=2"


def network(size: int = 32, *, pretrained: bool = True, **settings: object) -> EmbeddingModel:
    config = ModelConfig(**{"embedding_dim": 12, **settings})
    return EmbeddingModel(config, Preprocess(size=size), pretrained=pretrained)


def images(size: int = 32, count: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize(
    ("backbone", "size"),
    [
        ("conv4", 50),
        ("vgg9-bn", 32),
        ("bn-inception", 96),
        ("resnet18", 70),
        ("squeezenet1_0", 64),
        ("timm:mambaout_femto", 64),  # features come as [N, h, w, C]
        (VIT, 48),
    ],
)
@pytest.mark.parametrize("pooling", ["mean", "spatial"])
def test_mean_of_the_map_is_the_embedding(backbone: str, size: int, pooling: str) -> None:
    model = network(size, backbone=backbone, pooling=pooling).eval()
    with torch.inference_mode():
        raw, maps = model(images(size)), model.maps(images(size))
    assert model.has_map
    assert raw.shape == (3, 12)
    assert maps.shape == (3, model.backbone.side, model.backbone.side, 12)
    assert model.backbone.side > 1
    torch.testing.assert_close(maps.mean((1, 2)), raw, rtol=1e-4, atol=1e-5)


def test_map_has_the_orientation_of_the_image() -> None:
    """A change in the lower left corner changes the lower left of the map."""
    for backbone, size in (("conv4", 64), (VIT, 64)):
        model = network(size, backbone=backbone).eval()
        before = images(size, 1)
        after = before.clone()
        after[:, -4:, :4] = 255 - after[:, -4:, :4]
        with torch.inference_mode():
            change = (model.maps(before) - model.maps(after)).norm(dim=3)[0]  # [h, w]
        assert change.argmax() == change.numel() - len(change), backbone


def test_pixels_are_normalised_inside() -> None:
    """An image of the mean colour is all zeros for the backbone."""
    preprocess = Preprocess(size=8, mean=(51 / 255, 102 / 255, 153 / 255))
    model = EmbeddingModel(ModelConfig(embedding_dim=4), preprocess).eval()
    image = torch.tensor([51, 102, 153], dtype=torch.uint8).expand(1, 8, 8, 3)
    zeros = model.backbone(torch.zeros(1, 3, 8, 8))
    torch.testing.assert_close(model.features(image), zeros, atol=1e-6, rtol=0)


@given(st.floats(0.5, 8), st.integers(0, 2**16))
def test_generalised_mean(power: float, seed: int) -> None:
    """Equals torch's power-average pooling and is between the minimum and the maximum."""
    model = gem_model()
    features = torch.rand(2, 5, 4, 4, generator=torch.Generator().manual_seed(seed)) + 1e-3
    model.backbone = Given(features)
    with torch.no_grad():
        model.power.fill_(power)
        pooled = model.pooled(images(8, 2))
    expected = nn.functional.lp_pool2d(features, power, 4)[:, :, 0, 0] / 16 ** (1 / power)
    torch.testing.assert_close(pooled, expected, rtol=1e-4, atol=1e-6)
    assert (pooled >= features.amin((2, 3)) - 1e-5).all()
    assert (pooled <= features.amax((2, 3)) + 1e-5).all()


def gem_model() -> EmbeddingModel:
    return network(8, pooling="gem")


class Given(nn.Module):
    """Backbone with fixed features."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.chosen = features

    def forward(self, _: Tensor) -> Tensor:
        return self.chosen


def test_generalised_mean_learns_its_power() -> None:
    model = gem_model()
    assert model.power is not None
    assert model.power.item() == 3
    assert any(p is model.power for p in model.head_parameters())
    assert not model.has_map
    model(images(8)).square().sum().backward()
    assert model.power.grad is not None
    assert torch.isfinite(model.power.grad)


def test_class_token_requires_a_transformer() -> None:
    model = network(backbone=VIT, pooling="cls")
    assert model(images()).shape == (3, 12)
    assert not model.has_map
    with pytest.raises(InputError, match="no class token"):
        network(pooling="cls")


@pytest.mark.parametrize(
    ("init", "spread"),
    [("uniform", 1 / 8 / 3**0.5), ("xavier", (2 / (64 + 256)) ** 0.5), ("kaiming", (2 / 256) ** 0.5)],
)
def test_initial_spread_of_the_embedding_layer(init: str, spread: float) -> None:
    """Standard deviations of the papers' initialisations for 64 inputs and 256 outputs."""
    torch.manual_seed(0)
    head = network(8, embedding_dim=256, init=init).head
    assert head.weight.std().item() == pytest.approx(spread, rel=0.03)
    assert not head.bias.any()


def test_dropout_is_active_in_training_only() -> None:
    model = network(dropout=0.5, backbone="vgg9-bn")
    assert not torch.equal(model(images()), model(images()))
    model.eval()
    assert torch.equal(model(images()), model(images()))


def train_a_step(model: EmbeddingModel) -> set[str]:
    """Take one step in training mode; return the names of all changed tensors of the backbone."""
    before = {name: value.clone() for name, value in model.backbone.state_dict().items()}
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=0.01, weight_decay=0.1)
    model.eval()
    model.train()
    model(images()).square().sum().backward()
    optimizer.step()
    return {
        name for name, value in model.backbone.state_dict().items() if not torch.equal(value, before[name])
    }


@pytest.mark.parametrize("backbone", ["resnet18", "timm:mobilenetv3_small_050"])
def test_frozen_batch_norm_is_bit_identical(backbone: str) -> None:
    model = network(backbone=backbone, batch_norm="frozen")
    norms = {
        f"{name}.{part}"
        for name, module in model.backbone.named_modules()
        if isinstance(module, nn.BatchNorm2d)
        for part in module.state_dict()
    }
    changed = train_a_step(model)
    assert norms
    assert not changed & norms
    others = {name for name in model.backbone.state_dict() if name not in norms}
    assert changed == others


def test_batch_norm_is_trained_by_default() -> None:
    model = network(backbone="resnet18")
    assert train_a_step(model) == set(model.backbone.state_dict())


@pytest.mark.parametrize("backbone", ["resnet18", VIT + ",drop_path_rate=0.5,proj_drop_rate=0.5"])
@pytest.mark.parametrize("trainable", [0, 1, 2])
def test_only_the_last_stages_learn(backbone: str, trainable: int) -> None:
    torch.manual_seed(0)  # by chance, every path of an image may be dropped
    model = network(backbone=backbone, trainable=trainable)
    stages = model.stages()
    learning = {id(p) for stage in stages[len(stages) - trainable :] for p in stage}
    names = {name: id(p) for name, p in model.backbone.named_parameters()}
    changed = train_a_step(model)
    assert {names[name] for name in changed & set(names)} == learning
    if trainable == 0:
        assert not changed, "running statistics must not change"
        assert torch.equal(model.features(images()), model.features(images())), "no dropout"
    elif backbone.startswith(VIT):
        dropping = [m.training for m in model.backbone.modules() if isinstance(m, nn.Dropout) and m.p > 0]
        assert any(dropping)
        assert trainable == 2 or not all(dropping)


def test_too_many_trainable_stages_are_refused() -> None:
    with pytest.raises(InputError, match="conv4 has 4 stages, not 5"):
        network(trainable=5)


def kept_bytes(model: EmbeddingModel, loss: Callable[[], Tensor]) -> int:
    """Run a backward pass; return the bytes of the activations that the forward pass kept for it."""
    own, kept = {p.data_ptr() for p in model.parameters()}, {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        value = loss()
    value.backward()
    return sum(kept.values())


@pytest.mark.parametrize(
    ("backbone", "changes"),
    [
        ("timm:test_vit", {"pooling": "cls", "drop_path": 0.3}),
        ("timm:test_efficientnet", {"batch_norm": "frozen"}),
        ("resnet18", {"batch_norm": "frozen", "trainable": 2}),
    ],
    ids=str,
)
def test_gradient_checkpointing_keeps_less_and_changes_nothing(backbone: str, changes: dict) -> None:
    """Also with blocks dropped at random; in evaluation mode it is off."""
    gradients, sizes = [], []
    for enabled in (False, True):
        torch.manual_seed(0)
        model = network(backbone=backbone, grad_checkpointing=enabled, size=64, **changes)
        pixels = torch.randint(0, 256, (4, 64, 64, 3), dtype=torch.uint8)
        sizes.append(kept_bytes(model, lambda m=model, x=pixels: m(x).square().sum()))
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
        flags = [getattr(part, "grad_checkpointing", False) for part in model.eval().modules()]
        assert not any(flags)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)
    assert sizes[1] < 0.6 * sizes[0]


def test_stochastic_depth_is_that_of_the_library() -> None:
    ours = network(backbone="timm:test_vit", drop_path=0.3, size=160)
    theirs = timm.create_model("test_vit", drop_path_rate=0.3)
    rates = [[m.drop_prob for m in one.modules() if isinstance(m, DropPath)] for one in (ours, theirs)]
    assert rates[0] == rates[1]
    assert max(rates[0]) == pytest.approx(0.3)
    ours = network(backbone="efficientnet_b0", drop_path=0.4, size=64)
    whole = efficientnet_b0(stochastic_depth_prob=0.4)
    rates = [[m.p for m in one.modules() if isinstance(m, StochasticDepth)] for one in (ours, whole)]
    assert rates[0] == rates[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({"backbone": name, "drop_path": 0.1}, "has no stochastic depth")
            for name in ("conv4", "resnet18", "mobilenet_v3_small", "timm:densenet121")
        ),
        (
            {"backbone": "timm:dla46_c", "grad_checkpointing": True, "batch_norm": "frozen"},
            "timm:dla46_c does not support it",
        ),
        ({"backbone": "resnet18", "grad_checkpointing": True}, "set model.batch_norm=frozen"),
    ],
    ids=str,
)
def test_what_a_backbone_lacks_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        network(size=64, **changes)


def test_synchronised_batch_norm_needs_processes_with_gpus() -> None:
    model = network(batch_norm="sync")
    with pytest.raises(InputError, match="needs processes with a GPU each"):
        synchronise_batch_norm(model)


def test_architecture_needs_no_weights() -> None:
    """A checkpoint can be opened without the file of pretrained weights."""
    model = network(backbone="resnet18", weights="/gone.safetensors", pretrained=False)
    again = network(backbone="resnet18")
    assert model.state_dict().keys() == again.state_dict().keys()
    with pytest.raises(InputError, match=r"gone\.safetensors: not a readable"):
        network(backbone="resnet18", weights="/gone.safetensors")


def test_same_seed_same_network() -> None:
    for backbone in ("vgg9-bn", VIT):
        states = []
        for _ in range(2):
            torch.manual_seed(7)
            states.append(network(backbone=backbone, pooling="gem").state_dict())
        assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.parametrize(("backbone", "pooling"), [("conv4", "spatial"), ("conv4", "gem"), (VIT, "cls")])
def test_half_precision_is_close(backbone: str, pooling: str) -> None:
    torch.manual_seed(0)
    model = network(backbone=backbone, pooling=pooling).eval()
    with torch.inference_mode():
        exact = nn.functional.normalize(model(images()))
        with torch.autocast("cpu", torch.bfloat16):
            rough = nn.functional.normalize(model(images()).float())
    assert (exact * rough).sum(1).min() > 0.999
