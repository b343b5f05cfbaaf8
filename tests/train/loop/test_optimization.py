"""Optimizers, learning rate schedules and EMA, compared with torch."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from retrieval.images.preprocess import Preprocess
from train import losses
from train.config import ModelConfig, OptimizerConfig, ScheduleConfig
from train.loop.optimization import build_optimizer, rate_factor, update_ema
from train.models.embedding_model import EmbeddingModel

PER_EPOCH = 7


def factors(config: ScheduleConfig, epochs: int) -> list[float]:
    return [rate_factor(config, step, PER_EPOCH, epochs) for step in range(epochs * PER_EPOCH)]


def test_cosine_schedule_equals_torch() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    peer, expected = CosineAnnealingLR(optimizer, 4 * PER_EPOCH), []
    for _ in range(4 * PER_EPOCH):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        peer.step()
    assert factors(ScheduleConfig(name="cosine"), 4) == pytest.approx(expected)


def test_step_schedule_equals_torch() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    peer, expected = MultiStepLR(optimizer, [2, 5], 0.3), []
    for _ in range(6):
        expected += PER_EPOCH * [optimizer.param_groups[0]["lr"]]
        optimizer.step()
        peer.step()
    assert factors(ScheduleConfig(name="step", at=(2, 5), gamma=0.3), 6) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["cosine", "constant", "step"])
def test_warmup_rises_linearly_from_above_zero(name: str) -> None:
    rates = factors(ScheduleConfig(name=name, warmup=1.5, at=(3,)), 4)
    rising = rates[:11]
    assert rising[0] > 0
    assert max(rates) == pytest.approx(1.0, abs=0.01)
    differences = [b - a for a, b in itertools.pairwise(rising)][:9]
    assert differences == pytest.approx([differences[0]] * 9)


def test_every_stage_has_its_learning_rate() -> None:
    model = EmbeddingModel(ModelConfig(backbone="resnet18"), Preprocess(size=32))
    loss = losses.build({"name": "proxy-anchor"}, num_classes=3, embedding_dim=64)
    config = OptimizerConfig(lr=0.1, head_lr=0.5, loss_lr=7.0, layer_decay=0.5, weight_decay=0.01)
    optimizer = build_optimizer(model, loss, config)
    rate_of = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    decay_of = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {rate_of[id(p)] for p in model.head_parameters()} == {0.5}
    assert {rate_of[id(p)] for p in loss.parameters()} == {7.0}
    assert {decay_of[id(p)] for p in loss.parameters()} == {0.0}
    assert {decay_of[id(p)] for p in model.parameters()} == {0.01}
    rates = [{rate_of[id(p)] for p in stage} for stage in model.stages()]
    expected = [{0.1 * 0.5**i} for i in reversed(range(len(rates)))]
    assert [sorted(r) for r in rates] == [pytest.approx(sorted(r)) for r in expected]


def test_frozen_parameters_are_in_no_group() -> None:
    model = EmbeddingModel(ModelConfig(backbone="resnet18", trainable=1), Preprocess(size=32))
    optimizer = build_optimizer(model, nn.Identity(), OptimizerConfig(name="sgd"))
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in [*model.stages()[-1], *model.head_parameters()]}


def test_ema_equals_torch_after_warmup() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    average, peer = copy.deepcopy(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    peer.update_parameters(model)  # the first time it only copies
    for step in range(100, 110):
        model(torch.randn(4, 3))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
        update_ema(average, model, 0.5, step)
        peer.update_parameters(model)
    for ours, theirs in zip(average.parameters(), peer.module.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert average[1].num_batches_tracked == 10
    assert not torch.equal(average[1].running_mean, model[1].running_mean), "statistics are averaged too"


@pytest.mark.parametrize("steps", [1, 3, 12])
def test_ema_drops_the_initial_weights(steps: int) -> None:
    """The product of TensorFlow's decays (1 + t) / (10 + t) is 1 in a binomial coefficient."""
    model, average = nn.Linear(1, 1, bias=False).double(), nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(average.weight, 1.0)
    nn.init.constant_(model.weight, 0.0)
    for step in range(steps):
        update_ema(average, model, 0.999, step)
    assert average.weight.item() == pytest.approx(1 / math.comb(steps + 9, 9))
